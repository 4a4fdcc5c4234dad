"""Measuring on held-out examples while training, keeping the best weights, and knowing when to stop.

Nothing here has a state of its own: what was best and whether to stop are read off the metrics of the run, so that a resumed
run knows them too.
"""

from __future__ import annotations

import math
import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rove.core.config import check_positive
from rove.core.errors import ConfigError, RunError, nearest
from rove.core.protocols import SamplingParams
from rove.core.records import Outcome, RolloutRecord
from rove.engine.client import EngineClient
from rove.envs.loading import load_environment
from rove.games.exhaustive import Goals, as_exhaustive_game, play_every_line, summarize
from rove.models.load import LoadedModel
from rove.remote.environment import AwayEnv
from rove.remote.loading import Isolation, looking_at, open_beside
from rove.rollouts.evaluate import evaluate
from rove.rollouts.groups import RolloutError
from rove.runs.run import Run
from rove.train.progress import OnProgress, ignore

FOLDER = "evaluations"


class EvaluationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one `[[evaluation]]` table: what is measured, and how often."""

    env: str
    """Environment; its evaluation rows are the held-out examples (its training rows where it has no others)."""
    name: str = ""
    """What its metrics are called: `eval/NAME/…`. The environment's name when not given."""
    env_args: dict[str, Any] = {}
    """Arguments of the environment."""
    num_examples: int = 100
    """The first so many evaluation rows; -1 = all."""
    rollouts_per_example: int = 1
    """Rollouts of each of them."""
    temperature: float = 0.0
    """0 = greedy."""
    max_tokens: int = 512
    """Most tokens in one model turn."""
    every: int = 10
    """Steps between two measurements; there is always one after the last step."""
    every_line: bool = False
    """Play every line of play instead of examples (see `rove.lines`): the measurement is exact."""
    goals: Goals = Goals()
    """With `every_line`: what mastery is; `missed` is 0 where it is reached."""
    isolated: bool = False
    """Load the environment in a worker process, which may crash or hang; so it is where the run is `isolated`."""
    isolated_python: str | None = None
    """Interpreter of the environment's own virtual environment; the run's, or one that is made, when not given."""

    @property
    def label(self) -> str:
        """The name its metrics have."""
        return self.name or re.sub(r"[^A-Za-z0-9_-]", "_", self.env.rsplit("/", 1)[-1].split("@", 1)[0])

    def isolation(self, run: Isolation) -> Isolation:
        """Where the environment is, in a run that isolates its own like this."""
        is_on = self.isolated or self.isolated_python is not None or run.on
        return msgspec.structs.replace(run, on=is_on, python=self.isolated_python or run.python)

    def check(self, run: Isolation = Isolation()) -> None:  # noqa: B008  frozen
        """Refuse impossible settings before any work is done.

        Args:
            run: how the run isolates its own environment.

        Raises:
            ConfigError: a setting is out of range.
        """
        if self.every_line and self.isolation(run).on:
            raise ConfigError(
                f"evaluation '{self.label}' plays every line of play, which an environment in a worker process cannot: "
                "leave out every_line, or isolated"
            )
        if not re.fullmatch(r"[A-Za-z0-9_-]+", self.label):
            raise ConfigError(
                f"evaluation is named {self.name!r}; expected letters, digits, - and _: it names metrics and a folder"
            )
        try:
            check_positive(self, "rollouts_per_example", "max_tokens", "every")
        except ConfigError as error:
            raise ConfigError(f"evaluation '{self.label}': {error}") from None
        if self.num_examples < 1 and self.num_examples != -1:
            raise ConfigError(
                f"evaluation '{self.label}': num_examples is {self.num_examples}; expected 1 or more, or -1 for all"
            )
        if self.temperature < 0:
            raise ConfigError(
                f"evaluation '{self.label}': temperature is {self.temperature}; expected 0 (greedy) or more"
            )
        if self.goals != Goals() and not self.every_line:
            raise ConfigError(
                f"evaluation '{self.label}' has goals; they are of every line of play: set every_line = true"
            )


