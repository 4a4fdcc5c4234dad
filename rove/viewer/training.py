"""A training run for a report: first, last and best values, curves and alerts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rove.viewer.html import shown

HEAD = ("measured", "first", "last", "best", "at step")
MAIN_METRICS = (("reward/mean",), ("loss", "validation_loss"))
"""Metrics shown with held-out rewards: those of RL, or those of SFT."""
HELD_OUT = re.compile(r"eval/(.+)/reward/mean")
METRIC_DIGITS = 6
"""Significant digits of a metric."""
MAX_ALERTS = 100
"""Alerts that are shown, the last ones."""


def training(
    rows: Sequence[Mapping[str, Any]],
    alerts: Sequence[Mapping[str, Any]],
    planned: int | None = None,
    steps: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the data of a training run for `static/report.js` and Markdown.

    Args:
        rows: Rows of metrics.jsonl.
        alerts: Rows of alerts.jsonl.
        planned: Planned number of steps.
        steps: From `queries.steps`: rewards per step.
    """
    values = [row for name in _names(rows) if (row := _row(rows, name))]
    taken = int(rows[-1].get("step", len(rows))) if rows else 0
    seconds = sum(_seconds(row) for row in rows)
    of = f" of {planned:,}" if planned else ""
    counts = [f"{taken:,}{of} steps taken", f"{len(alerts):,} alerts" if alerts else "no alert"]
    counts += [f"{seconds / 60:,.0f} minutes in all"] if seconds >= 60 else []
    counts += [f"step {alert['step']}: {alert['text']}" for alert in alerts[-3:] if {"step", "text"} <= alert.keys()]
    return {
        "cards": [(f"{taken:,}{of}", "steps"), *((row[2], f"{row[0]}, last") for row in values)],
        "head": HEAD,
        "values": values,
        "counts": counts,
        "training": {
            "rows": [{name: _rounded(value) for name, value in row.items()} for row in rows],
            "alerts": list(alerts[-MAX_ALERTS:]),
            "steps": list(steps),
            "groups": None,
        },
    }


def _names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the main metrics that the rows have, then the held-out rewards."""
    known = {name for row in rows for name in row}
    measured = ([name for name in names if name in known] for names in MAIN_METRICS)
    return next(filter(None, measured), []) + sorted(filter(HELD_OUT.fullmatch, known))


def _row(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[str, ...] | None:
    """Return a row of `HEAD`; the best loss is the lowest."""
    found = [(value, row.get("step")) for row in rows if (value := _number(row.get(name))) is not None]
    if not found:
        return None
    best, step = (min if "loss" in name else max)(found, key=lambda one: one[0])
    held_out = HELD_OUT.fullmatch(name)
    title = f"{held_out[1]} (held out)" if held_out else {"reward/mean": "reward"}.get(name, name.replace("_", " "))
    return title, shown(found[0][0]), shown(found[-1][0]), shown(best), shown(step)


def _seconds(row: Mapping[str, Any]) -> float:
    """Return the seconds of a step. `time/step` counts overlapping sampling and training once."""
    names = ("time/step",) if "time/step" in row else ("time/sampling", "time/training")
    return sum(_number(row.get(name)) or 0.0 for name in names)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _rounded(value: Any) -> Any:
    """Round a number to the digits that a curve can show."""
    return float(f"{value:.{METRIC_DIGITS}g}") if isinstance(value, float) and math.isfinite(value) else value
