"""A `rove train` run on one page: its table of results, stages, curves, diagnoses, and what the trained model gets wrong."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from rove.core.errors import Error, RunError
from rove.core.plain import JsonMapping, JsonObject
from rove.runs.metrics import SECONDS, panels, with_derived
from rove.runs.run import Run
from rove.runs.train_folder import RECIPE, ResultRow, TrainFolder
from rove.statistics.format import duration, interval, number, percent, shown, signed
from rove.utils.files import check_regular
from rove.utils.units import counted
from rove.viewer.compare import compare_runs
from rove.viewer.html import finite, utf8_text
from rove.viewer.index import Index, JsonlTail, alert_rows
from rove.viewer.mistakes import describe_mistakes, graded_rollouts
from rove.viewer.queries import CURRENT_ROLLOUTS, TABLE_SCAN
from rove.viewer.run_settings import describe_run, masked

TABLE_HEAD = ("model", "evaluation", "reward", "95% interval", "change from the row above", "tokens", "truncated")
CURVES = ("Evaluations", "Reward", "Lengths")
"""Groups of charts that are shown for all stages together, in this order; the page of a stage shows all of its charts."""
TITLES = {"data": "Data", "sft": "SFT", "rl": "RL"}
MAX_RECIPE_CHARS = 100_000

OpenIndex = Callable[[Path], Index]
"""Returns the complete index of the evaluation in a folder."""


class KeptModel(NamedTuple):
    """The model that a run has trained, as measured."""

    row: ResultRow
    condition: str

    @property
    def reward(self) -> JsonObject:
        """The estimate of its reward."""
        return reward_of(self.row, self.condition)


def reward_of(row: ResultRow, condition: str) -> JsonObject:
    """Return the estimate of a row's reward; `mean` is None if the file has no number."""
    estimate = row.conditions[condition].get("reward")
    values: JsonObject = estimate if isinstance(estimate, dict) else {}
    return {**values, "mean": finite(values.get("mean"))}


def kept_model(rows: Sequence[ResultRow]) -> KeptModel | None:
    """Return the last trained model under its first condition; None before the first training stage."""
    trained = [row for row in rows if row.is_trained and row.conditions]
    if not trained:
        return None
    # The row of the last stage, which a row with another temperature may repeat.
    row = next(row for row in trained if row.model == trained[-1].model)
    # The first condition is the one for which RL is made, such as sampling at T = 1.
    return KeptModel(row, next(iter(row.conditions)))


def environment_of(folder: TrainFolder) -> str:
    """Return the name of the environment; "" if no stage has recorded it."""
    return next(iter(_environment_words(folder)), "")


def _environment_words(folder: TrainFolder) -> list[str]:
    """Return the words of a command that name the environment; [] if no stage has recorded it."""
    for stage in folder.stages():
        config = describe_run(stage)["config"]
        if config.get("env"):
            env_dir = config.get("env_dir")
            return [str(config["env"]), *(["--env-dir", str(env_dir)] if env_dir else [])]
    return []


def _command(words: Sequence[str]) -> str:
    return " ".join(shlex.quote(utf8_text(word)) for word in words)


def repeat_command(folder: TrainFolder) -> str:
    """Return the command that repeats the run; "" if its recipe is not in the folder."""
    recipe = folder.path / RECIPE
    if not recipe.is_file():
        return ""
    # rove refuses options such as --env-dir beside a recipe, which has these settings.
    words = ["rove", "train", environment_of(folder) or "ENV", "--recipe", str(recipe.absolute())]
    seed = seed_of(folder)
    return _command([*words, *(["--seed", str(seed)] if seed else []), "--run-dir", "runs/again"])


def seed_of(folder: TrainFolder) -> int:
    """Return the seed of the stages; 0, the default, if none has recorded one."""
    seeds = [describe_run(stage)["config"].get("seed") for stage in folder.stages()]
    return next((seed for seed in seeds if isinstance(seed, int)), 0)


