"""The viewer's JSON API: functions that take a run store and query parameters, and return plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import msgspec

from rove.core.errors import ConfigError, RunError
from rove.core.plain import UNREADABLE, JsonObject, JsonValue
from rove.models.pretrained import CATALOG, models_folder
from rove.runs.annotations import Annotation, Annotations, Change, RolloutId
from rove.runs.annotations import annotate as write_annotation
from rove.runs.metrics import panels, with_derived
from rove.runs.run import Run
from rove.statistics.format import cut
from rove.viewer import queries, run_table, training_steps
from rove.viewer.compare import compare_runs
from rove.viewer.html import utf8_text
from rove.viewer.index import Index, Progress, alert_rows
from rove.viewer.overview import overview as describe_overview
from rove.viewer.queries import Filter
from rove.viewer.rollouts import (
    TokenDecoder,
    add_trained,
    copied_text,
    describe_rollout,
    first_difference,
    read_line,
    shortened,
)
from rove.viewer.run_settings import describe_run, differences
from rove.viewer.run_store import MAX_TROUBLE_CHARS, RunStore, status, stop_reason
from rove.viewer.stages import describe_stages
from rove.viewer.token_colors import color_tokens
from rove.viewer.verdict import time_left

MAX_GROUP_MEMBERS = 16
"""Maximum number of group members shown side by side."""
MAX_BAD_LINES = 100
"""Maximum number of unreadable lines that are listed."""
READ_TIMEOUT_S = 5.0
"""Maximum seconds for reading a file in a request that needs a certain line, or all lines."""
MAX_RAW_CHARS = 200_000
"""Maximum characters shown of a raw line."""
MAX_BAD_CHARS = 4000
"""Maximum characters shown of an unreadable line."""


class QueryParams:
    """The query parameters of a URL."""

    def __init__(self, pairs: Sequence[tuple[str, str]]):
        self.pairs = pairs

    def text(self, name: str, default: str | None = None) -> str:
        """Return the last value of a parameter."""
        values = [value for key, value in self.pairs if key == name]
        if not values and default is None:
            raise ConfigError(f"the parameter '{name}' is missing; add {name}=… to the address")
        return values[-1] if values else default or ""

    def integer(self, name: str, default: int | None = None) -> int:
        """Return a parameter as a non-negative integer."""
        text = self.text(name, None if default is None else str(default))
        if not text.isascii() or not text.isdecimal() or len(text) > 15:
            raise ConfigError(f"{name} is '{text[:40]}'; expected a whole number, 0 or more")
        return int(text)


def runs(store: RunStore, params: QueryParams) -> JsonObject:
    """List runs, one row each.

    Parameters: `q`, `kind`, `tag`, `measurements=0`, `sort` and `order` (see `run_table.RunSelection`); `column=metric.win` for
    values to include; `base` for a run with which to compare; `view=matrix`.
    """
    columns = {value for key, value in params.pairs if key == "column"}
    value_names: set[str] = set()
    rows: list[JsonObject] = []
    for name in store.names():
        try:
            row = store.run_summary(name)
        except (ConfigError, OSError):  # deleted since
            continue
        value_names |= row.get("values", {}).keys()
        rows.append(row)
    train_names = [row["name"] for row in rows if row["kind"] == "train"]
    inside = run_table.inside_training([row["name"] for row in rows], train_names)
    selection = run_table.RunSelection(
        text=params.text("q", ""),
        kind=params.text("kind", ""),
        tag=params.text("tag", ""),
        without=inside if params.text("measurements", "") == "0" else (),
        sort=params.text("sort", ""),
        descending=params.text("order", "") != "up",
    )
    listed = run_table.arrange(rows, selection)
    base_name = params.text("base", "")
    base = next((row for row in rows if row["name"] == base_name), None)
    if base is not None:
        listed = [run_table.with_difference(row, base) for row in listed]
    return {
        "folder": utf8_text(store.base.name),
        "annotate": store.annotate,
        "columns": sorted(value_names),
        "ranges": run_table.reward_ranges(rows),
        "total": len(rows),
        "measurements": len(inside),
        "kinds": sorted({row["kind"] for row in rows}),
        "tags": sorted(set().union(*(row.get("tags", []) for row in rows))),
        "matrix": run_table.matrix(listed) if params.text("view", "") == "matrix" else None,
        "runs": [
            {**row, "values": {key: row["values"][key] for key in columns & row.get("values", {}).keys()}}
            for row in listed
        ],
    }


def run(store: RunStore, params: QueryParams) -> JsonObject:
    """Describe one run: settings, versions, summary, and the columns of its rollouts."""
    name = params.text("run")
    train_folder = store.train_folder(name)
    if train_folder is not None:
        return {**store.run_summary(name), "config": {}, "known_tags": [], "annotate": store.annotate}
    folder = store.run(name)
    index, progress = store.index(name)
    columns = queries.columns(index) if progress.size else {}
    return {
        "name": name,
        "training": store.training_of(name),
        **_state(folder),
        **_read_or(lambda: describe_run(folder), {"kind": "unreadable", "env": "", "model": "", "config": {}}),
        "versions": _read_or(lambda: {"list": folder.versions()}, {"list": []})["list"],
        "summary": _read_or(folder.summary, None),
        "progress": _progress(progress),
        "annotate": store.annotate,
        "tags": index.annotations.run.tags,
        "known_tags": index.annotations.tags(),
        "annotated": bool(index.annotations.rollouts),
        "bad_annotations": len(index.annotations.bad),
        "values": [
            name for name in columns if name not in queries.TEXT_COLUMNS and not name.startswith(queries.INFO_PREFIX)
        ],
        "sorts": list(columns),
        "info": queries.info_choices(index) if progress.size else [],
        "scores": list(index.columns()) if progress.size else [],
        "range": queries.reward_range(index) if progress.size else [0, 1],
        "threshold": index.pass_threshold,
        "steps": store.metrics(name).rows[-1:] != [],
    }


def overview(store: RunStore, params: QueryParams) -> dict[str, object]:
    """Return the content of a run's first page (`rove.viewer.overview`)."""
    name = params.text("run")
    folder = store.run(name)
    index, progress = store.index(name)
    store.prepare(name)
    overview = describe_overview(folder, index, progress)
    _check_encodable(overview, folder.path)
    return {
        **overview,
        "progress": _progress(progress),
        "range": queries.reward_range(index) if progress.size else [0, 1],
    }


