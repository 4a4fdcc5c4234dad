"""A rollout as a chat in HTML: who said what, what it scored and why it ended."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from rove.core.messages import ROLES
from rove.core.records import ErrorInfo, RolloutRecord, Scores
from rove.hub.server.pages.html import block, fold, short, table, tag, text
from rove.viewer.html import cut, excerpt

MESSAGE_LIMIT = 8_000
"""Most characters shown of one text."""
ROLLOUT_LIMIT = 120_000
"""Most characters shown of one rollout, shared out among its messages."""
LEAST = 200
"""Characters a message may always have."""
PREVIEW = 80
"""Characters of what is folded that its title shows."""

_THINKING = re.compile(r"\s*<think>(.*?)</think>", re.DOTALL)


def told_html(record: RolloutRecord) -> str:
    """A rollout: what it scored or why it failed, and who said what."""
    said = [*record.prompt, *record.completion]
    limit = max(LEAST, min(MESSAGE_LIMIT, ROLLOUT_LIMIT // max(1, len(said))))
    parts = [_scores(record.scores) if record.scores else "", _error(record.error, limit) if record.error else ""]
    if record.answer:
        parts.append(tag("p", tag("b", "answer") + " " + text(cut(record.answer, limit))))
    if record.info:
        parts.append(fold("info", block(cut(_pretty(record.info), limit))))
    apart = {**(record.scores.extras if record.scores else {}), **_roles(record)}
    parts += [fold(text(name), block(cut(_pretty(said), limit))) for name, said in apart.items()]
    parts += [_message(message, limit) for message in record.prompt]
    parts.append(tag("p", "the rollout starts here" if record.completion else "the model said nothing", "line"))
    parts += [_message(message, limit) for message in record.completion]
    return "".join(parts)


def _roles(record: RolloutRecord) -> dict[str, Any]:
    """What each other role said; of a judge the scores' extras tell."""
    judges = record.scores.extras if record.scores else {}
    return {
        f"role {role}": [message for step in steps for message in step.completion]
        for role, steps in record.model_roles.items()
        if role not in judges
    }


def _scores(scores: Scores) -> str:
    rows = [
        (text(name), short(value), short(weight := scores.weights.get(name, 0.0)), short(weight * value))
        for name, value in scores.rewards.items()
    ]
    rows += [(text(name), short(value), "metric", "") for name, value in scores.metrics.items()]
    return table(("function", "value", "weight", "adds to the reward"), rows) if rows else ""


def _error(error: ErrorInfo, limit: int) -> str:
    said = tag("p", f"{tag('b', text(f'{error.phase}: {error.type}'))} {text(cut(error.message, limit))}", "bad")
    if error.attempts:
        said += fold("attempts before it", block(cut("\n".join(error.attempts), limit)))
    return said + (fold("traceback", block(cut(error.traceback, limit))) if error.traceback else "")


def _message(message: Mapping[str, Any], limit: int) -> str:
    role = str(message.get("role"))
    name = " ".join(str(message[field]) for field in ("name", "tool_call_id") if message.get(field))
    content = _content(message.get("content"))
    inside = [_reasoning(str(message[f]), limit) for f in ("reasoning_content", "reasoning") if message.get(f)][:1]
    thought = _THINKING.match(content) if role == "assistant" else None
    if thought:
        inside.append(_reasoning(thought[1], limit))
        content = content[thought.end() :].lstrip("\n")
    if content:
        inside.append(block(cut(content, limit)))
    if message.get("refusal"):
        inside.append(tag("p", "refusal: " + text(cut(str(message["refusal"]), limit)), "bad"))
    calls = message.get("tool_calls") or []
    inside += [_tool_call(call, limit) for call in (calls if isinstance(calls, list) else [calls])]
    who = tag("div", text(role) + (" " + tag("small", text(name)) if name else ""), "who")
    return tag("div", who + tag("div", "".join(inside), "said"), f"message {role if role in ROLES else 'other'}")


def _content(content: Any) -> str:
    """The text of a message, with what is no text named."""
    if not isinstance(content, list):
        return "" if content is None else str(content)
    return "\n".join(
        part if isinstance(part, str) else str(part.get("text") or f"[{part.get('type', 'part')}, not shown]")
        for part in content
    )


def _reasoning(thought: str, limit: int) -> str:
    title = f"reasoning {tag('small', text(excerpt(thought, PREVIEW)))}"
    return fold(title, block(cut(thought.strip("\n"), limit)), "thought")


def _tool_call(call: Any, limit: int) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return fold("tool call", block(cut(_pretty(call), limit)), "call")
    given = function.get("arguments")
    preview = given if isinstance(given, str) else _pretty(given)
    title = f"{tag('b', text(function.get('name')))} {tag('small', text(excerpt(preview, PREVIEW)))}"
    return fold(f"tool call {title}", block(cut(_pretty(given), limit)), "call")


def _pretty(value: Any) -> str:
    """A value, or the value that a text is the JSON of, as indented JSON."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError:
            return value
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)
