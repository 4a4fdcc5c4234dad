"""Supervised fine-tuning on filtered rollouts, to the minimum of the validation loss."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rove.core.digest import derive_seed
from rove.core.errors import ConfigError
from rove.core.records import RolloutRecord, TrajectoryStep
from rove.engine.client import EngineClient
from rove.models.load import LoadedModel
from rove.rendering.renderer import Renderer
from rove.runs.run import Run
from rove.train.callbacks import OnAlert, Watcher
from rove.train.checkpoint import restore_weights
from rove.train.config import Goal, SFTConfig
from rove.train.evaluation import HeldOutEvaluations, keep_best, outcome, stop_reason
from rove.train.learner import Learner, Objective, resume
from rove.train.lora import add_lora
from rove.train.losses import cross_entropy
from rove.train.non_finite import step_unless_non_finite
from rove.train.progress import OnProgress, counted, ignore
from rove.train.sequences import TrainingSequence, sequences_from_messages
from rove.train.trainer import lr_scale
from rove.train.worker_group import SINGLE_PROCESS, Ranks, Team

OBJECTIVE = Objective(cross_entropy)

OnStep = Callable[[int, int, Mapping[str, float]], None]


class Talk(NamedTuple):
    """A finished conversation."""

    messages: list[dict[str, object]]
    tools: list[dict[str, object]] | None = None
    """What the model was shown beside them."""
    said_at: frozenset[int] | None = None
    """Places of the messages that the model said; None: all of the assistant's are."""
    example_key: str = ""
    """The example whose rollout it is from."""


def talks_of(record: RolloutRecord) -> list[Talk]:
    """The conversations in which the model said what it said, each of its messages in one.

    One, of prompt and completion, unless the model was shown something else: a foreign agent has words of its own before
    the task, rewrites what was said, and holds several conversations.
    """
    steps = record.steps
    said = [step.completion[-1] for step in steps if step.completion]
    if not said or (
        steps[0].prompt == record.prompt and said == [m for m in record.completion if m["role"] == "assistant"]
    ):
        return [Talk([*record.prompt, *record.completion], record.tools, example_key=record.example_key)]
    chains: list[list[TrajectoryStep]] = []
    for step in steps:
        chain = next((chain for chain in chains if _goes_on(step, chain[-1])), None)
        if chain is None:
            chains.append([step])
        else:
            chain.append(step)
    return [
        Talk(
            [*chain[-1].prompt, *chain[-1].completion],
            record.tools if chain[-1].tools is None else chain[-1].tools or None,
            frozenset(len(step.prompt) for step in chain),
            record.example_key,
        )
        for chain in chains
    ]


def _goes_on(step: TrajectoryStep, before: TrajectoryStep) -> bool:
    known = [*before.prompt, *before.completion]
    return step.tools == before.tools and step.prompt[: len(known)] == known


def conversations(records: Iterable[RolloutRecord], config: SFTConfig) -> list[Talk]:
    """The conversations of the rollouts that pass the filter.

    Raises:
        ConfigError: fewer than two are left.
    """
    seen = taken = 0
    kept: list[Talk] = []
    for record in records:
        seen += 1
        if record.scores is None or (config.min_reward is not None and record.scores.reward < config.min_reward):
            continue
        if not record.completion:  # the model never said anything: its prompt was too long
            continue
        if 0 <= config.max_examples <= taken:
            break
        taken += 1
        kept += talks_of(record)
    if len(kept) < 2:
        raise ConfigError(
            f"{len(kept)} of {seen} rollouts in {config.data} pass min_reward = {config.min_reward}; SFT needs at least 2"
        )
    return kept


def split(
    renderer: Renderer, talks: Sequence[Talk], config: SFTConfig, on_progress: OnProgress = ignore
) -> tuple[list[list[TrainingSequence]], list[TrainingSequence]]:
    """Split conversations into training conversations (each a list of samples) and validation samples.

    All conversations of an example are on the same side. If there is only one example, its conversations are split.
    """
    by_example: dict[str, list[Talk]] = {}
    for talk in talks:
        by_example.setdefault(talk.example_key, []).append(talk)
    groups = list(by_example.values()) if len(by_example) > 1 else [[talk] for talk in talks]
    random.Random(config.seed).shuffle(groups)
    held_out = min(max(1, round(len(groups) * config.validation_fraction)), len(groups) - 1)
    last = sum(map(len, groups[:held_out]))
    samples = [
        sequences_from_messages(renderer, talk.messages, talk.tools, talk.said_at)
        for talk in counted([talk for group in groups for talk in group], "conversations tokenized", on_progress)
    ]
    return samples[last:], [sample for talk in samples[:last] for sample in talk]


