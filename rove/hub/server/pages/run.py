"""Pushed results: the leaderboard of an environment, and the page of a run with its scores, rollouts and settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple
from urllib.parse import quote

import msgspec
from msgspec import Meta, Struct, field

from rove.core.messages import ROLES
from rove.core.plain import Info, JsonMapping, JsonObject, MessageDict
from rove.core.records import ErrorInfo, RolloutRecord, Scores
from rove.hub.package.manifest import Count
from rove.hub.server.pages.html import PageLocation, block, collapsible, frame, link, table, tag, text
from rove.statistics.format import cut, excerpt, shown

MAX_ROWS = 200
"""Maximum number of rows shown per version."""
WIDTH, HEIGHT, MARGIN = 200, 16, 5
"""Size of an interval drawing, in SVG units."""


Value = Annotated[float, Meta(ge=-1e15, le=1e15)]


class Estimate(Struct, frozen=True):
    """A mean with its 95% interval; missing values are None."""

    mean: Value | None = None
    half_width: Value | None = None
    """Half width of the interval, in older summaries without `low` and `high`."""
    low: Value | None = None
    high: Value | None = None
    caveat: str | None = None
    """Reason why the interval may be inaccurate."""
    weight: Value | None = None
    """Weight of a reward function; 0 for a metric."""

    @property
    def limits(self) -> tuple[float, float] | None:
        """The interval, or None."""
        if self.low is not None and self.high is not None:
            return self.low, self.high
        if self.mean is None or self.half_width is None:
            return None
        return self.mean - self.half_width, self.mean + self.half_width


class Summary(Struct, frozen=True):
    """The fields of an evaluation's summary that pages show."""

    rollouts: Count | None = None
    scored: Count | None = None
    failed: Count = 0
    truncated: Count = 0
    examples: Count | None = None
    reward: Estimate = Estimate()
    functions: dict[str, Estimate] = {}
    any_of: dict[str, Estimate] = field(name="pass@k", default_factory=dict)
    all_of: dict[str, Estimate] = field(name="pass^k", default_factory=dict)
    pass_threshold: Value | None = None
    stops: dict[str, Count] = {}
    errors: dict[str, Count] = {}
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None


class _Message(Struct):
    role: str
    content: str | list[str | JsonObject] | None = None


class _Example(Struct):
    """The fields of a pushed rollout."""

    prompt: list[MessageDict]
    completion: list[MessageDict]
    answer: str = ""
    info: Info = {}
    scores: Scores | None = None
    stop_condition: str | None = None
    is_truncated: bool = False


def read_summary(value: object) -> Summary:
    """Parse a summary; return an empty one if it is malformed."""
    try:
        return msgspec.convert(value, Summary)
    except (msgspec.ValidationError, RecursionError):
        return Summary()


def read_example(value: object) -> RolloutRecord | None:
    """Parse a pushed rollout; return None if it is malformed."""
    try:
        example = msgspec.convert(value, _Example)
        msgspec.convert([*example.prompt, *example.completion], list[_Message])
    except (msgspec.ValidationError, RecursionError):
        return None
    return RolloutRecord(
        example_key="",
        example_id=0,
        rollout_index=0,
        seed=0,
        steps=[],
        error=None,
        **{name: getattr(example, name) for name in example.__struct_fields__},
    )


class Row(NamedTuple):
    """The results of one run."""

    version: str
    id: str
    model: str
    uploaded: str
    summary: Summary

    @property
    def address(self) -> str:
        """Address of the run's page, relative to the environment's page."""
        return f"{quote(self.version)}/runs/{self.id}.html"


class Scale(NamedTuple):
    """The range of values that interval drawings share."""

    low: float
    high: float

    def at(self, value: float) -> float:
        """Return the horizontal position of a value in a drawing."""
        share = (value - self.low) / (self.high - self.low)
        return MARGIN + (WIDTH - 2 * MARGIN) * min(1.0, max(0.0, share))

    @property
    def ends(self) -> str:
        """The range as text."""
        return f"{shown(self.low)} to {shown(self.high)}"


def rows_of(version: str, runs: Sequence[JsonMapping]) -> list[Row]:
    """Return the leaderboard rows of a version, best first; `runs` are entries of `catalogue.runs`."""
    rows = [
        Row(version, run["id"], run["model"], run["uploaded"], read_summary(msgspec.json.decode(run["summary"])))
        for run in runs
    ]
    return sorted(
        rows, key=lambda row: (row.summary.reward.mean is None, -(row.summary.reward.mean or 0.0), row.uploaded)
    )


