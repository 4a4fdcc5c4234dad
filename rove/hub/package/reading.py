"""What a package's files say without being run: arguments of `load_environment`, names of secrets and data sets, which API."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from rove.check.rules import OTHER_API, V1, generation
from rove.config import convert
from rove.errors import PackageError
from rove.hub.package.archives import LOAD
from rove.hub.package.manifest import ROVE, V0, Argument, Needs, one_line
from rove.hub.package.unpacking import Members

SECRET = re.compile(r"[A-Z0-9_]*(KEY|TOKEN|SECRET|PASSWORD)[A-Z0-9_]*")
"""Names of environment variables that are taken for secrets."""
HOPS = 5
"""How many modules an imported `load_environment` is followed through."""


class DeclaredNeeds(Needs, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The table `[tool.rove.needs]`."""


class Declared(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The table `[tool.rove]` of a package's pyproject.toml; what is not there is found out."""

    tags: list[str] | None = None
    """What it is found by; the `keywords` of `[project]` when not given."""
    reward_range: tuple[float, float] | None = None
    """Lowest and highest reward; as the players' rollouts had it when not given."""
    data_sources: list[str] = []
    """Where its data comes from, besides the names given to `load_dataset`."""
    needs: DeclaredNeeds = DeclaredNeeds()
    """What it needs besides what is found in the code and seen while it plays."""
    eval: dict[str, Any] = {}
    """How it asks to be evaluated; see `rove eval`."""


def declared(project: dict[str, Any]) -> Declared:
    """The table `[tool.rove]` of a pyproject.toml that was read.

    Raises:
        ConfigError: a key is unknown, or a value of the wrong type.
    """
    return convert(Declared, project.get("tool", {}).get("rove", {}))


def arguments(members: Members, module: str) -> list[Argument]:
    """The arguments of `load_environment`, as written; none where its source is not in the package."""
    function = _load_environment(members, _file_of(members, module.split(".")), LOAD, HOPS)
    if function is None:
        return []
    plain = [*function.args.posonlyargs, *function.args.args]
    defaults = [None] * (len(plain) - len(function.args.defaults)) + list(function.args.defaults)
    pairs = [*zip(plain, defaults, strict=True), *zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)]
    return [
        Argument(
            name=argument.arg,
            type=_written(argument.annotation) or "",
            default=_written(default),
        )
        for argument, default in pairs
    ]


def compatibility(members: Members) -> str:
    """Which API the package is written for: that of `verifiers` v0 if any of its modules imports it."""
    return V0 if any(name.split(".")[0] == "verifiers" for name in _imported(members)) else ROVE


def check_api(members: Members) -> None:
    """See that rove has the API that the package is written for; one of rove's own may use whatever else it likes.

    Raises:
        PackageError: it is written for verifiers v1.
    """
    names = _imported(members)
    if not any(name.split(".")[0] == "rove" for name in names) and generation([f"module:{one}" for one in names]) == V1:
        raise PackageError(f"this package cannot run: {OTHER_API}")


def _imported(members: Members) -> set[str]:
    """Names of the modules that the package imports, and of what it takes from them."""
    found: set[str] = set()
    for tree in _trees(members):
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def secrets(members: Members) -> list[str]:
    """Names of environment variables with keys that the code asks for: of `os.environ`, `os.getenv`, `api_key_var=`."""
    found: set[str] = set()
    for tree in _trees(members):
        for node in ast.walk(tree):
            if isinstance(node, ast.Subscript) and _name(node.value) == "environ":
                found |= set(_texts([node.slice]))
            elif isinstance(node, ast.Call):
                called = _name(node.func)
                of_environ = isinstance(node.func, ast.Attribute) and _name(node.func.value) == "environ"
                if called == "getenv" or (called in ("get", "pop", "setdefault") and of_environ):
                    found |= set(_texts(node.args[:1]))
                found |= set(_texts(word.value for word in node.keywords if word.arg in ("api_key_var", "key_var")))
    return sorted(name for name in found if SECRET.fullmatch(name))


def data_sources(members: Members) -> list[str]:
    """Names given to `load_dataset`."""
    calls = (node for tree in _trees(members) for node in ast.walk(tree) if isinstance(node, ast.Call))
    return sorted({text for call in calls if _name(call.func) == "load_dataset" for text in _texts(call.args[:1])})


def _load_environment(
    members: Members, file: str, name: str, hops: int
) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    if file not in members or hops == 0:
        return None
    for node in reversed(ast.parse(members[file]).body):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    parts = file.removesuffix(".py").split("/")
                    above = parts[: len(parts) - node.level] if node.level else []
                    target = _file_of(members, [*above, *(node.module or "").split(".")])
                    return _load_environment(members, target, alias.name, hops - 1)
    return None


def _file_of(members: Members, parts: list[str]) -> str:
    path = "/".join(part for part in parts if part)
    return f"{path}.py" if f"{path}.py" in members else f"{path}/__init__.py"


def _trees(members: Members) -> Iterator[ast.Module]:
    for path in sorted(members):
        if path.endswith(".py"):
            try:
                yield ast.parse(members[path])
            except (SyntaxError, ValueError, RecursionError) as error:
                raise PackageError(f"{path} is no Python that can be read: {error}") from None


def _written(node: ast.expr | None) -> str | None:
    return None if node is None else one_line(ast.unparse(node))


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _texts(nodes: Iterable[ast.expr]) -> list[str]:
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