def stages(store: RunStore, params: QueryParams) -> dict[str, object]:
    """Return the content of the page of a `rove train` run (`rove.viewer.stages`)."""
    name = params.text("run")
    folder = store.train_folder(name)
    if folder is None:
        raise ConfigError(f"'{name}' is a single run, not a folder of `rove train`")
    content = describe_stages(folder, store.evaluation_index)
    _check_encodable(content, folder.path)
    return content


def _check_encodable(content: object, folder: Path) -> None:
    """Refuse values that JSON cannot hold; the handler could not name the run that has them."""
    try:
        msgspec.json.encode(content)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{folder} has values that cannot be shown: {error}") from error


def settings(store: RunStore, params: QueryParams) -> JsonObject:
    """Return the settings in which runs differ."""
    names = [value for key, value in params.pairs if key == "run"][:MAX_GROUP_MEMBERS]
    return differences([(name, store.run(name)) for name in names])


def reasons(store: RunStore, params: QueryParams) -> dict[str, object]:
    """Group the failing rollouts of a filter (`queries.reasons`)."""
    index, progress, rows_filter = _filtered(store, params)
    return queries.reasons(index, rows_filter) if progress.size else {"total": 0, "groups": []}


def _state(folder: Run) -> dict[str, str]:
    """Return the status of a run, and the reason why it stopped."""
    current_status = status(folder)
    return {"status": current_status, **_read_or(lambda: {"why": stop_reason(folder, current_status)}, {"why": ""})}


def _read_or(read: Callable[[], JsonValue], otherwise: JsonValue) -> JsonValue:
    """Return the result of `read`; if the file cannot be read, return `otherwise` with the reason."""
    try:
        return read()
    except (RunError, OSError) as error:
        if otherwise is None:
            return None
        return {**otherwise, "trouble": utf8_text(str(error))[:MAX_TROUBLE_CHARS]}


def _progress(progress: Progress) -> JsonObject:
    return {key: value for key, value in progress._asdict().items() if key != "stamp"}


def _filtered(store: RunStore, params: QueryParams) -> tuple[Index, Progress, Filter]:
    index, progress = store.index(params.text("run"))
    if not progress.size:
        return index, progress, Filter("1", [])
    return index, progress, queries.parse_filter(queries.columns(index), params.pairs)


def rollouts(store: RunStore, params: QueryParams) -> JsonObject:
    """Return a page of rollouts."""
    index, progress, rows_filter = _filtered(store, params)
    offset, limit = params.integer("offset", 0), params.integer("limit", 50)
    sort, order = params.text("sort", "line"), params.text("order", "up")
    if order not in ("up", "down"):
        raise ConfigError(f"order is '{order[:40]}'; expected up or down")
    empty = {"total": 0, "rows": []}
    page = queries.page(index, rows_filter, sort, order == "down", offset, limit) if progress.size else empty
    return {**page, "progress": _progress(progress)}


