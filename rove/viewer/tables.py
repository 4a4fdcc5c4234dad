"""Tables for the terminal, at most 100 columns wide."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

SPARKS = "▁▂▃▄▅▆▇█"


def percent(value: float | None) -> str:
    """0.123 → "12.3"; nothing → "–"."""
    return "–" if value is None or math.isnan(value) else f"{100 * value:.1f}"


def number(value: float) -> str:
    """A value for people: four significant digits at most."""
    return "–" if math.isnan(value) else f"{value:.4g}" if abs(value) >= 1000 or value == 0 else f"{value:.3f}"


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """A curve in one line of text, averaged down to `width` characters."""
    clean = [v for v in values if not math.isnan(v)]
    if not clean:
        return ""
    size = max(1, math.ceil(len(clean) / width))
    points = [sum(clean[i : i + size]) / len(clean[i : i + size]) for i in range(0, len(clean), size)]
    low, high = min(points), max(points)
    spread = (high - low) or 1.0
    return "".join(SPARKS[min(7, int((p - low) / spread * 8))] for p in points)


def summary_table(summary: Mapping[str, Any], title: str) -> Table:
    """An evaluation's summary: reward, reward functions and metrics with their intervals."""
    table = Table(title=title, title_justify="left", width=72)
    table.add_column("", style="bold")
    table.add_column("mean", justify="right")
    table.add_column("± 95 %", justify="right")
    table.add_column("weight", justify="right")
    table.add_row("reward", number(summary["reward"]["mean"]), number(summary["reward"]["half_width"]), "")
    for name, seen in sorted(summary["functions"].items(), key=lambda item: -abs(item[1]["weight"])):
        weight = f"{seen['weight']:g}" if seen["weight"] else "metric"
        table.add_row(name, number(seen["mean"]), number(seen["half_width"]), weight)
    return table


def counts_line(summary: Mapping[str, Any]) -> str:
    """How many rollouts, how many failed and why, how many were cut off, how they ended."""
    parts = [f"{summary['scored']} of {summary['rollouts']} rollouts scored"]
    if summary["failed"]:
        reasons = ", ".join(f"{count} × {name}" for name, count in sorted(summary["errors"].items()))
        parts.append(f"[red]{summary['failed']} failed ({reasons})[/red]")
    if summary["truncated"]:
        parts.append(f"{summary['truncated']} truncated")
    if summary["stops"]:
        parts.append("ended by " + ", ".join(f"{name} ({count})" for name, count in summary["stops"].items()))
    return "; ".join(parts)


def curves_table(metrics: Sequence[Mapping[str, float]], names: Sequence[str], title: str) -> Table:
    """First value, last value and curve of each metric over the steps."""
    table = Table(title=title, title_justify="left", width=96)
    table.add_column("", style="bold")
    table.add_column("first", justify="right")
    table.add_column("last", justify="right")
    table.add_column(f"over {len(metrics)} steps")
    for name in names:
        values = [m[name] for m in metrics if name in m]
        if values:
            table.add_row(name, number(values[0]), number(values[-1]), sparkline(values))
    return table
