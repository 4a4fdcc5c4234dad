"""From rewards to advantages: how much better than its siblings a rollout, or one of its turns, did.

A group without spread has no advantages (None): whatever is done with it, it teaches nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

from rove.core.errors import ConfigError, nearest

MIN_SPREAD = 1e-6
"""Rewards closer together than this teach nothing."""

ESTIMATORS = ("mean", "std", "batch_std", "leave_one_out")
"""How rewards become advantages.

- "mean": R − mean of the group. The spread is not divided out: that would weigh nearly solved and nearly hopeless examples
  most (Dr. GRPO, arXiv 2503.20783).
- "std": the same, divided by the group's standard deviation (GRPO, arXiv 2402.03300).
- "batch_std": the same, divided by one standard deviation for the whole step, that of all its advantages (Magistral,
  arXiv 2506.10910): the learning rate no longer depends on the scale of the rewards, and no example is favoured.
- "leave_one_out": R − mean of the siblings (RLOO, arXiv 2402.14740), which is n/(n − 1) times "mean": it makes up for a rollout
  being in its own baseline, which shrinks the gradient of small groups.

Standard deviations are those of the population (divided by n), so that they need no correction that is no number for small
groups, and nothing is added to them: groups that have next to none are left out before.
"""


def check_estimator(name: str) -> None:
    """Refuse an unknown estimator.

    Raises:
        ConfigError: with the nearest known name.
    """
    if name not in ESTIMATORS:
        raise ConfigError(f"no advantage estimator '{name}'; {nearest(name, ESTIMATORS)}")


def group_advantages(rewards: Sequence[float], estimator: str = "mean") -> list[float] | None:
    """Advantages of one group of siblings; None when it has no spread or fewer than two members.

    Args:
        rewards: of the siblings.
        estimator: one of `ESTIMATORS` but "batch_std", for which see `batch_advantages`.

    Raises:
        ConfigError: no such estimator, or one that needs the whole batch.
        ValueError: a reward is not a finite number.
    """
    check_estimator(estimator)
    if estimator == "batch_std":
        raise ConfigError("'batch_std' is a matter of all groups of a step: batch_advantages has it")
    for reward in rewards:
        if not math.isfinite(reward):
            raise ValueError(f"a reward is {reward}; expected a finite number")
    n = len(rewards)
    if n < 2 or max(rewards) - min(rewards) < MIN_SPREAD:
        return None
    mean = fmean(rewards)
    centred = [reward - mean for reward in rewards]
    if estimator == "std":
        return _scaled(centred, 1 / _root_mean_square(centred))
    return _scaled(centred, n / (n - 1)) if estimator == "leave_one_out" else centred


def returns_to_go(rewards: Sequence[float], gamma: float = 1.0) -> list[float]:
    """What a rollout still earns from each turn on: the turn's reward plus `gamma` times what the next turn returns."""
    returns: list[float] = []
    for reward in reversed(rewards):
        returns.append(reward + gamma * (returns[-1] if returns else 0.0))
    return returns[::-1]


def turn_advantages(
    group: Sequence[Sequence[float]], estimator: str = "mean", gamma: float = 1.0
) -> list[list[float]] | None:
    """Advantages of every turn of a group of siblings, from a reward for every turn; None when no turn has spread.

    A turn's return-to-go is measured against those of the siblings that took a turn of the same number. Turns late in a
    rollout have less left to earn; against a baseline of whole returns they would all look bad, whatever was done in them,
    and a rollout's own past rewards, which the turn no longer changes, would add noise. As in MT-GRPO (arXiv 2505.11821) turns of
    one number are a group of their own. Unlike there, returns are added up before the baseline is taken off: baselines of single
    turns, added up over as many turns as a rollout chose to take, would charge it for each of them. A turn that just one
    sibling took has nothing to be measured against and gets 0.

    Args:
        group: the rewards of each sibling's turns, as many as it took. With one reward each it is a `group_advantages`.
        estimator: as in `group_advantages`.
        gamma: discount; 1 counts all later rewards in full, 0 only the turn's own.

    Raises:
        ConfigError: no such estimator, or a discount that is none.
        ValueError: a reward is not a finite number.
    """
    check_gamma(gamma)
    returns = [returns_to_go(rewards, gamma) for rewards in group]
    advantages = [[0.0] * len(rewards) for rewards in group]
    spread = False
    for turn in range(max(map(len, returns), default=0)):
        takers = [i for i, some in enumerate(returns) if len(some) > turn]
        found = group_advantages([returns[i][turn] for i in takers], estimator)
        if found is not None:
            spread = True
            for i, advantage in zip(takers, found, strict=True):
                advantages[i][turn] = advantage
    return advantages if spread else None


def check_gamma(gamma: float) -> None:
    """Refuse what is no discount.

    Raises:
        ConfigError: it is not from 0 to 1.
    """
    if not 0 <= gamma <= 1:
        raise ConfigError(
            f"gamma is {gamma}; expected a discount from 0 (a turn's own reward) to 1 (all later ones in full)"
        )


def batch_advantages(
    groups: Sequence[Sequence[Sequence[float]]], estimator: str = "mean", gamma: float = 1.0
) -> list[list[list[float]] | None]:
    """`turn_advantages` of every group of a step, None for those without spread.

    With "batch_std" groups without spread do not count, so that what is trained always has a mean square of 1, however many
    examples are solved already.

    Raises:
        ConfigError: no such estimator, or a discount that is none.
        ValueError: a reward is not a finite number.
    """
    found = [turn_advantages(group, _within(estimator), gamma) for group in groups]
    if estimator != "batch_std":
        return found
    scale = _batch_scale(turns for group in found if group for turns in group)
    return [group and [_scaled(turns, scale) for turns in group] for group in found]


def _within(estimator: str) -> str:
    """What is done within each group before the batch is looked at."""
    return "mean" if estimator == "batch_std" else estimator


def _batch_scale(groups: Iterable[Sequence[float]]) -> float:
    values = [value for group in groups for value in group]
    return 1 / _root_mean_square(values) if values else 1.0


def _scaled(values: Sequence[float], factor: float) -> list[float]:
    return [value * factor for value in values]


def _root_mean_square(centred: Sequence[float]) -> float:
    return math.hypot(*centred) / math.sqrt(len(centred))