class Goal(msgspec.Struct, frozen=True):
    """Which metric says how good the weights are, and when it is enough."""

    metric: str | None = None
    """None = nothing is kept and nothing stops early."""
    patience: int | None = None
    """Stop after so many measurements without a new best."""
    target: float | None = None
    """Stop when the metric is as good as this."""

    @property
    def lower_is_better(self) -> bool:
        """Whether less is better: so it is with a loss, and with what is missed."""
        return self.metric is not None and self.metric.endswith(("loss", "missed"))

    def is_as_good(self, value: float, other: float) -> bool:
        """Whether `value` is as good as `other`."""
        return value <= other if self.lower_is_better else value >= other

    def check(self, evaluations: Sequence[EvaluationConfig], others: Iterable[str]) -> None:
        """Refuse what can never be measured.

        Args:
            evaluations: of the run.
            others: what the run measures beside them.

        Raises:
            ConfigError: no such metric, a number out of range, or a patience or target of no metric.
        """
        for name in ("patience", "target"):
            if self.metric is None and getattr(self, name) is not None:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}, but of which metric? give keep_best too, like eval/NAME/reward/mean"
                )
        check_positive(self, "patience")
        others = list(others)
        prefixes = tuple(f"eval/{evaluation.label}/" for evaluation in evaluations)
        if self.metric is not None and self.metric not in others and not self.metric.startswith(prefixes):
            known = [*others, *(f"{prefix}reward/mean" for prefix in prefixes)]
            raise ConfigError(
                f"keep_best is '{self.metric}', which this run never measures; {nearest(self.metric, known)}"
            )


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
            with looking_at(config.env, env_dir, config.env_args, config.isolation(isolation)) as env:
                if config.every_line:
                    as_exhaustive_game(env)

    def due(self, step: int) -> list[EvaluationConfig]:
        """Those that are measured after this step."""
        return [config for config in self.configs if step % config.every == 0]

    async def measure(self, step: int, configs: Sequence[EvaluationConfig]) -> dict[str, float]:
        """Metrics of these evaluations after a step, under `eval/NAME/`, and the seconds they took.

        They are `reward/mean` with its 95 % interval (`reward/interval_low`, `reward/interval_high`), `reward/FUNCTION` and
        `metrics/FUNCTION`, `length/mean` in tokens, `truncated` and `failed` as shares of the rollouts.
        For those of every line see `_lines`.

        Raises:
            RunError: every rollout of an evaluation failed, or any line of play.
        """
        if not configs:
            return {}
        assert self.client is not None
        started = time.perf_counter()
        metrics: dict[str, float] = {}
        for config in configs:
            measure = self._lines if config.every_line else self._one
            found = await measure(step, config, self.client)
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
        env = await open_beside(config.env, self.env_dir, config.env_args, config.isolation(self.isolation))
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

    async def _lines(self, step: int, config: EvaluationConfig, client: EngineClient) -> dict[str, float]:
        """How the model does in every line of play.

        `lines` says how many there are, `lines/FUNCTION` in how many a reward function or metric is more than 0. `reward/mean`,
        `reward/FUNCTION` and `metrics/FUNCTION` are means against a uniformly random opponent, exact; `checks/NAME` is the share
        of what was there that was seen, and `missed` what is missing from the goals, summed: lines, answers and percent.
        """
        env = load_environment(config.env, self.env_dir, **config.env_args)
        client.engine.update_weights(step)
        sampling = SamplingParams(temperature=config.temperature, max_tokens=config.max_tokens)
        try:
            lines = await play_every_line(env, client, sampling, seed=self.seed)
        except RolloutError as error:
            raise RunError(f"evaluation '{config.label}' after step {step}: a line of play failed: {error}") from None
        finally:
            await env.tear_down()
        proof = summarize(env, lines)
        found = {"lines": float(proof.lines), "missed": math.fsum(one.amount for one in config.goals.missed(proof))}
        found["reward/mean"] = math.fsum(line.probability * (line.record.reward or 0.0) for line in lines)
        scores = lines[0].record.scores
        for name, value in proof.expected.items():
            found[f"{'reward' if scores and name in scores.rewards else 'metrics'}/{name}"] = value
        found |= {f"lines/{name}": float(count) for name, count in proof.counts.items()}
        return found | {f"checks/{name}": check.seen / check.there for name, check in proof.checks.items()}


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


def check_evaluations(evaluations: Sequence[EvaluationConfig], run: Isolation = Isolation()) -> None:  # noqa: B008  frozen
    """Refuse impossible evaluations.

    Args:
        evaluations: of a run.
        run: how it isolates its own environment.

    Raises:
        ConfigError: a setting is out of range, or two have one name.
    """
    names: set[str] = set()
    for evaluation in evaluations:
        evaluation.check(run)
        if evaluation.label in names:
            raise ConfigError(f"two evaluations are named '{evaluation.label}'; give each a name of its own")
        names.add(evaluation.label)


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
