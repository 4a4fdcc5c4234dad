"""Checks of a training run before it starts: settings, a few sampled groups, one micro-batch, the machine."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch

from rove.clients.scripted import ScriptedClient
from rove.core.errors import ConfigError, error_text, excerpt
from rove.core.findings import HIGH, MEDIUM, OK, SKIPPED, Finding
from rove.core.protocols import Client, SamplingParams
from rove.core.records import RolloutRecord
from rove.doctor.machine import (
    Trial,
    check_disk,
    check_drift,
    check_memory,
    check_time,
    computed_tokens,
    memory_free,
    memory_needed,
    resident_memory,
    try_training,
)
from rove.doctor.rollouts import Lengths, check_context, check_samples, first_prompts, lengths_of
from rove.engine.client import EngineClient
from rove.envs.environment import Environment
from rove.models.linear import has_bf16_products, use_fast_linear
from rove.models.load import LoadedModel, default_threads
from rove.remote.loading import open_environment
from rove.rollouts.groups import run_groups
from rove.rollouts.runner import Job
from rove.runs.serialization import encode_record
from rove.sandbox import LocalBackend
from rove.sandbox.containment import ESSENTIAL
from rove.sandbox.local import CONTROL_GROUPS, REMEDY
from rove.train.callbacks import OnProgress, ignore
from rove.train.collect import plan_groups, training_sequences
from rove.train.config import RLConfig
from rove.train.initial_model import load_initial
from rove.train.learner import add_lora, describe_lora
from rove.train.sequences import TrainingSequence, sequences_from_record
from rove.train.settings_checks import check_environment, check_learning_rate, check_model_name, check_settings

SCRIPTED_ROLLOUTS = 8
"""Number of rollouts of each scripted policy."""
MAX_ERROR_CHARS = 1000


class Sampled(NamedTuple):
    """Groups sampled by the model, as in a training step."""

    records: list[RolloutRecord]
    seconds_per_rollout: float
    """Measured with all groups except the first, run concurrently; a training step has more groups and takes less time per
    rollout."""


async def check_training(
    config: RLConfig,
    groups: int = 8,
    folder: Path = Path("runs"),
    on_progress: OnProgress = ignore,
) -> AsyncIterator[Finding]:
    """Yield findings about an RL run; write nothing and change no weights.

    Args:
        config: Settings of the run; they may be invalid.
        groups: Number of groups to sample, including a group for warm-up; 0 skips checks that need samples.
    """
    for finding in check_settings(config):
        yield finding
        if finding.severity is HIGH:
            return
    try:
        env = open_environment(config.env, config.env_dir, config.env_args, config.environment_isolation)
    except Exception as error:  # user code may raise anything
        yield Finding("environment", excerpt(error_text(error), MAX_ERROR_CHARS))
        return
    try:
        async for finding in _check_in_environment(config, env, groups, folder, on_progress):
            yield finding
    finally:
        await env.tear_down()


async def _check_in_environment(
    config: RLConfig, env: Environment, groups: int, folder: Path, on_progress: OnProgress
) -> AsyncIterator[Finding]:
    try:
        async for finding in _check_opened(config, env):
            yield finding
    except Exception as error:  # user code may raise anything
        yield Finding("environment", excerpt(error_text(error), MAX_ERROR_CHARS))
        return
    unfit = check_model_name(config.model)
    if unfit is not None:
        yield unfit
        return
    try:
        on_progress("loading the model", 0, 1)
        libraries = resident_memory()
        loaded = load_initial(config, config.device)
        if loaded.model.device.type != "cpu":
            libraries = 0  # they take nothing of a GPU's memory
        torch.set_num_threads(config.threads or default_threads(loaded.model))
    except Exception as error:  # a broken file may raise anything
        yield Finding("model", excerpt(error_text(error), MAX_ERROR_CHARS))
        return
    try:
        coverage = describe_lora(config, loaded)
        if coverage:
            yield Finding("adapter", coverage, OK)
        loaded = add_lora(config, loaded)
    except ConfigError as error:
        yield Finding("adapter", str(error), HIGH, "correct lora.targets", "the model has no layers of this name")
        return
    use_fast_linear(loaded.model, config.bf16_backward or config.mixed_precision, config.mixed_precision)
    sizes = [(p.numel(), p.requires_grad) for p in loaded.model.parameters()]
    parameters = sum(size for size, _ in sizes)
    trained = sum(size for size, is_trained in sizes if is_trained)
    yield check_learning_rate(config.learning_rate, config.lora.rank, parameters, trained)
    async for finding in _check_with_model(config, env, loaded, libraries, groups, folder, on_progress):
        yield finding


async def _check_opened(config: RLConfig, env: Environment) -> AsyncIterator[Finding]:
    for finding in check_environment(config, env):
        yield finding
    sandbox = await check_sandbox(env)
    if sandbox is not None:
        yield sandbox


async def check_sandbox(env: Environment) -> Finding | None:
    """Check which limits this machine enforces for the environment's sandboxes; None if no sandbox runs on this machine."""
    backend = getattr(env, "backend", None)  # only sandbox environments have one
    if not isinstance(backend, LocalBackend):
        return None
    missing = (await backend.describe()).missing
    if not missing:
        return Finding("sandbox", "namespaces, control groups and system call filters are active", OK)
    lacks_essential = any(line.split(":")[0] in ESSENTIAL for line in missing)
    if lacks_essential and not backend.unsafe:  # the backend refuses to open a sandbox
        return Finding("sandbox", "; ".join(missing), HIGH, REMEDY)
    return Finding("sandbox", "; ".join(missing), MEDIUM, CONTROL_GROUPS)


