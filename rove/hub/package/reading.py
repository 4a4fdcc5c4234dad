"""What a package's files say without being run: arguments of `load_environment`, names of secrets and data sets, which API."""

from __future__ import annotations

import ast
import re
from typing import Any

import msgspec

from rove.check.rules import OTHER_API, V1, generation
from rove.check.source_reader import Reading, read
from rove.core.config import convert
from rove.core.errors import PackageError
from rove.hub.package.contents import LOAD
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


def read_code(members: Members) -> Reading:
    """What the package's modules say; see `rove.check.source_reader`.

    Raises:
        PackageError: one of them is no Python.
    """
    code = read({path: members[path].decode("utf-8", "replace") for path in sorted(members) if path.endswith(".py")})
    for path, error in code.broken.items():
        raise PackageError(f"{path} is no Python that can be read: {error}")
    return code


def compatibility(code: Reading) -> str:
    """Which API the package is written for: that of `verifiers` v0 if any of its modules imports it."""
    return V0 if any(feature.split(".")[0] == "module:verifiers" for feature in code.features) else ROVE


def check_api(code: Reading) -> None:
    """See that rove has the API that the package is written for; one of rove's own may use whatever else it likes.

    Raises:
        PackageError: it is written for verifiers v1.
    """
    is_rove_s = any(feature.split(".")[0] == "module:rove" for feature in code.features)
    if not is_rove_s and generation(code.features) == V1:
        raise PackageError(f"this package cannot run: {OTHER_API}")


def secrets(code: Reading) -> list[str]:
    """Names of environment variables that it asks for, and that are called like keys."""
    return sorted(name for name in code.keys if SECRET.fullmatch(name))


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


def _written(node: ast.expr | None) -> str | None:
    return None if node is None else one_line(ast.unparse(node))