def facet(store: RunStore, params: QueryParams) -> JsonObject:
    """Count the rollouts per value of a column; `others=1` ignores the filter of the column itself."""
    name = params.text("name")
    if params.text("others", "") == "1":
        all_rollouts = [("is.superseded", "0"), ("is.superseded", "1")] if name == "superseded" else []
        params = QueryParams([pair for pair in params.pairs if pair[0] != f"is.{name}"] + all_rollouts)
    index, progress, rows_filter = _filtered(store, params)
    return queries.facet(index, rows_filter, name) if progress.size else {"name": name, "values": [], "others": 0}


def histogram(store: RunStore, params: QueryParams) -> JsonObject:
    """Return the histogram of a number."""
    index, progress, rows_filter = _filtered(store, params)
    name = params.text("name")
    return queries.histogram(index, rows_filter, name) if progress.size else {"name": name, "count": 0, "bars": []}


def bad_lines(store: RunStore, params: QueryParams) -> JsonObject:
    """List the lines that are not rollouts, each with the reason and the beginning of the line."""
    index, progress = store.index(params.text("run"))
    sql = "SELECT line, offset, size, why FROM bad ORDER BY line LIMIT ?"
    lines = []
    for line, offset, size, why in index.query(sql, [MAX_BAD_LINES]) if progress.size else []:
        text = read_line(index.file, offset, size).decode("utf-8", "replace")
        lines.append({"line": line, "why": why, "text": shortened(text, MAX_BAD_CHARS)})
    return {"bad": progress.bad, "lines": lines}


def _line(index: Index, progress: Progress, number: int) -> bytes:
    locations = index.query("SELECT offset, size FROM rollouts WHERE line = ?", [number]) if progress.size else []
    if not locations:
        raise ConfigError(f"no rollout in line {number}")
    return read_line(index.file, *locations[0])


def rollout(store: RunStore, params: QueryParams) -> JsonObject:
    """Describe one rollout, with its advantage and the other members of its group.

    Its tokens have the trainer's statistics if the run recorded them; otherwise, `kept` lists the rollouts of this step that
    have statistics.
    """
    name, number = params.text("run"), params.integer("line")
    index, progress = store.index(name, READ_TIMEOUT_S)
    line = _line(index, progress, number)
    content = describe_rollout(line, token_decoder(store, name), whole=params.text("whole", "") == "1")
    members = _group_members(index, content["example_key"], content["step"])
    rewards = [row["reward"] for row in members if row["reward"] is not None]
    mean = sum(rewards) / len(rewards) if rewards else None
    advantage = None if content["reward"] is None or mean is None else content["reward"] - mean
    group_member = (content["example_key"], content["rollout_index"])
    annotation = index.annotations.rollouts.get((content["step"], *group_member), Annotation())
    trained = {(entry.example_key, entry.rollout_index): entry for entry in store.tokens(name, content["step"])}
    lines_with_tokens: list[int] = []
    if group_member in trained:
        add_trained(content["tokens"], trained[group_member])
    else:
        lines_with_tokens = _lines_of(index, content["step"], list(trained))
    kept = queries.rows(index, lines_with_tokens)
    details = {"line": number, "size": len(line), "advantage": advantage, "members": members, "kept": kept}
    return {**content, **details, "tags": annotation.tags, "note": annotation.note}


def tokens(store: RunStore, params: QueryParams) -> JsonObject:
    """Return the tokens of a rollout, colored (`rove.viewer.token_colors`)."""
    content = rollout(store, params)
    return color_tokens(content["tokens"], content["advantage"], params.text("color", ""))


def _lines_of(index: Index, step: int | None, members: Sequence[tuple[str, int]]) -> list[int]:
    """Return the lines of rollouts of a step; `members` are their example keys and indices."""
    sql = (
        "SELECT line FROM rollouts INDEXED BY places WHERE example_key = ? AND rollout = ? AND step IS ? "
        "AND superseded = 0"
    )
    lines: list[int] = []
    for member in members[:MAX_GROUP_MEMBERS]:
        lines += [line for (line,) in index.query(sql, [*member, step])]
    return lines


