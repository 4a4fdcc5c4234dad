"""Reinforcement learning: sample groups of rollouts, turn rewards into advantages, take one step, repeat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rove.core.digest import derive_seed
from rove.core.records import RolloutRecord
from rove.envs.environment import Environment
from rove.models.load import LoadedModel
from rove.runs.run import Run
from rove.train.callbacks import OnAlert, Watcher
from rove.train.checkpoint import restore_weights
from rove.train.config import Goal, RLConfig
from rove.train.evaluation import HeldOutEvaluations, keep_best, outcome, stop_reason
from rove.train.learner import Learner, Objective, resume
from rove.train.lora import add_lora
from rove.train.pipeline import Pipeline
from rove.train.progress import OnProgress, ignore
from rove.train.worker_group import SINGLE_PROCESS, Ranks, Team


def objective_of(config: RLConfig) -> Objective:
    """Return what the settings of an RL run optimize."""
    loss = config.loss
    reference = "first" if loss.sync_reference_every is None else "moving"
    return Objective(
        loss.make(),
        loss.entropy_bonus,
        config.num_iterations,
        config.log_token_stats,
        reference if loss.kl_penalty else None,
    )


OnStep = Callable[[int, Mapping[str, float]], None]
OnSample = Callable[[int, RolloutRecord], None]


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
    """Train `loaded` in `env`, resuming at the run's last checkpoint; save the last weights, or the best by `keep_best`.

    Args:
        config, env: settings, and the environment they name.
        loaded: the model to train, in place.
        run: a started run folder.
        on_step: called after every step with its number and metrics.
        on_alert: called with every alert when it starts.
        on_sample: called every `show_every` steps with the step and one of its rollouts, chosen by chance.
        on_progress: called with the progress within every step: rollouts and micro-batches.
        ranks: the processes that train it; this is the first of them, the others `follow`.

    Returns:
        the folder of the final model, or adapter.
    """
    config.check()
    loaded = add_lora(config, loaded)
    team = Team(ranks, Learner(config, objective_of(config), loaded, ranks, on_progress))
    pipeline = Pipeline(config, env, loaded, team, run, on_progress)
    options = (config.env_dir, config.seed, config.environment_isolation, on_progress)
    held_out = HeldOutEvaluations(config.evaluation, pipeline.client, run, *options)
    step = resume(team, run)
    history, goal = run.metrics(), config.goal
    stopped = stop_reason(history, goal)
    watcher = Watcher(run, config.alerts, config.loggers, config, step, on_alert)
    try:
        pipeline.start(step, history)
        while step < config.steps and stopped is None:
            played, metrics = await pipeline.step(step, history)
            step += 1
            row = {"step": step, **metrics}
            row |= await held_out.after_step(row, history, step == config.steps, goal)
            history.append(row)
            if goal.metric in row:
                keep_best(run, loaded, history, goal)
                stopped = stop_reason(history, goal)
            run.append_metrics(row)
            watcher.step(history)
            if on_sample is not None and config.show_every and step % config.show_every == 0:
                on_sample(step, played.records[derive_seed(config.seed, "show", step) % len(played.records)])
            if on_step is not None:
                on_step(step, row)
            if step % config.checkpoint_every == 0 and step < config.steps:
                _checkpoint(config, step, team, run, pipeline.state())
        _checkpoint(config, step, team, run, pipeline.state())
        return _final(run, loaded, history, goal)
    finally:
        await pipeline.close()
        team.close()
        watcher.close()
        await env.tear_down()


def follow_rl(config: RLConfig, loaded: LoadedModel, ranks: Ranks) -> None:
    """Be one of the other processes of an RL run, until its first one has ended it.

    Args:
        config: settings, those of the first.
        loaded: the model that it starts from.
        ranks: the processes.
    """
    Team(ranks, Learner(config, objective_of(config), add_lora(config, loaded), ranks)).follow()


def _final(run: Run, loaded: LoadedModel, history: Sequence[Mapping[str, float]], goal: Goal) -> Path:
    """Keep the last weights, or the best, as the run's result."""
    if goal.metric is not None:
        restore_weights(run.path / "checkpoints" / "best", loaded)
    final = run.save_final(loaded.save)
    run.finish({"steps": history[-1]["step"], "last": history[-1], **outcome(history, goal)})
    return final


def _checkpoint(config: RLConfig, step: int, team: Team, run: Run, state: Mapping[str, Any]) -> None:
    run.save_checkpoint(str(step), partial(team.do, "save"), run.progress(step, state))
    run.prune_checkpoints(config.keep_checkpoints)
