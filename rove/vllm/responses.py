"""What servers of vLLM answer, in our nouns. Plain Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rove.core.errors import ModelError
from rove.core.protocols import Generation, SamplingParams
from rove.engine.stop_checker import StopChecker

MIN_LOGPROB = -9998.0
"""vLLM writes -9999 for what is no number, or minus infinity."""


class ParityCheck(NamedTuple):
    """What a model says of a fixed sequence of tokens."""

    ids: list[int]
    logprobs: list[float]
    """Of each of them but the first, given those before it."""
    next_logprobs: list[float]
    """Of every token that may come after them, at `temperature`."""
    temperature: float = 0.5


def max_differences(answer: Mapping[str, Any], probe: ParityCheck) -> tuple[float, float]:
    """How far a server is off at most: in the probe's tokens, and in the one that it drew after them."""
    choice = answer["choices"][0]
    told = prompt_logprobs(answer, probe.ids)
    worst = max(abs(one - other) for one, other in zip(told, probe.logprobs, strict=True))
    return worst, abs(choice["logprobs"]["content"][0]["logprob"] - probe.next_logprobs[choice["token_ids"][0]])


def parse_generation(
    answer: Mapping[str, Any], prompt_ids: Sequence[int], asked: SamplingParams, ending: StopChecker, version: int
) -> Generation:
    """The tokens of an answer, up to where it ends.

    Args:
        answer: of `/inference/v1/generate`.
        prompt_ids: what was asked.
        asked: how.
        ending: has seen no token yet.
        version: of the weights, where the server tells none.

    Raises:
        ModelError: the model's probabilities are no numbers.
    """
    choice = answer["choices"][0]
    said, ids = choice["logprobs"]["content"], []
    for token in choice["token_ids"]:
        ids.append(token)
        if ending.push(token) is not None:
            break
    said = said[: len(ids)]
    if min((one["logprob"] for one in said), default=0.0) < MIN_LOGPROB:
        raise ModelError(
            "the model's probabilities are not finite numbers: its weights are damaged, or training diverged"
        )
    spans = _spans(choice.get("weight_versions"), len(ids), version)
    prompt = prompt_top = None
    if asked.prompt_logprobs is not None:
        prompt = prompt_logprobs(answer, prompt_ids)
    if asked.prompt_logprobs:
        places = [[{"token_id": int(i), **one} for i, one in place.items()] for place in answer["prompt_logprobs"][1:]]
        prompt_top = [_likeliest(place, asked.prompt_logprobs) for place in places]
    return Generation(
        ids,
        [one["logprob"] for one in said],
        ending.reason or choice["finish_reason"],
        spans[0][0],
        top_logprobs=[_likeliest(one["top_logprobs"], asked.logprobs) for one in said] if asked.logprobs else None,
        prompt_logprobs=prompt,
        prompt_top_logprobs=prompt_top,
        text=ending.text if asked.stop else None,
        stopped_by=ending.stopped_by,
        version_spans=spans if len(spans) > 1 else [],
    )


def _spans(told: Sequence[Mapping[str, Any]] | None, count: int, version: int) -> list[tuple[int, int]]:
    """Each version of the weights that sampled any of an answer's first so many tokens, oldest first, and how many."""
    found = [(int(one["version"]), min(one["end"], count) - one["start"]) for one in told or ()]
    return [one for one in found if one[1] > 0] or [(version, count)]


def _likeliest(told: Sequence[Mapping[str, Any]], count: int | None) -> list[tuple[int, float]]:
    found = sorted(((one["token_id"], one["logprob"]) for one in told), key=lambda one: -one[1])
    return found[:count]


def prompt_logprobs(answer: Mapping[str, Any], ids: Sequence[int]) -> list[float]:
    """Of each of a prompt's tokens but the first, from an answer."""
    told = answer["prompt_logprobs"]
    return [place[str(token)]["logprob"] for place, token in zip(told[1:], ids[1:], strict=True)]
