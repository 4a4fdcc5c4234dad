"""`rove.statistics.reward_errors`: which functions raised in every rollout."""

from __future__ import annotations

from typing import Any

from rove.records import Outcome, Scores
from rove.statistics.reward_errors import RewardErrors, broken_reward


def outcome(rewards: dict[str, float], errors: Any = None, env_id: str = "", metrics: Any = None) -> Outcome:
    extras = {} if errors is None else {"reward_errors": errors}
    scores = Scores(0.0, rewards, dict.fromkeys(rewards, 1.0), metrics or {}, extras)
    return Outcome("key", 0, 0, None, False, scores, None, env_id=env_id)


def broken(*outcomes: Outcome) -> dict[str, str]:
    errors = RewardErrors()
    for one in outcomes:
        errors.add(one)
    return errors.broken


def test_a_function_is_broken_that_raises_in_every_rollout() -> None:
    two = {"a": 0.0, "b": 0.0}
    assert broken(outcome(two, {"a": "E: 1"}), outcome(two, {"a": "E: 2", "b": "E"})) == {"a": "E: 2"}
    assert broken(outcome(two), outcome(two, {"a": "E"})) == {}
    assert broken() == {}


def test_failed_rollouts_and_metrics_do_not_count() -> None:
    failed = Outcome("key", 0, 0, None, False, None, None)
    assert broken(failed, outcome({"a": 0.0}, {"a": "E", "metric": "E"}, metrics={"metric": 0.0})) == {"a": "E"}


def test_functions_of_a_rubric_that_scores_by_itself_count() -> None:
    assert broken(outcome({"reward": 0.0}, {"a": "E"}, metrics={"a": 0.0, "b": 1.0})) == {"a": "E"}


def test_members_of_a_group_count_apart() -> None:
    fine, bad = outcome({"a": 1.0}, env_id="one"), outcome({"a": 0.0}, {"a": "E"}, env_id="two")
    assert broken(fine, bad) == {"a": "E"}
    assert broken(fine, outcome({"b": 0.0}, {"a": "E"}, env_id="two")) == {}


def test_what_others_keep_under_the_key_is_ignored() -> None:
    assert broken(outcome({"a": 0.0}, ["not a dict"])) == {}


def test_the_message_names_function_and_error() -> None:
    assert broken_reward("right", "E: 1") == (
        "its reward is broken: right raised in every rollout, which counts as 0.0: E: 1"
    )
