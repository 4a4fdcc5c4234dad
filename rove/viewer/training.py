"""A training run for a report: what was measured first, last and at best, its curves and its alerts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rove.viewer.html import shown

HEAD = ("measured", "first", "last", "best", "at step")
MEASURED = (("reward/mean",), ("loss", "validation_loss"))
"""Metrics that are told beside held-out rewards: of RL, else of SFT."""
HELD_OUT = re.compile(r"eval/(.+)/reward/mean")
DIGITS = 6
"""Significant digits of a metric that are kept."""
MAX_ALERTS = 100
"""Alerts that are told, the last ones."""


def training(
    rows: Sequence[Mapping[str, Any]],
    alerts: Sequence[Mapping[str, Any]],
    planned: int | None = None,
    steps: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """What `static/report.js` shows of a training run, and Markdown tells.

    Args:
        rows: of metrics.
        alerts: of the run.
        planned: steps it was to take.
        steps: of `queries.steps`: the spread of the reward.
    """
    values = [row for name in _names(rows) if (row := _measured(rows, name))]
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
            "rows": [{name: _short(value) for name, value in row.items()} for row in rows],
            "alerts": list(alerts[-MAX_ALERTS:]),
            "steps": list(steps),
            "groups": None,
        },
    }


def _names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The reward or the loss, then what was held out, as far as they were measured."""
    known = {name for row in rows for name in row}
    measured = ([name for name in names if name in known] for names in MEASURED)
    return next(filter(None, measured), []) + sorted(filter(HELD_OUT.fullmatch, known))


def _measured(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[str, ...] | None:
    """A row of HEAD; of a loss the lowest value is the best."""
    found = [(value, row.get("step")) for row in rows if (value := _number(row.get(name))) is not None]
    if not found:
        return None
    best, step = (min if "loss" in name else max)(found, key=lambda one: one[0])
    held_out = HELD_OUT.fullmatch(name)
    title = f"{held_out[1]} (held out)" if held_out else {"reward/mean": "reward"}.get(name, name.replace("_", " "))
    return title, shown(found[0][0]), shown(found[-1][0]), shown(best), shown(step)


def _seconds(row: Mapping[str, Any]) -> float:
    """Of a step; sampling and training may overlap, which only the whole tells."""
    names = ("time/step",) if "time/step" in row else ("time/sampling", "time/training")
    return sum(_number(row.get(name)) or 0.0 for name in names)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _short(value: Any) -> Any:
    """A number in no more digits than can be seen in a curve."""
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) and math.isfinite(value) else value
