"""Whether the reward of a training run has risen; `rove rl` and the viewer decide it in the same way."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rove.core.findings import Finding
from rove.statistics.intervals import Estimate, mean, sample_variance, t_quantile

MIN_TREND_STEPS = 20
"""Minimum number of steps for which the variation of the rewards is meaningful."""
ROUNDING = 1e-12
"""A difference of two means up to this value is a rounding error."""


def ends(values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """Return the first and the last quarter of at least two values; of fewer than 20 values, up to 5 values each."""
    size = max(len(values) // 4, min(MIN_TREND_STEPS // 4, len(values) // 2))
    return values[:size], values[-size:]


def change_between(first: Sequence[float], last: Sequence[float]) -> Estimate:
    """Return the difference between the means of two equally long parts of a curve, with a 95% interval.

    Steps count as independent. A trend within a part counts as variation, so the interval tends to be too wide.
    """
    size = len(first)
    change = mean(last) - mean(first)
    if abs(change) <= ROUNDING:
        change = 0.0
    # The variances of the two parts may differ.
    error = math.sqrt((sample_variance(first) + sample_variance(last)) / size)
    half_width = t_quantile(0.975, 2 * size - 2) * error
    return Estimate(change, change - half_width, change + half_width)


def flat_reward(rewards: Sequence[float]) -> Finding | None:
    """Return a finding if the reward has not measurably increased; None if it has increased or there are too few steps."""
    if len(rewards) < MIN_TREND_STEPS:
        return None
    first, last = ends(rewards)
    gain = change_between(first, last)
    if gain.low > 0.0:
        return None
    figures = (
        f"{len(rewards)} steps ({mean(first):.3f} in the first {len(first)}, {mean(last):.3f} in the last {len(last)}: "
        f"{gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}])"
    )
    if gain.high < 0.0:
        remedy = "lower the learning rate, unless examples got harder"
        return Finding("flat_reward", f"the reward fell in {figures}", remedy=remedy)
    return Finding("flat_reward", f"no measurable increase in reward in {figures}")
