"""Findings, which report problems: their type, the registry of their ids, and functions that write them as lines or as JSON.

The auditor, the doctor, alerts and diagnoses of training, the check of packages and warnings of commands all return
findings. `docs/findings.md` has a section per id.
"""

from __future__ import annotations

from enum import Enum
from functools import cache, total_ordering
from importlib import resources
from typing import cast

import msgspec

from rove.core.errors import sentence


@total_ordering
class Severity(Enum):
    """The severity of a finding, from the lowest to the highest."""

    OK = "ok"
    """The check passed."""
    SKIPPED = "skipped"
    """The check was not done, or does not apply."""
    INFO = "info"
    """A property that helps to explain figures."""
    LOW = "low"
    """A problem that may mislead people who read results, or waste time."""
    MEDIUM = "medium"
    """A problem that distorts rewards or results, or makes training worse."""
    HIGH = "high"
    """A problem such as rewards without doing the task, wrong grading, damage, or certain failure."""

    def __lt__(self, other: Severity) -> bool:
        order = list(Severity)
        return order.index(self) < order.index(other)


OK, SKIPPED, INFO, LOW, MEDIUM, HIGH = Severity


class FindingInfo(msgspec.Struct, frozen=True):
    """The facts shared by all findings with the same id; see `findings.toml`."""

    title: str
    """The problem, in general terms."""
    severity: Severity
    """Severity of findings that do not state their own severity."""
    cause: str
    """The usual cause."""
    remedy: str
    """The usual remedy."""


@cache
def findings_by_area() -> dict[str, dict[str, FindingInfo]]:
    """Return the registry: area, such as "audit", → id → `FindingInfo`, in the order of docs/findings.md."""
    content = (resources.files("rove.core") / "findings.toml").read_bytes()
    return msgspec.toml.decode(content, type=dict[str, dict[str, FindingInfo]])


@cache
def registry() -> dict[str, FindingInfo]:
    """Return the findings of all areas by id."""
    infos: dict[str, FindingInfo] = {}
    for area in findings_by_area().values():
        infos |= area
    return infos


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """A problem, or a check that passed (severity OK) or was left out (SKIPPED).

    Args:
        id: Key of `registry()`, and anchor in docs/findings.md.
        text: Description of what was observed, with figures.
        severity: Default: the severity of the id.
        remedy: Advice on what to do. Default for findings above SKIPPED: the remedy of the id.
        cause: The likely cause. Default for findings above SKIPPED: the cause of the id.
    """

    id: str
    text: str
    severity: Severity = cast("Severity", None)  # __post_init__ replaces it, so readers never see None
    remedy: str = ""
    cause: str = ""
    step: int | None = None
    """Training step."""
    rate: tuple[float, float, float] | None = None
    """Mean reward of the evidence with its 95% interval, or a share of rows."""
    floor: float | None = None
    """The value with which the rate is compared."""
    prompt: str = ""
    """Last message before the completion that shows the problem."""
    completion: str = ""
    """The response that shows the problem."""
    accepted: str = ""
    """The reason for which a baseline file accepts the finding; "" if none does."""

    def __post_init__(self) -> None:
        info = registry()[self.id]
        if cast("Severity | None", self.severity) is None:
            msgspec.structs.force_setattr(self, "severity", info.severity)
        if self.severity > SKIPPED:
            msgspec.structs.force_setattr(self, "remedy", self.remedy or info.remedy)
            msgspec.structs.force_setattr(self, "cause", self.cause or info.cause)

    def __str__(self) -> str:
        """Return the finding as one line: the id, the observation, and the remedy."""
        if not self.remedy:
            return f"{self.id}: {self.text}"
        return f"{self.id}: {sentence(self.text)} To try: {self.remedy}"
