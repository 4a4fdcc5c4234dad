"""Reward functions that raise in every rollout, although their rubric counts that as 0.0."""

from __future__ import annotations

from run_folders import make_record

from rove.core.records import REWARD_ERRORS, RolloutRecord, Scores
from rove.statistics.summary import RewardErrors, broken_reward


def scored(**errors: str) -> RolloutRecord:
    weights = {"right": 1.0, "tidy": 0.2}
    scores = Scores(0.0, dict.fromkeys(weights, 0.0), weights, extras={REWARD_ERRORS: errors} if errors else {})
    return make_record(scores=scores)


def counted(*records: RolloutRecord) -> dict[str, str]:
    errors = RewardErrors()
    for rollout in records:
        errors.add(rollout)
    return errors.broken


def test_a_function_that_raises_in_every_rollout_is_broken():
    assert counted(scored(right="KeyError: a"), scored(right="KeyError: b", tidy="x")) == {"right": "KeyError: b"}
    assert "right raised in every rollout, which counts as 0.0: KeyError: b" in broken_reward("right", "KeyError: b")


def test_a_metric_that_raises_is_not_a_broken_reward():
    metric_failed = Scores(
        1.0, {"right": 1.0}, {"right": 1.0}, {"length": 0.0}, {REWARD_ERRORS: {"length": "KeyError: a"}}
    )
    assert counted(make_record(scores=metric_failed)) == {}


def test_functions_that_an_environment_combines_itself_count_as_rewards():
    combined = Scores(0.0, {"reward": 0.0}, {"reward": 1.0}, {"right": 0.0}, {REWARD_ERRORS: {"right": "KeyError: a"}})
    assert counted(make_record(scores=combined)) == {"right": "KeyError: a"}


def test_a_function_that_raises_in_some_rollouts_is_not():
    assert counted(scored(right="KeyError: a"), scored()) == {}
    assert counted(make_record(scores=None), scored()) == {}