def describe_stages(folder: TrainFolder, open_index: OpenIndex) -> JsonObject:
    """Return the contents of the page of a `rove train` run.

    Args:
        folder: The folder of all stages.
        open_index: Opens the index of an evaluation.

    Raises:
        RunError: One of its files is damaged.
    """
    rows, env = folder.rows(), environment_of(folder)
    metrics = {stage.path.name: _metrics(stage.path) for stage in folder.stages()}
    kept = kept_model(rows)
    completion = folder.completion()
    return {
        "env": env,
        "model": kept.row.model if kept else "",
        "title": f"rove train · {env or '?'}",
        "complete": folder.is_complete,
        "when": _last_written(folder),
        "verdict": _verdict(folder, rows, open_index),
        "cards": _cards(rows, kept, metrics, completion.cost),
        "head": TABLE_HEAD,
        "values": _table(folder, rows, open_index),
        "notes": list(completion.notes),
        "diagnoses": _diagnoses(folder),
        "stages": [_stage(stage, metrics[stage.path.name]) for stage in folder.stages()],
        "training": _curves(metrics),
        "mistakes": _mistakes(folder, rows, kept, open_index),
        "next": _next_commands(_environment_words(folder), kept),
        "repeat": repeat_command(folder),
        "recipe": _recipe(folder),
    }


def _metrics(folder: Path) -> list[JsonObject]:
    lines = JsonlTail(folder / "metrics.jsonl")
    lines.catch_up()
    return [with_derived(row) for row in lines.rows]


def _last_written(folder: TrainFolder) -> str:
    files = [file for stage in folder.stages() for file in stage.path.iterdir() if file.is_file()]
    seconds = max((file.stat().st_mtime for file in files), default=folder.path.stat().st_mtime)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def _verdict(folder: TrainFolder, rows: Sequence[ResultRow], open_index: OpenIndex) -> list[str]:
    """Return sentences about what training has changed: the whole, then each stage."""
    kept = kept_model(rows)
    if kept is None:
        return ["No training stage has been evaluated yet."]
    base = next((row for row in rows if row.name == "base"), None)
    trained = [row for row in rows if row.is_trained]
    # A row with another temperature repeats a model; its first row is the one to compare.
    stages = list({row.model: row for row in reversed(trained)}.values())[::-1]
    pairs = [] if base is None else [(base, kept.row)]
    pairs += pairwise(stages)
    sentences: list[str] = []
    for before, after in pairs:
        for condition in after.conditions:
            change = _change(folder, before, after, condition, open_index)
            if change is not None:
                where = f" ({condition})" if condition else ""
                sentences.append(f"From {before.name} to {after.name}, the reward{where} {change}.")
    return sentences or [f"{kept.row.name}: reward {number(kept.reward.get('mean'))}."]


def _change(
    folder: TrainFolder, before: ResultRow, after: ResultRow, condition: str, open_index: OpenIndex
) -> str | None:
    """Return what happened to the reward between two rows; None if their rollouts cannot be compared."""
    main = _difference(folder, before, after, condition, open_index)
    if main is None:
        return None
    verb = {1: "rose", -1: "fell"}.get(main["direction"], "did not change measurably")
    return f"{verb}: {number(main['a'])} to {number(main['b'])}, difference {_with_interval(main)}"


def _difference(
    folder: TrainFolder, before: ResultRow, after: ResultRow, condition: str, open_index: OpenIndex
) -> JsonObject | None:
    """Return the paired difference of the rewards of two rows; None if their rollouts cannot be compared."""
    if condition not in before.conditions or condition not in after.conditions:
        return None
    folders = [folder.evaluation_folder(row.name, condition) for row in (before, after)]
    if not all((path / "rollouts.jsonl").exists() for path in folders):
        return None
    a, b = map(open_index, folders)

    def compared() -> JsonObject | None:
        try:
            comparison: JsonObject = compare_runs(a, b, "reward", (before.name, after.name))
            return comparison["main"]
        except Error:  # no common reward, or no scored rollout
            return None

    [stamp] = a.query("SELECT bytes, lines FROM seen")
    return b.cached(("difference", str(a.file), stamp), compared)


