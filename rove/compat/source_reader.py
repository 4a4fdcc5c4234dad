"""Find the library names and environment variables that Python files use, without running the files."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

import rove.compat.verifiers as compat
from rove.core.plain import UNPARSABLE

LIBRARIES = {"rove.compat.verifiers": "verifiers", "verifiers": "verifiers", "rove": "rove"}
"""Top-level module of an API → name of the API."""
V0 = ("verifiers", "rove.compat.verifiers")
CLIENTS = {"OpenAI": "api_key", "AsyncOpenAI": "api_key", "JudgeRubric": "judge_client"}
"""Class that reads its API key from the environment → keyword argument that provides the key instead."""
OPENAI_KEY = "OPENAI_API_KEY"
KEY_VARS = ("api_key_var", "key_var")
"""Keyword arguments whose value is the name of an environment variable."""
TRACKED_NAMES = {"state", "info", "results", "inputs", "row", "step"}
"""Variables whose accessed keys are recorded."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Reading(msgspec.Struct):
    """The names, variables and modules that a package's files use."""

    names: dict[str, set[str]] = {}
    """API → its names that are used, by path in the API: {"verifiers": {"Rubric", "types.State"}}."""
    features: set[str] = set()
    """Features that `rules` refers to, as "kind:name"."""
    keys: dict[str, bool] = {}
    """Environment variables that are read → whether they have no default."""
    imports: dict[str, bool] = {}
    """Imported top-level modules of other packages → whether the import is required."""
    datasets: set[str] = set()
    """Names of the datasets that are loaded."""
    broken: dict[str, str] = {}
    """Files that cannot be parsed → error."""


def read(texts: Mapping[str, str]) -> Reading:
    """Read the files of a package, given as text by path."""
    reading = Reading(names={"verifiers": set(), "rove": set()})
    own_modules = {path.replace("/", ".").removesuffix(".py").split(".")[0] for path in texts}
    for path, text in texts.items():
        try:
            _File(reading).visit(ast.parse(text))
        except UNPARSABLE as error:
            reading.broken[path] = str(error) or type(error).__name__
    available = own_modules | sys.stdlib_module_names | {"rove", "verifiers"}
    reading.imports = {name: needed for name, needed in reading.imports.items() if name not in available}
    return reading


