"""Queries on the training steps of a run, from its index: rewards per step, and rewards of groups."""

from __future__ import annotations

import math

from rove.core.errors import ConfigError
from rove.core.plain import JsonObject, JsonValue
from rove.statistics import t_quantile
from rove.viewer.index import Index
from rove.viewer.queries import CURRENT_ROLLOUTS, NUM_BARS, TABLE_SCAN

BANDS = ("spread", "interval", "quantiles")


def steps(index: Index, band: str = "spread") -> list[JsonObject]:
    """Return, per training step, its number, rollouts, `mean` and `spread` (standard deviation) of the reward, and failures.

    Args:
        band: Meaning of `low` and `high`: "spread" (mean ± standard deviation between rollouts), "interval" (95%
            interval of the mean over examples) or "quantiles" (10% and 90% of the rollouts).
    """
    if band not in BANDS:
        raise ConfigError(f"band is '{band[:40]}'; expected {', '.join(BANDS)}")
    steps = _steps(index)
    if band == "interval":
        limits = _intervals(index)
    elif band == "quantiles":
        limits = _quantiles(index)
    else:
        scored = [step for step in steps if step["mean"] is not None]
        limits = {}
        for step in scored:
            mean, spread = step["mean"], step["spread"]
            limits[step["step"]] = mean - spread, mean + spread
    for step in steps:
        step["low"], step["high"] = limits.get(step["step"], (None, None))
    return steps


def _intervals(index: Index) -> dict[JsonValue, tuple[float, float]]:
    sql = (
        "SELECT step, COUNT(*), AVG(mean), AVG(mean * mean) FROM (SELECT step, AVG(reward) AS mean "
        f"FROM {TABLE_SCAN} WHERE {CURRENT_ROLLOUTS} AND step IS NOT NULL AND reward IS NOT NULL GROUP BY step, example_key) "
        "GROUP BY step HAVING COUNT(*) > 1"
    )
    bounds: dict[object, tuple[float, float]] = {}
    for step, count, mean, squares in index.query(sql):
        variance = max(0.0, squares - mean * mean)  # rounding can make it negative
        half = t_quantile(0.975, count - 1) * math.sqrt(variance / (count - 1))
        bounds[step] = mean - half, mean + half
    return bounds


def _quantiles(index: Index) -> dict[JsonValue, tuple[float, float]]:
    rewards: dict[object, list[float]] = {}
    sql = f"SELECT step, reward FROM {TABLE_SCAN} WHERE {CURRENT_ROLLOUTS} AND step IS NOT NULL AND reward IS NOT NULL"
    for step, reward in index.query(sql):
        rewards.setdefault(step, []).append(reward)  # pyright: ignore[reportArgumentType]
    ends = {}
    for step, values in rewards.items():
        values.sort()
        last = len(values) - 1
        ends[step] = values[round(0.1 * last)], values[round(0.9 * last)]
    return ends


def _steps(index: Index) -> list[JsonObject]:
    sql = (
        "SELECT step, COUNT(*), COUNT(reward), AVG(reward), AVG(reward * reward), MIN(line), SUM(truncated) "
        f"FROM {TABLE_SCAN} WHERE {CURRENT_ROLLOUTS} AND step IS NOT NULL GROUP BY step ORDER BY step"
    )
    return [
        {
            "step": step,
            "rollouts": count,
            "failed": count - scored,
            "mean": mean,
            "spread": None if mean is None else math.sqrt(max(0.0, squares - mean * mean)),
            "first": first,
            "truncated": truncated,
        }
        for step, count, scored, mean, squares, first, truncated in index.query(sql)
    ]


def groups(index: Index, step_from: int, step_to: int) -> JsonObject:
    """Return a histogram of the mean rewards of groups in some steps, and the number of zero-advantage groups."""
    sql = (
        f"SELECT AVG(reward), MIN(reward) = MAX(reward) FROM {TABLE_SCAN} "
        f"WHERE {CURRENT_ROLLOUTS} AND reward IS NOT NULL AND step BETWEEN ? AND ? GROUP BY step, example_key HAVING COUNT(*) > 1"
    )
    rows = index.query(sql, [step_from, step_to])
    means = [mean for mean, _ in rows if math.isfinite(mean)]
    dead = sum(same for _, same in rows)
    if not means:
        return {"groups": 0, "dead": 0, "bars": []}
    low, high = min(means), max(means)
    width = high / NUM_BARS - low / NUM_BARS or 1.0  # divide first: the difference may overflow
    counts = [0] * NUM_BARS
    for mean in means:
        counts[min(NUM_BARS - 1, int((mean - low) / width))] += 1
    edges = [low + position * width for position in range(NUM_BARS + 1)]
    bars = [{"from": start, "to": end, "count": count} for start, end, count in zip(edges, edges[1:], counts)]
    return {"groups": len(rows), "dead": dead, "bars": bars}
