"""A run behind a row of the leaderboard: its figures, some of its rollouts, its settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rove.hub.server.pages.chat import told_html
from rove.hub.server.pages.frame import Place, frame, link
from rove.hub.server.pages.html import block, table, tag, text
from rove.hub.server.pages.leaderboard import Row, drawn, measured, scale_of
from rove.hub.server.pages.summaries import Estimate, Summary, read_example
from rove.viewer.html import cut, shown

FUNCTIONS = 100
"""Reward functions and metrics in the table, at most."""
EXAMPLES = 10
"""Rollouts on a page, at most."""
LONGEST = 20_000
"""Characters of settings, or of what is no rollout."""
DEPTH = 4
"""OWNER/NAME/VERSION/runs/."""


def run_page(hub: str, reference: tuple[str, str], row: Row, told: Mapping[str, Any], leaf: str) -> bytes:
    """The page of a run.

    Args:
        hub: the hub's name.
        reference: owner and name of the environment.
        row: the run's row on the leaderboard.
        told: all that was pushed.
        leaf: see `Place`.
    """
    place, (owner, name) = Place(DEPTH, leaf), reference
    trail = [(f"{owner}/{name}", place.environment(owner, name)), (row.model, "")]
    what = f"in {owner}/{name} {row.version}, pushed {row.uploaded[:10]}"
    sha256 = told.get("sha256")
    body = [
        tag("h1", text(row.model)),
        tag("p", text(what), "note"),
        *figures(row.summary),
        tag("h2", "Rollouts"),
        tag("p", "Some that were pushed with the run, from its lowest reward to its highest.", "note"),
        *(examples_html(told.get("examples")) or [tag("p", "None.")]),
        tag("h2", "Settings"),
        block(_json(told.get("settings"))) if told.get("settings") else tag("p", "None were pushed."),
        tag("p", link(f"{row.id}.json", "All of it as JSON")),
        tag("p", "Its rollouts have the SHA-256 " + tag("code", text(sha256))) if isinstance(sha256, str) else "",
    ]
    return frame(f"{row.model} · {owner}/{name} · {hub}", hub, place, trail, body)


def examples_html(told: Any, opened: bool = False) -> list[str]:
    """Rollouts that were pushed with a run, each folded under a line.

    Args:
        told: `examples` of what was pushed.
        opened: whether the first is not folded.
    """
    shown_ones = told[:EXAMPLES] if isinstance(told, list) else []
    return [_example(one, opened and not number) for number, one in enumerate(shown_ones)]


def _example(told: Any, opened: bool) -> str:
    record = read_example(told)
    try:
        content = told_html(record) if record else block(_json(told))
    except (RecursionError, ValueError):  # of JSON that is nested too deeply
        record, content = None, block("this cannot be shown")
    title = tag("b", "no rollout as rove writes it")
    if record:
        ended = f"ended by {record.stop_condition}" if record.stop_condition else "a rollout"
        title = tag("b", shown(record.reward), "reward") + tag(
            "span", text(ended + ", truncated" * record.is_truncated)
        )
    return f'<details class="rollout"{" open" if opened else ""}><summary>{title}</summary>{content}</details>'


def _json(told: Any) -> str:
    try:
        return cut(json.dumps(told, indent=2, ensure_ascii=False), LONGEST)
    except (RecursionError, ValueError):
        return "this cannot be shown"


def figures(summary: Summary) -> Iterator[str]:
    """The numbers of a summary: what was scored, reward and reward functions with their intervals, how rollouts ended."""
    numbers = [
        (measured(summary.reward), "reward, 95 % interval"),
        (f"{shown(summary.scored)} / {shown(summary.rollouts)}", "rollouts scored"),
        (shown(summary.examples), "examples"),
        (shown(summary.prompt_tokens), "prompt tokens"),
        (shown(summary.completion_tokens), "completion tokens"),
    ]
    yield tag("div", "".join(tag("div", tag("b", text(n)) + tag("span", what), "card") for n, what in numbers), "cards")
    yield tag("h2", "Scores")
    counted = {name: one for name, one in list(summary.functions.items())[:FUNCTIONS] if one.weight}
    lines = {"reward": summary.reward, **counted}
    scale = scale_of(lines.values())
    rows = [_line(name, one, drawn(name, one, scale)) for name, one in lines.items()]
    chances = {"pass@": summary.any_of, "pass^": summary.all_of}
    rows += [
        _line(f"{kind}{k}", one, "") for kind, found in chances.items() for k, one in list(found.items())[:FUNCTIONS]
    ]
    rows += [_line(n, one, "") for n, one in list(summary.functions.items())[:FUNCTIONS] if not one.weight]
    noted = dict.fromkeys(one.caveat for one in (*lines.values(), *summary.functions.values()) if one.caveat)
    yield table(("score", "mean, 95 % interval", scale.ends, "weight"), rows, "scores")
    if noted:
        yield tag("p", text(cut(f"* {'; '.join(noted)}", LONGEST)))
    for title, found in (("Ended by", summary.stops), ("Failed with", summary.errors)):
        if found:
            counts = ", ".join(f"{name} ({count:,})" for name, count in list(found.items())[:FUNCTIONS])
            yield tag("p", text(f"{title} {counts}."))


def _line(name: str, one: Estimate, picture: str) -> tuple[str, ...]:
    weight = "" if one.weight is None else f"{one.weight:g}" if one.weight else "metric"
    return text(name), measured(one), picture, weight
