"""Read facts about a package from its source: arguments of `load_environment`, secrets, datasets and the API in use."""

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
"""Names of environment variables that are treated as secrets."""
MAX_IMPORT_HOPS = 5
"""Maximum number of imports followed to find `load_environment`."""


class DeclaredNeeds(Needs, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The table `[tool.rove.needs]`."""


class Declared(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The table `[tool.rove]` of a package's pyproject.toml; missing values are derived."""

    tags: list[str] | None = None
    """Search tags (default: the `keywords` of `[project]`)."""
    reward_range: tuple[float, float] | None = None
    """Lowest and highest reward (default: as observed in the scripted policies' rollouts)."""
    data_sources: list[str] = []
    """Data sources, in addition to the names passed to `load_dataset`."""
    needs: DeclaredNeeds = DeclaredNeeds()
    """Requirements, in addition to those found in the code and in rollouts."""
    eval: dict[str, Any] = {}
    """Recommended evaluation settings; see `rove eval`."""


def declared(project: dict[str, Any]) -> Declared:
    """Return the table `[tool.rove]` of a parsed pyproject.toml.

    Raises:
        ConfigError: A key is unknown, or a value has the wrong type.
    """
    return convert(Declared, project.get("tool", {}).get("rove", {}))


def arguments(members: Members, module: str) -> list[Argument]:
    """Return the arguments of `load_environment` as written; [] if its source is not in the package."""
    function = _load_environment(members, _file_of(members, module.split(".")), LOAD, MAX_IMPORT_HOPS)
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
    """Read the package's modules; see `rove.check.source_reader`.

    Raises:
        PackageError: A module cannot be parsed.
    """
    code = read({path: members[path].decode("utf-8", "replace") for path in sorted(members) if path.endswith(".py")})
    for path, error in code.broken.items():
        raise PackageError(f"{path} cannot be parsed as Python: {error}")
    return code


def compatibility(code: Reading) -> str:
    """Return the API that the package is written for: `verifiers` v0 if any module imports it."""
    return V0 if any(feature.split(".")[0] == "module:verifiers" for feature in code.features) else ROVE


def check_api(code: Reading) -> None:
    """Check that rove provides the API that the package is written for.

    Raises:
        PackageError: It is written for verifiers v1.
    """
    uses_rove = any(feature.split(".")[0] == "module:rove" for feature in code.features)
    if not uses_rove and generation(code.features) == V1:
        raise PackageError(f"this package cannot run: {OTHER_API}")


def secrets(code: Reading) -> list[str]:
    """Return the environment variables in the code whose names suggest a secret."""
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
