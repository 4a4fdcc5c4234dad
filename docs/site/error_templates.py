"""Every error message of rove as a template, read from the source with `ast`.

A message is found at each call of an error class (`rove.core.errors.Error` and its subclasses). Values that are put into the
message appear as {name}.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "rove"
BASE = "Error"
STATUS_FIRST = {"RejectedError"}
"""Classes whose first argument is an HTTP status and whose second one is the message."""

FIXES = {
    "AgentError": "Read the traceback of the rollout (`rove view`) and fix the agent.",
    "ConfigError": "Change the setting, flag, or file that the message names. `rove COMMAND --help-all` lists all settings.",
    "EmptyModelResponseError": "Read the server's log: the server, and not the model, ended the answer.",
    "Error": "Read the message: it names the part that failed.",
    "HubError": "Check the hub's address, your token (`rove hub login`), and the package's name. The message quotes the hub.",
    "Inconclusive": "Nothing is wrong: the report of `rove audit` lists the check with the reason why it proves nothing.",
    "InfraError": "Repeat the command; finished rollouts are kept. To check the endpoint, run `rove doctor -m MODEL -b URL`.",
    "InvalidModelResponseError": "Run `rove doctor -m MODEL -b URL`, which shows what the endpoint returns.",
    "LimitReachedError": "None: the rollout ends with this stop condition and is scored. If the limit is too low, raise it.",
    "MCPServerError": "Run the server's command yourself and read what it prints.",
    "SettingError": "Give a value of the type and in the range that the message states; `--help-all` lists them.",
    "MissingKeyError": "Set the environment variable, or name a different one with `-k`.",
    "ModelError": "Read the attempts in the rollout's record. To check the endpoint, run `rove doctor -m MODEL -b URL`.",
    "NotFoundError": "Check the name and the version. `rove search` lists the environments on a hub.",
    "OutOfTime": "Give the audit more time with `--seconds`.",
    "OverlongPromptError": "Shorten the prompts, lower `--max-tokens`, or use a model with a longer context.",
    "PackageError": "Change the package as the message says, and run `rove build` again.",
    "ReadOnly": "Start `rove view` with `--annotate`.",
    "RefusedError": "Change the request as the message says.",
    "RejectedError": "Change the request as the message says. [serving.md](../serving.md) lists the fields of a request.",
    "ReplayError": "Make the environment deterministic for a given seed (`rove audit` checks this), or run it again.",
    "RolloutsFail": "Fix the error that the finding names; `rove eval ENV -m scripted:NAME -n 1` shows its traceback.",
    "RunError": "Check the path of the run folder. `--overwrite` discards a run and starts again.",
    "SandboxError": "Run `rove doctor`, and see [sandbox.md](../sandbox.md) for what each backend needs.",
    "SandboxFileError": "Check the path: it must be inside the sandbox's folder and not too large.",
    "StructuredOutputError": "Simplify the schema or grammar that the request sends.",
    "TooManyErrorsError": "Read the first errors with `rove view`, fix their cause, and repeat the command.",
    "ToolCallError": "Fix the tool. The rollout's traceback shows the tool's exception.",
    "ToolParseError": "The model's call does not match the tool. Make the descriptions of the tool and its arguments clearer.",
    "TrainingError": "Start a new run with a lower learning rate; it can start from a checkpoint (`-m RUN/checkpoints/STEP`).",
    "TrustError": "Do not install the package. Ask its owner to publish it again, or update the lock file.",
    "WorkerError": "Read the worker's last lines in the message. In most cases, the worker ran out of memory or time.",
}
"""Class → what to do, for messages that do not contain it."""


class ErrorClass(NamedTuple):
    """An error class: its name, the first line of its docstring and the module that defines it."""

    name: str
    meaning: str
    module: str


class Template(NamedTuple):
    """A message with placeholders, its error class and the module that raises it."""

    text: str
    error: str
    module: str
    line: int


@functools.cache  # parsing all modules takes two seconds
def _modules() -> list[tuple[str, ast.Module]]:
    modules: list[tuple[str, ast.Module]] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(ROOT)
        if "templates" not in relative.parts:
            name = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
            modules.append((name, ast.parse(path.read_text(encoding="utf-8"))))
    return modules


def _last_name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


@functools.cache  # reading all modules takes seconds
def error_classes() -> dict[str, ErrorClass]:
    """Return `rove.Error` and all its subclasses by name."""
    classes = [
        (module, node) for module, tree in _modules() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    ]
    by_name: dict[str, ErrorClass] = {}
    grown = True
    while grown:
        grown = False
        for module, node in classes:
            root = node.name == BASE and module == "rove.core.errors"
            if node.name not in by_name and (root or any(_last_name(base) in by_name for base in node.bases)):
                first_line = (ast.get_docstring(node) or "").split("\n\n")[0].replace("\n", " ")
                by_name[node.name] = ErrorClass(node.name, first_line, module)
                grown = True
    return by_name


def _assignments(scope: ast.AST) -> dict[str, ast.expr]:
    """Return the last value that each name gets in a function or module, without numbers that `+=` changes."""
    assigned: dict[str, ast.expr] = {}
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            assigned[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            assigned[node.target.id] = node.value
    for node in ast.walk(scope):
        if isinstance(node, ast.AugAssign):
            start = assigned.get(_last_name(node.target))
            if isinstance(start, ast.Constant) and not isinstance(start.value, str):
                del assigned[_last_name(node.target)]
    return assigned


def placeholder(node: ast.expr) -> str:
    """Return the placeholder of a value: {name}."""
    if isinstance(node, ast.Call) and _last_name(node.func) == "nearest":
        return "{did you mean …?}"
    names = [_last_name(part) for part in ast.walk(node) if isinstance(part, (ast.Name, ast.Attribute))]
    inner = node.args[0] if isinstance(node, ast.Call) and node.args else node
    return (
        "{"
        + (_last_name(inner) or next((name for name in reversed(names) if name not in ("self", "str", "repr")), "…"))
        + "}"
    )


def template(node: ast.expr, assigned: dict[str, ast.expr], depth: int = 0) -> str:
    """Return a message's expression as text with placeholders."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part, assigned, depth) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        value = node.value
        plain = isinstance(value, ast.Name) and isinstance(assigned.get(value.id), ast.Constant)
        return str(assigned[value.id].value) if plain else placeholder(value)  # type: ignore[union-attr,attr-defined]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left, assigned, depth) + template(node.right, assigned, depth)
    if isinstance(node, ast.IfExp):
        if_true, if_false = template(node.body, assigned, depth), template(node.orelse, assigned, depth)
        return " | ".join(text for text in (if_true, if_false) if text)
    if isinstance(node, ast.Name) and node.id in assigned and depth < 3:
        return template(assigned[node.id], assigned, depth + 1)
    return placeholder(node)


