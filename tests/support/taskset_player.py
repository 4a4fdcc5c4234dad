"""What the model says in the tasksets of `tasksets`, by what it is shown alone; and what came of it, of traces or of records."""

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
"""Words that it gets wrong, and how."""


def player(messages: rove.Messages, state: rove.State, rng: random.Random) -> Any:
    """The model's next words, or calls."""
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


def _call(place: int, tool: str, /, **arguments: Any) -> rove.AssistantMessage:
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return rove.AssistantMessage("", tool_calls=[{"id": f"call_{place}", "type": "function", "function": function}])


def of_trace(trace: Mapping[str, Any]) -> dict[str, Any]:
    """What a line of verifiers' traces.jsonl tells of one trace."""
    rewards = {name: [told["score"], told["weight"]] for name, told in trace["rewards"].items()}
    reward = sum(score * weight for score, weight in rewards.values())
    messages = [_plain(node["message"]) for node in trace["nodes"]]
    told = {"rewards": rewards, "reward": reward, "metrics": trace["metrics"], "stop": trace["stop_condition"]}
    return {"messages": messages, **told, "turns": sum(node["sampled"] for node in trace["nodes"])}


def of_record(record: rove.RolloutRecord) -> dict[str, Any]:
    """The same of a record of rove's."""
    scores = record.scores
    assert scores is not None, record.error
    rewards = {name: [value, scores.weights[name]] for name, value in scores.rewards.items()}
    metrics = {name: value for name, value in scores.metrics.items() if name != "num_turns"}
    messages = [_plain(message) for message in [*record.prompt, *record.completion]]
    told = {"rewards": rewards, "reward": scores.reward, "metrics": metrics, "stop": record.stop_condition}
    return {"messages": messages, **told, "turns": len(record.steps)}


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """Role, words and calls; words of errors without the addresses of pages that explain them."""
    calls: Sequence[Mapping[str, Any]] = message.get("tool_calls") or []
    flat = [call.get("function", call) for call in calls]
    said = re.sub(r"errors\.pydantic\.dev/[\d.]+", "errors.pydantic.dev", message.get("content") or "")
    return {
        "role": message["role"],
        "content": said,
        "calls": [[one["name"], json.loads(one["arguments"])] for one in flat],
        "of": message.get("tool_call_id"),
    }
