"""`rove.run_rollouts`, with which other trainers run rollouts, against `rove.generate` and the collection of `rove rl`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes import tiny_model
from toy_envs import Quiz, Talk, oracle, rows, scripted_client, without_times

import rove as vf
from rove.core.digest import derive_seed
from rove.core.errors import ConfigError
from rove.rollouts.groups import RolloutError
from rove.runs.run import Run
from rove.train.collect import RolloutCollector, turn_rewards
from tests.train.test_rl import TwoTurns, letters, settings, two_turns


async def test_the_rollouts_are_those_of_generate():
    env = Quiz(3, system_prompt="Answer.")
    options: dict[str, Any] = {"rollouts_per_example": 2, "seed": 5}
    expected = await vf.generate(env, scripted_client(oracle), **options)
    records = await vf.run_rollouts(env, env.get_eval_dataset(), scripted_client(oracle), **options)
    assert [without_times(record) for record in records] == [without_times(record) for record in expected]
    # The rows of a dataset, before the system prompt and `example_id` are added, are the same examples.
    assert [without_times(r) for r in await vf.run_rollouts(env, rows(3), scripted_client(oracle), **options)] == [
        without_times(record) for record in expected
    ]


async def test_records_have_the_order_of_the_rows_and_keep_their_ids():
    env = Quiz(3)
    chosen = [env.get_dataset()[index] for index in (2, 0, 2)]
    finished: list[vf.RolloutRecord] = []
    records = await vf.run_rollouts(
        env, chosen, scripted_client(oracle), rollouts_per_example=2, on_record=finished.append
    )
    assert [(record.example_id, record.rollout_index) for record in records] == [
        (2, 0),
        (2, 1),
        (0, 0),
        (0, 1),
        (2, 0),
        (2, 1),
    ]
    assert (
        len({(record.example_key, record.rollout_index) for record in records}) == 6
    )  # equal rows have different keys
    assert len(finished) == 6


def test_synchronous_calls_in_a_loop_and_in_a_running_event_loop():
    env = Quiz(2)
    for _ in range(2):
        assert [record.reward for record in vf.run_rollouts_sync(env, rows(2), scripted_client(oracle))] == [1.0, 1.0]

    async def notebook() -> list[vf.RolloutRecord]:
        return vf.run_rollouts_sync(env, rows(2), scripted_client(oracle))

    import asyncio

    assert len(asyncio.run(notebook())) == 2


async def test_a_failure_is_a_record_with_an_error_and_no_reward():
    def broken(completion: vf.Messages) -> float:
        raise RuntimeError("no score")

    env = Quiz(1, rubric=vf.Rubric([broken]))
    [record] = await vf.run_rollouts(env, rows(1), scripted_client("0"))
    assert (record.reward, record.scores) == (None, None)
    assert record.error is not None and record.error.message == "no score"
    with pytest.raises(RolloutError, match="no score"):
        await vf.run_rollouts(env, rows(1), scripted_client("0"), fail_fast=True)


async def test_limits_and_options():
    [record] = await vf.run_rollouts(Talk(), rows(1), scripted_client("hi"), limits={"max_turns": 2})
    assert (record.stop_condition, len(record.steps)) == ("max_turns_reached", 2)
    with pytest.raises(ConfigError, match=r"no option 'num_examples'; known: fail_fast, .*rollouts_per_example"):
        await vf.run_rollouts(Quiz(1), rows(1), scripted_client("hi"), num_examples=2)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="max_cost needs a price"):
        await vf.run_rollouts(Quiz(1), rows(1), scripted_client("hi"), limits={"max_cost": 1})
    with pytest.raises(ConfigError, match="row 0 has neither 'prompt' nor 'question'"):
        await vf.run_rollouts(Quiz(1), [{"answer": "1"}], scripted_client("hi"))


async def test_clients_of_model_roles_are_replaced():
    class Judged(vf.SingleTurnEnv):
        async def post_rollout(self, state: vf.State) -> None:
            state["verdict"] = (await vf.query(state, "Good?", scripted_client("no"), role="judge")).content

    rubric = vf.Rubric([lambda state: float(state["verdict"] == "yes")])
    env = Judged(dataset=rows(1), rubric=rubric)
    assert [r.reward for r in await vf.run_rollouts(env, rows(1), scripted_client("hi"))] == [0.0]
    assert [
        r.reward
        for r in await vf.run_rollouts(
            env, rows(1), scripted_client("hi"), model_roles={"judge": scripted_client("yes")}
        )
    ] == [1.0]


async def test_an_environment_in_use_is_torn_down_once_at_the_end():
    env = two_turns()
    await vf.run_rollouts(env, rows(1), scripted_client("hi"))
    assert env.torn_down == 1
    async with env.used_in_run():
        await vf.run_rollouts(env, rows(1), scripted_client("hi"))
        await vf.run_rollouts(env, rows(1), scripted_client("hi"))
    assert env.torn_down == 2


class Rewarded(TwoTurns):
    """Rewards turns and rewrites the first question now and then, which starts a new branch."""

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str:
        state["trajectory"][-1]["reward"] = letters(messages[-1:])
        if state["example_id"] % 2:
            messages[0]["content"] = "say it again"
        return "you say"


@pytest.mark.parametrize("env_type", [TwoTurns, Rewarded])
async def test_sequences_equal_those_of_the_trainer_bit_by_bit(tmp_path: Path, env_type: type[TwoTurns]):
    config = settings(temperature=1.25)
    env = env_type(dataset=two_turns().get_dataset(), rubric=two_turns().rubric, max_turns=2)
    with Run(tmp_path) as run:
        run.start("rl", {}, {})
        collector = RolloutCollector(config, env, vf.EngineClient.from_model(tiny_model()), run)
        trained = await collector.collect(0)
    records = await vf.run_rollouts(
        env,
        env.get_dataset(config.groups),
        vf.EngineClient.from_model(tiny_model()),
        rollouts_per_example=config.rollouts_per_example,
        sampling_args={"temperature": 1.25, "max_tokens": config.max_tokens},
        seed=derive_seed(config.seed, 0),
        for_training=True,
    )
    by_rollout = {(record.example_key, record.rollout_index): record for record in records}
    for record in trained.records:
        matching = by_rollout[record.example_key, record.rollout_index]
        assert without_times(matching) == without_times(msgspec.structs.replace(record, step=None))

    assert len(trained.sequences) >= 12
    expected = list(trained.sequences)
    branches: set[int] = set()
    for record in records:
        of_rollout = [s for s in expected if s.origin and _rollout(s) == (record.example_key, record.rollout_index)]
        if not of_rollout:  # all rewards of the group are equal
            continue
        advantages = {turn: advantage for sequence in of_rollout for turn, advantage in _turn_advantages(sequence)}
        sequences = vf.sequences_from_record(record, [advantages[turn] for turn in range(len(record.steps))])
        assert [msgspec.structs.replace(s, weight=1.0) for s in of_rollout] == sequences
        turns = sorted(
            turn for s in sequences if s.origin for turn in zip(s.origin.turns, s.origin.rewards, strict=True)
        )
        [earned] = turn_rewards([record])
        rewards = [reward for _, reward in turns]
        assert rewards == (earned if len(earned) == len(rewards) else [0.0, *earned])
        branches.add(len(sequences))
    assert branches == ({1} if env_type is TwoTurns else {1, 2})


def _rollout(sequence: vf.TrainingSequence) -> tuple[str, int]:
    assert sequence.origin is not None
    return sequence.origin.example_key, sequence.origin.rollout_index


def _turn_advantages(sequence: vf.TrainingSequence) -> list[tuple[int, float]]:
    """Return the advantage of each turn of a sequence, read from its sampled tokens."""
    assert sequence.origin is not None
    values = [value for value, trained in zip(sequence.advantages, sequence.mask, strict=True) if trained]
    advantages: list[tuple[int, float]] = []
    position = 0
    for turn, count in sequence.origin.turns:
        advantages.append((turn, values[position]))
        position += count
    return advantages
