"""From rewards to advantages, one group of siblings at a time."""

from __future__ import annotations

from collections.abc import Sequence

SPREADLESS = 1e-6
"""Rewards closer together than this teach nothing."""


def group_advantages(rewards: Sequence[float]) -> list[float] | None:
    """Reward minus the mean of the group; None when the group has no spread or fewer than two members.

    The spread is not divided out: that would weigh nearly solved and nearly hopeless examples most (Dr. GRPO, arXiv 2503.20783).
    """
    if len(rewards) < 2 or max(rewards) - min(rewards) < SPREADLESS:
        return None
    mean = sum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]
