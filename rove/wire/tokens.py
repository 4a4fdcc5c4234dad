"""Token ids in, token ids out, as JSON. Pure functions; no network here.

The API is our own: no other one tells the ids, the log-probabilities and the version of the weights together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from rove.core.messages import text_of
from rove.core.protocols import Request, Response
from rove.core.records import Usage
from rove.wire.common import without_none
from rove.wire.completions import Ids
from rove.wire.serving import (
    Asked,
    Head,
    Options,
    Question,
    TokenLogprob,
    fields_of,
    questions_of,
    read_body,
    sampling_of,
    usage_body,
)

Likeliest = Annotated[int, msgspec.Meta(ge=0, le=100)]


class _Body(Options, kw_only=True):
    """The fields of a request that we read."""

    prompt_ids: Ids
    max_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    logprobs: Likeliest | None = None
    prompt_logprobs: Likeliest | None = None


def read_request(body: Any) -> Asked:
    """What a body with `prompt_ids` and a completion's sampling fields asks for.

    Raises:
        ConfigError: it is no such body; the message says why.
    """
    options = read_body(body, _Body)
    sampling = sampling_of(body, options, logprobs=options.logprobs, prompt_logprobs=options.prompt_logprobs)
    return Asked(
        options.model,
        questions_of(Question(Request([], sampling), options.prompt_ids), options.n),
        options.n or 1,
        bool(options.stream),
        bool(options.stream_options and options.stream_options.include_usage),
        logprobs=options.logprobs or 0,
        by_token=True,
        fields=fields_of(options),
    )


def response_body(
    head: Head, responses: Sequence[Response], usage: Usage, logprobs: Sequence[list[TokenLogprob]] | None = None
) -> dict[str, Any]:
    """The JSON of all that was sampled; `logprobs` are the tokens of each choice."""
    tokens = logprobs or [[]] * len(responses)
    choices = [_sampled(i, told) | _ended(response) for i, (response, told) in enumerate(zip(responses, tokens))]
    return _piece(head, choices) | {"usage": usage_body(usage)}


def first_chunks(head: Head, index: int) -> list[dict[str, Any]]:
    """How the stream of a choice begins: with its first token."""
    return []


def text_chunks(
    head: Head, index: int, text: str, told: str, logprobs: list[TokenLogprob] | None = None
) -> list[dict[str, Any]]:
    """Further tokens of a choice; their text is told with the last ones."""
    return [_piece(head, [_sampled(index, logprobs or [])])]


def last_chunks(
    head: Head,
    index: int,
    response: Response,
    told: str,
    logprobs: list[TokenLogprob] | None = None,
    earlier: Sequence[TokenLogprob] = (),
) -> list[dict[str, Any]]:
    """How a choice ended, and the tokens that were not told yet."""
    return [_piece(head, [_sampled(index, logprobs or []) | _ended(response)])]


def usage_chunk(head: Head, usage: Usage) -> dict[str, Any]:
    """The end of a stream that was to tell token counts."""
    return _piece(head, []) | {"usage": usage_body(usage)}


def _piece(head: Head, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": head.id, "object": "generation", "created": head.created, "model": head.model, "choices": choices}


def _sampled(index: int, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    told = {"index": index, "ids": [token.id for token in tokens], "logprobs": [token.logprob for token in tokens]}
    tops = [[(other.id, other.logprob) for other in token.top] for token in tokens]
    return told | ({"top_logprobs": tops} if any(tops) else {})


def _ended(response: Response) -> dict[str, Any]:
    told = {
        "text": text_of(response.message),
        "finish_reason": response.finish_reason,
        "policy_version": response.tokens.policy_version if response.tokens else None,
        "prompt_logprobs": response.prompt_logprobs,
        "prompt_top_logprobs": response.prompt_top_logprobs,
    }
    return without_none(told)
