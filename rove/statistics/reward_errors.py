"""Reward functions that raise in every rollout although a rubric counts that as 0.0: their mean says nothing."""

from __future__ import annotations

from collections import Counter

from rove.core.records import REWARD_ERRORS, Outcome, RolloutRecord


class RewardErrors:
    """Counts, rollout by rollout, how often each reward function was called and how often it raised.

    Functions of the same name in different environments of a group are counted apart. Metrics, which do not count toward
    the reward, are left out.
    """

    def __init__(self) -> None:
        self._called: Counter[tuple[str, str]] = Counter()
        self._raised: Counter[tuple[str, str]] = Counter()
        self._errors: dict[tuple[str, str], str] = {}

    def add(self, record: RolloutRecord | Outcome) -> None:
        """Count one more rollout."""
        scores = record.scores
        if scores is None:
            return
        own_scoring = list(scores.rewards) == ["reward"]  # then the functions are among the metrics
        for name in [*scores.rewards, *(scores.metrics if own_scoring else ())]:
            self._called[record.env_id, name] += 1
        errors = scores.extras.get(REWARD_ERRORS)
        for name, error in errors.items() if isinstance(errors, dict) else ():
            self._raised[record.env_id, name] += 1
            self._errors[record.env_id, name] = str(error)

    @property
    def broken(self) -> dict[str, str]:
        """Function → its last error, for functions that raised in every rollout in which they were called."""
        return {
            name: self._errors[env_id, name]
            for (env_id, name), times in self._raised.items()
            if times >= self._called[env_id, name] > 0
        }


def broken_reward(name: str, error: str) -> str:
    """What there is to say of a function that raised in every rollout."""
    return f"its reward is broken: {name} raised in every rollout, which counts as 0.0: {error}"
