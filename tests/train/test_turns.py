"""Turn rewards: from environments and reward functions to advantages and training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes import make_rollout

import rove as vf
from rove.core.records import StepTokens, TrajectoryStep
from rove.train.collect import training_sequences, turn_rewards
from tests.train.test_rl import ROWS, TwoTurns, letters, metrics_of, rollouts_of, settings, train, two_turns, weights_of


class Judged(TwoTurns):
    """An environment that rewards each turn with its fraction of lowercase letters."""

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str:
        step = state["trajectory"][-1]
        step["reward"] = letters(step.completion)
        return "you say"


def judged_env() -> Judged:
    rubric = vf.Rubric()
    rubric.add_metric(letters)
    return Judged(dataset=ROWS, rubric=rubric, max_turns=2)


def rollout_with_turn_rewards(*rewards: float | None, earned: float = 0.0, index: int = 0, **fields: Any) -> Any:
    """Return a rollout with these turn rewards; each turn has one token."""
    ids = range(2 * len(rewards))
    tokens = [StepTokens(list(ids[: 2 * i + 1]), [ids[2 * i + 1]], [-0.5]) for i in range(len(rewards))]
    steps = [TrajectoryStep([], [], tokens=t, reward=r) for t, r in zip(tokens, rewards, strict=True)]
    return make_rollout([], earned, index=index, steps=steps, **fields)


def test_the_rollout_reward_is_added_to_the_last_turn():
    assert turn_rewards(
        [rollout_with_turn_rewards(0.5, 1.0, earned=2.0), rollout_with_turn_rewards(None, 0.25, earned=1.0)]
    ) == [[0.5, 3.0], [0.0, 1.25]]
    assert turn_rewards(
        [
            rollout_with_turn_rewards(None, 1.0),
            rollout_with_turn_rewards(None, None, earned=1.0),
            rollout_with_turn_rewards(earned=1.0),
        ]
    ) == [[0, 1], [0, 1], []]


def test_a_group_without_turn_rewards_has_one_reward_per_rollout():
    assert turn_rewards(
        [rollout_with_turn_rewards(None, None, earned=2.0), rollout_with_turn_rewards(None, earned=1.0)]
    ) == [[2.0], [1.0]]


def test_turn_rewards_of_a_truncated_rollout_can_be_set_to_0():
    group = [rollout_with_turn_rewards(0.5, 1.0, earned=2.0, is_truncated=True), rollout_with_turn_rewards(0.5, 1.0)]
    assert turn_rewards(group, "zero") == [[0.0, 0.0], [0.5, 1.0]]
    assert turn_rewards(group, "keep") == [[0.5, 3.0], [0.5, 1.0]]


def test_tokens_have_the_advantage_of_their_turn():
    # Returns [3, 2], [1, 1], [2]; see test_advantages.py.
    group = [
        rollout_with_turn_rewards(1.0, 0.0, earned=2.0),
        rollout_with_turn_rewards(0.0, 1.0, index=1),
        rollout_with_turn_rewards(2.0, index=2),
    ]
    sequences, counts = training_sequences(group)
    assert [sequence.advantages for [sequence] in sequences] == [[0, 1.0, 0, 0.5], [0, -1.0, 0, -0.5], [0, 0.0]]
    assert counts["groups/zero_spread"] == 0
    discounted, _ = training_sequences(group, gamma=0.5)
    assert [sequence.advantages for [sequence] in discounted] == [[0, 0.5, 0, 0.5], [0, -1.0, 0, -0.5], [0, 0.5]]


def test_turn_rewards_can_differ_although_rollout_rewards_are_equal():
    group = [rollout_with_turn_rewards(1.0, 0.0), rollout_with_turn_rewards(0.0, 1.0, index=1)]
    sequences, counts = training_sequences(group)
    assert [sequence.advantages for [sequence] in sequences] == [[0, 0.0, 0, -0.5], [0, 0.0, 0, 0.5]]
    assert counts["groups/zero_spread"] == 0
    assert (
        training_sequences([rollout_with_turn_rewards(1.0), rollout_with_turn_rewards(1.0, index=1)])[1][
            "groups/zero_spread"
        ]
        == 1
    )


def test_turn_rewards_of_an_environment_are_saved_logged_and_trained_on(tmp_path: Path):
    train(tmp_path / "judged", settings(steps=2), judged_env())
    for record in rollouts_of(tmp_path / "judged"):
        assert record.reward == 0.0
        assert [step.reward for step in record.steps] == [letters(step.completion) for step in record.steps]
    row = metrics_of(tmp_path / "judged")[0]
    rewards = [sum(s.reward or 0.0 for s in r.steps) for r in rollouts_of(tmp_path / "judged") if r.step == 1]
    assert row["turn_reward/mean"] == pytest.approx(sum(rewards) / len(rewards))
    assert row["tokens"] > 0

    train(tmp_path / "plain", settings(steps=2), two_turns())
    assert "turn_reward/mean" not in metrics_of(tmp_path / "plain")[0]
    assert weights_of(tmp_path / "judged") != weights_of(tmp_path / "plain")

    train(tmp_path / "gamma", settings(steps=2, gamma=0.0), judged_env())
    assert weights_of(tmp_path / "gamma") != weights_of(tmp_path / "judged")


def test_a_reward_function_can_set_turn_rewards(tmp_path: Path):
    def reward_turns(state: vf.State) -> float:
        for step in state["trajectory"]:
            step["reward"] = letters(step.completion)
        return 0.0

    rubric = vf.Rubric()
    rubric.add_reward_func(reward_turns, weight=1.0)
    train(tmp_path / "function", settings(steps=1), TwoTurns(dataset=ROWS, rubric=rubric, max_turns=2))
    train(tmp_path / "environment", settings(steps=1), judged_env())
    assert weights_of(tmp_path / "function") == weights_of(tmp_path / "environment")


@pytest.mark.slow
def test_training_on_turn_rewards_raises_them(tmp_path: Path):
    train(tmp_path, settings(steps=12, batch_size=64, rollouts_per_example=16, checkpoint_every=99), judged_env())
    rewards = [m["turn_reward/mean"] for m in metrics_of(tmp_path)]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.3
