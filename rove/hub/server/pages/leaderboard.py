"""The leaderboard of an environment: pushed results, best first, each linked to its run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from rove.hub.server.pages.html import collapsible, link, table, tag, text
from rove.hub.server.results import Estimate, Summary, read_summary
from rove.viewer.html import shown

MAX_ROWS = 200
"""Maximum number of rows shown per version."""
WIDTH, HEIGHT, MARGIN = 200, 16, 5
"""Size of an interval drawing, in SVG units."""


class Row(NamedTuple):
    """The results of one run."""

    version: str
    id: str
    model: str
    uploaded: str
    summary: Summary

    @property
    def address(self) -> str:
        """Address of the run's page, relative to the environment's page."""
        return f"{quote(self.version)}/runs/{self.id}.html"


class Scale(NamedTuple):
    """The range of values that interval drawings share."""

    low: float
    high: float

    def at(self, value: float) -> float:
        """Return the horizontal position of a value in a drawing."""
        share = (value - self.low) / (self.high - self.low)
        return MARGIN + (WIDTH - 2 * MARGIN) * min(1.0, max(0.0, share))

    @property
    def ends(self) -> str:
        """The range as text."""
        return f"{shown(self.low)} to {shown(self.high)}"


def rows_of(version: str, runs: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the leaderboard rows of a version, best first.

    Args:
        version: Version of the environment.
        runs: Entries of `catalogue.runs`.
    """
    rows = [
        Row(version, run["id"], run["model"], run["uploaded"], read_summary(msgspec.json.decode(run["summary"])))
        for run in runs
    ]
    return sorted(
        rows, key=lambda row: (row.summary.reward.mean is None, -(row.summary.reward.mean or 0.0), row.uploaded)
    )


def scale_of(estimates: Iterable[Estimate], more: Iterable[float] = ()) -> Scale:
    """Return a scale that covers all intervals and the additional values."""
    values = list(more)
    for one in estimates:
        if one.mean is not None:
            values += [one.mean, *(one.limits or ())]
    low, high = float(min(values, default=0.0)), float(max(values, default=1.0))
    return Scale(low, high) if high > low else Scale(low - 0.5, low + 0.5)


def with_interval(one: Estimate) -> str:
    """Format a mean with its interval; an asterisk marks an interval with a caveat."""
    reach = f" [{shown(one.limits[0])}, {shown(one.limits[1])}]" if one.limits else ""
    return f"{shown(one.mean)}{reach}{'*' * bool(one.caveat)}"


def interval_svg(name: str, one: Estimate, scale: Scale) -> str:
    """Draw a mean as a point on a line, with its interval."""
    if one.mean is None:
        return ""
    label, reach, middle = f"{name} {shown(one.mean)}", "", f'y1="{HEIGHT / 2}" y2="{HEIGHT / 2}"'
    if one.limits is not None:
        low, high = one.limits
        label += f", 95 % interval {shown(low)} to {shown(high)}"
        reach = f'<line class="reach" x1="{scale.at(low):.1f}" x2="{scale.at(high):.1f}" {middle}/>'
    axis = f'<line class="axis" x1="{MARGIN}" x2="{WIDTH - MARGIN}" {middle}/>'
    point = f'<circle cx="{scale.at(one.mean):.1f}" cy="{HEIGHT / 2}" r="4"/>'
    attributes = f'role="img" aria-label="{text(label)}, on a line from {scale.ends}"'
    return f'<svg class="interval" viewBox="0 0 {WIDTH} {HEIGHT}" {attributes}>{axis}{reach}{point}</svg>'


def leaderboard(rows: Sequence[Row], scale: Scale) -> str:
    """Render one table per version; only the newest is open, because rewards of different versions are not comparable.

    Args:
        rows: Newest version first; best first within a version.
        scale: Scale of the drawings.
    """
    versions: dict[str, list[Row]] = {}
    for row in rows:
        versions.setdefault(row.version, []).append(row)
    parts: list[str] = []
    for version, version_rows in versions.items():
        title = f"Version {text(version)}, {len(version_rows):,} run{'s' * (len(version_rows) != 1)}"
        version_table = _version_table(version_rows, scale)
        parts.append(collapsible(title, version_table) if parts else tag("h3", title) + version_table)
    return "\n".join(parts)


def _version_table(rows: Sequence[Row], scale: Scale) -> str:
    cells = []
    for rank, row in enumerate(rows[:MAX_ROWS], 1):
        values = row.summary
        cells.append(
            (
                str(rank),
                link(row.address, text(row.model)),
                with_interval(values.reward),
                interval_svg("reward", values.reward, scale),
                shown(values.scored),
                shown(values.examples),
                text(row.uploaded[:10]),
            )
        )
    head = ("rank", "model (run)", "mean reward, 95 % interval", scale.ends, "rollouts", "examples", "pushed")
    omitted = (
        tag("p", f"{len(rows) - MAX_ROWS:,} runs with lower rewards are not shown.", "note")
        if len(rows) > MAX_ROWS
        else ""
    )
    return table(head, cells, "leaderboard") + omitted
