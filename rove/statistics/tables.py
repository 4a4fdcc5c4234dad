"""Tables of results, at most 98 columns wide."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rich.table import Table

from rove.core.plain import JsonMapping
from rove.statistics.compare import Comparison, Difference
from rove.statistics.format import caveats, interval, number, signed
from rove.utils.console import TextTable

MAX_COLUMNS = 98
NUMBER_COLUMNS = 53
"""Columns of a comparison for numbers, the direction and borders."""
SUMMARY_NAME = 26
"""Columns for a name in the table of a summary."""


def summary_table(summary: JsonMapping, title: str) -> Table:
    """Return the table of an evaluation's summary: reward, pass@k, reward functions and metrics with their intervals.

    pass@k is shown if groups have two or more members and only some pass.
    """
    rows: list[tuple[str, JsonMapping, str]] = [("reward", summary["reward"], "")]
    rows += [(name, seen, "") for name, seen in _passes(summary)]
    for name, seen in sorted(summary["functions"].items(), key=lambda item: -abs(item[1]["weight"])):
        rows.append((name, seen, f"{seen['weight']:g}" if seen["weight"] else "metric"))
    rows += [(f"reward in {name}", seen, "") for name, seen in summary.get("environments", {}).items()]
    noted = caveats(seen for _, seen, _ in rows)
    table = TextTable(
        title=title or None, title_justify="left", width=72, caption=noted or None, caption_justify="left"
    )
    table.add_column("", style="bold")
    table.add_column("mean", justify="right")
    table.add_column("95% interval", justify="right", no_wrap=True)
    table.add_column("weight", justify="right")
    for name, seen, weight in rows:
        table.add_row(folded(name, SUMMARY_NAME), number(seen["mean"]), interval(seen), weight)
    return table


def _passes(summary: JsonMapping) -> list[tuple[str, Mapping[str, float]]]:
    """Return pass@1, pass@k and pass^k for the whole group size k."""
    any_of, all_of = summary.get("pass@k", {}), summary.get("pass^k", {})
    largest = max(map(int, any_of), default=0)
    if largest < 2 or not 0.0 < (any_of["1"]["mean"] or 0.0) < 1.0:
        return []
    threshold = f"reward ≥ {summary['pass_threshold']:g}"
    whole = str(largest)
    return [
        (f"pass@1 ({threshold})", any_of["1"]),
        (f"pass@{whole} (one of {whole})", any_of[whole]),
        (f"pass^{whole} (all of {whole})", all_of[whole]),
    ]


def folded(name: str, width: int) -> str:
    """Return a name with line breaks after its separators, so that a narrow column does not break it inside a word."""
    lines = [""]
    for part in re.findall(r"[^-_./ ]+[-_./ ]*|[-_./ ]+", name):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def name_width(width: int) -> int:
    """Return the width of a name in a comparison of `width` columns: three columns have names, the others numbers."""
    return (width - NUMBER_COLUMNS) // 3


def comparison_table(comparison: Comparison, width: int = MAX_COLUMNS) -> Table:
    """Return a table of two runs: all common values, their differences, and the direction, if any."""
    width = min(MAX_COLUMNS, width)
    examples = "the examples of both" if comparison.paired else "different examples"
    title = f"means over {examples}; a direction if the interval excludes 0"
    values = (comparison.main, *comparison.others)
    noted = caveats({"caveat": one.caveat} for one in values)
    table = TextTable(title=title, title_justify="left", width=width, caption=noted or None, caption_justify="left")
    table.add_column("", style="bold", overflow="fold")
    run_width = min(name_width(width), max(map(len, comparison.names)))
    for name in comparison.names:
        table.add_column(folded(name, run_width), justify="right", overflow="fold")
    table.add_column("difference", justify="right", no_wrap=True)
    table.add_column("95% interval", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for one in values:
        name, *cells = comparison_row(one)
        table.add_row(folded(name, width - NUMBER_COLUMNS - 2 * run_width), *cells)
    return table


def comparison_row(one: Difference) -> tuple[str, str, str, str, str, str]:
    """Return name, both means, difference, interval and direction ("higher", "lower" or "") of a compared value."""
    direction = {1: "higher", 0: "", -1: "lower"}[one.direction]
    reach = interval({"low": one.low, "high": one.high, "caveat": one.caveat})
    return one.name, number(one.a), number(one.b), signed(one.difference), reach, direction
