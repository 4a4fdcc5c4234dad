"""Measuring on held-out examples while training, keeping the best weights, and knowing when to stop.

Nothing here has a state of its own: what was best and whether to stop are read off the metrics of the run, so that a resumed
run knows them too.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rove.core.errors import ConfigError, RunError, nearest
from rove.core.protocols import SamplingParams
from rove.core.records import Outcome, RolloutRecord
from rove.engine.client import EngineClient
from rove.envs.loading import load_environment
from rove.models.load import LoadedModel
from rove.remote.environment import AwayEnv
from rove.remote.loading import Isolation, looking_at, open_beside
from rove.rollouts.evaluate import evaluate
from rove.rollouts.evaluation_kinds import EvaluationKind
from rove.rollouts.groups import RolloutError
from rove.runs.run import Run
from rove.train.config import EvaluationConfig, Goal
from rove.train.progress import OnProgress, ignore

FOLDER = "evaluations"


class Best(NamedTuple):
    """The best measurement so far."""

    step: int
    value: float
    since: int
    """Measurements after it."""


def best_of(history: Sequence[Mapping[str, float]], goal: Goal) -> Best | None:
    """The first of the best measurements; None when there is none yet."""
    best: Best | None = None
    for row in history:
        value = row.get(goal.metric) if goal.metric is not None else None
        if value is None:
            continue
        if best is None or not goal.is_as_good(best.value, value):
            best = Best(int(row["step"]), value, 0)
        else:
            best = best._replace(since=best.since + 1)
    return best


def stop_reason(history: Sequence[Mapping[str, float]], goal: Goal) -> str | None:
    """Why training should end after the last of these steps; None when it should go on."""
    best = best_of(history, goal)
    if best is None:
        return None
    if goal.target is not None and goal.is_as_good(best.value, goal.target):
        return f"{goal.metric} has reached {goal.target:g}: it was {best.value:g} after step {best.step}"
    if goal.patience is not None and best.since >= goal.patience:
        return f"{goal.metric} has not improved on {best.value:g}, of step {best.step}, in {best.since} measurements"
    return None


class HeldOutEvaluations:
    """The evaluations of a training run.

    Args:
        configs: what to measure.
        client: of the model that is trained.
        run: of the training; rollouts are kept in its `evaluations/NAME/STEP`, each an ordinary run of `rove eval`.
        env_dir: where environments are looked for first.
        seed: of everything random; the same in every measurement, so that they differ by the weights alone.
        isolation: of the run's own environment.
        on_progress: called after every rollout.

    Raises:
        ConfigError: an environment cannot be loaded, or not be played line by line as is asked for.
    """

    def __init__(
        self,
        configs: Sequence[EvaluationConfig],
        client: EngineClient | None,
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
        for config in configs:  # what cannot be loaded is told before anything is trained
            with looking_at(config.env, env_dir, config.env_args, config.environment_isolation(isolation)) as env:
                if (kind := config.evaluation_kind) is not None:
                    kind.check(env)

    def due(self, step: int) -> list[EvaluationConfig]:
        """Those that are measured after this step."""
        return [config for config in self.configs if step % config.every == 0]

    async def measure(self, step: int, configs: Sequence[EvaluationConfig]) -> dict[str, float]:
        """Metrics of these evaluations after a step, under `eval/NAME/`, and the seconds they took.

        They are `reward/mean` with its 95 % interval (`reward/interval_low`, `reward/interval_high`), `reward/FUNCTION` and
        `metrics/FUNCTION`, `length/mean` in tokens, `truncated` and `failed` as shares of the rollouts.
        Other kinds have metrics of their own, see `EvaluationKind`.

        Raises:
            RunError: every rollout of an evaluation failed, or any line of play.
        """
        if not configs:
            return {}
        assert self.client is not None
        started = time.perf_counter()
        metrics: dict[str, float] = {}
        for config in configs:
            kind = config.evaluation_kind
            found = await (
                self._one(step, config, self.client) if kind is None else self._of_kind(step, config, kind, self.client)
            )
            metrics |= {f"eval/{config.label}/{name}": value for name, value in found.items()}
        self.client.engine.update_weights(step)  # a run that resumes here finds nothing kept by the engine either
        return {**metrics, "time/evaluation": time.perf_counter() - started}

    async def after_step(
        self, row: Mapping[str, float], history: Sequence[Mapping[str, float]], last: bool, goal: Goal
    ) -> dict[str, float]:
        """What is to be measured after a step: what is due; after the last one, and where it turns out the last, everything.

        Args:
            row: metrics of the step so far.
            history: of the steps before.
            last: no step comes after it.
            goal: may turn out to be reached.

        Raises:
            ConfigError: the metric of `goal` is not among those of its evaluation.
        """
        step = int(row["step"])
        now = self.configs if last else self.due(step)
        found = await self.measure(step, now)
        check_measured(goal.metric, now, found)
        rest = [config for config in self.configs if config not in now]
        if rest and goal.metric in {**row, **found} and stop_reason([*history, {**row, **found}], goal) is not None:
            more = await self.measure(step, rest)
            found |= {**more, "time/evaluation": found.get("time/evaluation", 0.0) + more["time/evaluation"]}
        return found

    async def _one(self, step: int, config: EvaluationConfig, client: EngineClient) -> dict[str, float]:
        folder = self.run.path / FOLDER / config.label / str(step)
        shutil.rmtree(folder, ignore_errors=True)  # of a process that was stopped here, perhaps with other weights
        # Loaded anew each time: `evaluate` tears it down, and what one measurement left in it is not for the next.
        env = await open_beside(config.env, self.env_dir, config.env_args, config.environment_isolation(self.isolation))
        client.engine.update_weights(step)
        failures: list[RolloutRecord | Outcome] = []
        total = (env.count_examples(config.num_examples) or 0) * config.rollouts_per_example
        done = 0

        def look(record: RolloutRecord | Outcome) -> None:
            nonlocal done
            done += 1
            self.on_progress(f"rollouts of evaluation {config.label}", done, total)
            if record.error is not None and not failures:
                failures.append(record)

        try:
            summary = await evaluate(
                env,
                client,
                run=folder,
                on_record=look,
                num_examples=config.num_examples,
                rollouts_per_example=config.rollouts_per_example,
                sampling_args={"temperature": config.temperature, "max_tokens": config.max_tokens},
                seed=self.seed,
            )
        finally:
            if isinstance(env, AwayEnv):
                env.close()
        if not summary["scored"] and failures:
            error = failures[0].error
            assert error is not None
            raise RunError(
                f"every rollout of evaluation '{config.label}' after step {step} failed; the first: {error.phase}: "
                f"{error.message}\n{error.traceback}"
            )
        return _metrics(summary)

    async def _of_kind(
        self, step: int, config: EvaluationConfig, kind: EvaluationKind, client: EngineClient
    ) -> dict[str, float]:
        env = load_environment(config.env, self.env_dir, **config.env_args)
        client.engine.update_weights(step)
        sampling_params = SamplingParams(temperature=config.temperature, max_tokens=config.max_tokens)
        try:
            return await kind.measure(env, client, sampling_params, kind.read_goals(config.goals), self.seed)
        except RolloutError as error:
            raise RunError(f"evaluation '{config.label}' after step {step}: a rollout failed: {error}") from None
        finally:
            await env.tear_down()


def _metrics(summary: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an evaluation's summary under a training run's names; what is not known (nan) is left out."""
    found = {
        "reward/mean": summary["reward"]["mean"],
        "reward/interval_low": summary["reward"]["low"],
        "reward/interval_high": summary["reward"]["high"],
        "length/mean": summary["tokens_per_rollout"]["completion"],
        "truncated": summary["truncation_share"],
        "failed": summary["error_share"],
    }
    for name, function in summary["functions"].items():
        found[f"{'reward' if function['weight'] else 'metrics'}/{name}"] = function["mean"]
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}