def _message(call: ast.Call, error: str) -> ast.expr | None:
    position = 1 if error in STATUS_FIRST else 0
    if len(call.args) > position and not isinstance(call.args[position], ast.Starred):
        return call.args[position]
    return next((keyword.value for keyword in call.keywords if keyword.arg == "message"), None)


def _calls(
    scope: ast.AST, assigned: dict[str, ast.expr], names: Sequence[str]
) -> Iterator[tuple[ast.Call, dict[str, ast.expr]]]:
    """Yield each call of an error class with the values of the names around it."""
    for node in ast.iter_child_nodes(scope):
        inner = assigned | _assignments(node) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else assigned
        if isinstance(node, ast.Call) and _last_name(node.func) in names:
            yield node, inner
        yield from _calls(node, inner, names)


@functools.cache
def raise_sites() -> tuple[Template, ...]:
    """Return the template of every call of an error class that has a message."""
    sites = []
    names = list(error_classes())
    for module, tree in _modules():
        constants = {name: value for name, value in _assignments(tree).items() if name.isupper()}
        for call, assigned in _calls(tree, constants, names):
            error = _last_name(call.func)
            message = _message(call, error)
            if message is not None:
                text = " ".join(template(message, assigned).split())
                sites.append(Template(text, error, module, call.lineno))
    return tuple(sites)


def passes_on(text: str) -> bool:
    """Return whether a template has no constant text: the message comes from elsewhere."""
    while "{" in text and "}" in text:
        start = text.index("{")
        end = text.find("}", start)
        if end < 0:
            break
        text = text[:start] + text[end + 1 :]
    return not any(letter.isalpha() for letter in text)


def templates() -> list[Template]:
    """Return all templates with text of their own, once each per error class."""
    unique: dict[tuple[str, str], Template] = {}
    for template in raise_sites():
        if not passes_on(template.text):
            unique.setdefault((template.error, template.text), template)
    return sorted(unique.values(), key=lambda template: (template.error, template.module, template.text))


BEGINNING = """# Errors by text

This page helps you find the cause of an error message and what to do about it. Search this page, or the site, for words from the
message. Values that a message contains appear here as {name}. Most messages state what was given, what was expected, and how to
fix it. If a message does not contain a fix, see the first lines of its section.

All error classes derive from `rove.Error`. `rollouts.jsonl` stores the error and traceback of a failed rollout, and `rove view`
shows them.
"""


def errors_page() -> str:
    """Return the page in Markdown: a section per error class, a list of templates per package."""
    classes, lines, part = error_classes(), [BEGINNING], ("", "")
    for template in templates():
        package = ".".join(template.module.split(".")[:2])
        if part[0] != template.error:
            lines.append(
                f"\n## {template.error}\n\n**Cause:** {classes[template.error].meaning}\n\n**Fix:** {FIXES[template.error]}\n"
            )
        if part != (template.error, package):
            lines.append(f"\n**`{package}`**\n")
        part = (template.error, package)
        lines.append(f"- {code(template.text)}")
    return "\n".join(lines) + "\n"


def code(text: str) -> str:
    """Return text, which may contain backticks, as inline code in Markdown."""
    fence = "`" * (1 + max((len(run) for run in "".join(c if c == "`" else " " for c in text).split()), default=0))
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{text}{pad}{fence}"