def _group_members(index: Index, key: str, step: int | None) -> list[JsonObject]:
    sql = (
        "SELECT line FROM rollouts INDEXED BY places WHERE example_key = ? AND step IS ? AND superseded = 0 "
        "ORDER BY rollout, line LIMIT 256"
    )
    return queries.rows(index, [line for (line,) in index.query(sql, [key, step])])


def group(store: RunStore, params: QueryParams) -> JsonObject:
    """Return the rollouts of an example side by side, each with the place of its first difference from the first rollout.

    If `with` names another run, the requested rollout is shown next to the other run's rollouts of the same example, whose
    `run` is set to the other run's name.
    """
    index, progress = store.index(params.text("run"), READ_TIMEOUT_S)
    number, other_run = params.integer("line"), params.text("with", "")
    example_key, step = group_of(_line(index, progress, number))
    own_rows = queries.rows(index, [number]) if other_run else _group_members(index, example_key, step)
    members = [(index, progress, row) for row in own_rows]
    if other_run:
        other_index, other_progress = store.index(other_run, READ_TIMEOUT_S)
        other_rows = _example_rows(other_index, example_key) if other_progress.size else []
        members += [(other_index, other_progress, {**row, "run": other_run}) for row in other_rows]
    described, completions = [], []
    for member_index, member_progress, row in members[:MAX_GROUP_MEMBERS]:
        line = _line(member_index, member_progress, row["line"])
        record = describe_rollout(line)
        completions.append(msgspec.json.decode(line)["record"]["completion"])
        shown_fields = {name: record[name] for name in ("prompt", "completion", "renderings", "results")}
        described.append({**row, **shown_fields, "parts": first_difference(completions[0], completions[-1])})
    return {"rollouts": described, "left_out": len(members) - len(described)}


def _example_rows(index: Index, key: str) -> list[JsonObject]:
    """Return the last rollouts of an example, from any training step."""
    sql = "SELECT line FROM rollouts INDEXED BY places WHERE example_key = ? AND superseded = 0 ORDER BY line DESC LIMIT 4"
    return queries.rows(index, [line for (line,) in index.query(sql, [key])])


def group_of(line: bytes) -> tuple[str, int | None]:
    """Return the example key and the step of a line."""
    record = msgspec.json.decode(line)["record"]
    return record["example_key"], record.get("step")


def raw(store: RunStore, params: QueryParams) -> dict[str, object]:
    """Return a line as indented JSON; if it is too long for a page, its middle is left out."""
    index, progress = store.index(params.text("run"), READ_TIMEOUT_S)
    line = _line(index, progress, params.integer("line"))
    return {"text": cut(msgspec.json.format(line, indent=2).decode("utf-8", "replace"), MAX_RAW_CHARS)}


def copied(store: RunStore, params: QueryParams) -> JsonObject:
    """Return the text that a rollout's page copies (`rollouts.copied_text`)."""
    name = params.text("run")
    index, progress = store.index(name, READ_TIMEOUT_S)
    line = _line(index, progress, params.integer("line"))
    description = _read_or(lambda: describe_run(store.run(name)), {"env": "", "model": ""})
    return {"text": copied_text(line, params.text("as"), description["env"], description["model"])}


def metrics(store: RunStore, params: QueryParams) -> JsonObject:
    """Return the rows of metrics that follow the first `after` rows, the alerts, and the rewards per step with a band.

    `life` counts how often the file was replaced; `panels` are the charts (`rove.runs.metrics`), None if there is no new row.
    """
    name = params.text("run")
    folder, lines = store.run(name), store.metrics(name)
    first_row = params.integer("after", 0) if params.integer("life", lines.life) == lines.life else 0
    index, progress = store.index(name)
    band = params.text("band", "spread")
    alerts, damaged_alerts = alert_rows(folder.path)
    state = _state(folder)
    description = _read_or(lambda: describe_run(folder), {"kind": "unreadable", "config": {}})
    rows = [with_derived(row) for row in lines.rows]
    return {
        "life": lines.life,
        "after": min(first_row, len(rows)),
        "rows": rows[first_row:],
        "panels": panels(lines.rows) if first_row < len(rows) else None,
        "bad": lines.bad + damaged_alerts,
        "alerts": alerts,
        "steps": index.cached(("steps", band), lambda: training_steps.steps(index, band)) if progress.size else [],
        **state,
        **{name: description[name] for name in ("kind", "trouble") if name in description},
        "left": time_left(rows, description["config"].get("steps")) if state["status"] == "running" else "",
        "progress": _progress(progress),
    }