def _with_interval(main: JsonMapping) -> str:
    low, high = main["low"], main["high"]
    has_interval = all(isinstance(end, float) and math.isfinite(end) for end in (low, high))
    return (
        f"{signed(main['difference'])} [{number(low)}, {number(high)}]" if has_interval else signed(main["difference"])
    )


def _cards(
    rows: Sequence[ResultRow], kept: KeptModel | None, metrics: Mapping[str, Sequence[JsonMapping]], cost: str
) -> list[tuple[str, str]]:
    cards: list[tuple[str, str]] = []
    if kept is not None:
        condition = f", {kept.condition}" if kept.condition else ""
        cards.append((number(kept.reward.get("mean")), f"reward of the kept model ({kept.row.name}{condition})"))
    stages = [name for name, values in metrics.items() if values]
    steps = [f"{_title(name)}: {_num_steps(metrics[name]):,}" for name in stages]
    if steps:
        cards.append((", ".join(steps), "training steps"))
    seconds = sum(row.get(SECONDS) or 0.0 for values in metrics.values() for row in values)
    if seconds:
        cards.append((duration(seconds), "time of all training steps"))
    if cost:
        cards.append((cost.removeprefix("took "), "cost of the last run of the command"))
    if not rows:
        cards.append((shown(None), "no row of the results table yet"))
    return cards


def _table(folder: TrainFolder, rows: Sequence[ResultRow], open_index: OpenIndex) -> list[tuple[str, ...]]:
    """Return the rows of `TABLE_HEAD`: all models under one condition, then under the next one."""
    conditions = list(dict.fromkeys(condition for row in rows for condition in row.conditions))
    table: list[tuple[str, ...]] = []
    for condition in conditions:
        above: ResultRow | None = None
        for row in rows:
            if condition not in row.conditions:
                continue
            summary = row.conditions[condition]
            reward = reward_of(row, condition)
            is_compared = above is not None and row.is_trained
            main = _difference(folder, above, row, condition, open_index) if above is not None and is_compared else None
            usage = summary.get("tokens_per_rollout")
            # Scripted policies have no tokenizer.
            tokens = None
            if isinstance(usage, dict) and not row.model.startswith("scripted:"):
                tokens = finite(usage.get("completion"))
            truncated = finite(summary.get("truncation_share"))
            table.append(
                (
                    row.name,
                    condition or "–",
                    number(reward.get("mean")),
                    interval(reward),
                    _with_interval(main) if main else "–",
                    number(tokens, 1),
                    "–" if truncated is None else f"{percent(truncated)}%",
                )
            )
            above = row
    return table


def _diagnoses(folder: TrainFolder) -> list[str]:
    return [f"{stage}: {finding}" if stage else str(finding) for stage, finding in folder.diagnoses()]


def _stage(stage: Run, metrics: Sequence[JsonMapping]) -> JsonObject:
    """Describe a stage: what it did, why it ended, and which weights it kept."""
    name, config = stage.path.name, describe_run(stage)["config"]
    summary: JsonObject = stage.summary() or {}
    best = summary.get("best")
    kept = "the last weights"
    if isinstance(best, dict):
        kept = f"step {best.get('step')}, {best.get('metric')} {number(finite(best.get('value')))}"
    rollouts = summary.get("rollouts")
    planned = config.get("steps")
    size = f"{_num_steps(metrics):,} steps" if metrics else shown(None)
    if metrics and isinstance(planned, int):
        size = f"{_num_steps(metrics):,} of {planned:,} steps"
    elif not metrics and isinstance(rollouts, int):
        size = counted(rollouts, "rollout")
    alerts, _ = alert_rows(stage.path)
    return {
        "name": name,
        "title": _title(name),
        "size": size,
        "is_complete": bool(summary),
        "ended": masked(str(summary.get("stopped") or ("complete" if summary else "not complete"))),
        "kept": kept if summary and metrics else shown(None),
        "alerts": [alert["line"] for alert in alerts[-3:]],
    }


