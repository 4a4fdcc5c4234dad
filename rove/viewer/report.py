"""A run as a report: one HTML file to open, keep or send, or a few lines of Markdown for a pull request.

The page is the viewer's own, with everything that it shows in it: the numbers come from the index, as `rove view`'s do, and
only the rollouts chosen to be shown are read.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import stdev
from typing import Any

import msgspec
import tomli_w

from rove.core.errors import RunError
from rove.runs.run import Run
from rove.statistics import Price, Tally
from rove.utils.files import atomic_write
from rove.viewer import queries
from rove.viewer.format import caveats, limits, seconds
from rove.viewer.html import shown, utf8_text, whole_page
from rove.viewer.index import Index
from rove.viewer.jsonl_tail import GrowingLines
from rove.viewer.queries import EVERY, SCANNED
from rove.viewer.rollouts import read_line, told
from rove.viewer.run_store import described
from rove.viewer.training import training

ROLLOUTS = 200
"""Rollouts shown unless asked for otherwise."""
EXAMPLES = 2000
"""Examples listed at most, those of the lowest mean reward first."""
MESSAGE = 8_000
"""Most characters shown of one text."""
WHOLE = 120_000
"""Most characters shown of a rollout, shared out among its texts."""
KINDS = {"eval": "", "rl": "RL", "sft": "SFT"}
HEAD = ("value", "mean", "95 % interval", "weight")
GROUPS = 10
"""Steps whose groups are drawn."""
CONTROL = "\\x00-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069"
"""Characters that act on a terminal or turn the direction of a text, for a regular expression."""
UNSEEN = ("tokens", "tools", "schema_version", "env_id", "temperature", "cut")
"""What a report leaves out of a rollout."""


class Findings:
    """A run in numbers.

    Raises:
        RunError: the folder is not a run.
    """

    def __init__(self, run: Run):
        self.run = run
        content = described(run)
        self.kind: str = content["kind"]
        self.config: dict[str, Any] = content["config"]
        self.versions = _last_versions(run)
        finished = run.summary()
        self.complete = finished is not None
        self.kept = 0
        """Rollouts in the run folder, each counted once."""
        self.summary: dict[str, Any] = finished or {}
        if self.kind == "eval":
            try:
                tally = self._tally()
                self.summary = finished or tally.summary()
            except OverflowError as error:
                raise RunError(f"{run.path}: the rewards are too large for a mean ({error})") from error

    def training(self, steps: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """The metrics and alerts of a training run; damaged lines are counted and left out."""
        files = [GrowingLines(self.run.path / name) for name in ("metrics.jsonl", "alerts.jsonl")]
        for lines in files:
            lines.catch_up()
        found = training(files[0].rows, files[1].rows, self.config.get("steps"), steps)
        for lines in files:
            found["counts"] += [f"{lines.bad:,} damaged lines of {lines.file.name} are left out"] * bool(lines.bad)
        return found

    def _tally(self) -> Tally:
        price = self.config.get("price")
        try:
            known = msgspec.convert(price, Price, strict=False) if price else None
        except msgspec.ValidationError as error:
            raise RunError(f"{self.run.path}/config.toml: `price` is not one that rove wrote: {error}") from error
        tally = Tally(pass_threshold=self.config.get("pass_threshold", 1.0), price=known)
        counted = {line.number for line in self.run.ledger()[0].values()}
        self.kept = len(counted)
        if not self.complete:
            for place, outcome in enumerate(self.run.outcomes()):
                if place in counted:
                    tally.add(outcome)
        return tally

    @property
    def title(self) -> str:
        """What was done, environment and model."""
        env = self.config.get("env") or self.config.get("data") or "?"
        words = (KINDS.get(self.kind, self.kind), str(env), str(self.config.get("model", "?") or "a model in training"))
        return " · ".join(filter(None, words))

    @property
    def when(self) -> str:
        """When the run was finished, or last written to."""
        files = [self.run.path / name for name in ("summary.json", "rollouts.jsonl", "metrics.jsonl", "config.toml")]
        seconds = next(file.stat().st_mtime for file in files if file.exists())
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"

    @property
    def again(self) -> str:
        """The command that repeats the run."""
        model = "" if self.config.get("model", "?") else "-m FOLDER "  # measured in training, it may be nowhere
        settings = shlex.quote(utf8_text(str(self.run.path / "config.toml")))
        return f"rove {self.kind} @ {settings} {model}--run-dir runs/again"


def write_report(run: Run, path: Path, rollouts: int = ROLLOUTS) -> Path:
    """Write a run as one HTML file that needs no network; returns `path`.

    Args:
        run: of an evaluation or of training, finished or not.
        path: the file, replaced if it is there.
        rollouts: show so many at most: failed ones, then those of the lowest rewards, then those of the highest; in training of
            the last step.

    Raises:
        RunError: the folder is not a run, or holds a line that is no rollout.
    """
    findings = Findings(run)
    index = _read(run)
    try:
        data = {**_common(findings), **(_evaluation if findings.kind == "eval" else _training)(findings, index)}
        data |= _rollouts(findings, index, rollouts)
        lines = {one["example_key"]: one["line"] for one in reversed(data["rollouts"])}
        for example in data["examples"]:
            example["line"] = lines.get(example["key"])
        page = whole_page(findings.title, _markdown(findings), data)
    finally:
        index.close()
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, page.encode("utf-8", "replace"))
    return path


def _read(run: Run) -> Index:
    """The index of a run's rollouts, every line of it read.

    Raises:
        RunError: one is no rollout.
    """
    index = Index(run.path / "rollouts.jsonl")
    while not (progress := index.catch_up(60.0)).done:
        pass
    if progress.bad:
        [(line, why)] = index.ask("SELECT line, why FROM bad ORDER BY line LIMIT 1")
        index.close()
        raise RunError(f"{index.file}, line {line + 1}: {why}")
    return index


def choose(rewards: list[tuple[int, float | None]], limit: int) -> list[int]:
    """Which lines to show, in order: failed rollouts, then the lowest rewards, then, if not all fit, the highest.

    Failures take half of the places at most, unless there are too few others.
    """
    failed = [place for place, reward in rewards if reward is None]
    scored = [place for _, place in sorted((reward, place) for place, reward in rewards if reward is not None)]
    if len(rewards) <= limit:
        return failed + scored
    failed = failed[: max(limit // 2, limit - len(scored))]
    rest = limit - len(failed)
    return failed + scored[: rest - rest // 2] + scored[::-1][: rest // 2]


def markdown(run: Run) -> str:
    """A run in a few lines for a pull request: a table, what failed, how to repeat it.

    Raises:
        RunError: the folder is not a run.
    """
    return _markdown(Findings(run))


def _markdown(findings: Findings) -> str:
    if findings.kind == "eval":
        rows, counts = list(_values(findings.summary)), list(_counts(findings))
        head = HEAD
    else:
        measured = findings.training()
        rows, counts, head = measured["values"], measured["counts"], measured["head"]
    versions = [f"{name} {findings.versions[name]}" for name in ("rove", "python") if name in findings.versions]
    aligned = ["---", *["---:"] * (len(head) - 1)]
    lines = [
        f"### {_plain(findings.title)}",
        "",
        *(f"| {' | '.join(_plain(cell) for cell in row)} |" for row in (head, aligned, *rows)),
        "",
        _plain("; ".join(counts)),
        "",
        f"Repeat: {_code(findings.again)} ({_plain(', '.join([*versions, findings.when]))})",
    ]
    return utf8_text("\n".join(lines)) + "\n"


def _plain(cell: str) -> str:
    """Text that Markdown takes as text, on one line."""
    return re.sub(r"([\\`*|<>\[\]&])", r"\\\1", _on_one_line(cell))


def _code(text: str) -> str:
    """Text as code in Markdown, in more backticks than are in the text."""
    text = _on_one_line(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence} {text} {fence}" if len(fence) > 1 else f"`{text}`"


def _on_one_line(text: str) -> str:
    return re.sub(rf"[\s{CONTROL}]+", " ", text)


# What the summary of an evaluation says. Keys it does not have are left out: summaries of older versions have fewer.


def _values(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Name, mean, interval and weight of everything that was estimated, the reward first."""
    for name, seen, weight in _estimates(summary):
        yield name, shown(seen.get("mean")), _interval(seen), weight


