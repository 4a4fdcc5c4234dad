"""Tests of replay cases: recorded games are replayed with the same example and the person's moves."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from commands import Rove, in_process_rove

import rove as vf
from rove.core.protocols import SamplingParams
from rove.core.records import RolloutRecord
from rove.envs.loading import load_environment
from rove.rollouts.replay_cases import recorded_opponent, run_replay_cases
from rove.runs.run import Run
from rove.viewer.play_roles import one_game
from rove.viewer.play_session import with_opponent


@pytest.fixture
def rove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    return in_process_rove(tmp_path, monkeypatch, capsys)


def game() -> Any:
    return load_environment("tictactoe", num_examples=8)


async def record_game(seed: int, policy: str = "optimal") -> RolloutRecord:
    """Record a game of a scripted policy against a person who takes the last free square."""
    env = game()
    moves: list[tuple[str, str]] = []

    async def person(view: str, legal: list[str], board: vf.Rendering | None = None) -> str:
        moves.append((view, legal[-1]))
        return legal[-1]

    env.opponent = person
    return with_opponent(
        await one_game(env, vf.ScriptedClient(env.policies[policy]), "", SamplingParams(), seed), moves
    )


def first_free(messages: Any, state: Any, rng: Any) -> str:
    return f"<think></think><move>{state['board'].index('.')}</move>"


async def test_the_same_moves_reproduce_the_recorded_game(tmp_path: Path):
    env = game()
    env.policies["first"] = first_free
    env.opponent = own_opponent = recorded_opponent(await record_game(0))
    records = [await record_game(seed) for seed in range(4)]
    client = vf.ScriptedClient(lambda messages, state, rng: answers[len(messages) - len(state["prompt"])])
    for record in records:  # with the recorded moves in order, every reply must equal the recorded one
        answers = {i: m["content"] for i, m in enumerate(record.completion) if m["role"] == "assistant"}
        [case] = [case async for case in run_replay_cases(env, client, [record])]
        assert case.now.completion == record.completion and case.now.reward == record.reward
        assert not case.is_worse
    assert env.opponent is own_opponent


async def test_replays_with_another_policy_are_deterministic():
    env, records = game(), [await record_game(seed) for seed in range(4)]
    replays = [
        [case.now.completion async for case in run_replay_cases(env, vf.ScriptedClient(first_free), records)]
        for _ in range(2)
    ]
    assert replays[0] == replays[1] and len(replays[0]) == 4
    assert env.opponent is None


async def test_a_game_recorded_without_a_person_uses_the_environments_opponent():
    env = game()
    record = await one_game(env, vf.ScriptedClient(env.policies["optimal"]), "", SamplingParams(), 0)
    assert recorded_opponent(record) is None
    [case] = [case async for case in run_replay_cases(env, vf.ScriptedClient(env.policies["optimal"]), [record])]
    assert case.now.example_key == record.example_key


async def test_rollouts_of_equal_rows_are_replayed():
    env = vf.SingleTurnEnv(dataset=[{"question": "2 + 2?", "answer": "4"}] * 2, rubric=vf.Rubric())
    client = vf.ScriptedClient(lambda messages, state, rng: "4")
    cases = [case async for case in run_replay_cases(env, client, await env.generate(client))]
    assert [case.now.seed for case in cases] == [case.then.seed for case in cases]


async def test_a_recorded_example_that_no_longer_exists_is_reported():
    record = await record_game(1)
    env = load_environment("tictactoe", num_examples=8, seed=5)
    with pytest.raises(
        vf.RunError, match=r"not among the first 10,000 examples of 'tictactoe'; pass the environment arguments"
    ):
        _ = [case async for case in run_replay_cases(env, vf.ScriptedClient(first_free), [record])]


def test_a_lower_reward_than_recorded_exits_with_status_1(rove: Rove, tmp_path: Path):
    with Run(tmp_path / "kept") as run:
        run.start("eval", {"env": "tictactoe", "model": "m"}, {})
        for seed in range(3):
            run.append_rollout(asyncio.run(record_game(seed)))
    arguments = ["play", "tictactoe", "-a", '{"num_examples": 8}', "--replay", "kept", "-m"]
    result = rove(*arguments, "scripted:optimal")
    assert (result.status, "0 of 3 games have a lower reward" in result.out) == (0, True), result.out + result.err
    worse = rove(*arguments, "scripted:random")
    assert (worse.status, "worse" in worse.out) == (1, True), worse.out
    assert "--replay needs a model" in rove(*arguments[:-1]).err
    assert "is not a run folder" in rove("play", "tictactoe", "--replay", "nowhere", "-m", "scripted:random").err
