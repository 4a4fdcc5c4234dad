"""Who plays an environment that brings no scripted policies: answers that need no model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rove.core.messages import AssistantMessage, Message, Messages, text_of
from rove.core.state import State

TAG = re.compile(r"<([a-zA-Z_]\w*)>")
THINKING = {"think", "thinking", "reasoning", "reason", "scratchpad"}
CALLS = 6
"""Tools that are called before there is an answer."""
JUNK = 'Zażółć <answer> \\boxed{ {"a": [1, 2 ```python\nprint(</think>\x00\t' + "🦆" * 40


def unsure(messages: Messages, state: State, rng: Any) -> str:
    """No answer at all."""
    return "I do not know."


def answer(messages: Messages, state: State, rng: Any) -> str:
    """The row's own answer, in the tags that the prompt speaks of, or after thoughts and in a box."""
    said = str(state.get("answer") or "yes")
    shown = "\n".join(text_of(message) for message in messages if message["role"] != "assistant")
    tags = dict.fromkeys(TAG.findall(shown))
    if tags:
        return "\n".join(f"<{tag}>{'scripted' if tag.lower() in THINKING else said}</{tag}>" for tag in tags)
    return f"<think>scripted</think>\nThe answer is \\boxed{{{said}}}"


def bare(messages: Messages, state: State, rng: Any) -> str:
    """The row's own answer and nothing else."""
    return str(state.get("answer") or "yes")


def junk(messages: Messages, state: State, rng: Any) -> str:
    """What no parser expects."""
    return JUNK


def tools(messages: Messages, state: State, rng: Any) -> str | Message:
    """Calls each tool once, with values that fit its schema; then answers."""
    known: Sequence[Mapping[str, Any]] = state.get("tools") or []
    turn = len(state["trajectory"])
    if turn >= min(CALLS, len(known)):
        return answer(messages, state, rng)
    function = known[turn]["function"]
    arguments = json.dumps(fitting(function.get("parameters") or {}))
    call = {"id": f"call_{turn}", "type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return AssistantMessage(None, tool_calls=[call])


PLAYERS: dict[str, Callable[[Messages, State, Any], Any]] = {
    "answer": answer,
    "bare": bare,
    "junk": junk,
    "tools": tools,
    "unsure": unsure,
}


def fitting(schema: Mapping[str, Any]) -> Any:
    """A small value that fits a JSON schema."""
    for name in ("default", "const"):
        if name in schema:
            return schema[name]
    for name in ("enum", "examples"):
        if schema.get(name):
            return schema[name][0]
    for name in ("anyOf", "oneOf", "allOf"):
        if schema.get(name):
            return fitting(schema[name][0])
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else str(kind)
    if kind == "object":
        properties = schema.get("properties") or {}
        needed = schema.get("required", list(properties))
        return {name: fitting(properties[name]) for name in needed if name in properties}
    if kind == "array":
        return [fitting(schema.get("items") or {})] if schema.get("minItems") else []
    return {"integer": 1, "number": 1.0, "boolean": True, "null": None}.get(kind, "a")
