"""Reinforcement learning: collect rollouts, compute advantages, train, publish the weights; repeat."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from rove.core.digest import derive_seed
from rove.core.records import PROMPT_TOO_LONG, RolloutRecord
from rove.envs.environment import Environment
from rove.models.load import LoadedModel
from rove.runs.run import Run
from rove.runs.token_stats import write_tokens
from rove.train.async_collect import AsyncCollector
from rove.train.backends import FOLDER, EmbeddedBackend, SamplingBackend, VLLMBackend
from rove.train.callbacks import OnAlert, OnProgress, TrainingCallbacks, ignore
from rove.train.checkpoint import restore_weights
from rove.train.collect import DRAWN, CollectedStep, RolloutCollector
from rove.train.config import Goal, RLConfig
from rove.train.evaluation import (
    HeldOutEvaluations,
    check_measured,
    count_falls,
    is_best,
    keep_best,
    outcome,
    stop_reason,
)
from rove.train.learner import Learner, Objective, add_lora, resume
from rove.train.model_card import save_result
from rove.train.sequences import TrainingSequence
from rove.train.trainer import lr_scale, step_unless_non_finite
from rove.train.worker_group import SINGLE_PROCESS, Ranks, WorkerGroup
from rove.utils.processes import trim_heap

logger = logging.getLogger(__name__)

OnStep = Callable[[int, Mapping[str, float]], None]
OnSample = Callable[[int, RolloutRecord], None]
History = Sequence[Mapping[str, float]]
"""Metrics of the steps so far, oldest first."""


async def train_rl(
    config: RLConfig,
    env: Environment,
    loaded: LoadedModel,
    run: Run,
    on_step: OnStep | None = None,
    *,
    on_alert: OnAlert | None = None,
    on_sample: OnSample | None = None,
    on_progress: OnProgress = ignore,
    ranks: Ranks = SINGLE_PROCESS,
) -> Path:
    """Train a model in an environment, from the run's last checkpoint if it has one.

    Args:
        env: Environment that `config.env` names.
        loaded: Model to train, in place.
        run: Started run folder.
        on_step: Called with the number and metrics of every step.
        on_alert: Called with every new alert.
        on_sample: Called every `show_every` steps with the step and a random rollout.
        on_progress: Called with the progress within a step: rollouts and micro-batches.
        ranks: Processes that train together. This process is the first; the other processes call `follow_rl`.

    Returns:
        Folder of the final model or adapter: the last weights, or the best weights by `keep_best`.

    Raises:
        ConfigError: A setting contradicts another.
        RunError: Every rollout of a step failed.
        TrainingError: The loss or the gradient was not finite in `max_non_finite_steps` consecutive steps.
    """
    config.check()
    loaded = add_lora(config, loaded)
    loop = _Loop(config, env, loaded, run, ranks, on_progress)
    step = resume(loop.group, run)
    history = run.metrics()
    goal = config.goal
    backoff = config.lr_backoff or 1.0
    callbacks = TrainingCallbacks(run, config.alerts, config.loggers, msgspec.to_builtins(config), step, on_alert)
    try:
        await loop.start(step, history, callbacks)
        # Both follow from the metrics alone, so a resumed run stops, and lowers the rate, where the first one would have.
        reason = stop_reason(history, goal)
        falls = count_falls(history, goal)
        while step < config.steps and reason is None:
            collected, metrics = await loop.step(step, history, backoff**falls)
            step += 1
            row = {"step": step, **metrics}
            if stop_reason([*history, row], goal) is not None:
                await loop.discard_prefetched(step)
            row |= await loop.evaluations.after_step(row, history, step == config.steps, goal)
            history.append(row)
            reason = stop_reason(history, goal)
            run.append_metrics(row)
            callbacks.after_step(history)
            if on_sample is not None and config.show_every and step % config.show_every == 0:
                index = derive_seed(config.seed, "show", step) % len(collected.records)
                on_sample(step, collected.records[index])
            if on_step is not None:
                on_step(step, row)
            if step < config.steps and reason is None:
                earlier_falls = falls
                falls = count_falls(history, goal)
                has_fallen = falls > earlier_falls and backoff < 1
                loop.end_step(row, has_fallen, is_best(history, goal))
                keep_best(run, loaded, history, goal)
        loop.checkpoint(step)
        keep_best(run, loaded, history, goal)
        return _save_final(config, run, loaded, history, goal)
    finally:
        await loop.close()
        callbacks.close()
        await env.tear_down()


def follow_rl(config: RLConfig, loaded: LoadedModel, ranks: Ranks) -> None:
    """Train with the first process of an RL run until it ends."""
    learner = Learner(config, objective_of(config), add_lora(config, loaded), ranks)
    WorkerGroup(ranks, learner).serve()


def objective_of(config: RLConfig) -> Objective:
    """Return the training objective that the settings of an RL run define."""
    loss = config.loss
    reference = "first" if loss.sync_reference_every is None else "moving"
    return Objective(
        loss.make(),
        config.num_iterations,
        config.log_token_stats,
        reference if loss.kl_penalty else None,
    )


def make_backend(config: RLConfig, loaded: LoadedModel, run_folder: Path) -> SamplingBackend:
    """Return the sampling backend of an RL run."""
    if config.backend == "vllm":
        return VLLMBackend(config.vllm, loaded, run_folder / FOLDER, config.batch_size, config.lora.rank)
    return EmbeddedBackend(
        loaded,
        config.batch_size,
        separate_weights=config.max_off_policy_steps > 0,
        bf16=config.bf16_sampling,
        in_flight_updates=config.max_off_policy_steps > 1,
    )


class _Loop:
    """The parts of an RL run, and one step of it."""

    def __init__(
        self, config: RLConfig, env: Environment, loaded: LoadedModel, run: Run, ranks: Ranks, on_progress: OnProgress
    ):
        loaded.renderer.check_environment(env, train=True)
        self.config = config
        self.env = env
        self.loaded = loaded
        self.run = run
        self.on_progress = on_progress
        self.group = WorkerGroup(ranks, Learner(config, objective_of(config), loaded, ranks, on_progress))
        self.backend = make_backend(config, loaded, run.path)
        self.evaluations = HeldOutEvaluations(
            config.evaluation,
            self.backend.client,
            run,
            config.env_dir,
            config.seed,
            config.environment_isolation,
            on_progress,
        )
        self.collector: RolloutCollector | None = None
        self.has_noted_overlong = False

    async def start(self, step: int, history: list[dict[str, float]], callbacks: TrainingCallbacks) -> None:
        """Begin, or continue after `step` steps. With `lr_backoff`, a new run measures the initial weights as step 0.

        Raises:
            ConfigError: The dataset has no rows, or lacks the curriculum's column.
        """
        config = self.config
        # The row of step 0, which `lr_backoff` adds, has no count.
        drawn = int(history[-1].get(DRAWN, step * config.groups)) if history else 0
        arguments = (config, self.env, self.backend.client, self.run, drawn, self.on_progress)
        if config.max_off_policy_steps <= 1:
            self.collector = RolloutCollector(*arguments)
        else:
            last = self.run.last_checkpoint()
            self.collector = AsyncCollector(
                *arguments,
                max_staleness=config.max_off_policy_steps,
                step=step,
                state=last[1].state if last else {},
            )
        self.publish(step)
        if config.lr_backoff is not None and not history:
            history.append(await self._measure_initial())
            callbacks.after_step(history)

    async def step(self, step: int, history: History, lr_factor: float) -> tuple[CollectedStep, dict[str, float]]:
        """Take one step (counted from 0) with the learning rate times `lr_factor`; return its rollouts and metrics.

        Raises:
            RunError: Every rollout failed, or a reward function raised in every rollout of the first step.
            TrainingError: Too many consecutive steps had a loss or gradient that was not finite.
        """
        started = time.perf_counter()
        config, collector = self.config, self.collector
        assert collector is not None
        # Collect rollouts. Their rewards become advantages, their tokens become training sequences.
        collected = await collector.take(step)
        self._note_overlong_prompts(step, collected.records)
        if config.max_off_policy_steps == 1:
            # The next step's rollouts are collected while this step trains. They sample with the weights before it.
            self.publish(step)
            if not must_synchronize(config, step + 1):
                collector.prefetch(step + 1)
        if config.max_off_policy_steps == 0:
            # Sampling and training take turns, so the memory of one can serve the other.
            self.backend.release()
        # Train: batches, log-probabilities, loss, optimizer updates.
        train = partial(learn, config, step, collected.sequences, self.group, self.run, history, lr_factor)
        if config.max_off_policy_steps == 0:
            trained = train()
            trim_heap()
        else:
            trained = await asyncio.to_thread(train)
        # Publish the new weights to the sampling backend.
        if isinstance(collector, AsyncCollector):
            # Rollouts continue with the new weights in the middle: docs/decisions/async.md.
            await self.backend.publish_while_sampling(partial(self.publish, step + 1))
            collector.use_version(step + 1)
        elif not collector.is_prefetching:
            self.publish(step + 1)
        sync_every = config.loss.sync_reference_every
        if sync_every is not None and (step + 1) % sync_every == 0:
            self.group.call_all(Learner.update_reference)
        seconds = time.perf_counter() - started  # sampling may overlap training
        return collected, {**collected.metrics, **trained, **self.backend.metrics, "time/step": seconds}

    async def discard_prefetched(self, step: int) -> None:
        """Discard the rollouts of the next step, and give the newest weights to the sampling backend."""
        assert self.collector is not None
        if self.collector.is_prefetching:
            await self.collector.discard_prefetched()
            self.publish(step)

    def _note_overlong_prompts(self, step: int, records: Sequence[RolloutRecord]) -> None:
        """Warn once about rollouts whose prompt did not fit the context: their rewards do not measure the model's responses."""
        overlong = [record for record in records if record.stop_condition == PROMPT_TOO_LONG]
        if not overlong or self.has_noted_overlong:
            return
        self.has_noted_overlong = True
        without_response = sum(1 for record in overlong if not record.steps)
        logger.warning(
            "step %d: %d of %d rollouts ended because the prompt did not fit the model's context of %d tokens, %d of them before "
            "the first response, so nothing of these is trained on; shorten the prompts, or use a model with a longer context",
            *(step + 1, len(overlong), len(records), self.loaded.context, without_response),
        )

    def publish(self, version: int) -> None:
        """Give the newest weights to the sampling backend."""
        self.group.call_all(Learner.gather)
        self.backend.publish(version)

    async def _measure_initial(self) -> dict[str, float]:
        """Evaluate the initial weights as step 0, and save them as the best weights so far; return the metrics."""
        goal = self.config.goal
        chosen = self.evaluations.of_metric(goal.metric)
        row = {"step": 0, **await self.evaluations.measure(0, chosen)}
        check_measured(goal.metric, chosen, row)
        keep_best(self.run, self.loaded, [row], goal)
        self.run.append_metrics(row)
        return row

    def end_step(self, row: Mapping[str, float], has_fallen: bool, has_new_best: bool) -> None:
        """Return to the best weights if the reward of this step fell. Save a checkpoint then, before the weights of this step
        are saved as the best, and whenever one is due.
        """
        step = int(row["step"])
        if has_fallen:
            self.group.call_all(Learner.return_to, self.run.path / "checkpoints" / "best")
            self.publish(step)
            text = (
                "%s fell to %.3g at step %d: training continues from the best weights with %g times the learning rate"
            )
            logger.warning(text, self.config.keep_best, row[str(self.config.keep_best)], step, self.config.lr_backoff)
        # Without a checkpoint after a fall, a run resumed from an older one could find newer weights in checkpoints/best.
        if has_fallen or has_new_best or step % self.config.checkpoint_every == 0:
            self.checkpoint(step)

    def checkpoint(self, step: int) -> None:
        """Save everything that is needed to resume the run after `step` steps."""
        assert self.collector is not None
        state = self.run.progress(step, self.collector.state())
        self.run.save_checkpoint(str(step), lambda path: self.group.call_all(Learner.save, path), state)
        self.run.prune_checkpoints(self.config.keep_checkpoints)

    async def close(self) -> None:
        """Cancel rollouts in progress; stop the sampling backend and the other processes."""
        if self.collector is not None:
            await self.collector.close()
        await self.backend.close()
        self.group.close()


