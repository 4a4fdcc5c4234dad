"""Reports of a run: a self-contained HTML file, or a few lines of Markdown for a pull request.

The HTML page reuses the viewer's scripts with its data embedded. Numbers come from the index, as in `rove view`; only the
displayed rollouts are read.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from statistics import stdev

import msgspec
import tomli_w

from rove.core.errors import RunError
from rove.core.masking import without_secrets
from rove.core.plain import JsonMapping, JsonObject
from rove.runs.metrics import HELD_OUT_REWARD, panels, seconds_of_sampling_and_training, with_derived
from rove.runs.run import Run
from rove.runs.train_folder import TrainFolder
from rove.statistics import Price, Tally
from rove.statistics.format import caveats, cost_text, duration, interval, shown
from rove.statistics.result import coverage
from rove.utils.files import atomic_write
from rove.utils.markdown import code, plain
from rove.utils.units import counted
from rove.viewer import queries, training_steps
from rove.viewer.html import finite, utf8_text, whole_page
from rove.viewer.index import Index, JsonlTail, Progress, alert_rows
from rove.viewer.queries import CURRENT_ROLLOUTS, TABLE_SCAN
from rove.viewer.rollouts import describe_rollout, read_line
from rove.viewer.run_settings import describe_run
from rove.viewer.stages import describe_stages
from rove.viewer.verdict import training_verdict

MAX_ROLLOUTS = 200
"""Default number of rollouts in a report."""
MAX_EXAMPLES = 2000
"""Maximum number of examples that are listed, the examples with the lowest mean reward first."""
MAX_TEXT_CHARS = 8_000
"""Maximum characters shown of one text."""
MAX_ROLLOUT_CHARS = 120_000
"""Maximum characters shown of a rollout, divided among its texts."""
KINDS = {"eval": "", "rl": "RL", "sft": "SFT"}
TABLE_HEAD = ("value", "mean", "95% interval", "weight")
GROUP_STEPS = 10
"""Number of last training steps whose groups are shown."""
MAX_LINE_CHARS = 4000
"""Maximum characters of a command and of a sentence in Markdown; cells of tables are shorter."""
OMITTED_FIELDS = ("tokens", "tools", "schema_version", "env_id", "temperature", "cut")
"""Fields of a rollout that a report omits."""


class RunReport:
    """The contents of a report.

    Args:
        run: The run.
        index: The index of its rollouts.
        progress: The progress of the index. While an unfinished evaluation is being indexed, its report has no numbers.
    """

    def __init__(self, run: Run, index: Index, progress: Progress):
        self.run = run
        content = describe_run(run)
        self.kind: str = content["kind"]
        self.config: JsonObject = content["config"]
        self.versions = _last_versions(run)
        finished = run.summary()
        self.complete = finished is not None
        self.num_rollouts: int = 0
        """Number of rollouts in the run folder, without superseded rollouts."""
        if progress.size:
            [(self.num_rollouts,)] = index.query(f"SELECT COUNT(*) FROM {TABLE_SCAN} WHERE {CURRENT_ROLLOUTS}")
        self.num_bad = progress.bad
        """Number of damaged lines in rollouts.jsonl."""
        self.summary: JsonObject = finished or {}
        if self.kind == "eval" and not self.complete and progress.done:
            self.summary = self._summary(index)

    def training(self, steps: Sequence[Mapping[str, object]] = ()) -> JsonObject:
        """Return the metrics and alerts of a training run; damaged lines are counted and omitted."""
        metrics = JsonlTail(self.run.path / "metrics.jsonl")
        metrics.catch_up()
        alerts, damaged = alert_rows(self.run.path)
        data = training_data(metrics.rows, alerts, self.config.get("steps"), steps)
        data["counts"] += _omitted_lines("metrics.jsonl", metrics.bad)
        data["counts"] += _omitted_lines("alerts.jsonl", damaged)
        data["counts"] += self.omitted_rollouts
        return data

    @property
    def omitted_rollouts(self) -> list[str]:
        """A phrase about the damaged lines of rollouts.jsonl; [] if there are none."""
        return _omitted_lines("rollouts.jsonl", self.num_bad)

    def _summary(self, index: Index) -> JsonObject:
        """Return the summary of an unfinished evaluation, cached until the run grows."""
        price = self.config.get("price")
        try:
            checked_price = msgspec.convert(price, Price, strict=False) if price else None
        except msgspec.ValidationError as error:
            raise RunError(
                f"{self.run.path}/config.toml: `price` is invalid: {error}; restore the file that rove wrote"
            ) from error
        pass_threshold = self.config.get("pass_threshold", 1.0)

        def read() -> JsonObject:
            tally = Tally(pass_threshold=pass_threshold, price=checked_price)
            sql = f"SELECT offset FROM {TABLE_SCAN} WHERE {CURRENT_ROLLOUTS} ORDER BY line"
            with Run(self.run.path) as run:  # a run that closes its file, unlike the caller's
                for (offset,) in index.query(sql) if self.num_rollouts else ():
                    tally.add(run.outcome_at(offset))
            return tally.result().to_dict()

        try:
            return index.cached(("summary", pass_threshold, str(price)), read) if self.num_rollouts else read()
        except OverflowError as error:
            raise RunError(f"{self.run.path}: the rewards are too large for a mean ({error})") from error

    @property
    def progress(self) -> str:
        """Phrases about rollouts that the summary does not count; "" if there are none."""
        phrases = self.omitted_rollouts
        if not self.complete:
            planned = self.config.get("num_examples", -1) * self.config.get("rollouts_per_example", 1)
            phrases.append(f"unfinished, {planned:,} were planned" if planned > 0 else "unfinished")
        elif self.summary.get("rollouts") != self.num_rollouts:
            phrases.append(f"the run folder has {self.num_rollouts:,} rollouts")
        return "; ".join(phrases)

    @property
    def title(self) -> str:
        """Kind of the run, environment and model."""
        env = self.config.get("env") or self.config.get("data") or "?"
        words = (KINDS.get(self.kind, self.kind), str(env), str(self.config.get("model", "?") or "a model in training"))
        return " · ".join(filter(None, words))

    @property
    def when(self) -> str:
        """The time at which the run finished or was last written."""
        files = [self.run.path / name for name in ("summary.json", "rollouts.jsonl", "metrics.jsonl", "config.toml")]
        seconds = next(file.stat().st_mtime for file in files if file.exists())
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"

    @property
    def repeat_command(self) -> str:
        """The command that repeats the run."""
        # An evaluation during training may have no model folder.
        model = "" if self.config.get("model", "?") else "-m FOLDER "
        settings = shlex.quote(utf8_text(str(self.run.path / "config.toml")))
        return f"rove {self.kind} @ {settings} {model}--run-dir runs/again"


def _omitted_lines(file: str, count: int) -> list[str]:
    return [f"omitted: {counted(count, 'damaged line')} of {file}"] if count else []


def write_report(run: Run, path: Path, rollouts: int = MAX_ROLLOUTS) -> Path:
    """Write a run as one HTML file that works offline; return `path`.

    Args:
        run: An evaluation or a training run, finished or not.
        path: The file; an existing file is replaced.
        rollouts: Maximum number of rollouts: first failed rollouts, then the rollouts with the lowest and the highest rewards;
            for training runs, only rollouts of the last step.
    """
    index, progress = _open_index(run)
    with closing(index):
        report = RunReport(run, index, progress)
        content = _evaluation(report, index) if report.kind == "eval" else _training(report, index)
        data = {**_common(report), **content, **_rollouts(report, index, rollouts)}
        lines = {rollout["example_key"]: rollout["line"] for rollout in reversed(data["rollouts"])}
        for example in data["examples"]:
            example["line"] = lines.get(example["key"])
        # Error messages and tracebacks repeat arguments, which may be secrets.
        data = without_secrets(data, run.config()["config"], by_field=False)
        page = whole_page(report.title, _to_markdown(report), data)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, page.encode("utf-8", "replace"))
    return path


def write_stages_report(folder: TrainFolder, path: Path) -> Path:
    """Write the page of a `rove train` run as one HTML file that works offline; return `path`.

    Args:
        folder: The folder of all stages.
        path: The file; an existing one is replaced.
    """
    with ExitStack() as stack:
        content = _described(folder, _opener(stack))
    facts = [content["when"], *(["not complete"] if not content["complete"] else [])]
    data: JsonObject = {
        **PAGE_DEFAULTS,
        **{name: content[name] for name in ("title", "complete", "head", "values", "training")},
        "cards": [],
        "facts": facts,
        "counts": [],
        "settings": content["recipe"],
        "rollouts": [],
        "rollouts_note": "",
        "stages": {name: content[name] for name in ("answers", "notes", "diagnoses", "stages", "mistakes")},
    }
    page = whole_page(content["title"], _stages_markdown(content), data)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, page.encode("utf-8", "replace"))
    return path


def stages_markdown(folder: TrainFolder) -> str:
    """Return a `rove train` run in a few lines for a pull request."""
    with ExitStack() as stack:
        return _stages_markdown(_described(folder, _opener(stack)))


def _described(folder: TrainFolder, open_index: Callable[[Path], Index]) -> JsonObject:
    """Return the contents of a `rove train` run's page, without secrets: a quoted reply may have a key."""
    return without_secrets(describe_stages(folder, open_index), {}, by_field=False)


