"""What happened in a training run, in sentences: from its metrics, the weights of its reward functions, and its alerts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from rove.core.plain import JsonMapping
from rove.statistics.format import duration, number, signed
from rove.viewer.panels import SECONDS

MAX_WINDOW = 10
"""Steps that are averaged at either end of a run, and for the time left."""
MAX_SECONDS, MAX_STEPS = 1e9, 1 << 53
"""Seconds of a step, and planned steps, from which the time left is not known."""
Z = 1.96
"""Normal quantile of a 95% interval."""
COLLAPSED_SHARE = 0.1
"""Entropy below this share of its start counts as collapsed."""
MIN_ENTROPY = 0.05
"""Entropy at the start, in nats per token, from which a fall is worth a warning."""
MANY_ZERO_ADVANTAGE = 0.8
"""Share of zero-advantage groups from which a sentence names them."""
HELD_OUT = re.compile(r"eval/(.+)/reward/mean")

Rows = Sequence[JsonMapping]


def time_left(rows: Rows, planned: object) -> str:
    """Return in words the time to the last planned step at the pace of the last ones; "" if it is not known.

    Args:
        rows: Rows of metrics.jsonl with derived values (`panels.with_derived`), oldest first.
        planned: Number of steps of the run.
    """
    recent = [
        taken for row in rows[-MAX_WINDOW:] if isinstance(taken := row.get(SECONDS), float) and 0 < taken < MAX_SECONDS
    ]
    step = rows[-1].get("step") if rows else None
    if not (recent and isinstance(planned, int) and isinstance(step, (int, float)) and 0 <= step < planned < MAX_STEPS):
        return ""
    return f"about {duration(fmean(recent) * (planned - step))} left of {planned:,} steps"


def training_verdict(rows: Rows, weights: Mapping[str, float], alerts: Rows = ()) -> list[str]:
    """Return sentences about a training run, the conclusion first; [] without metrics.

    Args:
        rows: Rows of metrics.jsonl, oldest first.
        weights: Weights of the reward functions.
        alerts: Rows of alerts.jsonl.
    """
    sentences = [*_main(rows, weights), *_held_out(rows), *_policy(rows)]
    if alerts:
        names = dict.fromkeys(str(alert.get("name", "alert")).replace("_", " ") for alert in alerts)
        first = ", ".join(f"{name} (from step {_first_step(alerts, name)})" for name in names)
        sentences.append(f"{len(alerts):,} alert{'s' * (len(alerts) > 1)}: {first}.")
    return sentences


def _first_step(alerts: Rows, name: str) -> object:
    return next(
        (alert.get("step", "?") for alert in alerts if str(alert.get("name", "")).replace("_", " ") == name), "?"
    )


def _curve(rows: Rows, name: str) -> list[tuple[object, float]]:
    """Return the steps and the finite values of a metric."""
    found = [(row.get("step"), row.get(name)) for row in rows if not isinstance(row.get("step"), (list, dict))]
    return [
        (step, float(value))
        for step, value in found
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e150
    ]


def _ends(values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """Return the values of the first and the last steps, the same number of each, at most half of all."""
    size = max(1, min(MAX_WINDOW, len(values) // 2))
    return values[:size], values[-size:]


def _main(rows: Rows, weights: Mapping[str, float]) -> list[str]:
    if reward := _curve(rows, "reward/mean"):
        return [_change("reward", reward, 1), *_contributions(rows, weights)]
    loss = _curve(rows, "validation_loss") or _curve(rows, "loss")
    return [_change("loss", loss, -1)] if loss else []


def _change(name: str, curve: Sequence[tuple[object, float]], better: int) -> str:
    """Return whether a metric has changed between the first and the last steps; `better` is −1 if lower is better."""
    values = [value for _, value in curve]
    if len(values) < 2:
        return f"One step finished: {name} {number(values[0])}."
    first, last = _ends(values)
    change = fmean(last) - fmean(first)
    span = f"from {number(fmean(first))} to {number(fmean(last))} (means of the first and last {len(first)} steps)"
    if len(first) < 3:
        return f"Too few steps to tell noise from progress: the {name} went {span}."
    half = Z * math.hypot(*(stdev(part) / math.sqrt(len(part)) for part in (first, last)))
    limits = f"{signed(change)} [{number(change - half)}, {number(change + half)}]"
    if abs(change) <= half or abs(change) < 1e-12:
        return f"No measurable change of the {name}: {span}, {limits}."
    verb = "rose" if change > 0 else "fell"
    best_step, best = (max if better > 0 else min)(curve, key=lambda one: one[1])
    worse = better * (best - fmean(last)) > 0.2 * (max(values) - min(values)) and best_step != curve[-1][0]
    peak = f" The best step was {best_step} with {number(best)}; the {name} has become worse since." if worse else ""
    return f"The {name} {verb} {span}, {limits}.{peak}"


def _contributions(rows: Rows, weights: Mapping[str, float]) -> list[str]:
    """Return which reward functions the change of the reward comes from."""
    parts: dict[str, float] = {}
    for name, weight in weights.items():
        values = [value for _, value in _curve(rows, f"reward/{name}")]
        if weight and len(values) > 1:
            first, last = _ends(values)
            parts[name] = weight * (fmean(last) - fmean(first))
    total = sum(abs(part) for part in parts.values())
    if len(parts) < 2 or total < 1e-9:
        return []
    listed = ", ".join(f"{name} {signed(part)}" for name, part in sorted(parts.items(), key=lambda one: -abs(one[1])))
    rise = sum(parts.values())
    form = sum(part for name, part in parts.items() if "format" in name.lower())
    note = ""
    if rise > 0 and form > 0.5 * rise:
        note = " More than half of the rise is format."
    elif rise > 0 and any("format" in name.lower() for name in parts):
        note = f" Format is {max(0.0, form / rise):.0%} of the rise."
    return [f"By reward function (weight × change): {listed}.{note}"]


def _held_out(rows: Rows) -> list[str]:
    names = sorted({name for row in rows for name in row if HELD_OUT.fullmatch(name)})
    sentences = []
    for name in names:
        curve = _curve(rows, name)
        if not curve:
            continue
        prefix = name.removesuffix("mean")
        last = next((row for row in reversed(rows) if name in row), {})
        low, high = last.get(f"{prefix}interval_low"), last.get(f"{prefix}interval_high")
        known = isinstance(low, (int, float)) and isinstance(high, (int, float))
        limits = f" [{number(low)}, {number(high)}]" if known else ""
        step, best = max(curve, key=lambda one: one[1])
        ended = f"ended at {number(curve[-1][1])}{limits}"
        match = HELD_OUT.fullmatch(name)
        sentences.append(
            f"Held-out reward of {match[1] if match else name}: began at {number(curve[0][1])}, {ended}; "
            f"best {number(best)} at step {step}."
        )
    return sentences


def _policy(rows: Rows) -> list[str]:
    sentences = []
    entropy = _curve(rows, "entropy/all/mean")
    if len(entropy) > 1:
        first, last = _ends([value for _, value in entropy])
        before, after = fmean(first), fmean(last)
        text = f"Entropy went from {number(before)} to {number(after)} nats per token"
        low = COLLAPSED_SHARE * entropy[0][1]
        collapsed = next((step for step, value in entropy if value < low), None)
        if entropy[0][1] >= MIN_ENTROPY and collapsed is not None:
            text += f"; it first fell below a tenth of its start at step {collapsed}"
        sentences.append(f"{text}.")
    groups, equal = (dict(_curve(rows[-MAX_WINDOW:], f"groups/{name}")) for name in ("all", "zero_spread"))
    shares = [equal[step] / count for step, count in groups.items() if count and step in equal]
    if shares and fmean(shares) >= MANY_ZERO_ADVANTAGE:
        sentences.append(f"{fmean(shares):.0%} of the groups of the last {len(shares)} steps have zero advantage.")
    return sentences
