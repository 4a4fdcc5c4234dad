"""One rollout for the browser: its messages, scores, times and tokens as plain values, cut where they are too long to show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rove.core.errors import RunError
from rove.core.records import RolloutRecord, TrajectoryStep
from rove.runs.serialization import decode_record
from rove.runs.token_stats import TrainedRollout
from rove.utils.files import open_regular
from rove.viewer.html import cut

MESSAGE = 20_000
"""Most characters shown of one text."""
WHOLE = 600_000
"""Most characters shown of a rollout, shared out among its texts."""
LEAST = 500
"""Characters that a text may always have."""
TOKENS = 20_000
"""Most tokens shown of a rollout."""
DEPTH = 40
"""Lists within lists that are shown."""

Spell = Callable[[int], str]


def read_line(file: Path, offset: int, size: int) -> bytes:
    """A line, without its end.

    Raises:
        RunError: it is not there any more.
    """
    with open_regular(file) as lines:
        lines.seek(offset)
        line = lines.read(size)
    if len(line) < size or not line.endswith(b"\n"):
        raise RunError("this rollout is not there any more; the run was begun anew, or cut back to a checkpoint")
    return line[:-1]


def told(
    line: bytes, spell: Spell | None = None, whole: bool = False, most: tuple[int, int] = (MESSAGE, WHOLE)
) -> dict[str, Any]:
    """Everything about a rollout.

    Args:
        line: of rollouts.jsonl.
        spell: the text of a token; None where nobody knows.
        whole: show long texts as far as they go.
        most: otherwise, characters of a text and of all texts together.

    Raises:
        RunError: it is no rollout that this rove can read.
    """
    record = decode_record(line)
    texts = max(1, len(record.prompt) + len(record.completion))
    limit = 1 << 24 if whole else max(LEAST, min(most[0], most[1] // texts))
    plain = msgspec.to_builtins(msgspec.structs.replace(record, steps=[], model_roles={}))
    shown = {name: shortened(value, limit) for name, value in plain.items() if name not in ("steps", "model_roles")}
    roles = {
        role: [shortened(dict(message), limit) for step in steps for message in step.completion]
        for role, steps in record.model_roles.items()
    }
    return {
        **shown,
        "reward": record.reward,
        "model_roles": roles,
        "steps": [_step(step, limit) for step in record.steps],
        "tokens": _tokens(record.steps, spell),
        "parts": {"model": record.timing.model, "scoring": record.timing.scoring, "environment": _elsewhere(record)},
        "cut": any(len(str(message.get("content"))) > limit for message in (*record.prompt, *record.completion)),
    }


def _elsewhere(record: RolloutRecord) -> float:
    """Seconds that were neither the model's nor the rubric's: tools and environment, and waiting for a turn."""
    return max(0.0, record.timing.total - record.timing.model - record.timing.scoring)


def shortened(value: Any, limit: int, depth: int = DEPTH) -> Any:
    """A value whose texts have about `limit` characters at most."""
    if isinstance(value, str):
        return cut(value, limit)
    if isinstance(value, (Mapping, list, tuple)) and depth == 0:
        return "…"
    if isinstance(value, Mapping):
        return {cut(str(key), LEAST): shortened(item, limit, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [shortened(item, limit, depth - 1) for item in value]
    return value


def _step(step: TrajectoryStep, limit: int) -> dict[str, Any]:
    return {
        "seconds": step.seconds,
        "finish_reason": step.finish_reason,
        "usage": msgspec.to_builtins(step.usage),
        "attempts": [cut(attempt, limit) for attempt in step.attempts],
        "reward": step.reward,
        "messages": len(step.prompt),
        "versions": step.tokens.versions if step.tokens else [],
    }


def _tokens(steps: Sequence[TrajectoryStep], spell: Spell | None) -> list[dict[str, Any]]:
    """What each turn added: the ids it was shown beyond those before, then those that were sampled with their log-probabilities.

    A turn that saw ids [1, 2] and sampled [7], and one that saw [1, 2, 7, 3] and sampled [8], are told as [1, 2] + [7] and
    [3] + [8]: together they are what is trained, [7] and [8] counting. With them goes which
    versions of the weights sampled how many.
    """
    told: list[dict[str, Any]] = []
    before: list[int] = []
    room = TOKENS
    for turn, step in enumerate(steps):
        if step.tokens is None or room <= 0:
            continue
        prompt, sampled = step.tokens.prompt_ids, step.tokens.completion_ids
        extends = prompt[: len(before)] == before
        new = prompt[len(before) :] if extends else prompt
        told.append(
            {
                "turn": turn,
                "fresh": not extends,
                "prompt": _spelled(new[:room], spell),
                "sampled": _spelled(sampled[:room], spell),
                "logprobs": step.tokens.logprobs[:room],
                "versions": step.tokens.versions,
                "left_out": max(0, len(new) - room) + max(0, len(sampled) - room),
            }
        )
        room -= len(new) + len(sampled)
        before = step.tokens.ids
    return told


def add_trained(tokens: Sequence[dict[str, Any]], trained: TrainedRollout) -> None:
    """Put what the trainer knew of the sampled tokens beside them, as `trained` of each turn that has it."""
    of_turn = {turn.turn: turn for turn in trained.turns}
    for told in tokens:
        turn = of_turn.get(told["turn"])
        if turn is not None:
            shown = slice(len(told["sampled"]))
            found = {"logprobs": turn.logprobs[shown], "entropies": turn.entropies[shown], "advantage": turn.advantage}
            told["trained"] = found


def _spelled(ids: Sequence[int], spell: Spell | None) -> list[list[Any]]:
    return [[id, None if spell is None else spell(id)] for id in ids]


def parting(one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> tuple[int, int] | None:
    """Where two conversations part: the message, and the character of its content; None where they are the same.

    A message that only one of them has parts at character 0.
    """
    for place in range(max(len(one), len(other))):
        if place >= len(one) or place >= len(other):
            return place, 0
        if one[place] != other[place]:
            return place, _common(_text(one[place]), _text(other[place]))
    return None


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _common(a: str, b: str) -> int:
    """How many characters two texts begin with together."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
