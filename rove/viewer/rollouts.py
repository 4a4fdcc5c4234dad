"""Convert a rollout to plain values for the browser, shortened where it is too long to show."""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from rove.core.errors import ConfigError, RunError
from rove.core.plain import JsonObject, JsonValue
from rove.core.records import RolloutRecord, TrajectoryStep
from rove.runs.serialization import decode_record
from rove.runs.token_stats import TrainedRollout
from rove.statistics.format import cut, version_words
from rove.utils.files import open_regular
from rove.utils.units import counted

MAX_TEXT_CHARS = 20_000
"""Maximum characters shown of one text."""
MAX_ROLLOUT_CHARS = 600_000
"""Maximum characters shown of a rollout, divided among its texts."""
MIN_TEXT_CHARS = 500
"""Number of characters shown of a text even if many texts share the limit."""
MAX_TOKENS = 20_000
"""Maximum number of tokens shown of a rollout."""
MAX_DEPTH = 40
"""Maximum nesting depth shown of lists and mappings."""

TokenDecoder = Callable[[int], str]


def read_line(file: Path, offset: int, size: int) -> bytes:
    """Return a line of a file without the line's end."""
    with open_regular(file) as lines:
        lines.seek(offset)
        line = lines.read(size)
    if len(line) < size or not line.endswith(b"\n"):
        raise RunError(
            "this rollout no longer exists: the run was restarted, or resumed from an earlier checkpoint; reload the page"
        )
    return line[:-1]