def scale_of(estimates: Iterable[Estimate], more: Iterable[float] = ()) -> Scale:
    """Return a scale that covers all intervals and the additional values."""
    values = list(more)
    for one in estimates:
        if one.mean is not None:
            values += [one.mean, *(one.limits or ())]
    low, high = float(min(values, default=0.0)), float(max(values, default=1.0))
    return Scale(low, high) if high > low else Scale(low - 0.5, low + 0.5)


def with_interval(one: Estimate) -> str:
    """Format a mean with its interval; an asterisk marks an interval with a caveat."""
    reach = f" [{shown(one.limits[0])}, {shown(one.limits[1])}]" if one.limits else ""
    return f"{shown(one.mean)}{reach}{'*' * bool(one.caveat)}"


def interval_svg(name: str, one: Estimate, scale: Scale) -> str:
    """Draw a mean as a point on a line, with its interval."""
    if one.mean is None:
        return ""
    label, reach, middle = f"{name} {shown(one.mean)}", "", f'y1="{HEIGHT / 2}" y2="{HEIGHT / 2}"'
    if one.limits is not None:
        low, high = one.limits
        label += f", 95% interval {shown(low)} to {shown(high)}"
        reach = f'<line class="reach" x1="{scale.at(low):.1f}" x2="{scale.at(high):.1f}" {middle}/>'
    axis = f'<line class="axis" x1="{MARGIN}" x2="{WIDTH - MARGIN}" {middle}/>'
    point = f'<circle cx="{scale.at(one.mean):.1f}" cy="{HEIGHT / 2}" r="4"/>'
    attributes = f'role="img" aria-label="{text(label)}, on a line from {scale.ends}"'
    return f'<svg class="interval" viewBox="0 0 {WIDTH} {HEIGHT}" {attributes}>{axis}{reach}{point}</svg>'


def leaderboard(rows: Sequence[Row], scale: Scale) -> str:
    """Render one table per version, of rows ordered newest version first and best first within a version.

    Only the newest is open, because rewards of different versions are not comparable.
    """
    versions: dict[str, list[Row]] = {}
    for row in rows:
        versions.setdefault(row.version, []).append(row)
    parts: list[str] = []
    for version, version_rows in versions.items():
        title = f"Version {text(version)}, {len(version_rows):,} run{'s' * (len(version_rows) != 1)}"
        version_table = _version_table(version_rows, scale)
        parts.append(collapsible(title, version_table) if parts else tag("h3", title) + version_table)
    return "\n".join(parts)


def _version_table(rows: Sequence[Row], scale: Scale) -> str:
    cells = []
    for rank, row in enumerate(rows[:MAX_ROWS], 1):
        values = row.summary
        cells.append(
            (
                str(rank),
                link(row.address, text(row.model)),
                with_interval(values.reward),
                interval_svg("reward", values.reward, scale),
                shown(values.scored),
                shown(values.examples),
                text(row.uploaded[:10]),
            )
        )
    head = ("rank", "model (run)", "mean reward, 95% interval", scale.ends, "rollouts", "examples", "pushed")
    board = table(head, cells, "leaderboard")
    if len(rows) > MAX_ROWS:
        board += tag("p", f"{len(rows) - MAX_ROWS:,} runs with lower rewards are not shown.", "note")
    return board


MAX_MESSAGE_CHARS = 8_000
"""Characters shown of one text."""
MAX_ROLLOUT_CHARS = 120_000
"""Maximum characters shown of one rollout, divided among its messages."""
MIN_MESSAGE_CHARS = 200
"""Lower bound of each message's share of `MAX_ROLLOUT_CHARS`."""
PREVIEW_CHARS = 80
"""Characters of collapsed text that its title previews."""

_THINKING = re.compile(r"\s*<think>(.*?)</think>", re.DOTALL)