def _num_steps(metrics: Sequence[JsonMapping]) -> int:
    """Return the number of steps taken; a row of step 0 is a measurement before the first step."""
    step = metrics[-1].get("step")
    return int(step) if isinstance(step, (int, float)) else len(metrics)


def _title(stage: str) -> str:
    """Return the title of a stage: "rl2" → "RL 2"."""
    kind = stage.rstrip("0123456789")
    return f"{TITLES.get(kind, kind)} {stage.removeprefix(kind)}".strip()


def _curves(metrics: Mapping[str, Sequence[JsonMapping]]) -> JsonObject | None:
    """Return the metrics of all stages with steps that count on, so that one chart shows SFT and RL; None without metrics."""
    rows: list[JsonObject] = []
    marks: list[JsonObject] = []
    offset = 0
    for name, values in metrics.items():
        if not values:
            continue
        if offset:
            marks.append({"step": offset, "id": f"{_title(name)} begins"})
        for row in values:
            step = row.get("step")
            if isinstance(step, (int, float)):
                rows.append({**row, "step": step + offset})
        offset = int(rows[-1]["step"]) if rows else 0
    charts = [panel for panel in panels(rows) if panel["group"] in CURVES]
    charts.sort(key=lambda panel: CURVES.index(panel["group"]))
    return {"rows": rows, "panels": charts, "alerts": marks, "steps": [], "groups": None} if rows else None


def _mistakes(
    folder: TrainFolder, rows: Sequence[ResultRow], kept: KeptModel | None, open_index: OpenIndex
) -> JsonObject | None:
    """Describe what the kept model gets wrong, beside the first trained model; None before the first training stage."""
    if kept is None:
        return None
    evaluation = folder.evaluation_folder(kept.row.name, kept.condition)
    if not (evaluation / "rollouts.jsonl").exists():
        return None
    first = next(row for row in rows if row.is_trained)
    first_evaluation = folder.evaluation_folder(first.name, kept.condition)
    has_earlier = first.name != kept.row.name and (first_evaluation / "rollouts.jsonl").exists()
    index = open_index(evaluation)
    earlier_index = open_index(first_evaluation) if has_earlier else None

    def described() -> JsonObject:
        best = _best_reward(folder, rows, kept.condition, open_index)
        return describe_mistakes(graded_rollouts(index), graded_rollouts(earlier_index) if earlier_index else (), best)

    stamp = earlier_index.query("SELECT bytes, lines FROM seen")[0] if earlier_index else None
    mistakes = index.cached(("mistakes", str(first_evaluation), stamp), described)
    return {
        **mistakes,
        "source": f"{kept.row.name}, {kept.condition}" if kept.condition else kept.row.name,
        "folder": evaluation.relative_to(folder.path).as_posix(),
        "earlier": first.name if has_earlier else "",
    }


def _best_reward(folder: TrainFolder, rows: Sequence[ResultRow], condition: str, open_index: OpenIndex) -> float | None:
    """Return the best reward of any model's rollout under a condition; None without rollouts."""
    best: list[float] = []
    for row in rows:
        path = folder.evaluation_folder(row.name, condition)
        if (path / "rollouts.jsonl").exists():
            [(reward,)] = open_index(path).query(f"SELECT MAX(reward) FROM {TABLE_SCAN} WHERE {CURRENT_ROLLOUTS}")
            best += [] if reward is None else [float(reward)]
    return max(best, default=None)


def _next_commands(environment: Sequence[str], kept: KeptModel | None) -> list[str]:
    """Return commands that continue from the trained model."""
    if kept is None or not environment:
        return []
    model = ["-m", kept.row.model]
    return [
        _command(["rove", "play", *environment, *model]),
        _command(["rove", "eval", *environment, *model, "-n", "1000", "-T", "0"]),
        _command(["rove", "rl", *environment, *model, "--steps", "100"]),
    ]


def _recipe(folder: TrainFolder) -> str:
    file = folder.path / RECIPE
    try:
        check_regular(file)
        return str(masked(file.read_text("utf-8", "replace")[:MAX_RECIPE_CHARS]))
    except (OSError, RunError):
        return ""
