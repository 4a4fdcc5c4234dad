"""The changed tic-tac-toe of the study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiers import first_quick

from rove.clients.scripted import ScriptedClient
from rove.core.records import RolloutRecord
from rove.envs.environment import Environment
from rove.envs.loading import load_environment

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PERFECT = {"min_random_move_prob": 0.0, "max_random_move_prob": 0.0}
RANDOM = {"min_random_move_prob": 1.0, "max_random_move_prob": 1.0}


def changed(**options: Any) -> Environment:
    return load_environment("tictactoe_variant", BENCHMARKS, **options)


async def games(env: Environment, policy: str = "optimal") -> list[RolloutRecord]:
    return await env.generate(ScriptedClient(env.policies[policy], policy), num_examples=40, rollouts_per_example=1)


def conversations(records: list[RolloutRecord]) -> list[Any]:
    return [(record.prompt, record.completion) for record in records]


@pytest.mark.parametrize("options", first_quick([PERFECT, RANDOM, {}]))
async def test_without_changes_the_game_is_tic_tac_toe(options: dict[str, Any]) -> None:
    plain, same = await games(load_environment("tictactoe", **options)), await games(changed(**options))
    assert conversations(plain) == conversations(same)
    assert [r.scores for r in plain] == [r.scores for r in same]


async def test_the_format_is_measured_without_being_rewarded() -> None:
    for record in await games(changed(format_reward=False)):
        assert record.scores is not None
        assert record.scores.metrics["format"] == 1.0
        assert record.scores.reward == record.scores.rewards["win"] - 0.1 * record.scores.rewards["invalid_move"]


async def test_an_opponent_with_habits_plays_few_games() -> None:
    def openings(records: list[RolloutRecord]) -> set[str]:
        return {record.prompt[-1]["content"] for record in records}

    assert len(openings(await games(changed(**PERFECT)))) > 4
    assert len(openings(await games(changed(first_best=True, **PERFECT)))) == 2  # O's first square, or the empty board


async def test_an_opponent_with_habits_is_as_random_as_ever() -> None:
    plain, same = await games(changed(**RANDOM)), await games(changed(first_best=True, **RANDOM))
    assert conversations(plain) == conversations(same)
