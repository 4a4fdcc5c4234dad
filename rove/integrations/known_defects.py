"""Warnings about known defects of other libraries' tasks.

`known_defects.json` is written by `benchmarks/audit/survey.py`, which audits the tasks; the evidence is in
benchmarks/reports/audit_report.md.
`REPORTED` lists defects that an audit cannot detect, because the reference answers themselves are wrong.
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


REPORTED: dict[str, dict[str, str]] = {
    "reasoning-gym": {
        "syllogism": (
            "about one gold answer in ten is wrong: 'All A are B; some B are C; so some A are C' and 'All A are B; some B are "
            "not C; so some A are not C' are marked as valid, which they are not (open-thought/reasoning-gym#536)"
        ),
    },
    "textarena": {
        "Bandit-v0": (
            "the last choice is compared with the table of all buttons instead of the best button, so that it is never right, "
            "and the regret of the choice is its reward, so that worse buttons earn more"
        ),
    },
}
"""Library → name of the task, or of the game without the suffix of a version → a public report of a defect, as a clause.

The syllogisms were checked with every model of three classes (version 0.1.25: 48 of 400 rows), Bandit by reading its code
(version 0.7.4)."""


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
    """Warn, once per process, of the known defects of a library's task, audited or reported."""
    audited = known_defects().get(library)
    defects = audited.defects.get(name, []) if audited is not None else []
    if audited is not None and defects:
        clauses = "; ".join(defects)
        report = "benchmarks/reports/audit_report.md"
        text = f"{library}: '{name}' has known defects (version {audited.version}): {clauses}. See {report}"
        warnings.warn(text, stacklevel=3)
    for task, report in REPORTED.get(library, {}).items():
        # Variants of a game have its name as a prefix, such as Bandit-v0-raw.
        if name == task or name.startswith(f"{task}-"):
            warnings.warn(f"{library}: '{name}' has a known defect: {report}. Use another task", stacklevel=3)


@functools.cache
def warn_of_seed_overlap() -> None:
    """Warn, once per process, that neighboring seeds of reasoning-gym share tasks."""
    warnings.warn(SEED_OVERLAP, stacklevel=3)
