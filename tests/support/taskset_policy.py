"""A policy for the tasksets of `tasksets`, and comparable summaries of verifiers' traces and of rove's records."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

import rove
from rove.core.messages import text_of

IDS = ("reversal_v1", "guessing_v1", "warehouse_v1")
REVERSED = {"pepper": "peppre", "meadow": "pass"}
"""Words that the policy answers incorrectly → its answers."""


def policy(messages: rove.Messages, state: rove.State, rng: random.Random) -> Any:
    """Return the next reply or tool call for a conversation; it depends on the messages alone."""
    first = next(text_of(message) for message in messages if message["role"] == "user")
    if first.startswith("Say "):
        word = first.split()[1]
        return REVERSED.get(word, word[::-1])
    if first.startswith("Guess "):
        low, high = 0, 15
        for guess, hint in zip(messages[1::2], messages[2::2]):
            middle = int(text_of(guess))
            low, high = (middle + 1, high) if text_of(hint) == "Higher." else (low, middle - 1)
        return str((low + high) // 2)
    results = [text_of(message) for message in messages if message["role"] == "tool"]
    part = first.removeprefix("Take half of the ").split()[0]
    if not results:
        return _call(0, "shelf_count", part=part)
    if len(results) == 1:
        return _call(1, "shelf_take", part=part, number="many" if part == "nuts" else int(results[0]) // 2)
    return "Done."


def _call(number: int, tool: str, /, **arguments: Any) -> rove.AssistantMessage:
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return rove.AssistantMessage("", tool_calls=[{"id": f"call_{number}", "type": "function", "function": function}])


def trace_summary(trace: Mapping[str, Any]) -> dict[str, Any]:
    """Return the comparable parts of a trace in verifiers' traces.jsonl."""
    rewards = {name: [entry["score"], entry["weight"]] for name, entry in trace["rewards"].items()}
    reward = sum(score * weight for score, weight in rewards.values())
    messages = [_plain(node["message"]) for node in trace["nodes"]]
    outcome = {"rewards": rewards, "reward": reward, "metrics": trace["metrics"], "stop": trace["stop_condition"]}
    return {"messages": messages, **outcome, "turns": sum(node["sampled"] for node in trace["nodes"])}


def record_summary(record: rove.RolloutRecord) -> dict[str, Any]:
    """Return the same parts of a record of rove."""
    scores = record.scores
    assert scores is not None, record.error
    rewards = {name: [value, scores.weights[name]] for name, value in scores.rewards.items()}
    metrics = {name: value for name, value in scores.metrics.items() if name != "num_turns"}
    messages = [_plain(message) for message in [*record.prompt, *record.completion]]
    outcome = {"rewards": rewards, "reward": scores.reward, "metrics": metrics, "stop": record.stop_condition}
    return {"messages": messages, **outcome, "turns": len(record.steps)}


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return role, text and calls of a message; in errors of pydantic, the version in the link is removed."""
    calls: Sequence[Mapping[str, Any]] = message.get("tool_calls") or []
    functions = [call.get("function", call) for call in calls]
    content = re.sub(r"errors\.pydantic\.dev/[\d.]+", "errors.pydantic.dev", message.get("content") or "")
    return {
        "role": message["role"],
        "content": content,
        "calls": [[function["name"], json.loads(function["arguments"])] for function in functions],
        "of": message.get("tool_call_id"),
    }