def train_sft(
    config: SFTConfig,
    records: Iterable[RolloutRecord],
    loaded: LoadedModel,
    run: Run,
    on_step: OnStep | None = None,
    *,
    on_alert: OnAlert | None = None,
    on_progress: OnProgress = ignore,
    ranks: Ranks = SINGLE_PROCESS,
) -> Path:
    """Fine-tune `loaded` on the rollouts that pass the filter; the weights kept are the best by `keep_best`.

    Args:
        config: settings.
        records: rollouts to learn from.
        loaded: the model to train, in place.
        run: a started run folder; training goes on at its last checkpoint if it has one.
        on_step: called after every step with its number, the most there can be, and its metrics.
        on_alert: called with every alert when it starts.
        on_progress: called with the progress of tokenizing, and within every step.
        ranks: the processes that train it; this is the first of them, the others `follow_sft`.

    Returns:
        the folder of the final model, or adapter.
    """
    config.check()
    loaded = add_lora(config, loaded)
    team = Team(ranks, Learner(config, OBJECTIVE, loaded, ranks, on_progress))
    training, held_out = split(loaded.renderer, conversations(records, config), config, on_progress)
    client = EngineClient.from_model(loaded) if config.evaluation else None
    evaluations = HeldOutEvaluations(
        config.evaluation, client, run, config.env_dir, config.seed, on_progress=on_progress
    )
    step = resume(team, run)
    history, goal = run.metrics(), config.goal
    stopped = stop_reason(history, goal)
    per_epoch = max(1, len(training) // config.batch_size)
    total = per_epoch * config.epochs
    watcher = Watcher(run, config.alerts, config.loggers, config, step, on_alert)
    try:
        while step < total and stopped is None:
            metrics = _one_step(config, step, total, training, team, run, history)
            step += 1
            measured = step % config.validate_every == 0 or step == total
            row = {"step": step, **metrics}
            if measured:
                row["validation_loss"] = team.do("mean_loss", held_out)
            if measured or evaluations.due(step):
                team.do("gather")
            if config.evaluation:
                row |= asyncio.run(evaluations.after_step(row, history, step == total, goal))
            history.append(row)
            if goal.metric in row:
                keep_best(run, loaded, history, goal)
                stopped = stop_reason(history, goal)
            run.append_metrics(row)
            watcher.step(history)
            if measured:
                _checkpoint(step, team, run)
            if on_step is not None:
                on_step(step, total, row)
    finally:
        team.close()
        watcher.close()
    counts = {"conversations": len(training), "held_out_samples": len(held_out), "steps": step}
    return _final(run, loaded, {**counts, **_best(history, goal)})


def _final(run: Run, loaded: LoadedModel, summary: Mapping[str, object]) -> Path:
    """Keep the best weights as the run's result."""
    restore_weights(run.path / "checkpoints" / "best", loaded)
    final = run.save_final(loaded.save)
    run.finish(summary)
    return final


def follow_sft(config: SFTConfig, loaded: LoadedModel, ranks: Ranks) -> None:
    """Be one of the other processes of an SFT run, until its first one has ended it; see `rove.train.rl.follow_rl`."""
    Team(ranks, Learner(config, OBJECTIVE, add_lora(config, loaded), ranks)).follow()


def _checkpoint(step: int, team: Team, run: Run) -> None:
    run.save_checkpoint(str(step), partial(team.do, "save"), run.progress(step, {}))
    run.prune_checkpoints(1)


def _best(history: Sequence[Mapping[str, float]], goal: Goal) -> dict[str, object]:
    """What the summary says of the weights that are kept."""
    found = outcome(history, goal)
    row = next(row for row in history if row["step"] == found["best"]["step"])
    losses = {name: row[name] for name in ("validation_loss",) if name in row}
    return {"best_step": found["best"]["step"], **losses, **found}


def _one_step(
    config: SFTConfig,
    step: int,
    total: int,
    training: Sequence[Sequence[TrainingSequence]],
    team: Team,
    run: Run,
    history: Sequence[Mapping[str, float]],
) -> dict[str, float]:
    started = time.perf_counter()
    samples = [sample for talk in _batch(config, step, training) for sample in talk]
    scale = lr_scale(step, total, config.warmup_steps, config.final_lr_fraction)
    seen = step_unless_non_finite(
        lambda: team.do("update", step, samples, scale), samples, run, history, config.max_non_finite_steps
    )
    keep = ("loss", "entropy/all/mean", "optim/grad_norm", "optim/lr", "optim/skipped", "tokens")
    return {**{name: seen[name] for name in keep if name in seen}, "time/step": time.perf_counter() - started}


def _batch(
    config: SFTConfig, step: int, training: Sequence[Sequence[TrainingSequence]]
) -> list[Sequence[TrainingSequence]]:
    """The conversations of a step: each epoch in an order of its own, a function of seed and epoch alone."""
    per_epoch = max(1, len(training) // config.batch_size)
    epoch, position = divmod(step, per_epoch)
    order = list(range(len(training)))
    random.Random(derive_seed(config.seed, "epoch", epoch)).shuffle(order)
    return [training[i] for i in order[position * config.batch_size : (position + 1) * config.batch_size]]
