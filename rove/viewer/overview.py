"""One run on a page: results, stop reasons, a verdict on training, settings with their defaults, and files."""

from __future__ import annotations

import os
from collections.abc import Iterator

from rove.core.masking import without_secrets
from rove.core.plain import JsonObject
from rove.runs.metrics import SECONDS
from rove.runs.run import Run
from rove.statistics.format import duration, shown
from rove.viewer import queries
from rove.viewer.index import Index, Progress, alert_rows
from rove.viewer.report import TABLE_HEAD, RunReport, cards, table_rows
from rove.viewer.run_settings import settings_of
from rove.viewer.verdict import training_verdict

MAX_FILES = 200
"""Maximum number of files of a run folder that are listed."""


def overview(run: Run, index: Index, progress: Progress) -> JsonObject:
    """Return the contents of a run's first page."""
    report = RunReport(run, index, progress)
    has_rollouts = progress.size > 0
    training = report.kind != "eval"
    content = report.training() if training else _evaluation(report)
    weights = queries.reward_weights(index) if has_rollouts else {}
    metrics = content.pop("training")["rows"] if training else []
    taken = sum(row.get(SECONDS) or 0.0 for row in metrics)
    if taken:
        content["cards"].append((duration(taken), "time of all steps"))
    # The rollouts of a training stage run at the same time as its steps.
    spent = _seconds(index) if has_rollouts and not taken else None
    if spent is not None:
        content["cards"].append((duration(spent), "time of all rollouts added up, although they run at the same time"))
    if not any(words.startswith("cost") for _, words in content["cards"]):
        content["cards"].append((shown(None), "cost: the settings have no price"))
    alerts, _ = alert_rows(run.path)
    return {
        **content,
        "verdict": training_verdict(metrics, weights, alerts) if training else [],
        "alerts": alerts[-12:],
        "outcomes": queries.facet(index, queries.parse_filter(queries.columns(index), []), "outcome")["values"]
        if has_rollouts
        else [],
        "threshold": index.pass_threshold,
        "when": report.when,
        "repeat": report.repeat_command,
        "env_version": _env_version(run),
        "versions": report.versions,
        "settings": settings_of(run),
        "files": list(_files(run)),
        "limit": "; ".join(filter(None, [report.summary.get("too_few"), *report.omitted_rollouts])),
    }


def _evaluation(report: RunReport) -> JsonObject:
    summary = report.summary
    return {
        "cards": list(cards(summary)),
        "head": TABLE_HEAD,
        "values": list(table_rows(summary)),
        "stops": summary.get("stops") or {},
        "errors": summary.get("errors") or {},
    }


def _seconds(index: Index) -> float | None:
    """Return the summed duration of all current rollouts."""
    sql = f"SELECT SUM(seconds) FROM {queries.TABLE_SCAN} WHERE {queries.CURRENT_ROLLOUTS}"
    return index.query(sql)[0][0]  # pyright: ignore[reportReturnType]


def _env_version(run: Run) -> str:
    """Return the environment's name, version and content hash as recorded by the run; "" if it recorded none."""
    identity = without_secrets(run.config().get("identity", {}).get("env", ""))
    return identity if isinstance(identity, str) else ""


def _files(run: Run) -> Iterator[tuple[str, int]]:
    """Yield the name and the size in bytes of each entry of the folder; names of folders end with a slash."""
    try:
        entries = sorted(os.scandir(run.path), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries[:MAX_FILES]:
        if entry.is_dir(follow_symlinks=False):
            yield f"{entry.name}/", 0
        elif entry.is_file(follow_symlinks=False):
            yield entry.name, entry.stat(follow_symlinks=False).st_size
