"""Evaluate on held-out examples while training, keep the best weights, and decide when to stop.

This module has no state: the best measurement and the reason to stop follow from the metrics of the run, so a resumed run
computes the same results.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rove.core.config import convert
from rove.core.errors import ConfigError, RunError, nearest
from rove.core.plain import JsonObject
from rove.core.protocols import SamplingParams
from rove.engine.client import EngineClient
from rove.envs.loading import load_environment
from rove.models.load import LoadedModel
from rove.remote.environment import RemoteEnv
from rove.remote.isolation import Isolation
from rove.remote.loading import open_environment_in_thread, temporary_environment
from rove.rollouts.evaluate import evaluate
from rove.rollouts.exhaustive import Goals, as_exhaustive_game, measure_exhaustively
from rove.rollouts.groups import RolloutError
from rove.runs.metrics import interval_of, zero_advantage_share
from rove.runs.run import Run
from rove.statistics import EvaluationResult
from rove.train.callbacks import EvaluationProgress, OnProgress, ignore
from rove.train.collect import all_failed
from rove.train.config import VALIDATION_LOSS, EvaluationConfig, Goal
from rove.train.trainer import TrainingError

FOLDER = "evaluations"
MIN_LOSS_FALL = 1e-3
"""Share by which the validation loss must fall to count as progress."""
LENGTH_TOLERANCE = 1.05
"""Responses that are longer by this factor at most are as short as the shortest; see `best_of`."""
SATURATED_MEASUREMENTS, SATURATED_STEPS, SATURATED_SHARE = 5, 50, 0.95
"""RL with patience ends after this many measurements without progress if at least this share of the groups of this many steps had
equal rewards: each further step hardly changes the weights."""
MIN_FALL = 0.1
"""A reward has fallen if it is below the best reward by at least this share of the best reward."""


class Best(NamedTuple):
    """The best measurement so far."""

    step: int
    value: float
    since: int
    """Number of measurements since the first measurement with this value."""


def best_of(history: Sequence[Mapping[str, float]], goal: Goal) -> Best | None:
    """Return the best measurement; None if there is none yet.

    With few rollouts, measurements are often equal. By default, the last of these counts: while training makes progress, weights
    that were trained longer are better on average. With "shortest", the last counts whose responses are about as short as the
    shortest of them: tokens that no reward function reads drift (docs/decisions/unrewarded_tokens.md).
    """
    best: Best | None = None
    shortest = math.inf
    for row in history:
        value = _measured(row, goal.metric)
        if value is None:
            continue
        length = row.get(goal.length_metric or "", math.inf)
        # Only a strictly better value starts the count of measurements without progress again.
        if best is None or not goal.is_as_good(best.value, value):
            best = Best(int(row["step"]), value, 0)
            shortest = length
            continue
        is_short = goal.equal_best == "last" or length <= LENGTH_TOLERANCE * shortest
        replaces_best = value == best.value and is_short
        step = int(row["step"]) if replaces_best else best.step
        best = Best(step, best.value, best.since + 1)
        if replaces_best:
            shortest = min(shortest, length)
    return best


def stop_reason(history: Sequence[Mapping[str, float]], goal: Goal) -> str | None:
    """Return why training ends after the last step of `history`; None if it continues."""
    if goal.max_minutes is not None:
        minutes = sum(map(seconds_of_step, history)) / 60
        if minutes >= goal.max_minutes:
            return f"the steps took {minutes:.3g} minutes, and max_minutes is {goal.max_minutes:g}"
    best = best_of(history, goal)
    if best is None:
        return None
    if goal.target is not None and goal.is_as_good(best.value, goal.target):
        return f"{goal.metric} has reached {goal.target:g}: it was {best.value:g} after step {best.step}"
    if goal.patience is None:
        return None
    if is_saturated(history, best):
        return (
            f"{goal.metric} has not been better than {best.value:g} for {best.since} measurements, and the rewards of nearly "
            f"all groups in the last {SATURATED_STEPS} steps are equal"
        )
    last_fall = _last_fall(history)
    since_fall = sum(row["step"] > last_fall and goal.metric in row for row in history)
    since = min(best.since, since_fall)
    if since < goal.patience:
        return None
    text = f"{goal.metric} has not been better than {best.value:g} for {best.since} measurements"
    if since < best.since:
        text += f", and the validation loss has not fallen for {since}"
    return text


def is_saturated(history: Sequence[Mapping[str, float]], best: Best) -> bool:
    """Return whether RL has raised the metric, and hardly any group is left to learn from."""
    if best.step == 0 or best.since < SATURATED_MEASUREMENTS:
        return False
    share = zero_advantage_share(*history[-SATURATED_STEPS:])
    return share is not None and share >= SATURATED_SHARE


def seconds_of_step(row: Mapping[str, float]) -> float:
    """Return the seconds that a step took, with its evaluations. `time/step` counts overlapping sampling and training once."""
    parts = ("time/step",) if "time/step" in row else ("time/sampling", "time/training", "time/sync")
    return sum(row.get(name, 0.0) for name in (*parts, "time/evaluation"))


def _measured(row: Mapping[str, float], metric: str | None) -> float | None:
    """Return the value of a metric; None if it is not in the row or not finite, which files store as null."""
    value = None if metric is None else row.get(metric)
    return value if value is not None and math.isfinite(value) else None


def _last_fall(history: Sequence[Mapping[str, float]]) -> int:
    """Return the last step at which the validation loss fell below its earlier minimum by `MIN_LOSS_FALL`; 0 if the loss is not
    measured. The loss falls before the reward rises, so a lower loss is progress, too.
    """
    lowest, step = math.inf, 0
    for row in history:
        loss = _measured(row, VALIDATION_LOSS)
        if loss is not None and loss < lowest * (1 - MIN_LOSS_FALL):
            lowest, step = loss, int(row["step"])
    return step


def count_falls(history: Sequence[Mapping[str, float]], goal: Goal) -> int:
    """Return the number of times that a measured mean reward has fallen: it is below the best earlier measurement by at least
    `MIN_FALL` of that measurement, and the 95% intervals do not overlap. A measurement without an interval counts as exact.
    """
    best, best_low, count = -math.inf, -math.inf, 0
    for row in history:
        value = _measured(row, goal.metric)
        if value is None:
            continue
        low, high = interval_of(row, str(goal.metric))
        if value > best:
            best, best_low = value, low
        elif best - value >= MIN_FALL * abs(best) and high < best_low:
            count += 1
    return count


class HeldOutEvaluations:
    """The evaluations of a training run.

    Args:
        run: Run folder; `evaluations/NAME/STEP` in it is an ordinary run folder of `rove eval`.
        seed: Random seed. It is the same for every evaluation, so that results differ only because of the weights.
    """

    def __init__(
        self,
        configs: Sequence[EvaluationConfig],
        client: EngineClient[Any] | None,
        run: Run,
        env_dir: str | Path | None = None,
        seed: int = 0,
        isolation: Isolation = Isolation(),  # noqa: B008  frozen
        on_progress: OnProgress = ignore,
    ):
        self.on_progress = on_progress
        self.configs = configs
        self.client = client
        self.run = run
        self.env_dir = env_dir
        self.seed = seed
        self.isolation = isolation
        for config in configs:  # environments that cannot be loaded fail before training
            own_isolation = config.environment_isolation(isolation)
            with temporary_environment(config.env, env_dir, config.env_args, own_isolation) as env:
                if client is not None:
                    client.renderer.check_environment(env)
                if config.is_exhaustive:
                    as_exhaustive_game(env)

    def of_metric(self, metric: str | None) -> list[EvaluationConfig]:
        """Return the evaluations that a metric belongs to."""
        return [config for config in self.configs if str(metric).startswith(f"eval/{config.label}/")]

    def due(self, step: int) -> list[EvaluationConfig]:
        """Return the evaluations that are due after a step."""
        return [config for config in self.configs if step % config.every == 0]

    async def measure(self, step: int, configs: Sequence[EvaluationConfig]) -> dict[str, float]:
        """Run evaluations after a step; return their metrics, named `eval/NAME/…`, and the time in seconds.

        Metrics: `reward/mean` with its 95% interval (`reward/interval_low`, `reward/interval_high`), `reward/FUNCTION`,
        `metrics/FUNCTION`, `length/mean` in tokens, and `truncated` and `failed` as fractions of the rollouts. An exhaustive
        evaluation has the metrics of `measure_exhaustively`.
        """
        if not configs:
            return {}
        assert self.client is not None
        started = time.perf_counter()
        metrics: dict[str, float] = {}
        for config in configs:
            evaluation = self._all_games(step, config) if config.is_exhaustive else self._rollouts(step, config)
            measured = await evaluation
            metrics |= {f"eval/{config.label}/{name}": value for name, value in measured.items()}
        self.client.engine.update_weights(step)  # clears the engine's caches, as in a run that resumes here
        return {**metrics, "time/evaluation": time.perf_counter() - started}

    async def after_step(
        self, row: Mapping[str, float], history: Sequence[Mapping[str, float]], last: bool, goal: Goal
    ) -> dict[str, float]:
        """Run the evaluations that are due after a step. Run all of them after the last step or if the goal is reached.

        Returns:
            The metrics, as returned by `measure`.
        """
        step = int(row["step"])
        due = self.configs if last else self.due(step)
        metrics = await self.measure(step, due)
        check_measured(goal.metric, due, metrics)
        not_due = [config for config in self.configs if config not in due]
        ends_here = stop_reason([*history, {**row, **metrics}], goal) is not None
        if not_due and ends_here:
            seconds = metrics.get("time/evaluation", 0.0)
            metrics |= await self.measure(step, not_due)
            metrics["time/evaluation"] += seconds
        return metrics

    def release(self) -> None:
        """Free the memory of sampling."""
        if self.client is not None:
            self.client.engine.release()

    async def _rollouts(self, step: int, config: EvaluationConfig) -> dict[str, float]:
        assert self.client is not None
        folder = self.run.path / FOLDER / config.label / str(step)
        shutil.rmtree(folder, ignore_errors=True)  # left by a killed process, perhaps with other weights
        # Loaded for every evaluation: `evaluate` tears it down, and no state may pass from one evaluation to the next.
        env = await open_environment_in_thread(
            config.env, self.env_dir, config.env_args, config.environment_isolation(self.isolation)
        )
        self.client.engine.update_weights(step)
        total = (env.count_examples(config.num_examples) or 0) * config.rollouts_per_example
        progress = EvaluationProgress(f"evaluation {config.label}", total, self.on_progress)
        try:
            result = await evaluate(
                env,
                self.client,
                run=folder,
                on_record=progress,
                num_examples=config.num_examples,
                rollouts_per_example=config.rollouts_per_example,
                sampling_args={"temperature": config.temperature, "max_tokens": config.max_tokens},
                seed=self.seed,
            )
        finally:
            if isinstance(env, RemoteEnv):
                env.close()
        # Without this, a metric would just be missing, and the goal would never be reached.
        if not result.scored and progress.first_error is not None:
            raise all_failed(f"evaluation '{config.label}' after step {step}", progress.first_error)
        return _metrics(result)

    async def _all_games(self, step: int, config: EvaluationConfig) -> dict[str, float]:
        assert self.client is not None
        env = load_environment(config.env, self.env_dir, **config.env_args)
        self.client.engine.update_weights(step)
        sampling_params = SamplingParams(temperature=config.temperature, max_tokens=config.max_tokens)
        try:
            goals = convert(Goals, config.goals)
            return await measure_exhaustively(env, self.client, sampling_params, goals, self.seed)
        except RolloutError as error:
            raise RunError(f"evaluation '{config.label}' after step {step}: a rollout failed: {error}") from None
        finally:
            await env.tear_down()


def _metrics(result: EvaluationResult) -> dict[str, float]:
    """Return the metrics of an evaluation; unknown values (nan) are left out."""
    metrics: dict[str, float] = {}
    for name, function in result.functions.items():
        kind = "reward" if function.weight else "metrics"
        metrics[f"{kind}/{name}"] = function.mean
    # Last: a reward function may be named mean, too.
    metrics |= {
        "reward/mean": result.reward.mean,
        "reward/interval_low": result.reward.low,
        "reward/interval_high": result.reward.high,
        "length/mean": result.tokens_per_rollout.completion,
        "truncated": result.truncation_share,
        "failed": result.error_share,
    }
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}


def check_measured(metric: str | None, measured: Sequence[EvaluationConfig], metrics: Mapping[str, float]) -> None:
    """Raise a ConfigError if an evaluation was measured but has no metric of this name."""
    if metric is None or metric in metrics:
        return
    if any(metric.startswith(f"eval/{config.label}/") for config in measured):
        names = [name for name in metrics if name.startswith("eval/")]
        raise ConfigError(f"keep_best is '{metric}', which its evaluation does not measure; {nearest(metric, names)}")


def is_best(history: Sequence[Mapping[str, float]], goal: Goal) -> bool:
    """Return whether the last step has the best measurement so far."""
    if not history or goal.metric not in history[-1]:
        return False
    best = best_of(history, goal)
    return best is not None and best.step == history[-1]["step"]


def keep_best(run: Run, loaded: LoadedModel, history: Sequence[Mapping[str, float]], goal: Goal) -> None:
    """Save the weights in checkpoints/best if the last measurement is the best.

    After step 0, the numbered checkpoint of the step must exist already. In the other order, a run that is killed in between
    would continue from an older checkpoint, perhaps with other results, and could end with the weights of a discarded step.
    """
    if is_best(history, goal):
        run.save_checkpoint("best", loaded.save)


def outcome(history: Sequence[Mapping[str, float]], goal: Goal) -> JsonObject:
    """Return the fields `best` and `stopped` of a run's summary: the best measurement, and why training stopped early.

    Raises:
        TrainingError: There is a metric, but it was never finite.
    """
    best, stopped = best_of(history, goal), stop_reason(history, goal)
    if goal.metric is not None and best is None:
        raise TrainingError(
            f"{goal.metric} was not a finite number in any of {len(history)} steps, so no weights are the best; lower the "
            "learning rate, and check the data"
        )
    summary: JsonObject = {}
    if best is not None:
        summary["best"] = {"metric": goal.metric, "value": best.value, "step": best.step}
    if stopped is not None:
        summary["stopped"] = stopped
    return summary
