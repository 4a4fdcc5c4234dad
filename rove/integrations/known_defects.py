"""Warnings about known defects of other libraries' tasks; `known_defects.toml` lists them with their sources."""

from __future__ import annotations

import functools
import importlib.metadata
import warnings
from pathlib import Path

import msgspec
from packaging.version import Version

TABLE = Path(__file__).with_suffix(".toml")
SEED_OVERLAP = (
    "reasoning-gym seeds task i with seed + i: datasets whose seeds differ by less than their size share tasks. Choose seeds "
    "that are further apart, or use rove.ReasoningGymEnv, which does"
)


class KnownDefectWarning(UserWarning):
    """A task of another library has a known defect."""


class KnownDefect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A known defect of a library's task."""

    library: str
    """Name of the library's distribution."""
    task: str
    """Name of the task, or of the game without the suffix of a variant."""
    version: str
    """Version of the library in which the defect was confirmed."""
    source: str
    """A public report, or the function that has the defect."""
    text: str
    """The defect, as a clause."""
    fixed_in: str = ""
    """First version without the defect; "" if there is none."""

    def affects(self, library: str, name: str, version: str | None) -> bool:
        """Return whether a task has the defect in a version of the library; None is an unknown version."""
        # Variants of a game have its name as a prefix, such as Bandit-v0-raw.
        is_task = library == self.library and (name == self.task or name.startswith(f"{self.task}-"))
        is_fixed = bool(self.fixed_in) and version is not None and Version(version) >= Version(self.fixed_in)
        return is_task and not is_fixed


@functools.cache
def known_defects() -> list[KnownDefect]:
    """Return all known defects."""
    return msgspec.toml.decode(TABLE.read_bytes(), type=dict[str, list[KnownDefect]])["defect"]


def installed_version(library: str) -> str | None:
    """Return the version of a library; None if it is not installed here, but in the interpreter of its workers."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def warn_of_known_defects(library: str, name: str) -> None:
    """Warn, once per process, of the known defects of a library's task in the installed version."""
    version = installed_version(library)
    for defect in known_defects():
        if defect.affects(library, name, version):
            warnings.warn(
                f"{library}: '{name}' has a known defect (confirmed in version {defect.version}): {defect.text} "
                f"({defect.source}). Use another task",
                KnownDefectWarning,
                stacklevel=3,
            )


@functools.cache
def warn_of_seed_overlap() -> None:
    """Warn, once per process, that neighboring seeds of reasoning-gym share tasks."""
    warnings.warn(SEED_OVERLAP, stacklevel=3)
