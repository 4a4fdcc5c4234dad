"""The time and memory that a recipe needs."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

import rove.doctor.estimate as estimate_module
from rove.core.config import convert
from rove.doctor.estimate import Estimate, Workload, estimate
from rove.doctor.machine import position_bytes
from rove.engine.engine import CACHE_BYTES
from rove.models.from_scratch import new_model
from rove.train.config import RLConfig, SFTConfig
from rove.utils.systems import peak_memory

EVALUATION = {"env": "parity", "num_examples": 8, "every": 2}
RL = convert(
    RLConfig,
    {"env": "parity", "model": "", "batch_size": 16, "rollouts_per_example": 4, "steps": 5, "evaluation": [EVALUATION]},
)
SFT = convert(SFTConfig, {"data": "", "model": "", "batch_size": 16, "epochs": 3, "evaluation": [EVALUATION]})


def workload(prompt: int = 10, sampled: int = 4, turns: int = 1, **changes: Any) -> Workload:
    rng = random.Random(0)
    turn = [False] * prompt + [True] * sampled
    values: dict[str, Any] = {
        "rollouts": [([rng.randrange(262) for _ in range(turns * len(turn))], turns * turn) for _ in range(20)],
        "turns": turns,
        "untrained_turns": turns,
        "data_rollouts": 100,
        "conversations": 64,
        "environment_seconds": 0.01,
        "teacher_seconds": 0.02,
        "setup_seconds": 0.0,
        "table_rollouts": 10,
        "conditions": 2,
    }
    return Workload(**values | changes)


async def test_sft_and_rl_are_estimated() -> None:
    result = await estimate(RL, SFT, new_model([], size="tiny"), workload())
    assert result.data == 2.0
    assert (result.sft_steps, result.rl_steps) == (3 * 3, 5)  # 61 of 64 conversations are for training
    assert result.sft_step > 0 and result.rl_step > 16 * 0.01
    assert result.memory >= peak_memory() - 1e6
    assert result.most > result.data + 9 * result.sft_step + 5 * result.rl_step


async def test_a_model_that_is_the_teacher_has_a_row_in_the_table() -> None:
    slow = workload(teacher_rows=1, teacher_seconds=100.0)
    assert (await estimate(RL, SFT, new_model([], size="tiny"), slow)).table > 10 * 100.0


@pytest.mark.broad
async def test_the_setup_time_of_evaluations_is_included() -> None:
    result = await estimate(RL, SFT, new_model([], size="tiny"), workload(setup_seconds=100.0))
    assert result.sft_step > 50.0 and result.rl_step > 50.0 and result.table > 100.0
    assert result.initial == 0.0
    backoff = msgspec.structs.replace(RL, lr_backoff=0.3)
    assert (await estimate(backoff, SFT, new_model([], size="tiny"), workload(setup_seconds=100.0))).initial > 100.0


@pytest.mark.broad
async def test_a_model_without_the_format_needs_memory_for_the_longest_rollouts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(estimate_module, "peak_memory", lambda: 1e6)
    monkeypatch.setattr(estimate_module, "resident_memory", lambda: 1e6)
    model = new_model([], size="tiny")
    short, long, most = [
        await estimate(RL, None, model, workload(untrained_turns=turns, table_rollouts=rollouts))
        for turns, rollouts in ((1, 200), (2, 200), (500, 2000))
    ]
    cached = 1.5 * position_bytes(model.model) * 100 * RL.max_tokens  # one more turn in 100 rollouts per evaluation
    assert long.memory - short.memory == pytest.approx(cached)
    assert most.memory < CACHE_BYTES + 100e6


async def test_a_large_model_is_measured_with_two_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate_module, "MEASURED_OPERATIONS", 1e6)
    measured: list[estimate_module.TrainingTime] = []

    def training_time(*args: Any) -> estimate_module.TrainingTime:
        assert list(args[1]) == list(args[2])[: len(args[1])] and len(args[1]) < len(args[2]) <= RL.batch_size
        measured.append(time_of(*args))
        return estimate_module.TrainingTime(per_pass=10.0, per_token=0.0, micro_batch_tokens=RL.micro_batch_tokens)

    time_of = estimate_module._training_time  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(estimate_module, "_training_time", training_time)
    result = await estimate(RL, SFT, new_model([], size="tiny"), workload())
    [training] = measured
    assert training.seconds(100) > 0
    assert result.rl_step > 10 and 10 < result.sft_step < 20  # a step of one micro-batch


def test_two_passes_show_the_time_of_a_pass_and_of_its_tokens() -> None:
    training = estimate_module.time_of_passes(90, 1.05 + 90 * 0.0026, 360, 1.05 + 360 * 0.0026, 100)
    assert (training.per_pass, training.per_token) == (pytest.approx(1.05), pytest.approx(0.0026))
    assert training.seconds(250) == pytest.approx(3 * 1.05 + 250 * 0.0026)
    noisy = estimate_module.time_of_passes(90, 1.3, 360, 1.2, 100)
    assert (noisy.per_pass, noisy.per_token) == (1.3, 0.0)


@pytest.mark.slow
async def test_longer_rollouts_take_longer() -> None:
    short, long = [
        await estimate(RL, None, new_model([], size="tiny"), load) for load in (workload(), workload(60, 30, turns=3))
    ]
    assert (short.sft_step, short.sft_steps) == (0.0, 0)
    assert long.rl_step > short.rl_step


def test_an_estimate_is_one_sentence() -> None:
    result = Estimate(
        rollout=0.1, data=10, sft_step=0.25, sft_steps=1200, rl_step=2, rl_steps=100, initial=0, table=20, memory=1.23e9
    )
    assert str(result) == (
        "SFT 0.25 s per step, at most 1,200 steps; RL 2 s per step, at most 100 steps; "
        "at most 8.8 min in all, if no stage ends early; "
        "1.2 GB of memory"
    )
