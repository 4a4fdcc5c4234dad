"""The leaderboard of an environment: pushed results by version, with their intervals as drawings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from rove.core.errors import RunError
from rove.core.plain import JsonMapping, JsonObject
from rove.hub.server.pages.html import collapsible, link, table, tag, text
from rove.runs.schema import Summary, decoded
from rove.statistics.format import interval, limits, shown
from rove.utils.units import counted

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
    summary: JsonObject
    """A checked summary; {} if the pushed summary is malformed."""

    @property
    def address(self) -> str:
        """Address of the run's page, relative to the environment's page."""
        return f"{quote(self.version)}/runs/{self.id}.html"

    @property
    def reward(self) -> JsonMapping:
        """The estimate of the mean reward; {} if there is none."""
        return self.summary.get("reward") or {}


def read_summary(content: bytes) -> JsonObject:
    """Parse a pushed summary; return {} if it is malformed."""
    try:
        return decoded(Path("summary.json"), content, Summary)
    except RunError:
        return {}


def rows_of(version: str, runs: Sequence[JsonMapping]) -> list[Row]:
    """Return the leaderboard rows of a version, best first; `runs` are entries of `catalogue.runs`."""
    rows = [Row(version, run["id"], run["model"], run["uploaded"], read_summary(bytes(run["summary"]))) for run in runs]
    return sorted(rows, key=_rank)


def _rank(row: Row) -> tuple[bool, float, str]:
    mean = row.reward.get("mean")
    return mean is None, -(mean or 0.0), row.uploaded


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


def scale_of(estimates: Iterable[JsonMapping], rewards: Iterable[float] = ()) -> Scale:
    """Return a scale that covers all intervals and the additional rewards."""
    values = list(rewards)
    for estimate in estimates:
        if estimate.get("mean") is not None:
            values += [estimate["mean"], *(limits(estimate) or ())]
    low, high = float(min(values, default=0.0)), float(max(values, default=1.0))
    if high > low:
        return Scale(low, high)
    half = max(0.5, 1e-9 * abs(low))  # a pushed mean may be so large that adding 0.5 does not change it
    return Scale(low - half, high + half)


def with_interval(estimate: JsonMapping) -> str:
    """Format a mean with its interval; an asterisk marks an interval with a caveat."""
    mean = shown(estimate.get("mean"))
    return f"{mean} {interval(estimate)}" if limits(estimate) else mean


def interval_svg(name: str, estimate: JsonMapping, scale: Scale) -> str:
    """Draw a mean as a point on a line, with its interval."""
    mean = estimate.get("mean")
    if mean is None:
        return ""
    label = f"{name} {shown(mean)}"
    reach = ""
    middle = f'y1="{HEIGHT / 2}" y2="{HEIGHT / 2}"'
    ends = limits(estimate)
    if ends is not None:
        low, high = ends
        label += f", 95% interval {shown(low)} to {shown(high)}"
        reach = f'<line class="reach" x1="{scale.at(low):.1f}" x2="{scale.at(high):.1f}" {middle}/>'
    axis = f'<line class="axis" x1="{MARGIN}" x2="{WIDTH - MARGIN}" {middle}/>'
    point = f'<circle cx="{scale.at(mean):.1f}" cy="{HEIGHT / 2}" r="4"/>'
    attributes = f'role="img" aria-label="{text(label)}, on a line from {scale.ends}"'
    return f'<svg class="interval" viewBox="0 0 {WIDTH} {HEIGHT}" {attributes}>{axis}{reach}{point}</svg>'


def leaderboard(rows: Sequence[Row], scale: Scale) -> str:
    """Render one table per version, of rows ordered newest version first and best first within a version.

    Only the table of the newest version is open, because rewards of different versions are not comparable.
    """
    versions: dict[str, list[Row]] = {}
    for row in rows:
        versions.setdefault(row.version, []).append(row)
    parts: list[str] = []
    for version, version_rows in versions.items():
        title = f"Version {text(version)}, {counted(len(version_rows), 'run')}"
        version_table = _version_table(version_rows, scale)
        parts.append(collapsible(title, version_table) if parts else tag("h3", title) + version_table)
    return "\n".join(parts)


def _version_table(rows: Sequence[Row], scale: Scale) -> str:
    cells = [
        (
            str(rank),
            link(row.address, text(row.model)),
            with_interval(row.reward),
            interval_svg("reward", row.reward, scale),
            shown(row.summary.get("scored")),
            shown(row.summary.get("examples")),
            text(row.uploaded[:10]),
        )
        for rank, row in enumerate(rows[:MAX_ROWS], 1)
    ]
    head = ("rank", "model (run)", "mean reward, 95% interval", scale.ends, "rollouts", "examples", "pushed")
    board = table(head, cells, "leaderboard")
    if len(rows) > MAX_ROWS:
        board += tag("p", f"{len(rows) - MAX_ROWS:,} runs with lower rewards are not shown.", "note")
    return board
