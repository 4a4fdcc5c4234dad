"""An evaluation as a report: one HTML file to open, keep or send, or a few lines of Markdown for a pull request.

The run is read as a stream: first its numbers, then the texts of the rollouts chosen to be shown.
"""

from __future__ import annotations

import os
import re
import shlex
from array import array
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import stdev
from typing import Any

import msgspec
import tomli_w

from rove.data.filters import merged_metrics
from rove.errors import RunError
from rove.messages import text_of
from rove.records import Outcome, RolloutRecord
from rove.runs import Run
from rove.statistics import Price, Tally
from rove.viewer.chat import rollout_html
from rove.viewer.html import block, excerpt, fold, histogram, page, shown, table, tag, text

ROLLOUTS = 200
"""Rollouts shown unless asked for otherwise."""
EXAMPLES = 2000
"""Examples listed at most, those of the lowest mean reward first."""
EXCERPT = 140
"""Characters of a prompt in the list of examples."""


class Example:
    """What is listed of an example."""

    def __init__(self, key: str, number: int, place: int):
        self.key = key
        self.number = number
        self.place = place
        """Line of its first rollout, where its prompt is read."""
        self.rewards = array("d")
        self.failed = 0

    @property
    def mean(self) -> float | None:
        """Mean reward of its scored rollouts."""
        return sum(self.rewards) / len(self.rewards) if self.rewards else None


class Findings:
    """An evaluation in numbers: what is kept of every rollout is its scores, never a text.

    Raises:
        RunError: the folder is not a run, or not one of an evaluation.
    """

    def __init__(self, run: Run):
        content = run.config()
        if content.get("kind") != "eval":
            raise RunError(
                f"{run.path} is a run of 'rove {content.get('kind')}'; a report is made of one of 'rove eval'"
            )
        self.path = run.path
        self.config: dict[str, Any] = content.get("config", {})
        self.versions = _versions(run.path)
        price = self.config.get("price")
        self.tally = Tally(
            pass_threshold=self.config.get("pass_threshold", 1.0),
            price=msgspec.convert(price, Price, strict=False) if price else None,
        )
        self.values: dict[str, array[float]] = {}
        self.examples: dict[str, Example] = {}
        self.rewards: list[tuple[int, float | None]] = []
        """Line and reward of every rollout, None for one that failed."""
        counted = {line.number for line in run.ledger()[0].values()}
        for place, outcome in enumerate(run.outcomes()):
            if place in counted:
                self._add(place, outcome)
        finished = run.summary()
        self.complete = finished is not None
        self.summary: dict[str, Any] = finished or self.tally.summary()

    def _add(self, place: int, outcome: Outcome) -> None:
        self.tally.add(outcome)
        self.rewards.append((place, outcome.reward))
        key = outcome.example_key
        example = self.examples.setdefault(key, Example(key, outcome.example_id, place))
        if outcome.scores is None:
            example.failed += 1
            return
        example.rewards.append(outcome.scores.reward)
        seen: dict[str, float] = {"reward": outcome.scores.reward, "turns": len(outcome.turn_seconds)}
        for name, value in merged_metrics(outcome.scores).items():
            seen[f"{name} (function)" if name in seen else name] = value
        for name, value in seen.items():
            self.values.setdefault(name, array("d")).append(value)

    @property
    def title(self) -> str:
        """Environment and model."""
        return f"{self.config.get('env', '?')} · {self.config.get('model', '?') or 'a model in training'}"

    @property
    def when(self) -> str:
        """When the run was finished, or last written to."""
        files = [self.path / name for name in ("summary.json", "rollouts.jsonl", "config.toml")]
        seconds = next(file.stat().st_mtime for file in files if file.exists())
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"

    @property
    def again(self) -> str:
        """The command that repeats the evaluation."""
        model = "" if self.config.get("model", "?") else "-m FOLDER "  # measured in training, it may be nowhere
        return f"rove eval @ {shlex.quote(str(self.path / 'config.toml'))} {model}--run-dir runs/again"


