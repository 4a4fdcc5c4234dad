"""A `rove train` run on one page: its table of results, stages, curves, diagnoses, and what the trained model gets wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rove.core.errors import RunError
from rove.core.masking import without_secrets
from rove.core.plain import JsonMapping, JsonObject, is_mapping
from rove.runs.layout import EVALUATIONS
from rove.runs.metrics import panels, with_derived
from rove.runs.run import Run
from rove.runs.train_folder import RECIPE, TrainFolder
from rove.statistics.format import shown
from rove.utils.files import check_regular
from rove.utils.units import counted
from rove.viewer.html import finite
from rove.viewer.index import JsonlTail, alert_rows
from rove.viewer.mistakes import describe_mistakes, graded_rollouts
from rove.viewer.run_settings import describe_run
from rove.viewer.run_store import status, stop_reason, train_status
from rove.viewer.train_answers import TrainAnswers, how_to_continue
from rove.viewer.train_commands import continue_command, environment_of, repeat_command
from rove.viewer.train_table import (
    KeptModel,
    OpenIndex,
    TrainResults,
    best_reward,
    decimals,
    describe_table,
    kept_model,
)

CURVES = ("Evaluations", "Reward", "Lengths")
"""Groups of charts that are shown for all stages together, in this order; the page of a stage shows all of its charts."""
TITLES = {"data": "Data", "sft": "SFT", "rl": "RL", "full": "RL until no game is lost"}
MAX_RECIPE_CHARS = 100_000
LOWER_IS_BETTER = ("loss", "missed")
"""Ends of the names of metrics whose lowest value is the best, as in `rove.train.config.Goal`."""


def describe_stages(folder: TrainFolder, open_index: OpenIndex) -> JsonObject:
    """Return the contents of the page of a `rove train` run.

    Args:
        folder: The folder of all stages.
        open_index: Opens the index of an evaluation.

    Raises:
        RunError: One of its files is damaged.
    """
    rows, env = folder.rows(), environment_of(folder)
    results = TrainResults(folder, rows, open_index)
    metrics = {stage.path.name: _metrics(stage.path) for stage in folder.stages()}
    trained_model = kept_model(rows)
    completion = folder.completion()
    notes = completion.notes if folder.is_complete else folder.start_notes()
    diagnoses = [f"{diagnosis.stage}: {diagnosis}" for diagnosis in folder.diagnoses()]
    stages = [_stage(stage, metrics[stage.path.name]) for stage in folder.stages()]
    mistakes = _mistakes(results, trained_model)
    table = describe_table(results)
    return {
        "env": env,
        "model": trained_model.row.model if trained_model else "",
        "title": f"rove train · {env or '?'} · {folder.path.name}",
        "complete": folder.is_complete,
        "when": _last_written(folder),
        "answers": _answers(results, trained_model, stages, diagnoses, mistakes, completion.cost),
        "head": table["head"],
        "values": table["values"],
        "notes": [*table["footnotes"], *notes],
        "diagnoses": diagnoses,
        "stages": stages,
        "training": _curves(metrics, stages),
        "mistakes": mistakes,
        "recipe": _recipe(folder),
    }


def _answers(
    results: TrainResults,
    trained_model: KeptModel | None,
    stages: Sequence[JsonMapping],
    diagnoses: Sequence[str],
    mistakes: JsonMapping | None,
    cost: str,
) -> list[JsonObject]:
    """Return the answers to the usual questions about a run; before the first evaluation, only how to continue it."""
    stopped = _stopped(results.folder, stages)
    if trained_model is not None:
        return TrainAnswers(results, trained_model, stages, diagnoses, mistakes, cost, stopped).answers()
    answers: list[JsonObject] = [{"title": "Learned", "parts": ["No training stage has been evaluated yet."]}]
    command = continue_command(results.folder)
    if command and results.folder.is_complete:
        answers.append({"title": "Repeat", "parts": [{"command": repeat_command(results.folder)}]})
    elif command:
        answers.append({"title": "Continue", "parts": [{"command": command}]})
        answers.append({"title": "Next", "parts": how_to_continue(command, stopped)})
    return answers


def _stopped(folder: TrainFolder, stages: Sequence[JsonMapping]) -> str:
    """Return where and why a run was stopped, "in RL 1 at step 77 (interrupted by the user)"; "" if it is running or complete, or
    if the reason was not recorded.
    """
    if train_status(folder) != "stopped":
        return ""
    for stage in stages:
        if stage["why_stopped"]:
            step = f" at step {stage['steps']:,}" if stage["steps"] else ""
            return f"in {stage['title']}{step} ({stage['why_stopped']})"
    for path in sorted((folder.path / EVALUATIONS).glob("*")):
        evaluation = Run(path)
        why = "" if evaluation.summary() else stop_reason(evaluation, status(evaluation))
        if why:
            return f"in the evaluation {path.name} ({why})"
    return ""


def _metrics(folder: Path) -> list[JsonObject]:
    lines = JsonlTail(folder / "metrics.jsonl")
    lines.catch_up()
    return [with_derived(row) for row in lines.rows]


def _last_written(folder: TrainFolder) -> str:
    files = [file for stage in folder.stages() for file in stage.path.iterdir() if file.is_file()]
    seconds = max((file.stat().st_mtime for file in files), default=folder.path.stat().st_mtime)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def _stage(stage: Run, metrics: Sequence[JsonMapping]) -> JsonObject:
    """Describe a stage: what it did, why it ended, and which weights it kept."""
    name, description = stage.path.name, describe_run(stage)
    config = description["config"]
    summary: JsonObject = stage.summary() or {}
    rollouts = summary.get("rollouts")
    planned = config.get("steps")
    size = f"{_num_steps(metrics):,} steps" if metrics else shown(None)
    if metrics and isinstance(planned, int):
        size = f"{_num_steps(metrics):,} of {planned:,} steps"
    elif not metrics and isinstance(rollouts, int):
        size = counted(rollouts, "rollout")
    alerts, _ = alert_rows(stage.path)
    # Until a stage is complete, only checkpoints/best has weights that it has chosen.
    weights = stage.path / ("final" if summary else "checkpoints/best")
    best = summary.get("best") if summary or not weights.is_dir() else _best_so_far(metrics, config)
    step, why = _kept(best, config)
    why_stopped = "" if summary else stop_reason(stage, status(stage))
    ended = summary.get("stopped", "complete") if summary else why_stopped or "not complete"
    return {
        "name": name,
        "title": _title(name),
        "size": size,
        "is_complete": bool(summary),
        "is_rl": description["kind"] == "rl",
        "stopped_early": bool(summary.get("stopped")),
        "ended": without_secrets(str(ended)),
        "why_stopped": why_stopped,
        "steps": _num_steps(metrics) if metrics else 0,
        "kept": f"{step}: {why}" if metrics and (summary or best) else shown(None),
        "weights": str(weights.absolute()) if weights.is_dir() and (summary or best) else "",
        "kept_step": step,
        "why_kept": why,
        "kept_initial": is_mapping(best) and best.get("step") == 0,
        "best_reward": _best_held_out(best),
        "alerts": [
            {"step": alert.get("step"), "id": alert.get("id", "alert"), "line": alert["line"]} for alert in alerts
        ],
    }


def _best_so_far(metrics: Sequence[JsonMapping], config: JsonMapping) -> JsonObject | None:
    """Return the best measurement of a stage that is not complete, as its summary will have it; None without a measurement."""
    metric = str(config.get("keep_best"))
    rows = [row for row in metrics if finite(row.get(metric)) is not None]
    if not rows:
        return None
    choose = min if metric.endswith(LOWER_IS_BETTER) else max
    value = choose(row[metric] for row in rows)
    steps = [str(row.get("step")) for row in rows if row[metric] == value]
    # "shortest" depends on the lengths of replies, too.
    step = " or ".join(steps) if config.get("equal_best") == "shortest" else steps[-1]
    return {"metric": metric, "value": value, "step": step}


def _kept(best: object, config: JsonMapping) -> tuple[str, str]:
    """Return the step whose weights a stage has kept, and why."""
    if not isinstance(best, dict):
        return "the last step", "no measurement selects the weights"
    metric = str(best.get("metric"))
    parts = metric.split("/")
    words = (
        f"held-out reward ({parts[1]})" if metric.startswith("eval/") and metric.endswith("/reward/mean") else metric
    )
    value = f"the best {words} in training, {decimals(finite(best.get('value')))}"
    rules = {
        "shortest": "of equally good steps, the last with short replies",
        "last": "of equally good steps, the last",
    }
    rule = rules.get(str(config.get("equal_best", "last")))
    return f"step {best.get('step')}", f"{value}; {rule}" if rule else value


def _best_held_out(best: object) -> float | None:
    """Return the held-out reward by which a stage chose its weights; None if another metric chose them."""
    if not is_mapping(best) or not str(best.get("metric")).endswith("/reward/mean"):
        return None
    return finite(best.get("value"))


def _num_steps(metrics: Sequence[JsonMapping]) -> int:
    """Return the number of steps taken; a row of step 0 is a measurement before the first step."""
    step = metrics[-1].get("step")
    return int(step) if isinstance(step, (int, float)) else len(metrics)


def _title(stage: str) -> str:
    """Return the title of a stage: "rl2" → "RL 2"."""
    kind = stage.rstrip("0123456789")
    return f"{TITLES.get(kind, kind)} {stage.removeprefix(kind)}".strip()


def _curves(metrics: Mapping[str, Sequence[JsonMapping]], stages: Sequence[JsonMapping]) -> JsonObject | None:
    """Return the metrics of all stages with steps that count on, so that one chart shows SFT and RL; None without metrics.

    `alerts` has the beginnings of stages and the alerts, `note` explains the steps.
    """
    rows: list[JsonObject] = []
    marks: list[JsonObject] = []
    begins: list[str] = []
    offset = 0
    for stage in stages:
        values = metrics[stage["name"]]
        if not values:
            continue
        if offset:
            marks.append({"step": offset, "id": f"{stage['title']} begins"})
            begins.append(f"step 1 of {stage['title']} is {offset + 1:,} here")
        marks += [{"step": alert["step"] + offset, "id": alert["id"]} for alert in stage["alerts"] if alert["step"]]
        for row in values:
            step = row.get("step")
            if isinstance(step, (int, float)):
                rows.append({**row, "step": step + offset})
        # Not the planned number of steps: a stage may end early.
        offset = int(rows[-1]["step"]) if rows else 0
    if not rows:
        return None
    charts = [panel for panel in panels(rows) if panel["group"] in CURVES]
    charts.sort(key=lambda panel: CURVES.index(panel["group"]))
    count = f"Steps count on from stage to stage: {', '.join(begins)}. " if begins else ""
    note = f"{count}The horizontal axis shows steps. Dashed lines: a stage begins, or an alert."
    return {"rows": rows, "panels": charts, "alerts": marks, "steps": [], "groups": None, "note": note}


def _mistakes(results: TrainResults, trained_model: KeptModel | None) -> JsonObject | None:
    """Describe what the kept model gets wrong, next to the first trained model; None before the first training stage."""
    if trained_model is None:
        return None
    row, condition = trained_model
    evaluation = results.evaluation(row, condition)
    if evaluation is None:
        return None
    first = next(row for row in results.rows if row.is_trained)
    first_evaluation = None if first.name == row.name else results.evaluation(first, condition)
    index = results.open_index(evaluation)
    earlier_index = None if first_evaluation is None else results.open_index(first_evaluation)

    def described() -> JsonObject:
        earlier_rollouts = [] if earlier_index is None else graded_rollouts(earlier_index)
        return describe_mistakes(graded_rollouts(index), earlier_rollouts, best_reward(results, condition))

    # The cache of an index ends when its own file grows, so the key has to contain the state of the other file.
    stamp = None if earlier_index is None else earlier_index.query("SELECT bytes, lines FROM seen")[0]
    mistakes = index.cached(("mistakes", str(first_evaluation), stamp), described)
    return {
        **mistakes,
        "source": ", ".join(filter(None, [row.name, condition])),
        "folder": evaluation.relative_to(results.folder.path).as_posix(),
        "earlier": "" if earlier_index is None else first.name,
    }


def _recipe(folder: TrainFolder) -> str:
    file = folder.path / RECIPE
    try:
        check_regular(file)
        return str(without_secrets(file.read_text("utf-8", "replace")[:MAX_RECIPE_CHARS]))
    except (OSError, RunError):
        return ""