async def _check_with_model(
    config: RLConfig,
    env: Environment,
    loaded: LoadedModel,
    libraries: int,
    groups: int,
    folder: Path,
    on_progress: OnProgress,
) -> AsyncIterator[Finding]:
    """Yield findings that need the loaded model; `libraries`: memory of the process in bytes before the model was loaded."""
    client = EngineClient.from_model(loaded, max_batch=config.batch_size)
    context = client.engine.context
    longest = min(context, config.micro_batch_tokens)
    sampled = Sampled([], 0.0)
    scripted: list[RolloutRecord] = []
    if groups:
        if env.message_type == "chat":  # raw texts are never rendered
            scripted = await _scripted(config, env)
        sampled = await _sampled(config, env, client, groups, on_progress)
        await client.close()
        for finding in check_samples(sampled.records, scripted, loaded.renderer, config.max_tokens, context):
            yield finding
        lengths = [lengths_of(records, loaded.renderer) for records in (sampled.records, scripted)]
        longest = min(context, max(measured.prompt for measured in lengths) + config.max_tokens)
    else:
        yield Finding("samples", "none: rewards, lengths, time and tokens are unknown", SKIPPED, "omit --quick")
        yield check_context(first_prompts(env, loaded.renderer), Lengths(), config.max_tokens, context)
    on_progress("one micro-batch", 1, 1)
    samples: list[TrainingSequence] = []
    for record in sampled.records:
        if record.steps and record.error is None:
            samples += sequences_from_record(record, 1.0)
    try:
        trial = try_training(config, loaded, samples)
    except Exception as error:  # such as out of memory
        yield Finding("micro_batch", excerpt(error_text(error), MAX_ERROR_CHARS))
        return
    for finding in _check_machine(config, loaded, libraries, sampled, trial, longest, folder):
        yield finding


def _check_machine(
    config: RLConfig,
    loaded: LoadedModel,
    libraries: int,
    sampled: Sampled,
    trial: Trial,
    longest: int,
    folder: Path,
) -> Iterator[Finding]:
    if trial.drift is not None:
        in_bf16 = config.mixed_precision or config.bf16_sampling
        yield check_drift(trial, in_bf16 and has_bf16_products(loaded.model.device))
    records = [record for record in sampled.records if record.error is None]
    scale = config.batch_size / max(1, len(records))  # training steps are this many times as large
    sequences = list(chain.from_iterable(sequences_from_record(record, 1.0) for record in records))
    tokens = round(scale * computed_tokens(config.micro_batch_tokens, loaded, sequences)) if records else None
    needed = memory_needed(config, loaded, trial, longest, tokens, libraries)
    yield check_memory(needed, memory_free(loaded.model.device))
    if records:
        rollouts, _ = training_sequences(records)  # without zero-advantage groups
        useful = list(chain.from_iterable(rollouts))
        trained_tokens = scale * computed_tokens(config.micro_batch_tokens, loaded, useful or sequences)
        sampling_seconds = sampled.seconds_per_rollout * config.batch_size
        training_seconds = trial.seconds / trial.tokens * trained_tokens
        yield check_time(config.steps, config.checkpoint_every, sampling_seconds, training_seconds)
    total_bytes = sum(len(encode_record(record)) for record in sampled.records)
    yield check_disk(config, needed, total_bytes / max(1, len(sampled.records)), folder)


async def _sampled(config: RLConfig, env: Environment, client: Client, groups: int, on_progress: OnProgress) -> Sampled:
    """Sample some groups of the first step, spread evenly because its examples may be sorted by difficulty."""
    groups_per_step = config.batch_size // config.rollouts_per_example
    step = plan_groups(env.get_dataset(groups_per_step), config.rollouts_per_example, config.seed, 0)
    chosen = step[:: max(1, groups_per_step // groups)][:groups]
    sampling = SamplingParams(temperature=config.temperature, max_tokens=config.max_tokens)
    records: list[RolloutRecord] = []
    total, seconds = sum(map(len, chosen)), 0.0
    for part in (chosen[:1], chosen[1:]):  # the first group compiles kernels and shows failures early
        if not part or (records and all(record.error is not None for record in records)):
            break
        started = time.perf_counter()
        rollouts = run_groups(env, client, part, sampling=sampling, max_concurrent=config.batch_size, for_training=True)
        async for record in rollouts:
            records.append(record)
            on_progress("sampling", len(records), total)
        seconds = (time.perf_counter() - started) / sum(map(len, part))
    return Sampled(records, seconds)


async def _scripted(config: RLConfig, env: Environment) -> list[RolloutRecord]:
    records: list[RolloutRecord] = []
    examples = env.get_dataset(SCRIPTED_ROLLOUTS)
    groups: list[list[Job]] = plan_groups(examples, config.rollouts_per_example, config.seed, 0)
    one_of_each_group = [group[:1] for group in groups]
    for name, policy in env.policies.items():
        async for record in run_groups(env, ScriptedClient(policy, name), one_of_each_group):
            if record.error is None:
                records.append(record)
    return records