def rollout_html(record: RolloutRecord) -> str:
    """Render a rollout: scores or error, then its messages."""
    messages = [*record.prompt, *record.completion]
    limit = max(MIN_MESSAGE_CHARS, min(MAX_MESSAGE_CHARS, MAX_ROLLOUT_CHARS // max(1, len(messages))))
    parts = [_scores(record.scores) if record.scores else "", _error(record.error, limit) if record.error else ""]
    if record.answer:
        parts.append(tag("p", tag("b", "answer") + " " + text(cut(record.answer, limit))))
    if record.info:
        parts.append(collapsible("info", block(cut(_pretty(record.info), limit))))
    extras = {**(record.scores.extras if record.scores else {}), **_roles(record)}
    parts += [collapsible(text(name), block(cut(_pretty(value), limit))) for name, value in extras.items()]
    parts += [_message(message, limit) for message in record.prompt]
    parts.append(tag("p", "start of the rollout" if record.completion else "no response from the model", "line"))
    parts += [_message(message, limit) for message in record.completion]
    return "".join(parts)


def _roles(record: RolloutRecord) -> dict[str, object]:
    """Return the responses of each model role; judges are left out, their replies are in the scores' extras."""
    judges = record.scores.extras if record.scores else {}
    return {
        f"role {role}": [message for step in steps for message in step.completion]
        for role, steps in record.model_roles.items()
        if role not in judges
    }


def _scores(scores: Scores) -> str:
    rows = [
        (text(name), f"{value:.4g}", f"{(weight := scores.weights.get(name, 0.0)):.4g}", f"{weight * value:.4g}")
        for name, value in scores.rewards.items()
    ]
    rows += [(text(name), f"{value:.4g}", "metric", "") for name, value in scores.metrics.items()]
    return table(("function", "value", "weight", "contribution"), rows) if rows else ""


def _error(error: ErrorInfo, limit: int) -> str:
    html = tag("p", f"{tag('b', text(f'{error.phase}: {error.type}'))} {text(cut(error.message, limit))}", "bad")
    if error.attempts:
        html += collapsible("earlier attempts", block(cut("\n".join(error.attempts), limit)))
    return html + (collapsible("traceback", block(cut(error.traceback, limit))) if error.traceback else "")


def _message(message: Mapping[str, object], limit: int) -> str:
    role = str(message.get("role"))
    name = " ".join(str(message[field]) for field in ("name", "tool_call_id") if message.get(field))
    content = _content(message.get("content"))
    inside = [_reasoning(str(message[f]), limit) for f in ("reasoning_content", "reasoning") if message.get(f)][:1]
    reasoning = _THINKING.match(content) if role == "assistant" else None
    if reasoning:
        inside.append(_reasoning(reasoning[1], limit))
        content = content[reasoning.end() :].lstrip("\n")
    if content:
        inside.append(block(cut(content, limit)))
    if message.get("refusal"):
        inside.append(tag("p", "refusal: " + text(cut(str(message["refusal"]), limit)), "bad"))
    calls = message.get("tool_calls") or []
    inside += [_tool_call(call, limit) for call in (calls if isinstance(calls, list) else [calls])]
    header = tag("div", text(role) + (" " + tag("small", text(name)) if name else ""), "who")
    return tag("div", header + tag("div", "".join(inside), "said"), f"message {role if role in ROLES else 'other'}")


def _content(content: object) -> str:
    """Return the text of a message; other content parts appear as their type."""
    if not isinstance(content, list):
        return "" if content is None else str(content)
    return "\n".join(
        part if isinstance(part, str) else str(part.get("text") or f"[{part.get('type', 'part')}, not shown]")
        for part in content
    )


def _reasoning(reasoning: str, limit: int) -> str:
    title = f"reasoning {tag('small', text(excerpt(reasoning, PREVIEW_CHARS)))}"
    return collapsible(title, block(cut(reasoning.strip("\n"), limit)), "thought")


def _tool_call(call: object, limit: int) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return collapsible("tool call", block(cut(_pretty(call), limit)), "call")
    given = function.get("arguments")
    preview = given if isinstance(given, str) else _pretty(given)
    title = f"{tag('b', text(function.get('name')))} {tag('small', text(excerpt(preview, PREVIEW_CHARS)))}"
    return collapsible(f"tool call {title}", block(cut(_pretty(given), limit)), "call")


def _pretty(value: object) -> str:
    """Return indented JSON of a value; a string that contains JSON is parsed first."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError:
            return value
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


MAX_FUNCTIONS = 100
"""Maximum number of reward functions and metrics in the table."""
MAX_ROLLOUTS = 10
"""Maximum number of rollouts per page."""
MAX_JSON_CHARS = 20_000
"""Maximum characters shown of settings and of entries that are not rollouts."""
PAGE_DEPTH = 4
"""Folders above the page: OWNER/NAME/VERSION/runs/."""


def run_page(hub: str, reference: tuple[str, str], row: Row, pushed: Mapping[str, object], leaf: str) -> bytes:
    """Render the page of a run from its row of the leaderboard and its pushed document; `leaf`: see `PageLocation`."""
    place, (owner, name) = PageLocation(PAGE_DEPTH, leaf), reference
    trail = [(f"{owner}/{name}", place.environment(owner, name)), (row.model, "")]
    what = f"in {owner}/{name} {row.version}, pushed {row.uploaded[:10]}"
    sha256 = pushed.get("sha256")
    body = [
        tag("h1", text(row.model)),
        tag("p", text(what), "note"),
        *_scores_section(row.summary),
        tag("h2", "Rollouts"),
        tag("p", "A selection, lowest reward first.", "note"),
        *(examples_html(pushed.get("examples")) or [tag("p", "None.")]),
        tag("h2", "Settings"),
        block(_json(pushed.get("settings"))) if pushed.get("settings") else tag("p", "None were pushed."),
        tag("p", link(f"{row.id}.json", "Download as JSON")),
        tag("p", "SHA-256 of the rollouts: " + tag("code", text(sha256))) if isinstance(sha256, str) else "",
    ]
    return frame(f"{row.model} · {owner}/{name} · {hub}", hub, place, trail, body)


def examples_html(pushed: object) -> list[str]:
    """Render the rollouts pushed with a run (`examples` of its document), each collapsed."""
    return [_example(one) for one in (pushed[:MAX_ROLLOUTS] if isinstance(pushed, list) else [])]


def _example(pushed: object) -> str:
    record = read_example(pushed)
    try:
        content = rollout_html(record) if record else block(_json(pushed))
    except (RecursionError, ValueError):  # JSON nested too deeply
        record, content = None, block("cannot be displayed")
    title = tag("b", "not a rollout record")
    if record:
        ended = f"stopped by {record.stop_condition}" if record.stop_condition else "rollout"
        title = tag("b", shown(record.reward), "reward") + tag(
            "span", text(ended + ", truncated" * record.is_truncated)
        )
    return collapsible(title, content, "rollout")


def _json(pushed: object) -> str:
    try:
        return cut(json.dumps(pushed, indent=2, ensure_ascii=False), MAX_JSON_CHARS)
    except (RecursionError, ValueError):
        return "cannot be displayed"


def _scores_section(summary: Summary) -> Iterator[str]:
    """Yield the numbers of a summary: reward, scores with intervals, stop conditions and errors."""
    numbers = [
        (with_interval(summary.reward), "reward, 95% interval"),
        (f"{shown(summary.scored)} / {shown(summary.rollouts)}", "rollouts scored"),
        (shown(summary.examples), "examples"),
        (shown(summary.prompt_tokens), "prompt tokens"),
        (shown(summary.completion_tokens), "completion tokens"),
    ]
    yield tag("div", "".join(tag("div", tag("b", text(n)) + tag("span", what), "card") for n, what in numbers), "cards")
    yield tag("h2", "Scores")
    counted = {name: one for name, one in list(summary.functions.items())[:MAX_FUNCTIONS] if one.weight}
    lines = {"reward": summary.reward, **counted}
    scale = scale_of(lines.values())
    rows = [_score_row(name, one, interval_svg(name, one, scale)) for name, one in lines.items()]
    chances = {"pass@": summary.any_of, "pass^": summary.all_of}
    rows += [
        _score_row(f"{kind}{k}", one, "")
        for kind, found in chances.items()
        for k, one in list(found.items())[:MAX_FUNCTIONS]
    ]
    rows += [_score_row(n, one, "") for n, one in list(summary.functions.items())[:MAX_FUNCTIONS] if not one.weight]
    caveats = dict.fromkeys(one.caveat for one in (*lines.values(), *summary.functions.values()) if one.caveat)
    yield table(("score", "mean, 95% interval", scale.ends, "weight"), rows, "scores")
    if caveats:
        yield tag("p", text(cut(f"* {'; '.join(caveats)}", MAX_JSON_CHARS)))
    for title, found in (("Stopped by", summary.stops), ("Failed with", summary.errors)):
        if found:
            counts = ", ".join(f"{name} ({count:,})" for name, count in list(found.items())[:MAX_FUNCTIONS])
            yield tag("p", text(f"{title} {counts}."))


def _score_row(name: str, one: Estimate, picture: str) -> tuple[str, ...]:
    weight = "" if one.weight is None else f"{one.weight:g}" if one.weight else "metric"
    return text(name), with_interval(one), picture, weight
