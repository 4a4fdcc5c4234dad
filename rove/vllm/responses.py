"""Parse the JSON responses of vLLM servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rove.core.errors import ModelError
from rove.core.protocols import Generation, SamplingParams
from rove.engine.stop_checker import StopChecker

MIN_LOGPROB = -9998.0
"""vLLM writes -9999 for NaN and minus infinity."""


class ParityCheck(NamedTuple):
    """The trainer's log-probabilities of a fixed token sequence, to compare with the servers'."""

    ids: list[int]
    logprobs: list[float]
    """Log-probability of each token but the first."""
    next_logprobs: list[float]
    """[V] log-probabilities of the next token at `temperature`."""
    temperature: float = 0.5


def max_differences(answer: Mapping[str, Any], check: ParityCheck) -> tuple[float, float]:
    """Return the largest difference between a server and the trainer: on the given tokens, and on the token the server
    sampled.
    """
    choice = answer["choices"][0]
    entries = prompt_logprobs(answer, check.ids)
    worst = max(abs(one - other) for one, other in zip(entries, check.logprobs, strict=True))
    return worst, abs(choice["logprobs"]["content"][0]["logprob"] - check.next_logprobs[choice["token_ids"][0]])


def parse_generation(
    answer: Mapping[str, Any], prompt_ids: Sequence[int], params: SamplingParams, ending: StopChecker, version: int
) -> Generation:
    """Return the generation of a response, cut where it ends.

    Args:
        answer: Response of `/inference/v1/generate`.
        prompt_ids: Prompt of the request.
        params: Sampling parameters of the request.
        ending: New stop checker.
        version: Version of the weights, if the response has none.

    Raises:
        ModelError: The model's probabilities are not finite.
    """
    choice = answer["choices"][0]
    content, ids = choice["logprobs"]["content"], []
    for token in choice["token_ids"]:
        ids.append(token)
        if ending.push(token) is not None:
            break
    content = content[: len(ids)]
    if min((one["logprob"] for one in content), default=0.0) < MIN_LOGPROB:
        raise ModelError("the model's probabilities are not finite: its weights are damaged, or training diverged")
    spans = _spans(choice.get("weight_versions"), len(ids), version)
    prompt = prompt_top = None
    if params.prompt_logprobs is not None:
        prompt = prompt_logprobs(answer, prompt_ids)
    if params.prompt_logprobs:
        positions = [
            [{"token_id": int(i), **one} for i, one in position.items()] for position in answer["prompt_logprobs"][1:]
        ]
        prompt_top = [_likeliest(position, params.prompt_logprobs) for position in positions]
    return Generation(
        ids,
        [one["logprob"] for one in content],
        ending.reason or choice["finish_reason"],
        spans[0][0],
        top_logprobs=[_likeliest(one["top_logprobs"], params.logprobs) for one in content] if params.logprobs else None,
        prompt_logprobs=prompt,
        prompt_top_logprobs=prompt_top,
        text=ending.text if params.stop else None,
        stopped_by=ending.stopped_by,
        version_spans=spans if len(spans) > 1 else [],
    )


def _spans(entries: Sequence[Mapping[str, Any]] | None, count: int, version: int) -> list[tuple[int, int]]:
    """Return (version, number of tokens) for the first `count` tokens, oldest version first."""
    found = [(int(one["version"]), min(one["end"], count) - one["start"]) for one in entries or ()]
    return [one for one in found if one[1] > 0] or [(version, count)]


def _likeliest(entries: Sequence[Mapping[str, Any]], count: int | None) -> list[tuple[int, float]]:
    found = sorted(((one["token_id"], one["logprob"]) for one in entries), key=lambda one: -one[1])
    return found[:count]


def prompt_logprobs(answer: Mapping[str, Any], ids: Sequence[int]) -> list[float]:
    """Return the log-probability of each prompt token but the first."""
    entries = answer["prompt_logprobs"]
    return [position[str(token)]["logprob"] for position, token in zip(entries[1:], ids[1:], strict=True)]
