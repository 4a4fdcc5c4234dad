"""Supervised fine-tuning on conversations until the validation loss stops falling."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path

import msgspec

from rove.core.digest import derive_seed
from rove.core.plain import JsonMapping, JsonObject
from rove.engine.client import EngineClient
from rove.models.load import LoadedModel
from rove.runs.run import Run
from rove.train.callbacks import OnAlert, OnProgress, TrainingCallbacks, ignore
from rove.train.checkpoint import restore_weights
from rove.train.config import VALIDATION_LOSS, Goal, SFTConfig
from rove.train.evaluation import HeldOutEvaluations, is_best, keep_best, outcome, stop_reason
from rove.train.learner import Learner, Objective, add_lora, resume
from rove.train.losses import cross_entropy
from rove.train.model_card import save_result
from rove.train.sequences import TrainingSequence
from rove.train.sft_data import (
    SFTData,
    SFTSource,
    TokenizedConversation,
    check_vocabulary,
    overlong_notices,
    reasoning_notices,
    split,
    tokenize,
)
from rove.train.trainer import lr_scale, step_unless_non_finite
from rove.train.worker_group import SINGLE_PROCESS, Ranks, WorkerGroup

logger = logging.getLogger(__name__)

OBJECTIVE = Objective(cross_entropy)

OnStep = Callable[[int, int, Mapping[str, float]], None]


def train_sft(
    config: SFTConfig,
    data: SFTData | SFTSource,
    loaded: LoadedModel,
    run: Run,
    on_step: OnStep | None = None,
    *,
    on_alert: OnAlert | None = None,
    on_progress: OnProgress = ignore,
    ranks: Ranks = SINGLE_PROCESS,
) -> Path:
    """Fine-tune a model on the conversations that pass the filter, from the run's last checkpoint if it has one.

    Args:
        data: Conversations to train on, or their source.
        loaded: Model to train, in place.
        on_step: Called with the number of every step, the maximum number of steps, and its metrics.
        on_alert: Called with every new alert.
        on_progress: Called with the progress of tokenization and within a step.
        ranks: Processes that train together. This process is the first; the other processes call `follow_sft`.

    Returns:
        Folder of the final model or adapter: the best weights by `keep_best`.

    Raises:
        ConfigError: A setting contradicts another, or too few conversations pass the filter.
        TrainingError: The loss or the gradient was not finite in `max_non_finite_steps` consecutive steps, or no validation
            loss was.
    """
    config.check()
    loaded = add_lora(config, loaded)
    group = WorkerGroup(ranks, Learner(config, OBJECTIVE, loaded, ranks, on_progress))
    data = data if isinstance(data, SFTData) else SFTData(data, config)
    tokenized = tokenize(loaded.renderer, data.conversations, config, loaded.context, on_progress)
    check_vocabulary(loaded.renderer, tokenized, loaded.vocab_size)
    notices = overlong_notices(tokenized, config, loaded.context)
    for notice in [*notices, *reasoning_notices(loaded.renderer, tokenized, config)]:
        logger.warning(notice)
    training, held_out = split(tokenized, config)
    client = EngineClient.from_model(loaded) if config.evaluation else None
    evaluations = HeldOutEvaluations(
        config.evaluation, client, run, config.env_dir, config.seed, on_progress=on_progress
    )
    step = resume(group, run)
    history, goal = run.metrics(), config.goal
    stopped = stop_reason(history, goal)
    total = max(1, len(training) // config.batch_size) * config.epochs
    if config.warmup_steps >= total:
        logger.warning(
            f"{total} steps, {config.warmup_steps} of warm-up: the learning rate never reaches {config.learning_rate:g}; lower "
            "warmup_steps, or train for more epochs"
        )
    callbacks = TrainingCallbacks(run, config.alerts, config.loggers, msgspec.to_builtins(config), step, on_alert)
    try:
        while step < total and stopped is None:
            metrics = _step(config, step, total, training, group, run, history)
            step += 1
            row = {"step": step, **metrics}
            is_last = step == total or stop_reason([*history, row], goal) is not None
            measured = is_last or step % config.validate_every == 0
            if measured:
                row[VALIDATION_LOSS] = group.call_all(Learner.mean_loss, held_out)
            if measured or evaluations.due(step):
                group.call_all(Learner.gather)
            if config.evaluation:
                row |= asyncio.run(evaluations.after_step(row, history, is_last, goal))
                evaluations.release()  # training needs the memory
            history.append(row)
            if goal.metric in row:
                stopped = stop_reason(history, goal)
            run.append_metrics(row)
            callbacks.after_step(history)
            if measured or is_best(history, goal):
                run.save_checkpoint(str(step), lambda path: group.call_all(Learner.save, path), run.progress(step, {}))
                run.prune_checkpoints(1)
            keep_best(run, loaded, history, goal)
            if on_step is not None:
                on_step(step, total, row)
    finally:
        group.close()
        callbacks.close()
    counts: JsonObject = {"conversations": len(training), "held_out_samples": len(held_out), "steps": step}
    counts |= _overlong_counts(tokenized, config)
    return _save_final(config, run, loaded, {**counts, **_best(history, goal)})


def _overlong_counts(tokenized: Sequence[TokenizedConversation], config: SFTConfig) -> dict[str, int]:
    """Return the fields of the summary about conversations that exceed the maximum length of a sequence."""
    truncated_tokens = [conversation.truncated for conversation in tokenized if conversation.truncated]
    if not truncated_tokens:
        return {}
    if config.overlong == "drop":
        return {"overlong_conversations": len(truncated_tokens)}
    return {"truncated_tokens": sum(truncated_tokens)}


def _save_final(config: SFTConfig, run: Run, loaded: LoadedModel, summary: JsonMapping) -> Path:
    """Save the best weights as the final model with its card, and complete the run."""
    # SFT ends some measurements after the best weights, when the loss no longer falls.
    restore_weights(run.path / "checkpoints" / "best", loaded)
    final = save_result(config, run, loaded, summary)
    run.finish(summary)
    return final


def follow_sft(config: SFTConfig, loaded: LoadedModel, ranks: Ranks) -> None:
    """Train with the first process of an SFT run until it ends; see `rove.train.rl.follow_rl`."""
    WorkerGroup(ranks, Learner(config, OBJECTIVE, add_lora(config, loaded), ranks)).serve()


def _best(history: Sequence[Mapping[str, float]], goal: Goal) -> dict[str, object]:
    """Return the fields of the summary about the best weights."""
    summary = outcome(history, goal)
    best_step = summary["best"]["step"]
    row = next(row for row in history if row["step"] == best_step)
    losses = {VALIDATION_LOSS: row[VALIDATION_LOSS]} if VALIDATION_LOSS in row else {}
    return {"best_step": best_step, **losses, **summary}


def _step(
    config: SFTConfig,
    step: int,
    total: int,
    training: Sequence[Sequence[TrainingSequence]],
    group: WorkerGroup[Learner],
    run: Run,
    history: Sequence[Mapping[str, float]],
) -> dict[str, float]:
    started = time.perf_counter()
    sequences = list(chain.from_iterable(_batch(config, step, training)))
    scale = lr_scale(step, total, config.warmup_steps, config.final_lr_fraction)
    metrics = step_unless_non_finite(
        lambda: group.call_all(Learner.update, step, sequences, scale),
        sequences,
        run,
        history,
        config.max_non_finite_steps,
    )
    # The metrics of ratios are left out: without a sampler, they mean nothing.
    names = ("loss", "entropy/all/mean", "optim/grad_norm", "optim/lr", "optim/skipped", "tokens")
    recorded = {name: metrics[name] for name in names if name in metrics}
    return {**recorded, "time/step": time.perf_counter() - started}


def _batch(
    config: SFTConfig, step: int, training: Sequence[Sequence[TrainingSequence]]
) -> list[Sequence[TrainingSequence]]:
    """Return the conversations of a step. Each epoch has a different order, which depends only on the seed and the epoch."""
    per_epoch = max(1, len(training) // config.batch_size)
    epoch, position = divmod(step, per_epoch)
    # From the seed and the epoch alone: a resumed run continues in the same order.
    order = list(range(len(training)))
    random.Random(derive_seed(config.seed, "epoch", epoch)).shuffle(order)
    first = position * config.batch_size
    return [training[index] for index in order[first : first + config.batch_size]]