class _File(ast.NodeVisitor):
    """Visitor of one file."""

    def __init__(self, reading: Reading):
        self.reading = reading
        self.library_names: dict[str, str] = {}
        """Names in the file → the library names to which they refer, such as "verifiers.types.State"."""
        self.environments: set[str] = set()
        """Environment classes defined in the file."""
        self.functions: dict[str, Any] = {}
        self.values: list[dict[str, str]] = [{}]
        """String constants by variable name, one dict per scope."""
        self.classes: list[bool] = []
        """Whether each enclosing class is an environment."""
        self.num_guards = 0
        """Number of enclosing `try` blocks that handle an ImportError; imports in them are optional."""
        self.is_async = [False]
        """Whether each enclosing function is async."""
        self.awaited: set[int] = set()
        """Ids of calls that are awaited or returned directly."""

    def note(self, kind: str, name: str) -> None:
        self.reading.features.add(f"{kind}:{name}")

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._imported(alias.name)
            if _library(alias.name) is not None:
                # `import verifiers.types` binds "verifiers", `import verifiers.types as t` binds the submodule.
                bound = alias.name if alias.asname else alias.name.split(".")[0]
                self.library_names[alias.asname or bound] = bound
                self.note("module", alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level or _library(node.module or "") is None:
            for alias in node.names:
                self.note("imports", alias.asname or alias.name)
        if node.level or not node.module:
            return
        self._imported(node.module)
        if _library(node.module) is not None:
            self.note("module", node.module)
            # A star import binds all names, but the package does not use all of them: only uses are recorded.
            if node.names[0].name == "*" and node.module.startswith(V0):
                self.library_names |= {name: f"{node.module}.{name}" for name in compat.__all__}
                return
            for alias in node.names:
                dotted = f"{node.module}.{alias.name}"
                self.library_names[alias.asname or alias.name] = dotted
                self._used(dotted)

    def _imported(self, module: str) -> None:
        name = module.split(".")[0]
        is_required = self.num_guards == 0
        self.reading.imports[name] = self.reading.imports.get(name, False) or is_required

    def visit_Try(self, node: ast.Try) -> None:
        is_guard = any(_may_be_import_error(handler.type) for handler in node.handlers)
        if is_guard:
            self.num_guards += 1
        for child in node.body:
            self.visit(child)
        if is_guard:
            self.num_guards -= 1
        for child in [*node.handlers, *node.orelse, *node.finalbody]:
            self.visit(child)

    def _dotted(self, node: ast.AST) -> str | None:
        """Return the library name that an expression refers to, or None."""
        if isinstance(node, ast.Name):
            return self.library_names.get(node.id)
        if isinstance(node, ast.Attribute):
            inner = self._dotted(node.value)
            return None if inner is None else f"{inner}.{node.attr}"
        return None

    def _used(self, dotted: str) -> None:
        api, path = _library(dotted) or ("", "")
        if not path:
            return
        parts = path.split(".")
        # The name ends with its first class: `types.State.get` counts as a use of `types.State`.
        length = next((index for index, part in enumerate(parts, 1) if part[:1].isupper()), len(parts))
        self.reading.names[api].add(".".join(parts[:length]))
        if parts[0] == "v1":
            self.note("name", "v1")
        self.note("name", parts[length - 1])

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in self.library_names and isinstance(node.ctx, ast.Load):
            self._used(self.library_names[node.id])

    def visit_Attribute(self, node: ast.Attribute) -> None:
        dotted = self._dotted(node)
        if dotted is not None:
            self._used(dotted)
            return
        self.note("attribute", node.attr)
        if isinstance(node.value, ast.Name):
            if node.value.id in TRACKED_NAMES:
                self.note(node.value.id, node.attr)
            # `_keys` and `visit_Subscript` record the names of the variables that are read from it.
            if (node.value.id, node.attr) == ("os", "environ"):
                return
        self.note("chain", f"{_tail(node.value)}.{node.attr}")
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        methods = [child for child in node.body if isinstance(child, FUNCTIONS)]
        is_env = any(self._is_environment(base) for base in node.bases)
        if is_env:
            self.environments.add(node.name)
            for method in methods:
                self._method_of_environment(method)
        if any(_tail(base).endswith("Rubric") for base in node.bases):
            for method in methods:
                parameters = {argument.arg for argument in method.args.args}
                # Until 0.1.7 scoring methods took the completion; since 0.1.8 they take the state.
                if "completion" in parameters or "completions" in parameters:
                    self.note("scoring", method.name)
        self.classes.append(is_env)
        self.generic_visit(node)
        self.classes.pop()

    def _method_of_environment(self, method: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        # An `is_completed(state)` is no sign of an old package: 0.3.1 accepts it as well.
        if method.name != "is_completed" or takes_messages(_parameters(method)):
            self.note("sync" if isinstance(method, ast.FunctionDef) else "async", method.name)
        if "tool_name" not in {argument.arg for argument in method.args.args}:
            self.note("unnamed", method.name)
        if method.name == "env_response":
            for pair in _returned_pairs(method):
                # README of 0.1.0 returns one message and the state, later releases a list and the state.
                self.note("pair", "one message" if isinstance(pair.elts[0], ast.Dict) else method.name)

    def _is_environment(self, node: ast.AST) -> bool:
        name = _tail(node)
        has_name = name in self.environments or name.endswith(("Env", "Environment"))
        return has_name and not isinstance(node, ast.Call)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def _function(self, node: Any) -> None:
        self.functions[node.name] = node
        is_at_module_level = len(self.is_async) == 1 and not self.classes
        if is_at_module_level:
            self.note("defines", node.name)
        # The defaults belong to the last positional parameters, so both lists are read from the end.
        positional = [*node.args.posonlyargs, *node.args.args][::-1]
        scope: dict[str, str] = {}
        for parameters, defaults in (
            (positional, node.args.defaults[::-1]),
            (node.args.kwonlyargs, node.args.kw_defaults),
        ):
            for parameter, default in zip(parameters, defaults):
                text = _text(default)
                if text is not None:
                    scope[parameter.arg] = text
        self.values.append(scope)
        self.is_async.append(isinstance(node, ast.AsyncFunctionDef))
        self.generic_visit(node)
        self.is_async.pop()
        self.values.pop()

    def visit_Await(self, node: ast.Await) -> None:
        self.awaited.add(id(node.value))
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        self.awaited.add(id(node.value))
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if isinstance(node.ops[0], (ast.In, ast.NotIn)):
            self.note("tested", _text(node.left) or "")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            text = _text(node.value)
            if isinstance(target, ast.Name) and text is not None:
                self.values[-1][target.id] = text
            if isinstance(target, ast.Subscript) and _text(target.slice) == "reward" and _is_step(target.value):
                self.note("assigned", "reward of a step")
        self.generic_visit(node)

    def _text_of(self, node: ast.AST | None) -> str | None:
        """Return a string constant, or the string constant assigned to a name."""
        if isinstance(node, ast.Name):
            return next((scope[node.id] for scope in reversed(self.values) if node.id in scope), None)
        return _text(node)

    def visit_Call(self, node: ast.Call) -> None:
        keywords = {keyword.arg or "**": keyword.value for keyword in node.keywords}
        for keyword, value in keywords.items():
            self._keyword(keyword, value)
        calls_base_class = _is_super(node.func) and any(self.classes)
        if self._is_environment(node.func) or calls_base_class:
            for keyword in keywords:
                self.note("environment", keyword)
        if node.args:
            self._positional(node, self._dotted(node.func) or "")
        # A sync function that returns the call leaves the `await` to its caller, so only other calls are synchronous.
        is_awaited = self.is_async[-1] or id(node) in self.awaited
        if _tail(node.func) == "judge" and not is_awaited:
            self.note("sync", "judge")
        self._keys(node, _tail(node.func), keywords)
        self.generic_visit(node)

    def _keyword(self, keyword: str, value: ast.AST) -> None:
        self.note("keyword", keyword)
        if keyword in ("message_type", "client_type"):
            self.note(keyword, self._text_of(value) or "")
        if keyword in KEY_VARS:
            self._key(self._text_of(value), False)
        if keyword == "sampling_args" and isinstance(value, ast.Dict):
            for key in value.keys:
                self.note("sampling", _text(key) or "")
        if keyword == "funcs" and any(_tail(function) == "partial" for function in _elements(value)):
            self.note("function", "partial")
        if keyword == "tools":
            self._tools(value)

    def _positional(self, node: ast.Call, called: str) -> None:
        first = node.args[0]
        if called.endswith((".SingleTurnEnv", ".MultiTurnEnv")):
            self.note("positional", "environment")
        if called.endswith(".Rubric") and not isinstance(first, (ast.List, ast.Starred)):
            # `Rubric(funcs, weights)` is valid in 0.3.1; functions one by one are 0.1.0's form.
            has_more_functions = len(node.args) > 1 and not isinstance(node.args[1], ast.List)
            is_function = isinstance(first, ast.Name) and first.id in self.functions
            if has_more_functions or is_function:
                self.note("positional", "rubric")
        text = _text(first)
        if isinstance(node.func, ast.Attribute) and text is not None:
            if node.func.attr == "get":
                self.note(_tail(node.func.value), text)
            if node.func.attr == "setdefault":
                self.note("sets", text)

    def _tools(self, value: ast.AST) -> None:
        for tool in _elements(value):
            function = self.functions.get(tool.id) if isinstance(tool, ast.Name) else None
            if function is None:
                continue
            parameters = (*function.args.args, *function.args.kwonlyargs)
            kinds = {_tail(parameter.annotation) for parameter in parameters}
            if function.args.kwarg or not kinds.isdisjoint(("dict", "Dict", "Mapping", "TypedDict")):
                self.note("tool", "dict")

    def visit_BinOp(self, node: ast.BinOp) -> None:
        operand: ast.AST = node
        # Texts of hundreds of lines joined by `+` are nested to the left and would exceed the recursion limit.
        while isinstance(operand, ast.BinOp):
            self.visit(operand.right)
            operand = operand.left
        self.visit(operand)

    def visit_Dict(self, node: ast.Dict) -> None:
        keys = {_text(key) for key in node.keys}
        for key in keys:
            self.note("key", key or "")
            self.note("sets", key or "")
        if "task" in keys and keys & {"question", "prompt"}:
            self.note("column", "task")
        self.generic_visit(node)

    def _keys(self, node: ast.Call, name: str, keywords: Mapping[str, ast.AST]) -> None:
        """Record the environment variables and datasets that a call reads."""
        first = node.args[0] if node.args else None
        is_of_environ = isinstance(node.func, ast.Attribute) and _tail(node.func.value) == "environ"
        reads_with_default = name == "getenv" or (is_of_environ and name in ("get", "pop", "setdefault"))
        if reads_with_default:
            self._key(self._text_of(first), False)
        elif name == "load_dataset":
            dataset = self._text_of(first)
            if dataset:
                self.reading.datasets.add(dataset)
        elif name == "ensure_keys":
            for element in _elements(first):
                self._key(self._text_of(element), True)
        # Without its key argument, the class reads OPENAI_API_KEY; `**options` may contain the argument.
        elif name in CLIENTS and not node.args and keywords.keys().isdisjoint((CLIENTS[name], "**")):
            self._key(OPENAI_KEY, True)

    def _key(self, name: str | None, is_needed: bool) -> None:
        if name:
            self.reading.keys[name] = self.reading.keys.get(name, False) or is_needed

    def visit_Subscript(self, node: ast.Subscript) -> None:
        text = self._text_of(node.slice)
        table = _tail(node.value)
        if table == "environ" and text and isinstance(node.ctx, ast.Load):
            self._key(text, True)
        elif text is not None:
            self.note("key", text)
            self.note(table, text)
            if isinstance(node.ctx, ast.Load):
                self.note("reads", f"{table}.{text}")
            else:
                self.note("sets", text)
        self.generic_visit(node)


def _library(dotted: str) -> tuple[str, str] | None:
    """Return the API to which a dotted path belongs, and the path within the API."""
    for root, name in LIBRARIES.items():
        if dotted == root or dotted.startswith(f"{root}."):
            return name, dotted[len(root) + 1 :]
    return None


def _tail(node: ast.AST | None) -> str:
    """Return the last name of an expression: "get" for `os.environ.get`, "environ" for `os.environ`."""
    if isinstance(node, ast.Subscript):
        return _tail(node.value)
    if isinstance(node, ast.Call):
        return _tail(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _text(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _elements(node: ast.AST | None) -> list[ast.AST]:
    return list(node.elts) if isinstance(node, (ast.List, ast.Tuple, ast.Set)) else []


def _is_step(node: ast.AST) -> bool:
    """Return whether an expression looks like a trajectory step, such as `state["trajectory"][-1]` or `last_step`."""
    return isinstance(node, ast.Subscript) or (isinstance(node, ast.Name) and "step" in node.id)


def _is_super(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "__init__" and _tail(node.value) == "super"


def takes_messages(names: Sequence[str]) -> bool:
    """Return whether an `is_completed` with these parameters after `self` takes (messages, state), as it did until 0.1.7.

    It does if a parameter is called `messages`, or if there are two and the first is not called `state`. `*args` and `**kwargs`
    do not count.
    """
    return "messages" in names or (len(names) > 1 and names[0] != "state")


def _parameters(method: Any) -> list[str]:
    """Return the names of a method's parameters, without `self`, `*args` and `**kwargs`."""
    return [argument.arg for argument in (*method.args.args[1:], *method.args.kwonlyargs)]


def _may_be_import_error(kind: ast.AST | None) -> bool:
    classes = _elements(kind) or [kind]
    names = {_tail(class_) for class_ in classes}
    return not names.isdisjoint({"", "ImportError", "ModuleNotFoundError", "Exception"})


def _returned_pairs(function: ast.AST) -> Iterator[ast.Tuple]:
    """Yield the (messages, state) tuples that a function returns, excluding nested functions."""
    for child in ast.iter_child_nodes(function):
        if isinstance(child, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
            continue
        value = child.value if isinstance(child, ast.Return) else None
        if isinstance(value, ast.Tuple) and len(value.elts) == 2:
            _, second = value.elts
            if "state" in _tail(second):
                yield value
        yield from _returned_pairs(child)