def check_measured(metric: str | None, measured: Sequence[EvaluationConfig], metrics: Mapping[str, float]) -> None:
    """Refuse to go on when the metric that is to be kept is not among those of its evaluation.

    Raises:
        ConfigError: with the names there are.
    """
    labels = [config.label for config in measured]
    if metric is not None and metric not in metrics and any(metric.startswith(f"eval/{label}/") for label in labels):
        known = [name for name in metrics if name.startswith("eval/")]
        raise ConfigError(f"keep_best is '{metric}', which its evaluation does not measure; {nearest(metric, known)}")


def keep_best(run: Run, loaded: LoadedModel, history: Sequence[Mapping[str, float]], goal: Goal) -> None:
    """Save the weights in checkpoints/best when the last measurement is the best."""
    best = best_of(history, goal)
    if best is not None and best.step == history[-1]["step"]:
        run.save_checkpoint("best", loaded.save)


def outcome(history: Sequence[Mapping[str, float]], goal: Goal) -> dict[str, Any]:
    """What a run's summary says of its goal: the best measurement, and why training ended early if it did."""
    best, stopped = best_of(history, goal), stop_reason(history, goal)
    found: dict[str, Any] = {}
    if best is not None:
        found["best"] = {"metric": goal.metric, "value": best.value, "step": best.step}
    return {**found, "stopped": stopped} if stopped is not None else found