def describe_rollout(
    line: bytes,
    decode: TokenDecoder | None = None,
    whole: bool = False,
    max_chars: tuple[int, int] = (MAX_TEXT_CHARS, MAX_ROLLOUT_CHARS),
) -> JsonObject:
    """Return the contents of a rollout as plain values.

    Args:
        decode: Function that returns the text of a token; None if there is no tokenizer.
    """
    record = decode_record(line)
    texts = max(1, len(record.prompt) + len(record.completion))
    limit = 1 << 24 if whole else max(MIN_TEXT_CHARS, min(max_chars[0], max_chars[1] // texts))
    plain = msgspec.to_builtins(msgspec.structs.replace(record, steps=[], model_roles={}))
    fields = {name: shortened(value, limit) for name, value in plain.items() if name not in ("steps", "model_roles")}
    roles = {role: _role_messages(steps, limit) for role, steps in record.model_roles.items()}
    spans: list[tuple[int, int]] = []
    for step in record.steps:
        spans += step.tokens.versions if step.tokens else []
    updated = any(version for version, _ in spans)
    return {
        **fields,
        "seed": str(record.seed),  # JavaScript would round it
        "renderings": {str(position): rendering for position, rendering in fields["renderings"].items()},
        "results": tool_results([*record.prompt, *record.completion]),
        "stopped": stop_words(record),
        "reward": record.reward,
        "model_roles": roles,
        "steps": [_step(step, limit, updated) for step in record.steps],
        "versions": version_words(spans) if updated else "",
        "tokens": _tokens(record.steps, decode),
        "parts": {
            "model": record.timing.model,
            "scoring": record.timing.scoring,
            "environment": max(0.0, record.timing.total - record.timing.model - record.timing.scoring),
        },
        "cut": any(len(str(message.get("content"))) > limit for message in (*record.prompt, *record.completion)),
    }


def _role_messages(steps: Sequence[TrajectoryStep], limit: int) -> list[JsonValue]:
    """Return the last message to a model role in each step, and the role's replies."""
    messages: list[JsonValue] = []
    for step in steps:
        messages += [shortened(dict(message), limit) for message in (*step.prompt[-1:], *step.completion)]
    return messages


def copied_text(line: bytes, form: str, env: str, model: str) -> str:
    """Return a rollout as a text to copy.

    Args:
        form: "curl" for the first request as a command, "json" for the line, "test" for a test case (prompt, replies and reward).
    """
    record = decode_record(line)
    if form == "json":
        return msgspec.json.format(line, indent=2).decode("utf-8", "replace")
    if form == "test":
        replies = [message.get("content") for message in record.completion if message.get("role") == "assistant"]
        example = {"prompt": record.prompt, "answer": record.answer, "info": record.info}
        case = {"env": env, **example, "replies": replies, "reward": record.reward}
        return msgspec.json.format(msgspec.json.encode(case), indent=2).decode()
    if form != "curl":
        raise ConfigError(f"as is '{form[:40]}'; expected curl, json or test")
    body = {"model": model, "messages": record.prompt, "tools": record.tools, "temperature": record.temperature}
    body_without_none = {name: value for name, value in body.items() if value is not None}
    sent = msgspec.json.encode(body_without_none).decode()
    head = "-H \"Authorization: Bearer $OPENAI_API_KEY\" -H 'Content-Type: application/json'"
    return f'curl "$BASE_URL/chat/completions" {head} -d {shlex.quote(sent)}'


def stop_words(record: RolloutRecord) -> str:
    """Return after how many turns a rollout stopped, and why, as a text."""
    turns = counted(len(record.steps), "turn")
    if record.error is not None:
        return f"Failed after {turns}."
    stop = (record.stop_condition or "nothing").replace("_", " ")
    if record.stop_condition == "has_final_env_response":
        stop = "the environment sent a final response"
    cut_at_length = bool(record.steps) and record.steps[-1].finish_reason == "length"
    if record.is_truncated:
        stop += "; truncated"
        if cut_at_length:
            stop += ": the last response reached its maximum length"
    return f"After {turns}: {stop}."


def tool_results(messages: Sequence[Mapping[str, object]]) -> dict[str, list[int | None]]:
    """Map the position of each message with tool calls to the positions of the results, one for each call.

    The result of a call is the first tool message with its id before the next message of the model; None if there is none.
    For example, a message at position 1 with two calls, of which only the second has a result, gives {"1": [None, 2]}.
    """
    results: dict[str, list[int | None]] = {}
    waiting: dict[str, deque[tuple[str, int]]] = {}
    for position, message in enumerate(messages):
        calls, role = message.get("tool_calls"), message.get("role")
        if role == "assistant":
            waiting = {}
        if isinstance(calls, list) and calls:
            results[str(position)] = [None] * len(calls)
            for number, call in enumerate(calls):
                call_id = str(call.get("id")) if isinstance(call, Mapping) else ""
                waiting.setdefault(call_id, deque()).append((str(position), number))
        elif role == "tool" and (queue := waiting.get(str(message.get("tool_call_id")))):
            caller, number = queue.popleft()
            results[caller][number] = position
    return results


def shortened(value: object, limit: int, depth: int = MAX_DEPTH) -> JsonValue:
    """Return a value with texts of at most about `limit` characters."""
    if isinstance(value, str):
        return cut(value, limit)
    if isinstance(value, (Mapping, list, tuple)) and depth == 0:
        return "…"
    if isinstance(value, Mapping):
        return {cut(str(key), MIN_TEXT_CHARS): shortened(item, limit, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [shortened(item, limit, depth - 1) for item in value]
    return value


def _step(step: TrajectoryStep, limit: int, show_versions: bool) -> JsonObject:
    return {
        "seconds": step.seconds,
        "finish_reason": step.finish_reason,
        "usage": msgspec.to_builtins(step.usage),
        "attempts": [cut(attempt, limit) for attempt in step.attempts],
        "reward": step.reward,
        "messages": len(step.prompt),
        "versions": version_words(step.tokens.versions) if step.tokens and show_versions else "",
    }


def _tokens(steps: Sequence[TrajectoryStep], decode: TokenDecoder | None) -> list[JsonObject]:
    """Return the tokens that each turn added: the new prompt ids, then the sampled ids with log-probabilities and versions.

    For example, a turn with prompt [1, 2] that sampled [7], followed by a turn with prompt [1, 2, 7, 3] that sampled [8], gives
    [1, 2] + [7] and [3] + [8]. Joined, they are the training sequence, in which [7] and [8] are trained.
    """
    turns: list[dict[str, object]] = []
    previous_ids: list[int] = []
    budget = MAX_TOKENS
    for turn, step in enumerate(steps):
        if step.tokens is None or budget <= 0:
            continue
        prompt, sampled = step.tokens.prompt_ids, step.tokens.completion_ids
        # Some chat templates change earlier turns, such as leaving out their reasoning; then the whole prompt is new.
        extends = prompt[: len(previous_ids)] == previous_ids
        new = prompt[len(previous_ids) :] if extends else prompt
        turns.append(
            {
                "turn": turn,
                "fresh": not extends,
                "prompt": _with_text(new[:budget], decode),
                "sampled": _with_text(sampled[:budget], decode),
                "logprobs": step.tokens.logprobs[:budget],
                "versions": step.tokens.versions,
                "left_out": max(0, len(new) - budget) + max(0, len(sampled) - budget),
            }
        )
        budget -= len(new) + len(sampled)
        previous_ids = step.tokens.ids
    return turns


def add_trained(tokens: Sequence[JsonObject], trained: TrainedRollout) -> None:
    """Add the trainer's statistics of sampled tokens as `trained` to the turns that have them."""
    of_turn = {turn.turn: turn for turn in trained.turns}
    for shown_turn in tokens:
        turn = of_turn.get(shown_turn["turn"])
        if turn is not None:
            shown_part = slice(len(shown_turn["sampled"]))
            statistics = {
                "logprobs": turn.logprobs[shown_part],
                "entropies": turn.entropies[shown_part],
                "advantage": turn.advantage,
            }
            shown_turn["trained"] = statistics


def _with_text(ids: Sequence[int], decode: TokenDecoder | None) -> list[list[object]]:
    return [[id, None if decode is None else decode(id)] for id in ids]


def first_difference(
    first: Sequence[Mapping[str, object]], second: Sequence[Mapping[str, object]]
) -> tuple[int, int] | None:
    """Return the message and the character where two conversations first differ; None if they are equal.

    A message that is in only one of the conversations differs at character 0.
    """
    for position in range(max(len(first), len(second))):
        if position >= len(first) or position >= len(second):
            return position, 0
        if first[position] != second[position]:
            return position, _common_prefix_length(_text(first[position]), _text(second[position]))
    return None


def _text(message: Mapping[str, object]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _common_prefix_length(a: str, b: str) -> int:
    """Return the length of the common prefix of two texts."""
    low, high = 0, min(len(a), len(b))
    # A binary search, because C code compares slices, and a loop over the characters would be Python code.
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