def groups(store: RunStore, params: QueryParams) -> JsonObject:
    """Return statistics of the groups of some training steps."""
    index, progress = store.index(params.text("run"))
    if not progress.size:
        return {"groups": 0, "dead": 0, "bars": []}
    return training_steps.groups(index, params.integer("first", 0), params.integer("last", queries.MAX_INTEGER >> 8))


def compare(store: RunStore, params: QueryParams) -> dict[str, object]:
    """Compare two runs, example by example."""
    names = params.text("a"), params.text("b")
    indexes, readings = zip(*(store.index(name, READ_TIMEOUT_S) for name in names))
    if not all(progress.size for progress in readings):
        missing = names[0] if not readings[0].size else names[1]
        raise ConfigError(f"'{missing}' has no rollouts to compare")
    comparisons = max(1, min(100, params.integer("comparisons", 1)))
    comparison = compare_runs(indexes[0], indexes[1], params.text("value", "reward"), names, comparisons)
    return {**comparison, "reading": not all(progress.done for progress in readings)}


def token_decoder(store: RunStore, name: str) -> TokenDecoder | None:
    """Return a function that decodes a token id.

    Return None if neither the run nor its model has a tokenizer inside the folder of runs, and the model is not in rove's
    catalog.
    """
    folder = store.run(name)
    candidates = [folder.path / "final", *sorted((folder.path / "checkpoints").glob("*"))]
    model = _read_or(lambda: describe_run(folder), {"model": ""})["model"]
    if model:
        candidates.append(models_folder() / model if model in CATALOG else Path(model))
    trusted = (store.base, models_folder().resolve())
    for candidate in candidates:
        try:
            file = (candidate / "tokenizer.json").resolve()
            is_ours = any(file.is_relative_to(folder) for folder in trusted) and file.is_file()
        except (OSError, ValueError, RuntimeError):  # an invalid file name, or circular links
            continue
        if is_ours:
            return _tokenizer(file, file.stat().st_mtime_ns)
    return None


@lru_cache(maxsize=8)
def _tokenizer(file: Path, changed: int) -> TokenDecoder | None:
    try:
        from tokenizers import Tokenizer  # from the extra `train`

        tokenizer = Tokenizer.from_file(str(file))
    except Exception:  # not installed, or not a tokenizer: the library then raises plain exceptions
        return None
    return lru_cache(maxsize=65536)(lambda id: tokenizer.decode([id], skip_special_tokens=False))


class ReadOnly(ConfigError):
    """The viewer does not accept annotations."""


class AnnotationRequest(msgspec.Struct, frozen=True):
    """A change of the tags and notes of a run or a rollout."""

    run: str
    line: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)] | None = None
    """Line of the rollout; None = the run itself."""
    add: list[str] = []
    remove: list[str] = []
    note: str | None = None


def annotate(store: RunStore, body: bytes) -> JsonObject:
    """Apply the annotation in the body of a request."""
    if not store.annotate:
        raise ReadOnly("this viewer is read-only; start it with `rove view --annotate` to tag runs and rollouts")
    try:
        request = msgspec.json.decode(body, type=AnnotationRequest)
    except UNREADABLE as error:
        raise ConfigError(f"not an annotation: {error}") from error
    return add_annotation(store, request)


def add_annotation(store: RunStore, request: AnnotationRequest) -> dict[str, object]:
    """Tag a run or a rollout, or write a note; return its tags and note."""
    index, progress = store.index(request.run)
    rollout_id = None
    if request.line is not None:
        record = msgspec.json.decode(_line(index, progress, request.line))["record"]
        rollout_id = RolloutId(record["example_key"], record["rollout_index"], record.get("step"))
    try:
        change = Change(request.add, request.remove, request.note, rollout_id)
    except ValueError as error:
        raise ConfigError(f"not an annotation: {error}") from error
    write_annotation(index.file.parent, change)
    annotation = Annotations(index.file.parent)
    stored = annotation.rollouts.get(rollout_id.key, Annotation()) if rollout_id else annotation.run
    return {"tags": stored.tags, "note": stored.note, "known_tags": annotation.tags()}


ENDPOINTS: Mapping[str, Callable[[RunStore, QueryParams], JsonObject]] = {
    "runs": runs,
    "run": run,
    "rollouts": rollouts,
    "facet": facet,
    "histogram": histogram,
    "bad": bad_lines,
    "rollout": rollout,
    "tokens": tokens,
    "group": group,
    "raw": raw,
    "copy": copied,
    "metrics": metrics,
    "overview": overview,
    "stages": stages,
    "reasons": reasons,
    "settings": settings,
    "groups": groups,
    "compare": compare,
}
"""The functions of the API, by name below /api/."""
