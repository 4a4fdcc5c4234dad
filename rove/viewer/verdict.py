"""Describe what happened in a training run, from its metrics, the weights of its reward functions, and its alerts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from rove.core.findings import Finding
from rove.core.plain import JsonMapping
from rove.runs.metrics import HELD_OUT_REWARD, SECONDS
from rove.statistics.format import duration, number, percent, signed
from rove.statistics.intervals import Z
from rove.statistics.trend import MIN_TREND_STEPS, change_between, ends
from rove.utils.units import counted

MAX_WINDOW = 10
"""Maximum number of steps that are averaged for the best part of a curve, and for the remaining time."""
MAX_SECONDS, MAX_STEPS = 1e9, 1 << 53
"""Seconds per step, and number of planned steps, from which the remaining time counts as unknown."""
MAX_LOSS_SINCE_BEST = 0.2
"""Share of a curve's range that it may lose after its best step."""

Rows = Sequence[JsonMapping]


def time_left(rows: Rows, planned: object) -> str:
    """Return the estimated time until the last planned step as text, based on the latest steps; "" if it is unknown.

    Args:
        rows: Rows of metrics.jsonl with derived values (`panels.with_derived`), oldest first.
    """
    measured = [row.get(SECONDS) for row in rows[-MAX_WINDOW:]]
    seconds = [value for value in measured if isinstance(value, float)]
    recent = [value for value in seconds if 0 < value < MAX_SECONDS]
    step = rows[-1].get("step") if rows else None
    if not recent or not isinstance(planned, int) or not isinstance(step, (int, float)):
        return ""
    if not 0 <= step < planned < MAX_STEPS:
        return ""
    return f"about {duration(fmean(recent) * (planned - step))} left of {planned:,} steps"


def training_verdict(rows: Rows, weights: Mapping[str, float], alerts: Rows = ()) -> list[str]:
    """Return sentences and findings about a training run, the conclusion first; [] without metrics."""
    sentences = [*_main(rows, weights), *_held_out(rows), *_policy(rows)]
    if alerts:
        first_steps: dict[str, object] = {}
        for alert in alerts:
            first_steps.setdefault(str(alert.get("id", "alert")), alert.get("step", "?"))
        listed = ", ".join(f"{name} (from step {step})" for name, step in first_steps.items())
        sentences.append(f"{counted(len(alerts), 'alert')}: {listed}.")
    return sentences


def _curve(rows: Rows, name: str) -> list[tuple[object, float]]:
    """Return the steps and the finite values of a metric."""
    points: list[tuple[object, float]] = []
    for row in rows:
        step, value = row.get("step"), row.get(name)
        if isinstance(step, (list, dict)) or isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if abs(value) < 1e150:  # the squares of larger ones overflow
            points.append((step, float(value)))
    return points


def _main(rows: Rows, weights: Mapping[str, float]) -> list[str]:
    if reward := _curve(rows, "reward/mean"):
        return [*_change("reward", reward, 1), *_contributions(rows, weights)]
    loss = _curve(rows, "validation_loss") or _curve(rows, "loss")
    return _change("loss", loss, -1) if loss else []


def _change(name: str, curve: Sequence[tuple[object, float]], better: int) -> list[str]:
    """Return a sentence on whether a metric changed between the first and the last steps; `better` is −1 if lower is better."""
    values = [value for _, value in curve]
    if len(values) < 2:
        return [f"One step finished: {name} {number(values[0])}."]
    first, last = ends(values)
    start, end = fmean(first), fmean(last)
    span = f"from {number(start)} to {number(end)} (means of the first and last {counted(len(first), 'step')})"
    if len(first) < 3:
        return [f"Too few steps to tell noise from progress: the {name} went {span}."]
    change = change_between(first, last)
    limits = f"{signed(change.mean)} [{number(change.low)}, {number(change.high)}]"
    if change.low <= 0.0 <= change.high:
        text = f"no measurable change of the {name}: {span}, {limits}"
        if name == "reward" and len(values) >= MIN_TREND_STEPS:
            return [str(Finding("flat_reward", text))]
        return [f"{text[0].upper()}{text[1:]}."]
    verb = "rose" if change.mean > 0 else "fell"
    return [f"The {name} {verb} {span}, {limits}.", *_fall_since_best(curve, better)]