def learn(
    config: RLConfig,
    step: int,
    sequences: Sequence[TrainingSequence],
    group: WorkerGroup[Learner],
    run: Run,
    history: History,
    lr_factor: float,
) -> dict[str, float]:
    """Train on the sequences of a step; return the metrics of the last optimizer update, and the time.

    Raises:
        TrainingError: Too many consecutive steps had a loss or gradient that was not finite.
    """
    started = time.perf_counter()
    metrics: dict[str, float] = {}

    def update() -> dict[str, float]:
        scale = lr_factor * lr_scale(step, config.steps, config.warmup_steps, config.final_lr_fraction)
        entropy_bonus = config.loss.bonus_after(history)
        measured = group.call_all(Learner.update, step, sequences, scale, entropy_bonus)
        if stats := group.worker.token_stats:
            write_tokens(run.path, step + 1, stats)
        return measured

    if sequences:
        metrics = policy_ages(sequences, step)
        metrics |= step_unless_non_finite(update, sequences, run, history, config.max_non_finite_steps)
    return {**metrics, "time/training": time.perf_counter() - started}


def policy_ages(sequences: Sequence[TrainingSequence], step: int) -> dict[str, float]:
    """Return the age of the sampling weights in policy versions: the mean over tokens, and the maximum."""
    tokens_by_age: Counter[int] = Counter()
    for sequence in sequences:
        for version, count in sequence.versions:
            tokens_by_age[step - version] += count
    total_age = sum(age * count for age, count in tokens_by_age.items())
    return {
        "off_policy/mean": total_age / max(1, tokens_by_age.total()),
        "off_policy/max": float(max(tokens_by_age)),
    }


def must_synchronize(config: RLConfig, number: int) -> bool:
    """Return whether a checkpoint or an evaluation follows step `number`, so that no rollouts may be collected ahead.

    A resumed run samples with the newest weights after such a step; an uninterrupted run must do the same to give the same
    results.
    """
    return (
        number % config.checkpoint_every == 0
        or number == config.steps
        or any(number % evaluation.every == 0 for evaluation in config.evaluation)
    )


def _save_final(config: RLConfig, run: Run, loaded: LoadedModel, history: History, goal: Goal) -> Path:
    """Save the last or the best weights with their card as the result of the run."""
    last = history[-1]
    summary = {"steps": last["step"], "last": last, **outcome(history, goal)}
    if goal.metric is not None:
        restore_weights(run.path / "checkpoints" / "best", loaded)
    final = save_result(config, run, loaded, summary)
    run.finish(summary)
    return final
