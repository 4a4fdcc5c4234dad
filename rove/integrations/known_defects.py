"""Warnings about known defects of other libraries' tasks.

`known_defects.json` is written by `benchmarks/audit/survey.py`, which audits the tasks; docs/audit_report.md has the evidence.
"""

from __future__ import annotations

import functools
import warnings
from pathlib import Path

import msgspec

TABLE = Path(__file__).with_suffix(".json")
SEED_OVERLAP = (
    "reasoning-gym seeds task i with seed + i: datasets whose seeds differ by less than their size share tasks. Choose seeds "
    "that are further apart, or use rove.ReasoningGymEnv, which does"
)


class KnownDefects(msgspec.Struct, frozen=True):
    """Known defects of a library's tasks."""

    version: str
    """Version of the library that was audited."""
    defects: dict[str, list[str]]
    """Name of the task → its defects, each as a clause."""


@functools.cache
def known_defects() -> dict[str, KnownDefects]:
    """Return library → its known defects."""
    return msgspec.json.decode(TABLE.read_bytes(), type=dict[str, KnownDefects])


@functools.cache
def warn_of_known_defects(library: str, name: str) -> None:
    """Warn, once per process, of the known defects of a library's task.

    Args:
        library: "reasoning-gym" or "textarena".
        name: Name of the task.
    """
    known = known_defects().get(library)
    if known is not None and (found := known.defects.get(name)):
        text = f"{library}: '{name}' has known defects (version {known.version}): {'; '.join(found)}. See docs/audit_report.md"
        warnings.warn(text, stacklevel=3)


@functools.cache
def warn_of_seed_overlap() -> None:
    """Warn, once per process, that neighboring seeds of reasoning-gym share tasks."""
    warnings.warn(SEED_OVERLAP, stacklevel=3)