def _fall_since_best(curve: Sequence[tuple[object, float]], better: int) -> list[str]:
    """Return a finding if the last steps are worse than the best steps in a row; `better` is −1 if lower is better."""
    values = [value for _, value in curve]
    size = min(MAX_WINDOW, len(values) // 2)
    last = values[-size:]
    # A mean over as many steps as at the end: the best single step is often only a lucky one.
    windows = [values[i : i + size] for i in range(len(values) - size + 1)]
    best = max(range(len(windows)), key=lambda i: better * fmean(windows[i]))
    lost = better * (fmean(windows[best]) - fmean(last))
    # Both windows may share steps; the difference of their means then varies less than this.
    noise = Z * math.hypot(stdev(last), stdev(windows[best])) / math.sqrt(size)
    if lost <= max(noise, MAX_LOSS_SINCE_BEST * (max(values) - min(values))):
        return []
    steps = f"steps {curve[best][0]} to {curve[best + size - 1][0]}"
    text = f"the best mean of {size} values in a row was {number(fmean(windows[best]))}, in {steps}"
    return [str(Finding("worse_since_best", text))]


def _contributions(rows: Rows, weights: Mapping[str, float]) -> list[str]:
    """Return a sentence about the reward functions that caused the change of the reward."""
    parts: dict[str, float] = {}
    for name, weight in weights.items():
        values = [value for _, value in _curve(rows, f"reward/{name}")]
        if weight and len(values) > 1:
            first, last = ends(values)
            parts[name] = weight * (fmean(last) - fmean(first))
    total = sum(abs(part) for part in parts.values())
    if len(parts) < 2 or total < 1e-9:
        return []
    largest_first = sorted(parts.items(), key=lambda item: -abs(item[1]))
    listed = ", ".join(f"{name} {signed(part)}" for name, part in largest_first)
    rise = sum(parts.values())
    form = sum(part for name, part in parts.items() if "format" in name.lower())
    sentences = [f"By reward function (weight × change): {listed}."]
    if rise > 0 and form > 0.5 * rise:
        sentences.append(str(Finding("format_gain", f"format is {form / rise:.0%} of the rise")))
    return sentences


def _held_out(rows: Rows) -> list[str]:
    sentences = []
    for name in sorted(set().union(*rows)):
        match = HELD_OUT_REWARD.fullmatch(name)
        curve = _curve(rows, name) if match else []
        if match is None or not curve:
            continue
        prefix = name.removesuffix("mean")
        last = next((row for row in reversed(rows) if name in row), {})
        low, high = last.get(f"{prefix}interval_low"), last.get(f"{prefix}interval_high")
        has_interval = isinstance(low, (int, float)) and isinstance(high, (int, float))
        limits = f" [{number(low)}, {number(high)}]" if has_interval else ""
        step, best = max(reversed(curve), key=lambda point: point[1])
        ended = f"ended at {number(curve[-1][1])}{limits}"
        began = f"began at {number(curve[0][1])}"
        sentences.append(
            f"Held-out reward of {match[1]}: {began}, {ended}; best {number(best)}, most recently at step {step}."
        )
        sentences += _held_out_responses(rows, match[1])
    return sentences


def _held_out_responses(rows: Rows, evaluation: str) -> list[str]:
    """Return a sentence about the lengths of an evaluation's responses, and which of its rollouts were truncated."""
    lengths = _curve(rows, f"eval/{evaluation}/length/mean")
    if len(lengths) < 2:
        return []
    sentence = f"Its responses went from {number(lengths[0][1], 1)} to {number(lengths[-1][1], 1)} tokens per rollout"
    truncated = _curve(rows, f"eval/{evaluation}/truncated")
    if truncated:
        sentence += f", truncated rollouts from {percent(truncated[0][1])}% to {percent(truncated[-1][1])}%"
    return [f"{sentence}."]


def _policy(rows: Rows) -> list[str]:
    entropy = [value for _, value in _curve(rows, "entropy/all/mean")]
    if len(entropy) < 2:
        return []
    first, last = map(fmean, ends(entropy))
    return [f"Entropy went from {number(first)} to {number(last)} nats per token."]
