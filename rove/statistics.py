"""Means with their uncertainty."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rove.records import RolloutRecord, Usage


class Estimate(NamedTuple):
    """A mean, and the half-width of its 95 % confidence interval (nan when it cannot be told)."""

    mean: float
    half_width: float


def mean(values: Sequence[float]) -> float:
    """The mean; nan of nothing."""
    return math.fsum(values) / len(values) if values else math.nan


def clustered_mean(values: Iterable[tuple[str, float]]) -> Estimate:
    """Mean of (cluster, value) pairs with a 95 % interval that knows values of one cluster are not independent.

    Clusters are examples, values their rollouts. The variance is the sandwich estimate over clusters (as for a regression on
    a constant, with the factor n / (n − 1)); normal quantile.
    """
    pairs = list(values)
    if not pairs:
        return Estimate(math.nan, math.nan)
    centre = mean([value for _, value in pairs])
    sums: dict[str, float] = {}
    for cluster, value in pairs:
        sums[cluster] = sums.get(cluster, 0.0) + value - centre
    if len(sums) < 2:
        return Estimate(centre, math.nan)
    variance = sum(s * s for s in sums.values()) / len(pairs) ** 2 * len(sums) / (len(sums) - 1)
    return Estimate(centre, 1.96 * math.sqrt(variance))


class Tally:
    """Statistics of an evaluation, gathered rollout by rollout; keeps scalars, never texts."""

    def __init__(self) -> None:
        self.rollouts = self.failed = self.truncated = 0
        self.usage = Usage()
        self.errors: dict[str, int] = {}
        self.stops: dict[str, int] = {}
        self.weights: dict[str, float] = {}
        self._reward: list[tuple[str, float]] = []
        self._values: dict[str, list[tuple[str, float]]] = {}

    def add(self, record: RolloutRecord) -> None:
        """Count a rollout: its scores, or its error."""
        self.rollouts += 1
        self.truncated += record.is_truncated
        self.usage = self.usage + record.usage
        if record.error is not None:
            self.failed += 1
            label = f"{record.error.phase}: {record.error.type}"
            self.errors[label] = self.errors.get(label, 0) + 1
        if record.scores is None:
            return
        stop = record.stop_condition or "none"
        self.stops[stop] = self.stops.get(stop, 0) + 1
        self.weights.update(record.scores.weights)
        self._reward.append((record.example_key, record.scores.reward))
        for name, value in {**record.scores.rewards, **record.scores.metrics}.items():
            self._values.setdefault(name, []).append((record.example_key, value))

    def summary(self) -> dict[str, Any]:
        """Everything as plain values; estimates are over the scored rollouts only."""
        return {
            "rollouts": self.rollouts,
            "scored": self.rollouts - self.failed,
            "failed": self.failed,
            "truncated": self.truncated,
            "reward": clustered_mean(self._reward)._asdict(),
            "functions": {
                name: {**clustered_mean(values)._asdict(), "weight": self.weights.get(name, 0.0)}
                for name, values in self._values.items()
            },
            "stops": self.stops,
            "errors": self.errors,
            "prompt_tokens": self.usage.prompt_tokens,
            "completion_tokens": self.usage.completion_tokens,
        }
