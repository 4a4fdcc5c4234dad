"""What models came to in an environment, best first, each row with the run behind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from rove.hub.server.pages.frame import link
from rove.hub.server.pages.html import fold, table, tag, text
from rove.hub.server.pages.summaries import Estimate, Summary, read_summary
from rove.viewer.html import shown

ROWS = 200
"""Most rows of one version."""
WIDTH, HEIGHT, EDGE = 200, 16, 5
"""Of a drawing, in its own units."""


class Row(NamedTuple):
    """The results of one run."""

    version: str
    id: str
    model: str
    uploaded: str
    summary: Summary

    @property
    def address(self) -> str:
        """Of its page, from the environment's."""
        return f"{quote(self.version)}/runs/{self.id}.html"


class Scale(NamedTuple):
    """The values that drawings reach from and to."""

    low: float
    high: float

    def at(self, value: float) -> float:
        """Where a value stands in a drawing."""
        share = (value - self.low) / (self.high - self.low)
        return EDGE + (WIDTH - 2 * EDGE) * min(1.0, max(0.0, share))

    @property
    def ends(self) -> str:
        """In words."""
        return f"{shown(self.low)} to {shown(self.high)}"


def rows_of(version: str, runs: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The rows of a version, best first.

    Args:
        version: which one.
        runs: as `catalogue.runs` tells them.
    """
    rows = [
        Row(version, run["id"], run["model"], run["uploaded"], read_summary(msgspec.json.decode(run["summary"])))
        for run in runs
    ]
    return sorted(
        rows, key=lambda row: (row.summary.reward.mean is None, -(row.summary.reward.mean or 0.0), row.uploaded)
    )


def scale_of(estimates: Iterable[Estimate], more: Iterable[float] = ()) -> Scale:
    """A scale that holds all of these intervals, and more values."""
    seen = list(more)
    for one in estimates:
        if one.mean is not None:
            seen += [one.mean, *(one.limits or ())]
    low, high = float(min(seen, default=0.0)), float(max(seen, default=1.0))
    return Scale(low, high) if high > low else Scale(low - 0.5, low + 0.5)


def measured(one: Estimate) -> str:
    """A mean with its interval, and an asterisk where the interval may not hold."""
    reach = f" [{shown(one.limits[0])}, {shown(one.limits[1])}]" if one.limits else ""
    return f"{shown(one.mean)}{reach}{'*' * bool(one.caveat)}"


def drawn(name: str, one: Estimate, scale: Scale) -> str:
    """A mean as a point on a line, with its interval."""
    if one.mean is None:
        return ""
    said, reach, middle = f"{name} {shown(one.mean)}", "", f'y1="{HEIGHT / 2}" y2="{HEIGHT / 2}"'
    if one.limits is not None:
        low, high = one.limits
        said += f", 95 % interval {shown(low)} to {shown(high)}"
        reach = f'<line class="reach" x1="{scale.at(low):.1f}" x2="{scale.at(high):.1f}" {middle}/>'
    axis = f'<line class="axis" x1="{EDGE}" x2="{WIDTH - EDGE}" {middle}/>'
    point = f'<circle cx="{scale.at(one.mean):.1f}" cy="{HEIGHT / 2}" r="4"/>'
    label = f'role="img" aria-label="{text(said)}, on a line from {scale.ends}"'
    return f'<svg class="interval" viewBox="0 0 {WIDTH} {HEIGHT}" {label}>{axis}{reach}{point}</svg>'


def leaderboard(rows: Sequence[Row], scale: Scale) -> str:
    """A table for each version that has rows; that of the newest is open, as rewards of two versions cannot be compared.

    Args:
        rows: of the newest version first, of each the best first.
        scale: of the drawings.
    """
    versions: dict[str, list[Row]] = {}
    for row in rows:
        versions.setdefault(row.version, []).append(row)
    parts: list[str] = []
    for version, of_it in versions.items():
        title = f"Version {text(version)}, {len(of_it):,} run{'s' * (len(of_it) != 1)}"
        parts.append(fold(title, _board(of_it, scale)) if parts else tag("h3", title) + _board(of_it, scale))
    return "\n".join(parts)


def _board(rows: Sequence[Row], scale: Scale) -> str:
    cells = []
    for place, row in enumerate(rows[:ROWS], 1):
        seen = row.summary
        cells.append(
            (
                str(place),
                link(row.address, text(row.model)),
                measured(seen.reward),
                drawn("reward", seen.reward, scale),
                shown(seen.scored),
                shown(seen.examples),
                text(row.uploaded[:10]),
            )
        )
    head = ("place", "model and its run", "mean reward, 95 % interval", scale.ends, "rollouts", "examples", "pushed")
    left_out = tag("p", f"{len(rows) - ROWS:,} of lower rewards are left out.", "note") if len(rows) > ROWS else ""
    return table(head, cells, "board") + left_out
