"""Rewards of turns, from the environment that gives them to the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes import record_of

import rove as vf
from rove.core.records import StepTokens, TrajectoryStep
from rove.train.collect import training_sequences, turn_rewards
from tests.train.test_rl import ROWS, TwoTurns, letters, metrics_of, rollouts_of, settings, train, two_turns, weights_of


class Judged(TwoTurns):
    """Says after each turn what it was worth: its share of small letters."""

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str:
        step = state["trajectory"][-1]
        step["reward"] = letters(step.completion)
        return "you say"


def judged() -> Judged:
    rubric = vf.Rubric()
    rubric.add_metric(letters)
    return Judged(dataset=ROWS, rubric=rubric, max_turns=2)


def taken(*rewards: float | None, earned: float = 0.0, index: int = 0, **fields: Any) -> Any:
    """A rollout whose turns, of one token each, were given these rewards."""
    ids = range(2 * len(rewards))
    tokens = [StepTokens(list(ids[: 2 * i + 1]), [ids[2 * i + 1]], [-0.5]) for i in range(len(rewards))]
    steps = [TrajectoryStep([], [], tokens=t, reward=r) for t, r in zip(tokens, rewards, strict=True)]
    return record_of([], earned, index=index, steps=steps, **fields)


def test_the_rollouts_reward_is_earned_in_the_last_turn():
    assert turn_rewards([taken(0.5, 1.0, earned=2.0), taken(None, 0.25, earned=1.0)]) == [[0.5, 3.0], [0.0, 1.25]]
    assert turn_rewards([taken(None, 1.0), taken(None, None, earned=1.0), taken(earned=1.0)]) == [[0, 1], [0, 1], []]


def test_a_group_without_rewards_of_turns_is_rewarded_as_a_whole():
    assert turn_rewards([taken(None, None, earned=2.0), taken(None, earned=1.0)]) == [[2.0], [1.0]]


def test_a_truncated_rollout_can_have_earned_nothing_in_any_turn():
    group = [taken(0.5, 1.0, earned=2.0, is_truncated=True), taken(0.5, 1.0)]
    assert turn_rewards(group, "zero") == [[0.0, 0.0], [0.5, 1.0]]
    assert turn_rewards(group, "keep") == [[0.5, 3.0], [0.5, 1.0]]


def test_advantages_of_turns_are_those_of_their_tokens():
    # Returns [3, 2], [1, 1], [2]; see test_train_advantages.
    group = [taken(1.0, 0.0, earned=2.0), taken(0.0, 1.0, index=1), taken(2.0, index=2)]
    samples, counts = training_sequences(group)
    assert [s.advantages for [s] in samples] == [[0, 1.0, 0, 0.5], [0, -1.0, 0, -0.5], [0, 0.0]]
    assert counts["groups/zero_spread"] == 0
    discounted, _ = training_sequences(group, gamma=0.5)
    assert [s.advantages for [s] in discounted] == [[0, 0.5, 0, 0.5], [0, -1.0, 0, -0.5], [0, 0.5]]


def test_turns_may_have_spread_where_rollouts_have_none():
    group = [taken(1.0, 0.0), taken(0.0, 1.0, index=1)]
    samples, counts = training_sequences(group)
    assert [s.advantages for [s] in samples] == [[0, 0.0, 0, -0.5], [0, 0.0, 0, 0.5]]
    assert counts["groups/zero_spread"] == 0
    assert training_sequences([taken(1.0), taken(1.0, index=1)])[1]["groups/zero_spread"] == 1


def test_an_environments_rewards_of_turns_are_kept_shown_and_trained_on(tmp_path: Path):
    train(tmp_path / "judged", settings(steps=2), judged())
    for record in rollouts_of(tmp_path / "judged"):
        assert record.reward == 0.0
        assert [step.reward for step in record.steps] == [letters(step.completion) for step in record.steps]
    row = metrics_of(tmp_path / "judged")[0]
    first = [sum(s.reward or 0.0 for s in r.steps) for r in rollouts_of(tmp_path / "judged") if r.step == 1]
    assert row["turn_reward/mean"] == pytest.approx(sum(first) / len(first))
    assert row["tokens"] > 0

    train(tmp_path / "plain", settings(steps=2), two_turns())
    assert "turn_reward/mean" not in metrics_of(tmp_path / "plain")[0]
    assert weights_of(tmp_path / "judged") != weights_of(tmp_path / "plain")

    train(tmp_path / "gamma", settings(steps=2, gamma=0.0), judged())
    assert weights_of(tmp_path / "gamma") != weights_of(tmp_path / "judged")


def test_a_reward_function_may_reward_turns_too(tmp_path: Path):
    def each(state: vf.State) -> float:
        for step in state["trajectory"]:
            step["reward"] = letters(step.completion)
        return 0.0

    rubric = vf.Rubric()
    rubric.add_reward_func(each, weight=1.0)
    train(tmp_path / "function", settings(steps=1), TwoTurns(dataset=ROWS, rubric=rubric, max_turns=2))
    train(tmp_path / "environment", settings(steps=1), judged())
    assert weights_of(tmp_path / "function") == weights_of(tmp_path / "environment")


@pytest.mark.broad
def test_training_on_rewards_of_turns_raises_them(tmp_path: Path):
    train(tmp_path, settings(steps=12, batch_size=64, rollouts_per_example=16, checkpoint_every=99), judged())
    rewards = [m["turn_reward/mean"] for m in metrics_of(tmp_path)]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.3
