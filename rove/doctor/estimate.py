"""Estimate the time and memory of all stages of `rove train`, from a few measured passes of a model of the same size."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import torch

from rove.core.protocols import SamplingParams
from rove.doctor.findings import human_bytes, human_seconds
from rove.doctor.machine import memory_needed, resident_memory, try_training
from rove.engine.engine import Engine
from rove.models.linear import use_fast_linear
from rove.models.load import LoadedModel, default_threads
from rove.train.backends import EmbeddedBackend
from rove.train.config import RLConfig, SFTConfig
from rove.train.learner import add_lora
from rove.train.sequences import TrainingSequence

SHORT, LONG = 1, 9
"""Tokens per request of the two measurements whose difference is the time of decoding."""
FORWARD_SHARE = 1 / 3
"""Time of a forward pass relative to a forward and a backward pass."""
REFERENCE_ROWS = 2
"""Trained rows of the results table, which the model samples (a random model's rollouts are short)."""


class Workload(NamedTuple):
    """The rollouts of a recipe."""

    prompt_tokens: float
    """Mean tokens of a rollout that the model reads."""
    sampled_tokens: float
    """Mean tokens of a rollout that the model samples."""
    data_rollouts: int
    """Rollouts of the teacher; 0 without SFT."""
    conversations: int
    """Those that SFT trains on."""
    scripted_seconds: float
    """Seconds per rollout of a scripted policy."""
    table_rollouts: int
    """Rollouts of the model per row of the results table, over all conditions."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds and bytes that the stages of a recipe need."""

    data: float
    """Seconds of the teacher's rollouts."""
    sft_step: float
    """Seconds per step of SFT, including evaluations."""
    sft_steps: int
    """Maximum number of steps."""
    rl_step: float
    """Seconds per step of RL, including evaluations."""
    rl_steps: int
    """Maximum number of steps."""
    table: float
    """Seconds of the results table."""
    memory: float
    """Peak bytes."""

    @property
    def most(self) -> float:
        """Seconds of all stages together, if no stage ends early."""
        return self.data + self.sft_steps * self.sft_step + self.rl_steps * self.rl_step + self.table

    def __str__(self) -> str:
        sft = f"SFT {human_seconds(self.sft_step)} per step, at most {self.sft_steps:,} steps; " if self.sft_steps else ""
        return (
            f"{sft}RL {human_seconds(self.rl_step)} per step, at most {self.rl_steps:,} steps; "
            f"{human_seconds(self.most)} in all if no stage ends early; {human_bytes(self.memory)} of memory"
        )


async def estimate(rl: RLConfig, sft: SFTConfig | None, loaded: LoadedModel, work: Workload) -> Estimate:
    """Return the time and memory of a recipe on this machine.

    Measures sampling and one forward and backward pass with random tokens of the workload's lengths.

    Args:
        rl: Settings of RL.
        sft: Settings of SFT, if there is SFT.
        loaded: A model of the size that is trained; it is changed if an adapter is trained.
        work: The rollouts.
    """
    libraries = resident_memory()
    torch.set_num_threads(rl.threads or default_threads(loaded.model))
    loaded = add_lora(rl, loaded)
    use_fast_linear(loaded.model, rl.bf16_backward or rl.mixed_precision, rl.mixed_precision)
    rollout = await _sampling_seconds(rl, loaded, work)
    prompt, sampled = round(work.prompt_tokens), round(work.sampled_tokens)
    trial = try_training(rl, loaded, _sequences(loaded, prompt, sampled, max(1, rl.micro_batch_tokens // (prompt + sampled))))
    token = trial.seconds / trial.tokens
    # The members of a group share the tokens of their prompt.
    trained = rl.batch_size * (sampled + prompt / rl.rollouts_per_example)
    rl_step = rl.batch_size * rollout + trained * token + _evaluation_seconds(rl, rollout)
    sft_step, sft_steps = 0.0, 0
    if sft is not None:
        held_out = sft.validation_fraction * work.conversations
        passes = sft.batch_size + FORWARD_SHARE * held_out / sft.validate_every
        sft_step = passes * (prompt + sampled) * token + _evaluation_seconds(sft, rollout)
        kept = round((1 - sft.validation_fraction) * work.conversations)
        sft_steps = max(1, kept // sft.batch_size) * sft.epochs
    memory = memory_needed(rl, loaded, trial, prompt + sampled, round(trained), libraries)
    return Estimate(
        data=work.data_rollouts * work.scripted_seconds,
        sft_step=sft_step,
        sft_steps=sft_steps,
        rl_step=rl_step,
        rl_steps=rl.steps,
        table=REFERENCE_ROWS * work.table_rollouts * rollout,
        memory=sum(memory.values()),
    )


def _evaluation_seconds(config: RLConfig | SFTConfig, rollout: float) -> float:
    """Return the seconds of evaluations per training step."""
    return sum(one.num_examples * one.rollouts_per_example * rollout / one.every for one in config.evaluation)


async def _sampling_seconds(config: RLConfig, loaded: LoadedModel, work: Workload) -> float:
    """Return the seconds per rollout of a full batch."""
    engine = EmbeddedBackend(config, loaded, separate_weights=False).client.engine
    groups = config.batch_size // config.rollouts_per_example
    rng = random.Random(0)
    seconds: list[float] = []
    for length in (SHORT, SHORT, LONG):  # the first pass includes one-time setup
        prompts = [_random_ids(rng, loaded, work.prompt_tokens) for _ in range(groups)]
        started = time.perf_counter()
        await _sample(engine, prompts, config.rollouts_per_example, length)
        seconds.append((time.perf_counter() - started) / config.batch_size)
        engine.release()
    decoding = max(0.0, seconds[2] - seconds[1]) / (LONG - SHORT)
    return seconds[1] + max(0.0, work.sampled_tokens - SHORT) * decoding


async def _sample(engine: Engine, prompts: Sequence[list[int]], group_size: int, length: int) -> None:
    sampling = SamplingParams(temperature=1.0, max_tokens=length)
    await asyncio.gather(
        *(
            engine.generate(ids, sampling, seed=1000 * number + member)
            for number, ids in enumerate(prompts)
            for member in range(group_size)
        )
    )


def _random_ids(rng: random.Random, loaded: LoadedModel, count: float) -> list[int]:
    return [rng.randrange(loaded.model.config.vocab_size) for _ in range(max(1, round(count)))]


def _sequences(loaded: LoadedModel, prompt: int, sampled: int, count: int) -> list[TrainingSequence]:
    rng, mask = random.Random(1), [False] * prompt + [True] * sampled
    return [
        TrainingSequence(
            _random_ids(rng, loaded, len(mask)), mask, [0.0] * len(mask), [float(is_sampled) for is_sampled in mask]
        )
        for _ in range(count)
    ]
