"""Rules of the source code for systems other than Linux, which Linux itself does not check."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from windows_like import MISSING, MODULES

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("rove", "environments", "examples")
SYSTEMS = "rove/utils/systems.py"
LINUX_ONLY = (
    "rove/sandbox/",
    "rove/vllm/supervisor.py",
    "rove/workers/fork_server.py",
    "rove/workers/fork_server_main.py",
    "rove/engine/grammar_worker.py",
)
"""The local sandbox and the fork server, which exist only on some systems, and programs that cannot import `systems`."""


Nodes = Sequence[ast.AST]


class Violation(NamedTuple):
    line: int
    text: str


def calls(nodes: Nodes) -> Iterator[tuple[ast.Call, str, str]]:
    """Yield each call of a function with the object (or module) that it belongs to and its name."""
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
            yield node, owner, node.func.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node, "", node.func.id


def missing_names(nodes: Nodes) -> Iterator[Violation]:
    """Modules and names that Windows lacks."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name in MODULES:
                    yield Violation(node.lineno, f"import {name.name}")
        elif isinstance(node, ast.ImportFrom) and node.module in {*MODULES, *MISSING}:
            for name in node.names:
                if node.module in MODULES or name.name in MISSING[node.module]:
                    yield Violation(node.lineno, f"from {node.module} import {name.name}")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = node.value.id
            if node.attr in MISSING.get(module, ()):
                yield Violation(node.lineno, f"{module}.{node.attr}")


def is_text_mode(call: ast.Call, position: int) -> bool:
    """Return whether a call opens a file as text; False if the mode is not written as a text."""
    modes = [keyword.value for keyword in call.keywords if keyword.arg == "mode"] + call.args[position : position + 1]
    if not modes:
        return True
    return isinstance(modes[0], ast.Constant) and isinstance(modes[0].value, str) and "b" not in modes[0].value


def writes_text(call: ast.Call, position: int) -> bool:
    """Return whether a call opens a file in order to write text."""
    modes = [keyword.value for keyword in call.keywords if keyword.arg == "mode"] + call.args[position : position + 1]
    mode = modes[0].value if modes and isinstance(modes[0], ast.Constant) else ""
    return isinstance(mode, str) and "b" not in mode and not {"w", "a", "x"}.isdisjoint(mode)


OPENERS = {("", "open"): 1, ("io", "open"): 1, ("os", "fdopen"): 1}
"""Function → position of the mode. The files of /proc and of archives have no place here."""


def locale_texts(nodes: Nodes) -> Iterator[Violation]:
    """Text files in the encoding of the system, which is cp1252 on Windows."""
    for call, owner, name in calls(nodes):
        keywords = {keyword.arg for keyword in call.keywords}
        is_method = isinstance(call.func, ast.Attribute)
        takes_mode = (owner, name) in OPENERS and (owner or not is_method)
        opens = takes_mode and is_text_mode(call, OPENERS[owner, name]) and "opener" not in keywords
        reads = is_method and name == "read_text" and not call.args
        writes = is_method and name == "write_text" and len(call.args) < 2 and owner != "formatter"  # a method of click
        # Path.open(); the method `open` of other objects takes no mode and no encoding.
        opens_path = is_method and name == "open" and call.args and is_text_mode(call, 0) and is_mode(call.args[0])
        is_process = bool(keywords & {"text", "universal_newlines"}) and name in ("run", "Popen", "check_output")
        if (opens or reads or writes or opens_path or is_process) and "encoding" not in keywords:
            yield Violation(call.lineno, ast.unparse(call)[:80])


def is_mode(node: ast.expr) -> bool:
    """Return whether an argument is the mode of a file."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and set(node.value) <= set("rwaxbt+")


def translated_newlines(nodes: Nodes) -> Iterator[Violation]:
    """Written text files whose lines would end with \\r\\n on Windows, so that their digests and sizes differ."""
    for call, owner, name in calls(nodes):
        keywords = {keyword.arg for keyword in call.keywords}
        is_method = isinstance(call.func, ast.Attribute)
        writes = is_method and name == "write_text" and owner != "formatter"  # a method of click
        opens = (owner, name) in OPENERS and writes_text(call, 1)
        opens_path = is_method and name == "open" and bool(call.args) and is_mode(call.args[0]) and writes_text(call, 0)
        if (writes or opens or opens_path) and "newline" not in keywords:
            yield Violation(call.lineno, ast.unparse(call)[:80])


def renames(nodes: Nodes) -> Iterator[Violation]:
    """Renamed files: Windows refuses while a reader has the file open, and `systems.rename` tries again."""
    for call, owner, name in calls(nodes):
        is_method = isinstance(call.func, ast.Attribute)
        of_os = owner == "os" and name in ("rename", "renames", "replace")
        of_path = is_method and owner != "os" and name in ("rename", "replace") and len(call.args) == 1
        if of_os or (of_path and not call.keywords):
            yield Violation(call.lineno, ast.unparse(call)[:80])


def links(nodes: Nodes) -> Iterator[Violation]:
    """Symbolic links, which need a permission on Windows; `systems.link_or_copy` does not."""
    for call, owner, name in calls(nodes):
        if name == "symlink_to" or (owner == "os" and name == "symlink"):
            yield Violation(call.lineno, ast.unparse(call)[:80])


Rule = Callable[[Nodes], Iterable[Violation]]
RULES: dict[Rule, str] = {
    missing_names: 'import pwd\nfrom os import fork\nimport os\nos.uname()\nos.getpid()\nhasattr(os, "fork")',
    locale_texts: 'open("a")\nPath("a").open("w")\np.read_text()\nsubprocess.run([], text=True)\nopen("a", "rb")\nzip.open(a)',
    translated_newlines: 'p.write_text("a", encoding="utf-8")\np.open("a")\nopen("a", "w")\nopen("b", "x")\nopen("a")\np.open()',
    renames: "os.replace(a, b)\np.replace(b)\np.rename(b)\nos.rename(a, b)\ntext.replace(a, b)\nreplace(a, b=1)",
    links: "os.symlink(a, b)\na.symlink_to(b)\nos.symlink(a, b)\na.symlink_to(b)\nos.readlink(a)\na.is_symlink()",
}
"""Rule → lines of which the first four violate it, and the others do not."""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_rule_finds_what_it_forbids(rule: Rule) -> None:
    lines = [violation.line for violation in rule(list(ast.walk(ast.parse(RULES[rule]))))]
    assert sorted(lines) == ([1, 2, 4] if rule is missing_names else [1, 2, 3, 4])


def test_the_source_follows_the_rules() -> None:
    violations = []
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            name = file.relative_to(ROOT).as_posix()
            if name == SYSTEMS or name.startswith(LINUX_ONLY):
                continue
            nodes = list(ast.walk(ast.parse(file.read_bytes())))
            for rule in RULES:
                violations += [f"{name}:{line}: {rule.__name__}: {text}" for line, text in rule(nodes)]
    assert not violations