def _stages_markdown(content: JsonMapping) -> str:
    lines = [f"{answer['title']}: {_answer_markdown(answer['parts'])}" for answer in content["answers"]]
    notes = [
        *content["notes"],
        *(f"{stage['title']}: {stage['size']}, {stage['ended']}" for stage in content["stages"]),
    ]
    lines += [plain(line, MAX_LINE_CHARS) for line in notes]
    table = summary_markdown(content["title"], {"head": content["head"], "values": content["values"], "counts": []})
    return utf8_text("\n".join([table.rstrip(), "", *(f"- {line}" for line in lines), ""]))


def _answer_markdown(parts: Sequence[str | JsonMapping]) -> str:
    """Return an answer about a `rove train` run on one line; links become texts."""
    texts: list[str] = []
    for part in parts:
        if isinstance(part, str):
            texts.append(_part_markdown(part))
        elif "command" in part:
            texts.append(code(part["command"], MAX_LINE_CHARS))
        elif "line" not in part:
            texts.append(_part_markdown(part["text"]))
    return "".join(texts)


def _part_markdown(text: str) -> str:
    """Escape a part of an answer. Unlike `plain`, keep a space at either end, which separates the part from its neighbors."""
    start = " " if text[:1].isspace() else ""
    end = " " if text[-1:].isspace() else ""
    return f"{start}{plain(text, MAX_LINE_CHARS)}{end}"


