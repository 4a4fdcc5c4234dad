"""Compute advantages from rewards: by how much a rollout, or one of its turns, is better than the mean of its group.

A group whose rewards are all equal has no advantages (None), because no member is better than another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from statistics import fmean

from rove.core.checks import checked
from rove.core.errors import ConfigError, nearest
from rove.core.ranges import Fraction

MIN_SPREAD = 1e-6
"""Rewards closer together than this count as equal."""

ESTIMATORS = ("mean", "std", "batch_std", "leave_one_out")
"""Advantage estimators, for the reward R of a member of a group of n:

- "mean": R − mean(group). It is not divided by the spread, because that would give nearly solved and nearly hopeless examples
  the most weight (Dr. GRPO, arXiv 2503.20783).
- "std": (R − mean(group)) / std(group) (GRPO, arXiv 2402.03300).
- "batch_std": (R − mean(group)) / std(all advantages of the step). The learning rate does not depend on the scale of rewards,
  and no example is favored (Magistral, arXiv 2506.10910).
- "leave_one_out": R − mean(other members) = n / (n − 1) · "mean". If a rollout is part of its own baseline, the
  gradient of small groups is too small; this factor corrects for it (RLOO, arXiv 2402.14740).

Standard deviations are of the population (divided by n), so they exist for groups of any size. No epsilon is added,
because groups without spread are excluded first."""


def check_estimator(name: str) -> None:
    """Check the name of an estimator."""
    if name not in ESTIMATORS:
        raise ConfigError(f"no advantage estimator '{name}'; {nearest(name, ESTIMATORS)}")


def group_advantages(rewards: Sequence[float], estimator: str = "mean") -> list[float] | None:
    """Return the advantages of one group; None if all rewards are equal or there are fewer than two members.

    Example:
        group_advantages([1.0, 0.0])  # [0.5, -0.5]
    """
    check_estimator(estimator)
    if estimator == "batch_std":
        raise ConfigError("'batch_std' needs all groups of a step; use batch_advantages")
    # A NaN would make every advantage of the group NaN, and then every weight of the model.
    for reward in rewards:
        if not math.isfinite(reward):
            raise ValueError(f"a reward is {reward}; expected a finite number")
    n = len(rewards)
    if n < 2 or max(rewards) - min(rewards) < MIN_SPREAD:
        return None
    mean = fmean(rewards)
    centered = [reward - mean for reward in rewards]
    if estimator == "std":
        return _scaled(centered, 1 / _root_mean_square(centered))
    if estimator == "leave_one_out":
        return _scaled(centered, n / (n - 1))
    return centered


def returns_to_go(rewards: Sequence[float], gamma: float = 1.0) -> list[float]:
    """Return the return of each turn: its reward plus `gamma` times the return of the next turn."""
    returns: list[float] = []
    for reward in reversed(rewards):
        returns.append(reward + gamma * (returns[-1] if returns else 0.0))
    return returns[::-1]


def turn_advantages(
    group: Sequence[Sequence[float]], estimator: str = "mean", gamma: float = 1.0
) -> list[list[float]] | None:
    """Return the advantages of every turn of a group, from a reward per turn; None if no turn has spread.

    The baseline of a turn is the mean return-to-go of the group members' turns with the same number. Late turns have
    less left to earn, so a baseline of whole returns would make all late turns look bad. A rollout's past rewards are left
    out, because the turn cannot change them and they would add noise. As in MT-GRPO (arXiv 2505.11821), turns with the
    same number form a group. Unlike in MT-GRPO, returns are summed before the baseline is subtracted: baselines of
    single turns, summed over as many turns as a rollout chose to take, would penalize each turn
    (docs/decisions/turn_rewards.md). A turn that only one member has gets the advantage 0.

    Args:
        group: Rewards of each member's turns. If each member has one reward, the result equals `group_advantages`.
        gamma: Discount factor; with 1, later rewards count in full; with 0, only the turn's own reward counts.
    """
    checked("gamma", gamma, Fraction)
    returns = [returns_to_go(rewards, gamma) for rewards in group]
    advantages = [[0.0] * len(rewards) for rewards in group]
    has_spread = False
    for turn in range(max(map(len, returns), default=0)):
        members = [member for member, turn_returns in enumerate(returns) if len(turn_returns) > turn]
        of_turn = group_advantages([returns[member][turn] for member in members], estimator)
        if of_turn is not None:
            has_spread = True
            for member, advantage in zip(members, of_turn, strict=True):
                advantages[member][turn] = advantage
    return advantages if has_spread else None


def batch_advantages(
    groups: Sequence[Sequence[Sequence[float]]], estimator: str = "mean", gamma: float = 1.0
) -> list[list[list[float]] | None]:
    """Return `turn_advantages` of every group of a step; None for groups without spread.

    With "batch_std", groups without spread are excluded from the standard deviation, so advantages have a mean square
    of 1, no matter how many examples are solved.
    """
    within_group = "mean" if estimator == "batch_std" else estimator
    advantages = [turn_advantages(group, within_group, gamma) for group in groups]
    if estimator != "batch_std":
        return advantages
    rollouts = chain.from_iterable(group for group in advantages if group is not None)
    values = list(chain.from_iterable(rollouts))
    scale = 1 / _root_mean_square(values) if values else 1.0
    return [None if group is None else [_scaled(turns, scale) for turns in group] for group in advantages]


def _scaled(values: Sequence[float], factor: float) -> list[float]:
    return [value * factor for value in values]


def _root_mean_square(centered: Sequence[float]) -> float:
    # `hypot` scales its arguments: the squares of very small rewards would vanish, and those of very large ones overflow.
    return math.hypot(*centered) / math.sqrt(len(centered))
