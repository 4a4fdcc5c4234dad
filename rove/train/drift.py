"""Find growth of responses that the reward does not pay for: tokens that no reward function reads drift in RL.

docs/decisions/unrewarded_tokens.md explains why.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

MIN_LENGTH_FACTOR = 1.2
"""Responses have grown if they are longer than at the beginning by more than this factor."""
MIN_TOKENS = 1.0
"""Growth by up to this many tokens is noise."""
MIN_TRUNCATED = 0.05
"""Responses have grown, too, if the share of truncated rollouts has risen by more than this: its standard error is up to 0.035 in
an evaluation of 200 rollouts, and far less near 0."""
MEASUREMENTS = 3
"""Consecutive measurements with grown responses that count as growth, and measurements whose rewards are averaged."""
SAME_REWARD = 0.05
"""A rise of the reward up to this share of the range of rewards does not pay for growth."""


class Measurement(NamedTuple):
    """Mean reward and responses of the weights after a step."""

    step: int
    reward: float
    length: float
    """Tokens per rollout."""
    truncated: float = 0.0
    """Share of the rollouts that are truncated."""


class Growth(NamedTuple):
    """Responses that have grown while the reward has not risen."""

    first: Measurement
    last_short: Measurement
    """The last measurement before the responses had grown."""
    last: Measurement

    @property
    def text(self) -> str:
        """The growth as a sentence without a full stop."""
        text = (
            f"since step {self.last_short.step}, responses have grown from {self.last_short.length:.1f} to "
            f"{self.last.length:.1f} tokens per rollout ({self.first.length:.1f} at first)"
        )
        if self.last.truncated > self.first.truncated:
            text += f", {self.last.truncated:.0%} of them are truncated ({self.first.truncated:.0%} at first)"
        return f"{text}, and the reward has not risen ({self.last_short.reward:.3f} then, {self.last.reward:.3f} now)"


def measurements_of(history: Sequence[Mapping[str, float]], metric: str) -> list[Measurement]:
    """Return the measurements of a held-out evaluation in the metrics of a run.

    Args:
        metric: Its mean reward, such as "eval/sampled/reward/mean".
    """
    prefix = metric.removesuffix("reward/mean")
    measurements: list[Measurement] = []
    for row in history:
        if metric in row and f"{prefix}length/mean" in row:
            truncated = row.get(f"{prefix}truncated", 0.0)
            measurements.append(Measurement(int(row["step"]), row[metric], row[f"{prefix}length/mean"], truncated))
    return measurements


def has_grown(first: Measurement, measurement: Measurement) -> bool:
    """Return whether responses are clearly longer than in the first measurement, or clearly more of them are truncated."""
    is_longer = measurement.length > max(MIN_LENGTH_FACTOR * first.length, first.length + MIN_TOKENS)
    return is_longer or measurement.truncated > first.truncated + MIN_TRUNCATED


def unrewarded_growth(measurements: Sequence[Measurement], reward_range: float) -> Growth | None:
    """Return the growth of responses that the reward does not pay for; None if there is none.

    Rewards before and after the growth are compared, because a reward may pay for longer responses, such as reasoning.

    Args:
        measurements: Measurements of one run, oldest first; the first is that of the initial weights.
        reward_range: Difference between the highest and the lowest reward.
    """
    if len(measurements) <= MEASUREMENTS:
        return None
    first = measurements[0]
    num_short = len(measurements)
    while num_short and has_grown(first, measurements[num_short - 1]):
        num_short -= 1
    short, grown = measurements[:num_short], measurements[num_short:]
    if len(grown) < MEASUREMENTS:
        return None
    reward = statistics.fmean(measurement.reward for measurement in grown[-MEASUREMENTS:])
    # The initial weights do not show what was learned before the growth.
    learned = short[1:] or short
    earlier_reward = statistics.fmean(measurement.reward for measurement in learned[-MEASUREMENTS:])
    if reward - earlier_reward > SAME_REWARD * reward_range:
        return None
    return Growth(first, short[-1], measurements[-1])
