"""Which release of v0 to behave like: the one that the calling package is written for, as published or with fixes."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import tomllib
import warnings
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from rove.compat.alias import NAME, PROVIDED_VERSIONS
from rove.core.errors import ConfigError

VARIABLE = "ROVE_COMPAT"


def fixed() -> bool:
    """Return whether `ROVE_COMPAT=fixed` is set, which enables the fixes that `docs/compat.md` lists.

    Raises:
        ConfigError: the variable has another value than "fixed", "v0" or "".
    """
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "v0", "fixed"):
        raise ConfigError(
            f"{VARIABLE} is {value!r}; expected 'fixed' (the fixes of docs/compat.md), or 'v0' or nothing"
        )
    return value == "fixed"


def set_legacy_attributes(owner: object, keywords: Mapping[str, Any]) -> None:
    """Set keywords of older releases as attributes, each with a warning.

    Raises:
        TypeError: there is one, with ROVE_COMPAT=fixed.
    """
    if keywords and fixed():
        raise TypeError(f"{type(owner).__name__} has no argument {', '.join(keywords)}")
    for name, value in keywords.items():
        outdated(f"{type(owner).__name__}({name}=…)", "set the attribute instead")
        setattr(owner, name, value)


def outdated(what: str, instead: str) -> None:
    """Warn of a name or form from before 0.1.11 that still works."""
    warnings.warn(f"{what} is from an older verifiers; {instead}", FutureWarning, stacklevel=3)


RELEASES = tuple(map(Version, PROVIDED_VERSIONS[NAME][1:]))
"""Releases whose API rove provides, oldest first."""
NEWEST = RELEASES[-1]
_IGNORED_MODULES = ("rove", NAME)
"""Top-level modules on the call stack that do not belong to the calling package."""


def written_for() -> Version:
    """Return the newest release that the requirement of the calling package allows; without a requirement the newest of all.

    The calling package is the first module on the call stack outside rove and the standard library. Its requirement is that
    of the installed distribution of the same name, else that of a `pyproject.toml` in the folder of the module or its parent.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", "")).split(".")[0]
        if name not in _IGNORED_MODULES and name not in sys.stdlib_module_names:
            file = frame.f_globals.get("__file__")
            return _newest_allowed_for(name, str(file) if file else "")
        frame = frame.f_back
    return NEWEST


@lru_cache(maxsize=256)
def _newest_allowed_for(module: str, file: str) -> Version:
    return newest_allowed(_distribution_requirements(module) or project_requirements(Path(file))) if file else NEWEST


def newest_allowed(requirements: Iterable[str]) -> Version:
    """Return the newest release that all requirements allow; the newest of all if they allow none."""
    allowed = RELEASES
    for line in requirements:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.name.lower() == NAME:
            allowed = tuple(one for one in allowed if requirement.specifier.contains(one, prereleases=True))
    return allowed[-1] if allowed else NEWEST


def _distribution_requirements(module: str) -> list[str]:
    try:
        return importlib.metadata.requires(module) or []
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return []


def project_requirements(file: Path) -> list[str]:
    """Return the requirements in the `pyproject.toml` of a module's folder or its parent folder; none without one."""
    for folder in (file.parent, file.parent.parent):
        try:
            with (folder / "pyproject.toml").open("rb") as project:
                dependencies = tomllib.load(project).get("project", {}).get("dependencies", [])
        except (OSError, ValueError):
            continue
        return [line for line in dependencies if isinstance(line, str)]
    return []
