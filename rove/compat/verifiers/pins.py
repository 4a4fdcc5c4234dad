"""The version of the library that a package is written for: the newest one that its requirement allows."""

from __future__ import annotations

import importlib.metadata
import sys
import tomllib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from types import FrameType

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from rove.compat.alias import NAME, PROVIDED_VERSIONS

RELEASES = tuple(map(Version, PROVIDED_VERSIONS[NAME][1:]))
"""Releases of the library with the API that rove answers for, oldest first."""
NEWEST = RELEASES[-1]
_OWN = ("rove", NAME)
"""Top-level modules that are not the package's."""


def written_for() -> Version:
    """The newest release that the requirement of the calling package allows; the newest of all without a requirement.

    The calling package is the first module on the call stack outside rove and the standard library. Its requirement is that
    of the installed distribution of the same name, else that of a `pyproject.toml` in the folder of the module or its parent.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", "")).split(".")[0]
        if name not in _OWN and name not in sys.stdlib_module_names:
            file = frame.f_globals.get("__file__")
            return _pinned(name, str(file) if file else "")
        frame = frame.f_back
    return NEWEST


@lru_cache(maxsize=256)
def _pinned(module: str, file: str) -> Version:
    return newest_allowed(_of_distribution(module) or project_requirements(Path(file))) if file else NEWEST


def newest_allowed(requirements: Iterable[str]) -> Version:
    """The newest release that all requirements on the library allow; the newest of all where they allow none."""
    allowed = RELEASES
    for line in requirements:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.name.lower() == NAME:
            allowed = tuple(one for one in allowed if requirement.specifier.contains(one, prereleases=True))
    return allowed[-1] if allowed else NEWEST


def _of_distribution(module: str) -> list[str]:
    try:
        return importlib.metadata.requires(module) or []
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return []


def project_requirements(file: Path) -> list[str]:
    """The requirements in the `pyproject.toml` of a module's folder or its parent folder; none without one."""
    for folder in (file.parent, file.parent.parent):
        try:
            with (folder / "pyproject.toml").open("rb") as project:
                found = tomllib.load(project).get("project", {}).get("dependencies", [])
        except (OSError, ValueError):
            continue
        return [line for line in found if isinstance(line, str)]
    return []
