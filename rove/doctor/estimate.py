"""Estimate the time and memory of all stages of `rove train`, from a few measured passes of a model of the same size."""

from __future__ import annotations

import asyncio
import math
import random
import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from rove.core.errors import ConfigError
from rove.core.protocols import SamplingParams
from rove.doctor.machine import computed_tokens, memory_needed, position_bytes, resident_memory, try_training
from rove.engine.engine import Engine, default_cache_bytes
from rove.engine.kv_cache import common_prefix
from rove.models.load import LoadedModel
from rove.train.backends import EmbeddedBackend
from rove.train.config import EvaluationConfig, RLConfig, SFTConfig
from rove.train.learner import Learner, add_lora
from rove.train.sequences import TrainingSequence
from rove.train.sft import OBJECTIVE
from rove.utils.systems import peak_memory
from rove.utils.units import human_bytes, human_seconds

MAX_TURN_TOKENS = 9
"""Maximum tokens per turn for which sampling is measured; the time of longer turns is extrapolated."""
TRAINED_SHARE = 0.5
"""Assumed share of an RL step's groups that have different rewards and are trained on; it is 0.1 to 0.9 in practice."""
FORWARD_SHARE = 1 / 3
"""Time of a forward pass as a fraction of the time of a forward and a backward pass."""
OVERHEAD = 1.2
"""Factor for what is not measured in a step: rewards, advantages, files, and models that need more turns than the teacher."""
SAMPLED_ROWS = 3
"""Number of rows of the results table for which the model is sampled: base, SFT and RL."""
ROWS = 5
"""Number of rows of the results table: the sampled rows and two scripted policies."""
REPEATS = 2
"""Number of times that each part is measured; the shortest time counts."""
MEASURED_OPERATIONS = 6e10
"""Number of floating-point operations of a measured pass, about two seconds of a slow CPU core. With a pretrained model, a full
batch would take minutes, so a smaller one is measured."""
LARGER_BATCH_FACTOR = 4
"""Size of a second training batch relative to the first, if the first is smaller than a micro-batch. Their difference shows the
time per token. The rest is the fixed time per pass, mostly of gradients and copies of the weights."""
MIN_LARGER_FACTOR = 2
"""Minimum of this factor; if a long rollout fills the first batch, the difference would be noise."""
MIN_TOKENS, MIN_GROUPS = 64, 2
"""Minimum size of a measured training pass, in tokens, and of a measured batch of rollouts, in groups."""
RUNTIME_BYTES = 60e6
"""Bytes of libraries and buffers that a run needs, but that the measured passes have not loaded."""
CACHED_SHARE = 1.5
"""Size of the KV cache relative to the keys and values of the longest possible rollouts. Caches of finished rollouts are kept
and rows are padded, but most rollouts end earlier."""
TOKEN_BYTES = 120
"""Bytes per token of the SFT training data, which is held as Python objects."""


class Workload(NamedTuple):
    """The rollouts of a recipe."""

    rollouts: Sequence[tuple[list[int], list[bool]]]
    """A part of the rollouts, each as its token ids and whether each token was sampled."""
    turns: float
    """Mean number of responses in a rollout."""
    data_rollouts: int
    """Number of the teacher's rollouts; 0 without SFT."""
    conversations: int
    """Number of conversations that SFT trains on."""
    untrained_turns: int
    """Maximum number of responses in a rollout while the model has not learned the format."""
    environment_seconds: float
    """Seconds that the environment and the rubric take per rollout."""
    teacher_seconds: float
    """Seconds that the teacher takes per rollout."""
    setup_seconds: float
    """Seconds that an evaluation needs before its rollouts: loading data, starting processes."""
    table_rollouts: int
    """Number of rollouts per row of the results table, over all conditions."""
    conditions: int
    """Number of evaluations per row of the results table."""
    teacher_rows: int = 0
    """Number of rows of the results table whose rollouts take as long as the teacher's: 1 if it is a model."""

    @property
    def tokens(self) -> float:
        """Mean number of tokens in a rollout."""
        return statistics.fmean(len(ids) for ids, _ in self.rollouts)

    @property
    def sampled_tokens(self) -> float:
        """Mean number of tokens in a rollout that the model samples."""
        return statistics.fmean(sum(mask) for _, mask in self.rollouts)


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds and bytes that the stages of a recipe need."""

    rollout: float
    """Seconds per rollout of the model, in a full batch."""
    data: float
    """Seconds for the teacher's rollouts."""
    sft_step: float
    """Seconds per step of SFT, including evaluations."""
    sft_steps: int
    """Maximum number of steps."""
    rl_step: float
    """Seconds per step of RL, including evaluations."""
    rl_steps: int
    """Maximum number of steps."""
    initial: float
    """Seconds for the evaluation before RL."""
    table: float
    """Seconds for the results table."""
    memory: float
    """Peak memory in bytes."""

    @property
    def most(self) -> float:
        """Seconds for all stages together if no stage ends early."""
        return self.data + self.sft_steps * self.sft_step + self.initial + self.rl_steps * self.rl_step + self.table

    def __str__(self) -> str:
        sft = (
            f"SFT {human_seconds(self.sft_step)} per step, at most {self.sft_steps:,} steps; " if self.sft_steps else ""
        )
        return (
            f"{sft}RL {human_seconds(self.rl_step)} per step, at most {self.rl_steps:,} steps; "
            f"at most {human_seconds(self.most)} in all, if no stage ends early; {human_bytes(self.memory)} of memory"
        )