def _opener(stack: ExitStack) -> Callable[[Path], Index]:
    """Return a function that opens the index of an evaluation once; all are closed with the stack."""
    indexes: dict[Path, Index] = {}

    def open_index(folder: Path) -> Index:
        if folder not in indexes:
            index, progress = _open_index(Run(folder))
            indexes[folder] = stack.enter_context(closing(index))
            if progress.bad:
                [(line, why)] = index.query("SELECT line, why FROM bad ORDER BY line LIMIT 1")
                raise RunError(f"{index.file}, line {line + 1}: {why}")
        return indexes[folder]

    return open_index


def _open_index(run: Run) -> tuple[Index, Progress]:
    """Return the complete index of a run's rollouts."""
    index = Index(run.path / "rollouts.jsonl")
    while not (progress := index.catch_up(60.0)).done:
        pass
    return index, progress


def choose_rollouts(rewards: list[tuple[int, float | None]], limit: int) -> list[int]:
    """Return the lines of rollouts to show: failed rollouts, then the rollouts with the lowest rewards and, if not all fit, the
    rollouts with the highest rewards.

    Failed rollouts take at most half of the places, unless there are too few other rollouts.
    """
    failed = [line for line, reward in rewards if reward is None]
    scored = [number for _, number in sorted((reward, line) for line, reward in rewards if reward is not None)]
    if len(rewards) <= limit:
        return failed + scored
    # A run in which an endpoint was down would otherwise show failures only.
    failed = failed[: max(limit // 2, limit - len(scored))]
    num_scored = limit - len(failed)
    num_highest = num_scored // 2
    return failed + scored[: num_scored - num_highest] + scored[::-1][:num_highest]


def markdown(run: Run) -> str:
    """Return a run in a few lines for a pull request: a table, failures, and the command that repeats it."""
    index, progress = _open_index(run)
    with closing(index):
        return _to_markdown(RunReport(run, index, progress))


def _to_markdown(report: RunReport) -> str:
    data = summary_data(report.summary, report.progress) if report.kind == "eval" else report.training()
    versions = [f"{name} {report.versions[name]}" for name in ("rove", "python") if name in report.versions]
    origin = plain(", ".join([*versions, report.when]))
    repeat = utf8_text(f"Repeat: {code(report.repeat_command, MAX_LINE_CHARS)} ({origin})")
    return f"{summary_markdown(report.title, data)}\n{repeat}\n"


def summary_markdown(title: str, data: JsonMapping) -> str:
    """Return the title, the table and the counts of `summary_data` or `training_data` as Markdown."""
    head = data["head"]
    alignment = ["---", *["---:"] * (len(head) - 1)]
    lines = [f"### {plain(title)}", ""]
    for row in (map(plain, head), alignment, *(map(plain, row) for row in data["values"])):
        lines.append(f"| {' | '.join(row)} |")
    lines += ["", "; ".join(plain(count, MAX_LINE_CHARS) for count in data["counts"]), ""]
    return utf8_text("\n".join(lines))


def summary_data(summary: JsonMapping, progress: str = "") -> JsonObject:
    """Return the numbers of an evaluation's summary for `static/report.js` and Markdown.

    Args:
        progress: A phrase about rollouts that the summary does not count; "" if there are none.
    """
    return {
        "cards": list(cards(summary)),
        "head": TABLE_HEAD,
        "values": list(table_rows(summary)),
        "counts": list(_counts(summary, progress)),
    }


def table_rows(summary: JsonMapping) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, mean, interval and weight of every estimate, the reward first."""
    for name, estimate, weight in _estimates(summary):
        yield name, shown(estimate.get("mean")), interval(estimate), weight


def _estimates(summary: JsonMapping) -> Iterator[tuple[str, Mapping[str, object], str]]:
    """Yield name, estimate and weight of every estimate, the reward first."""
    yield "reward", summary.get("reward") or {}, ""
    functions: JsonObject = summary.get("functions") or {}
    for name, estimate in sorted(functions.items(), key=lambda item: -abs(item[1].get("weight") or 0.0)):
        weight = estimate.get("weight")
        yield name, estimate, f"{weight:g}" if weight else "metric"
    for kind in ("pass@k", "pass^k"):
        for k, estimate in (summary.get(kind) or {}).items():
            name = f"{kind.removesuffix('k')}{k}"
            examples = coverage(estimate)
            yield f"{name} ({examples})" if examples else name, estimate, ""


def _counts(summary: JsonMapping, progress: str) -> Iterator[str]:
    """Yield phrases on the number of rollouts, failures and stop reasons."""
    yield f"{summary.get('scored', 0):,} of {summary.get('rollouts', 0):,} rollouts scored"
    if progress:
        yield progress
    if summary.get("errors"):
        yield f"{summary.get('failed', 0):,} failed: {_most_frequent_first(summary['errors'])}"
    if summary.get("stops"):
        yield f"stop reason: {_most_frequent_first(summary['stops'])}"
    if summary.get("truncated"):
        yield f"{summary['truncated']:,} truncated"
    if caveat_line := caveats(estimate for _, estimate, _ in _estimates(summary)):
        yield caveat_line


def _most_frequent_first(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} ({count:,})" for name, count in ordered)


def cards(summary: JsonMapping) -> Iterator[tuple[str, str]]:
    """Yield the main numbers with their labels."""
    reward = summary.get("reward") or {}
    yield f"{shown(reward.get('mean'))} {interval(reward)}", "reward, 95% interval"
    yield f"{shown(summary.get('scored'))} / {shown(summary.get('rollouts'))}", "rollouts scored"
    if summary.get("failed"):
        yield shown(summary["failed"]), "failed"
    yield shown(summary.get("prompt_tokens")), "prompt tokens"
    yield shown(summary.get("completion_tokens")), "completion tokens"
    for name, quantiles in (summary.get("latency") or {}).items():
        yield duration(quantiles.get("p50")), f"median {name}, 90% within {duration(quantiles.get('p90'))}"
    cost = summary.get("cost") or {}
    if cost.get("total") is not None:
        yield cost_text(cost["total"]), f"cost, {cost_text(cost.get('per_rollout'), 2)} per rollout"


PAGE_DEFAULTS: JsonMapping = {
    "complete": True,
    "links": [],
    "versions": "",
    "again": "",
    "training": None,
    "note": "",
    "verdict": [],
    "histograms": [],
    "examples": [],
    "examples_note": "",
    "stages": None,
}
"""Default data of a page, for parts that the page lacks; `links` are pairs of address and text."""


def _common(report: RunReport) -> JsonObject:
    facts = [report.when]
    if "rove" in report.versions:
        facts.append(f"rove {report.versions['rove']}")
    return {
        **PAGE_DEFAULTS,
        "title": report.title,
        "complete": report.complete,
        "facts": facts,
        "settings": tomli_w.dumps(report.config),
        "versions": "\n".join(f"{name} {version}" for name, version in report.versions.items()),
        "again": report.repeat_command,
        "note": report.summary.get("too_few", ""),
    }


def _evaluation(report: RunReport, index: Index) -> JsonObject:
    listed, left_out = _examples(index) if report.num_rollouts else ([], 0)
    note = f"{left_out:,} examples with higher rewards are omitted. " if left_out else ""
    note += "The spread is the standard deviation of the rewards of one example."
    return {
        **summary_data(report.summary, report.progress),
        "histograms": _histograms(index) if report.num_rollouts else [],
        "examples": listed,
        "examples_note": note,
    }


def _training(report: RunReport, index: Index) -> JsonObject:
    steps = training_steps.steps(index) if index.file.exists() else []
    data = report.training(steps)
    weights = queries.reward_weights(index) if steps else {}
    data["verdict"] = training_verdict(data["training"]["rows"], weights, data["training"]["alerts"])
    if steps:
        last = steps[-1]["step"]
        data["training"]["groups"] = training_steps.groups(index, max(0, last - GROUP_STEPS + 1), last)
    return data


def _histograms(index: Index) -> list[JsonObject]:
    """Return the histograms of the reward, every score, and the turns of scored rollouts."""
    columns = queries.columns(index)
    scored = queries.parse_filter(columns, [("is.error", "")])
    names = ["reward", *sorted(name for name in columns if name.startswith(queries.SCORE_PREFIX)), "turns"]
    histograms = [queries.histogram(index, scored, name) for name in names]
    titles = {"score.reward": "reward (function)", "score.turns": "turns (function)"}
    return [
        {**histogram, "title": titles.get(histogram["name"], histogram["name"].removeprefix(queries.SCORE_PREFIX))}
        for histogram in histograms
        if histogram["count"]
    ]


def _examples(index: Index) -> tuple[list[JsonObject], int]:
    """Return the examples with the lowest mean rewards, starting with examples that only have failures, and the number of
    omitted examples.
    """
    sql = (
        f"SELECT example_key, MIN(example), COUNT(*), AVG(reward) AS mean, COUNT(error), MIN(line) FROM {TABLE_SCAN} "
        f"WHERE {CURRENT_ROLLOUTS} GROUP BY example_key ORDER BY mean IS NOT NULL, mean, MIN(example)"
    )
    examples = index.query(sql)
    # By itself, SQLite may take the index on rewards, which is slower (docs/decisions/viewer.md).
    rewards = f"SELECT reward FROM rollouts INDEXED BY places WHERE example_key = ? AND {CURRENT_ROLLOUTS} AND reward IS NOT NULL"
    listed = []
    for key, number, count, mean, failed, first in examples[:MAX_EXAMPLES]:
        values = [reward for (reward,) in index.query(rewards, [key])]
        [(question,)] = index.query("SELECT text FROM questions WHERE line = ?", [first])
        spread = stdev(values) if len(values) > 1 else None
        row = {"number": number, "key": key, "question": question, "rollouts": count, "mean": mean, "spread": spread}
        listed.append({**row, "failed": failed})
    return listed, max(0, len(examples) - MAX_EXAMPLES)


def _rollouts(report: RunReport, index: Index, limit: int) -> JsonObject:
    """Return the displayed rollouts and a note on their choice."""
    if not index.file.exists():
        return {"rollouts": [], "rollouts_note": ""}
    of_step = "" if report.kind == "eval" else " AND step IS (SELECT MAX(step) FROM rollouts)"
    rewards = index.query(f"SELECT line, reward FROM {TABLE_SCAN} WHERE {CURRENT_ROLLOUTS}{of_step} ORDER BY line")
    chosen = choose_rollouts(rewards, limit)
    note = "Failed rollouts come first, then those with the lowest rewards"
    if len(chosen) < len(rewards):
        note += f", then those with the highest; {len(rewards) - len(chosen):,} of {len(rewards):,} are omitted"
    return {
        "rollouts": [_rollout(index, line) for line in chosen],
        "rollouts_note": f"Rollouts of the last step. {note}." if of_step else f"{note}.",
    }


def _rollout(index: Index, number: int) -> JsonObject:
    [(offset, size)] = index.query("SELECT offset, size FROM rollouts WHERE line = ?", [number])
    return rollout_data(number, read_line(index.file, offset, size), size)


def rollout_data(number: int, line: bytes, size: int) -> JsonObject:
    """Return a rollout for `static/report.js`.

    Args:
        number: Position of the rollout, for links to it.
        line: The rollout as in rollouts.jsonl, without the line's end.
        size: Size of the line in bytes, including the line's end.
    """
    content = describe_rollout(line, max_chars=(MAX_TEXT_CHARS, MAX_ROLLOUT_CHARS))
    shown_fields = {name: value for name, value in content.items() if name not in OMITTED_FIELDS}
    return {"line": number, "size": size, **shown_fields}


def _last_versions(run: Run) -> dict[str, str]:
    """Return the software versions that last wrote to the run; {} if they cannot be read."""
    try:
        return (run.versions() or [{}])[-1]
    except (RunError, OSError):
        return {}


METRICS_HEAD = ("measured", "first", "last", "best", "at step")
MAIN_METRICS = (("reward/mean",), ("loss", "validation_loss"))
"""Metrics shown with those of held-out evaluations: those of RL, or those of SFT."""
HELD_OUT_LENGTH = re.compile(r"eval/(.+)/(length/mean|truncated)")
"""Held-out metrics of responses, which show whether a reward rises with their length."""
METRIC_DIGITS = 6
"""Number of significant digits of a metric."""
MAX_ALERTS = 100
"""Maximum number of alerts that are shown, the last alerts."""


def training_data(
    rows: Sequence[JsonMapping],
    alerts: Sequence[JsonMapping],
    planned: int | None = None,
    steps: Sequence[JsonMapping] = (),
) -> JsonObject:
    """Return the data of a training run for `static/report.js` and Markdown."""
    values = [row for name in _names(rows) if (row := _row(rows, name))]
    taken = int(rows[-1].get("step", len(rows))) if rows else 0
    seconds = sum(map(seconds_of_sampling_and_training, rows))
    of = f" of {planned:,}" if planned else ""
    counts = [f"{taken:,}{of} steps taken", f"{len(alerts):,} alerts" if alerts else "no alert"]
    if seconds >= 60:
        counts.append(f"{seconds / 60:,.0f} minutes in all")
    for alert in alerts[-3:]:
        if {"step", "line"} <= alert.keys():
            counts.append(f"step {alert['step']}: {alert['line']}")
    return {
        "cards": [(f"{taken:,}{of}", "steps"), *((last, f"{name}, last") for name, _, last, *_ in values)],
        "head": METRICS_HEAD,
        "values": values,
        "counts": counts,
        "training": {
            "rows": [{name: _rounded(value) for name, value in with_derived(row).items()} for row in rows],
            "panels": panels(rows),
            "alerts": list(alerts[-MAX_ALERTS:]),
            "steps": list(steps),
            "groups": None,
        },
    }


def _names(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the names of the main metrics that the rows have, followed by the held-out rewards."""
    measured: set[str] = set().union(*rows)
    held_out = sorted(filter(HELD_OUT_REWARD.fullmatch, measured)) + sorted(filter(HELD_OUT_LENGTH.fullmatch, measured))
    for names in MAIN_METRICS:
        main = [name for name in names if name in measured]
        if main:
            return main + held_out
    return held_out


def _row(rows: Sequence[Mapping[str, object]], name: str) -> tuple[str, ...] | None:
    """Return a metric's row of the table with `METRICS_HEAD`; for a loss, the best value is the lowest."""
    points = [(value, row.get("step")) for row in rows if (value := finite(row.get(name))) is not None]
    if not points:
        return None
    first, last = points[0][0], points[-1][0]
    length = HELD_OUT_LENGTH.fullmatch(name)
    if length:  # neither a short nor a long response is the best one
        unit = "tokens" if length[2] == "length/mean" else "truncated"
        return f"{length[1]} {unit} (held out)", shown(first), shown(last), shown(None), shown(None)
    best_of = min if "loss" in name else max
    best = best_of(value for value, _ in points)
    # Of equal values, the last step counts, as in the sentences above the table.
    step = next(step for value, step in reversed(points) if value == best)
    title = "reward" if name == "reward/mean" else name.replace("_", " ")
    held_out = HELD_OUT_REWARD.fullmatch(name)
    if held_out:
        title = f"{held_out[1]} (held out)"
    return title, shown(first), shown(last), shown(best), shown(step)


def _rounded(value: object) -> object:
    """Round a number to the digits that a curve can show."""
    return float(f"{value:.{METRIC_DIGITS}g}") if isinstance(value, float) and math.isfinite(value) else value