def write_report(run: Run, path: Path, rollouts: int = ROLLOUTS) -> Path:
    """Write an evaluation as one HTML file that needs no network; returns `path`.

    Args:
        run: finished or not.
        path: the file, replaced if it is there.
        rollouts: show so many at most: failed ones, then those of the lowest rewards, then those of the highest.

    Raises:
        RunError: the folder is not a run of an evaluation, or holds a line that is no rollout.
    """
    findings = Findings(run)
    chosen = choose(findings.rewards, rollouts)
    listed = sorted(findings.examples.values(), key=lambda e: (e.mean is not None, e.mean or 0.0, e.number))[:EXAMPLES]
    prompts = dict.fromkeys((example.place for example in listed), "")
    chats: dict[int, str] = {}
    anchors: dict[str, str] = {}
    wanted = set(chosen)
    for place, record in enumerate(run.rollouts()):
        if place in prompts:
            prompts[place] = _asked(record)
        if place in wanted:
            anchors.setdefault(record.example_key, f"rollout-{place}")
            chats[place] = rollout_html(record, f"rollout-{place}")
    body = [
        _head(findings),
        _numbers(findings),
        _distributions(findings),
        _examples(listed, len(findings.examples) - len(listed), prompts, anchors),
        _rollouts_head(len(findings.rewards), len(chosen)),
        *(chats[place] for place in chosen if place in chats),
        _settings(findings),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    try:
        with draft.open("w", encoding="utf-8", errors="replace") as file:
            file.writelines(page(findings.title, body))
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return path


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
    """An evaluation in a few lines for a pull request: a table, what failed, how to repeat it.

    Raises:
        RunError: the folder is not a run of an evaluation.
    """
    findings = Findings(run)
    rows = [("value", "mean", "± 95 %", "weight"), ("---", "---:", "---:", "---:"), *_values(findings.summary)]
    versions = ", ".join(
        f"{name} {findings.versions[name]}" for name in ("rove", "python") if name in findings.versions
    )
    lines = [
        f"### {_plain(findings.title)}",
        "",
        *(f"| {' | '.join(_plain(cell) for cell in row)} |" for row in rows),
        "",
        _plain("; ".join(_counts(findings))),
        "",
        f"Repeat: `{findings.again}` ({versions}, {findings.when})",
    ]
    return "\n".join(lines) + "\n"


def _plain(cell: str) -> str:
    """Text that Markdown takes as text."""
    return re.sub(r"([\\`*|<>\[\]])", r"\\\1", cell)


# What the summary says. Keys it does not have are left out: summaries of older versions have fewer.


def _values(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Name, mean, half-width and weight of everything that was estimated, the reward first."""
    reward = summary.get("reward") or {}
    yield "reward", shown(reward.get("mean")), shown(reward.get("half_width")), ""
    functions: dict[str, Any] = summary.get("functions") or {}
    for name, seen in sorted(functions.items(), key=lambda item: -abs(item[1].get("weight") or 0.0)):
        weight = seen.get("weight")
        yield name, shown(seen.get("mean")), shown(seen.get("half_width")), f"{weight:g}" if weight else "metric"
    for kind in ("pass@k", "pass^k"):
        for k, seen in (summary.get(kind) or {}).items():
            yield f"{kind[:-1]}{k}", shown(seen.get("mean")), shown(seen.get("half_width")), ""


def _counts(findings: Findings) -> Iterator[str]:
    """How many rollouts there are, what failed, how they ended: one phrase each."""
    summary, config = findings.summary, findings.config
    yield f"{summary.get('scored', 0):,} of {summary.get('rollouts', 0):,} rollouts scored"
    if not findings.complete:
        planned = config.get("num_examples", -1) * config.get("rollouts_per_example", 1)
        yield f"unfinished, {planned:,} were planned" if planned > 0 else "unfinished"
    elif summary.get("rollouts") != len(findings.rewards):
        yield f"the run folder holds {len(findings.rewards):,}, all of which are shown below the summary"
    for kind, one in (("errors", "failed"), ("stops", "ended by")):
        found: dict[str, int] = summary.get(kind) or {}
        if found:
            counts = ", ".join(f"{name} ({count:,})" for name, count in sorted(found.items(), key=lambda i: -i[1]))
            yield f"{summary.get('failed', 0):,} {one}: {counts}" if kind == "errors" else f"{one} {counts}"
    if summary.get("truncated"):
        yield f"{summary['truncated']:,} truncated"


def _cards(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The numbers to see first, and what they are."""
    reward = summary.get("reward") or {}
    yield f"{shown(reward.get('mean'))} ± {shown(reward.get('half_width'))}", "reward, 95 %"
    yield f"{shown(summary.get('scored'))} / {shown(summary.get('rollouts'))}", "rollouts scored"
    if summary.get("failed"):
        yield shown(summary["failed"]), "failed"
    yield shown(summary.get("prompt_tokens")), "prompt tokens"
    yield shown(summary.get("completion_tokens")), "completion tokens"
    for name, seen in (summary.get("latency") or {}).items():
        yield f"{shown(seen.get('p50'))} s", f"median {name}, 90 % under {shown(seen.get('p90'))} s"
    cost = summary.get("cost") or {}
    if cost.get("total") is not None:
        yield shown(cost["total"]), f"cost, {shown(cost.get('per_rollout'))} per rollout"


# The parts of the page


def _head(findings: Findings) -> str:
    rove = findings.versions.get("rove")
    facts = [findings.when, f"rove {rove}" if rove else "", "" if findings.complete else "unfinished"]
    return tag("h1", text(findings.title)) + tag("p", text(" · ".join(filter(None, facts))), "note")


def _numbers(findings: Findings) -> str:
    cards = "".join(
        tag("div", tag("b", text(n)) + tag("span", text(what)), "card") for n, what in _cards(findings.summary)
    )
    rows = [tuple(text(cell) for cell in row) for row in _values(findings.summary)]
    parts = [tag("div", cards, "cards"), table(("", "mean", "± 95 %", "weight"), rows)]
    parts += [tag("p", text(phrase)) for phrase in _counts(findings)]
    if findings.summary.get("too_few"):
        parts.append(tag("p", text(findings.summary["too_few"]), "note"))
    return "\n".join(parts)


def _distributions(findings: Findings) -> str:
    if not findings.values:
        return tag("p", "No rollout has been scored.")
    names = ["reward", *sorted(findings.values.keys() - {"reward", "turns"}), "turns"]
    figures = "\n".join(histogram(name, findings.values[name]) for name in names)
    return tag("h2", "Distributions") + tag("div", figures, "figures")


def _examples(listed: list[Example], left_out: int, prompts: Mapping[int, str], anchors: Mapping[str, str]) -> str:
    rows: list[tuple[str, ...]] = []
    for example in listed:
        name = f"{example.number} · {text(example.key)}"
        link = f'<a href="#{anchors[example.key]}">{name}</a>' if example.key in anchors else name
        spread = stdev(example.rewards) if len(example.rewards) > 1 else None
        numbers = (len(example.rewards) + example.failed, example.mean, spread, example.failed)
        rows.append((link, text(prompts[example.place]), *(shown(value) for value in numbers)))
    note = f"{left_out:,} examples of higher rewards are left out. " if left_out else ""
    note += "The spread is the standard deviation between the rollouts of one example."
    head = ("example", "prompt", "rollouts", "mean reward", "spread", "failed")
    return tag("h2", "Examples") + tag("p", note, "note") + table(head, rows, "examples")


def _asked(record: RolloutRecord) -> str:
    """What an example asks, shortly: its last message."""
    return excerpt(text_of(record.prompt[-1]), EXCERPT) if record.prompt else ""


def _rollouts_head(total: int, count: int) -> str:
    order = "Failed ones come first, then those of the lowest rewards"
    note = (
        f"{order}."
        if count == total
        else f"{order}, then those of the highest; {total - count:,} of {total:,} are left out."
    )
    return tag("h2", "Rollouts") + tag("p", note, "note")


def _settings(findings: Findings) -> str:
    config = re.sub(r"://[^/@\s\"]+@", "://…@", tomli_w.dumps(findings.config))  # a password in an address stays here
    versions = "\n".join(f"{name} {version}" for name, version in findings.versions.items())
    return (
        tag("h2", "Settings")
        + tag("p", f"Repeat: {tag('code', text(findings.again))}")
        + fold("settings", block(config))
        + fold("versions", block(versions))
    )


def _versions(path: Path) -> dict[str, str]:
    """The versions that last wrote to the run; nothing where that is not known."""
    file = path / "versions.json"
    known = msgspec.json.decode(file.read_bytes(), type=list[dict[str, str]]) if file.exists() else []
    return known[-1] if known else {}