class TrainingTime(NamedTuple):
    """The measured time of training steps."""

    per_pass: float
    """Seconds per micro-batch, whatever its size."""
    per_token: float
    """Seconds per computed token."""
    micro_batch_tokens: int

    def seconds(self, tokens: float) -> float:
        """Return the seconds for a number of computed tokens."""
        return math.ceil(tokens / self.micro_batch_tokens) * self.per_pass + tokens * self.per_token


async def estimate(rl: RLConfig, sft: SFTConfig | None, loaded: LoadedModel, work: Workload) -> Estimate:
    """Return the time and memory of a recipe on this machine.

    Measures sampling and a training step with random tokens of the workload's lengths.

    Args:
        loaded: A model of the same size as the trained model; its weights are changed.
    """
    work = _within_context(work, loaded.context)
    on_cpu = loaded.model.device.type == "cpu"
    libraries = resident_memory()
    if on_cpu:  # `memory_needed` counts the weights
        libraries -= sum(p.nbytes for p in loaded.model.parameters())
    loaded = add_lora(rl, loaded)
    learner = Learner(rl, OBJECTIVE, loaded)
    rng = random.Random(0)
    rollout_seconds = await _sampling_seconds(rl, loaded, work, rng) + work.environment_seconds
    # Equal prefixes are computed once: the members of a group share a prompt, and all rollouts the instructions.
    groups = [rng.choice(work.rollouts) for _ in range(rl.batch_size // rl.rollouts_per_example)]
    members: list[TrainingSequence] = []
    for rollout in groups:
        prompt_length = rollout[1].index(True)
        members += [_variant(rollout, loaded, rng, prompt_length) for _ in range(rl.rollouts_per_example)]
    step_tokens = computed_tokens(rl.micro_batch_tokens, loaded, members)
    first_ids = work.rollouts[0][0]
    shared_prefix = min(common_prefix(first_ids, ids) for ids, _ in work.rollouts)
    # A full micro-batch if possible: long ones take more time per token.
    measured_tokens = min(rl.micro_batch_tokens, max(MIN_TOKENS, MEASURED_OPERATIONS / (6 * _parameters(loaded))))
    is_full = measured_tokens == rl.micro_batch_tokens
    rollouts_at_once = 8 if is_full else 1  # of a large model, rollouts that are not needed would take minutes

    def extended(batch: list[TrainingSequence], tokens: float) -> list[TrainingSequence]:
        batch = list(batch)
        while len(batch) < rl.batch_size and computed_tokens(rl.micro_batch_tokens, loaded, batch) < tokens:
            for _ in range(rollouts_at_once):
                batch.append(_variant(rng.choice(work.rollouts), loaded, rng, shared_prefix))
        return batch

    batch = extended([], measured_tokens)
    larger_batch: list[TrainingSequence] = []
    if not is_full:
        # At most a micro-batch: the time of further passes would count as that of tokens.
        larger_batch = extended(batch, min(rl.micro_batch_tokens, LARGER_BATCH_FACTOR * measured_tokens))
    training = _training_time(learner, batch, larger_batch)
    trial = try_training(rl, loaded, batch)

    sft_step, sft_steps = 0.0, 0
    if sft is not None:
        sequences = [_variant(rng.choice(work.rollouts), loaded, rng, shared_prefix) for _ in range(sft.batch_size)]
        held_out = sft.validation_fraction * work.conversations / sft.batch_size
        sft_passes = 1 + FORWARD_SHARE * held_out / sft.validate_every
        sft_step = sft_passes * training.seconds(computed_tokens(rl.micro_batch_tokens, loaded, sequences))
        sft_step += _evaluation_seconds(sft.evaluation, rollout_seconds, work)
        training_conversations = round((1 - sft.validation_fraction) * work.conversations)
        sft_steps = max(1, training_conversations // sft.batch_size) * sft.epochs

    rl_passes = 1 + FORWARD_SHARE if rl.loss.kl_penalty else 1.0  # the reference model computes the tokens, too
    rl_step = rl.batch_size * rollout_seconds + rl_passes * training.seconds(TRAINED_SHARE * step_tokens)
    rl_step += _evaluation_seconds(rl.evaluation, rollout_seconds, work)
    initial = 0.0
    if rl.lr_backoff is not None:  # the learning rate is reduced if a step falls below this evaluation
        initial = _evaluation_seconds(rl.evaluation, rollout_seconds, work, every=1)

    table = (
        SAMPLED_ROWS * work.table_rollouts * rollout_seconds
        + work.teacher_rows * (work.table_rollouts * work.teacher_seconds)
        + ROWS * work.conditions * work.setup_seconds
    )
    data_bytes = TOKEN_BYTES * work.conversations * work.tokens
    needed = memory_needed(rl, loaded, trial, round(work.tokens), step_tokens)
    # In the results table, a model that has not learned the format yet may sample the maximum number of tokens in every turn.
    longest = work.tokens - work.sampled_tokens + work.untrained_turns * rl.max_tokens
    cache = CACHED_SHARE * position_bytes(loaded.model) * longest * work.table_rollouts / work.conditions
    return Estimate(
        rollout=rollout_seconds,
        data=work.data_rollouts * work.teacher_seconds,
        sft_step=OVERHEAD * sft_step,
        sft_steps=sft_steps,
        rl_step=OVERHEAD * rl_step,
        rl_steps=rl.steps,
        initial=initial,
        table=table,
        memory=max(
            peak_memory() + data_bytes,  # these measurements
            libraries + RUNTIME_BYTES + sum(needed.values()) + data_bytes,  # training
            # the results table
            libraries + RUNTIME_BYTES + 2 * needed["weights"] + min(default_cache_bytes(loaded.model.device), cache),
        ),
    )


def _within_context(work: Workload, context: int) -> Workload:
    """Return the workload with rollouts that are cut at the model's context.

    Raises:
        ConfigError: No response of any rollout fits.
    """
    rollouts = [(ids[:context], mask[:context]) for ids, mask in work.rollouts]
    fitting = [(ids, mask) for ids, mask in rollouts if True in mask]
    if not fitting:
        shortest = min(mask.index(True) for _, mask in work.rollouts)
        raise ConfigError(
            f"every prompt has {shortest:,} tokens or more, but the context of the model has {context:,}: "
            "shorten the prompts, or use a model with a longer context"
        )
    return work._replace(rollouts=fitting)


def _evaluation_seconds(
    evaluations: Sequence[EvaluationConfig], rollout_seconds: float, work: Workload, every: int | None = None
) -> float:
    """Return the seconds that evaluations take per training step; with `every`, as if each evaluation ran every `every` steps."""
    seconds = 0.0
    for evaluation in evaluations:
        num_rollouts = evaluation.num_examples * evaluation.rollouts_per_example
        seconds += (work.setup_seconds + num_rollouts * rollout_seconds) / (every or evaluation.every)
    return seconds


def _parameters(loaded: LoadedModel) -> int:
    return sum(weight.numel() for weight in loaded.model.parameters())


def _training_time(
    learner: Learner, batch: Sequence[TrainingSequence], larger_batch: Sequence[TrainingSequence]
) -> TrainingTime:
    """Measure the time of training steps.

    Args:
        batch: Sequences of a step.
        larger_batch: The same and further sequences if `batch` is smaller than a micro-batch. If it has less than twice the
            tokens, the time is taken as proportional to the tokens.
    """
    limit = learner.config.micro_batch_tokens

    def seconds(sequences: Sequence[TrainingSequence], repeats: int) -> float:
        times: list[float] = []
        for step in range(repeats):
            started = time.perf_counter()
            learner.update(step, sequences, 1.0)
            times.append(time.perf_counter() - started)
        return min(times)

    seconds(batch, 1)  # includes one-time setup
    tokens = computed_tokens(limit, learner.loaded, batch)
    larger_tokens = computed_tokens(limit, learner.loaded, larger_batch) if larger_batch else 0
    if larger_tokens < MIN_LARGER_FACTOR * tokens:
        repeats = 1 if larger_batch else REPEATS  # a pass of a large model is long: noise matters less
        return TrainingTime(0.0, seconds(batch, repeats) / tokens, limit)
    return time_of_passes(tokens, seconds(batch, 1), larger_tokens, seconds(larger_batch, 1), limit)


def time_of_passes(
    tokens: float, seconds: float, larger_tokens: float, larger_seconds: float, micro_batch_tokens: int
) -> TrainingTime:
    """Return the time per pass and per token from two passes of different sizes."""
    per_token = max(0.0, larger_seconds - seconds) / (larger_tokens - tokens)
    return TrainingTime(max(0.0, seconds - per_token * tokens), per_token, micro_batch_tokens)


async def _sampling_seconds(config: RLConfig, loaded: LoadedModel, work: Workload, rng: random.Random) -> float:
    """Return the seconds per rollout of a full batch, or of a smaller one if the model is large."""
    engine = EmbeddedBackend(loaded, config.batch_size, bf16=config.bf16_sampling).client.engine
    turn_tokens = work.sampled_tokens / work.turns
    longest = max(2, min(MAX_TURN_TOKENS, round(turn_tokens)))
    size = config.rollouts_per_example
    prompt_tokens = statistics.fmean(mask.index(True) for _, mask in work.rollouts)
    environment_tokens = work.tokens - work.sampled_tokens - prompt_tokens
    # The rollouts of a group share only their prompt.
    group_tokens = prompt_tokens + size * (environment_tokens + longest * work.turns)
    fitting = int(MEASURED_OPERATIONS / (2 * _parameters(loaded) * group_tokens))
    batch = min(config.batch_size, size * max(MIN_GROUPS, fitting))
    repeats = REPEATS if batch == config.batch_size else 1
    config = msgspec.structs.replace(config, batch_size=batch)
    await _sample(engine, config, loaded, work, rng, 1)  # includes one-time setup
    shortest_of: dict[int, float] = {}
    for length in (1, longest):
        shortest_of[length] = min([await _sample(engine, config, loaded, work, rng, length) for _ in range(repeats)])
    first, last = shortest_of[1], shortest_of[longest]
    decoding = max(0.0, last - first) / (longest - 1)  # the first token includes the prefill
    return (first + max(0.0, turn_tokens - 1) * decoding) / config.batch_size


async def _sample(
    engine: Engine, config: RLConfig, loaded: LoadedModel, work: Workload, rng: random.Random, length: int
) -> float:
    """Sample a full batch of rollouts with `length` tokens per turn; return the seconds."""
    turns = round(work.turns)
    groups = [rng.choice(work.rollouts) for _ in range(config.batch_size // config.rollouts_per_example)]
    prompts: list[list[int]] = []
    for ids, mask in groups:
        prompts += [ids[: mask.index(True)]] * config.rollouts_per_example
    environment_tokens = work.tokens - work.sampled_tokens - statistics.fmean(map(len, prompts))
    between = environment_tokens / max(1, turns - 1)
    sampling = SamplingParams(temperature=1.0, max_tokens=length)
    started = time.perf_counter()
    for turn in range(turns):
        first_seed = turn * len(prompts)
        # All rollouts get the mean number of tokens per turn, so long prompts may exceed the context.
        prompts = [ids[: loaded.context - length] for ids in prompts]
        requests = [engine.generate(ids, sampling, seed=first_seed + n) for n, ids in enumerate(prompts)]
        sampled = await asyncio.gather(*requests)
        messages = [_random_ids(loaded, rng, round(between)) for _ in prompts]
        turns_so_far = zip(prompts, sampled, messages, strict=True)
        prompts = [[*ids, *response.ids, *message] for ids, response, message in turns_so_far]
    seconds = time.perf_counter() - started
    engine.release()
    return seconds


def _random_ids(loaded: LoadedModel, rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(loaded.model.config.vocab_size) for _ in range(count)]


def _variant(
    rollout: tuple[list[int], list[bool]], loaded: LoadedModel, rng: random.Random, start: int
) -> TrainingSequence:
    """Return a rollout with random tokens from position `start` on."""
    ids, mask = rollout
    new_ids = [*ids[:start], *_random_ids(loaded, rng, len(ids) - start)]
    return TrainingSequence(new_ids, mask, [0.0] * len(ids), [float(is_sampled) for is_sampled in mask])