def _estimates(summary: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Name, estimate and weight of everything that was estimated, the reward first."""
    yield "reward", summary.get("reward") or {}, ""
    functions: dict[str, Any] = summary.get("functions") or {}
    for name, seen in sorted(functions.items(), key=lambda item: -abs(item[1].get("weight") or 0.0)):
        weight = seen.get("weight")
        yield name, seen, f"{weight:g}" if weight else "metric"
    for kind in ("pass@k", "pass^k"):
        for k, seen in (summary.get(kind) or {}).items():
            yield f"{kind[:-1]}{k}", seen, ""


def _interval(seen: Mapping[str, Any]) -> str:
    found, mark = limits(seen), "*" if seen.get("caveat") else ""
    return f"[{shown(found[0])}, {shown(found[1])}]{mark}" if found else f"–{mark}"


def _counts(findings: Findings) -> Iterator[str]:
    """How many rollouts there are, what failed, how they ended: one phrase each."""
    summary, config = findings.summary, findings.config
    yield f"{summary.get('scored', 0):,} of {summary.get('rollouts', 0):,} rollouts scored"
    if not findings.complete:
        planned = config.get("num_examples", -1) * config.get("rollouts_per_example", 1)
        yield f"unfinished, {planned:,} were planned" if planned > 0 else "unfinished"
    elif summary.get("rollouts") != findings.kept:
        yield f"the run folder holds {findings.kept:,}, all of which are shown below the summary"
    for kind, one in (("errors", "failed"), ("stops", "ended by")):
        found: dict[str, int] = summary.get(kind) or {}
        if found:
            counts = ", ".join(f"{name} ({count:,})" for name, count in sorted(found.items(), key=lambda i: -i[1]))
            yield f"{summary.get('failed', 0):,} {one}: {counts}" if kind == "errors" else f"{one} {counts}"
    if summary.get("truncated"):
        yield f"{summary['truncated']:,} truncated"
    if noted := caveats(seen for _, seen, _ in _estimates(summary)):
        yield noted


def _cards(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The numbers to see first, and what they are."""
    reward = summary.get("reward") or {}
    yield f"{shown(reward.get('mean'))} {_interval(reward)}", "reward, 95 % interval"
    yield f"{shown(summary.get('scored'))} / {shown(summary.get('rollouts'))}", "rollouts scored"
    if summary.get("failed"):
        yield shown(summary["failed"]), "failed"
    yield shown(summary.get("prompt_tokens")), "prompt tokens"
    yield shown(summary.get("completion_tokens")), "completion tokens"
    for name, seen in (summary.get("latency") or {}).items():
        yield _duration(seen.get("p50")), f"median {name}, 90 % within {_duration(seen.get('p90'))}"
    cost = summary.get("cost") or {}
    if cost.get("total") is not None:
        yield shown(cost["total"]), f"cost, {shown(cost.get('per_rollout'))} per rollout"


def _duration(value: Any) -> str:
    """Seconds for people, as the browser tells them; nothing where it is no number."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return shown(None)
    return "under 1 ms" if value < 0.001 else seconds(value)


# What the page shows, see static/report.js


def _common(findings: Findings) -> dict[str, Any]:
    rove = findings.versions.get("rove")
    return {
        "title": findings.title,
        "env": str(findings.config.get("env") or ""),
        "complete": findings.complete,
        "facts": [findings.when, *([f"rove {rove}"] if rove else [])],
        "settings": tomli_w.dumps(findings.config),
        "versions": "\n".join(f"{name} {version}" for name, version in findings.versions.items()),
        "again": findings.again,
        "training": None,
        "note": findings.summary.get("too_few", ""),
        "histograms": [],
        "examples": [],
        "examples_note": "",
    }


def _evaluation(findings: Findings, index: Index) -> dict[str, Any]:
    listed, left_out = _examples(index) if findings.kept else ([], 0)
    note = f"{left_out:,} examples of higher rewards are left out. " if left_out else ""
    note += "The spread is the standard deviation between the rollouts of one example."
    return {
        "cards": list(_cards(findings.summary)),
        "head": HEAD,
        "values": list(_values(findings.summary)),
        "counts": list(_counts(findings)),
        "histograms": _histograms(index) if findings.kept else [],
        "examples": listed,
        "examples_note": note,
    }


def _training(findings: Findings, index: Index) -> dict[str, Any]:
    steps = queries.steps(index) if index.file.exists() else []
    data = findings.training(steps)
    if steps:
        last = steps[-1]["step"]
        data["training"]["groups"] = queries.groups(index, max(0, last - GROUPS + 1), last)
    return data


def _histograms(index: Index) -> list[dict[str, Any]]:
    """The reward, every reward function and metric, and how many turns the scored rollouts took."""
    known = queries.columns(index)
    scored = queries.choose(known, [("is.error", "")])
    names = ["reward", *sorted(name for name in known if name.startswith(queries.SCORE)), "turns"]
    drawn = [queries.histogram(index, scored, name) for name in names]
    titles = {"score.reward": "reward (function)", "score.turns": "turns (function)"}
    return [
        {**one, "title": titles.get(one["name"], one["name"].removeprefix(queries.SCORE))}
        for one in drawn
        if one["count"]
    ]


def _examples(index: Index) -> tuple[list[dict[str, Any]], int]:
    """The examples of the lowest mean rewards, those that only failed first; and how many others there are."""
    sql = (
        f"SELECT example_key, MIN(example), COUNT(*), AVG(reward) AS mean, COUNT(error), MIN(line) FROM {SCANNED} WHERE {EVERY} "
        "GROUP BY example_key ORDER BY mean IS NOT NULL, mean, MIN(example)"
    )
    found = index.ask(sql)
    rewards = f"SELECT reward FROM rollouts INDEXED BY places WHERE example_key = ? AND {EVERY} AND reward IS NOT NULL"
    listed = []
    for key, number, count, mean, failed, first in found[:EXAMPLES]:
        values = [reward for (reward,) in index.ask(rewards, [key])]
        [(asked,)] = index.ask("SELECT words FROM asked WHERE line = ?", [first])
        spread = stdev(values) if len(values) > 1 else None
        told = {"number": number, "key": key, "asked": asked, "rollouts": count, "mean": mean, "spread": spread}
        listed.append({**told, "failed": failed})
    return listed, max(0, len(found) - EXAMPLES)


def _rollouts(findings: Findings, index: Index, limit: int) -> dict[str, Any]:
    """Those that are shown, and how they were chosen."""
    if not index.file.exists():
        return {"rollouts": [], "rollouts_note": ""}
    of_step = "" if findings.kind == "eval" else " AND step IS (SELECT MAX(step) FROM rollouts)"
    rewards = index.ask(f"SELECT line, reward FROM {SCANNED} WHERE {EVERY}{of_step} ORDER BY line")
    chosen = choose(rewards, limit)
    note = "Failed ones come first, then those of the lowest rewards"
    if len(chosen) < len(rewards):
        note += f", then those of the highest; {len(rewards) - len(chosen):,} of {len(rewards):,} are left out"
    return {
        "rollouts": [_rollout(index, line) for line in chosen],
        "rollouts_note": f"{'Of the last step. ' * bool(of_step)}{note}.",
    }


def _rollout(index: Index, number: int) -> dict[str, Any]:
    [(offset, size)] = index.ask("SELECT offset, size FROM rollouts WHERE line = ?", [number])
    found = told(read_line(index.file, offset, size), most=(MESSAGE, WHOLE))
    return {"line": number, "size": size, **{name: value for name, value in found.items() if name not in UNSEEN}}


def _last_versions(run: Run) -> dict[str, str]:
    """The versions that last wrote to the run; nothing where that cannot be read."""
    try:
        return (run.versions() or [{}])[-1]
    except (RunError, OSError):
        return {}
