"""JSON of rove's own API for token ids, log-probabilities and the version of the weights. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from rove.core.messages import text_of
from rove.core.plain import JsonObject, JsonValue
from rove.core.protocols import Request, Response
from rove.core.records import Usage
from rove.wire.common import without_none
from rove.wire.completions import Ids
from rove.wire.serving import (
    ChoiceLogprobs,
    ChoiceRequest,
    Head,
    Logprobs,
    Options,
    ServingRequest,
    Tokens,
    completion_object,
    expand_choices,
    read_body,
    sampling_of,
    usage_body,
)

KIND = "generation"
Likeliest = Annotated[int, msgspec.Meta(ge=0, le=100)]


class _Body(Options, kw_only=True):
    prompt_ids: Ids
    max_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    logprobs: Likeliest | None = None
    prompt_logprobs: Likeliest | None = None


def read_request(body: JsonValue) -> ServingRequest:
    """Parse the body of a request with `prompt_ids` and the sampling fields of a completion."""
    options = read_body(body, _Body)
    sampling = sampling_of(body, options, logprobs=options.logprobs, prompt_logprobs=options.prompt_logprobs)
    questions = expand_choices(ChoiceRequest(Request([], sampling), options.prompt_ids), options.n)
    return ServingRequest.of(options, questions, options.logprobs or 0, is_token_stream=True)


def response_body(
    head: Head, responses: Sequence[Response], usage: Usage, logprobs: ChoiceLogprobs = None
) -> JsonObject:
    """Return the JSON of the sampled tokens; `logprobs` are the tokens of each choice."""
    choice_tokens = logprobs or [[]] * len(responses)
    choices = []
    for i, (response, tokens) in enumerate(zip(responses, choice_tokens)):
        choices.append(_sampled(i, tokens) | _ended(response))
    return completion_object(head, KIND, choices) | {"usage": usage_body(usage)}


def first_chunks(head: Head, index: int) -> list[JsonObject]:
    """Return the first chunks of a choice: [], because no chunk precedes its first token."""
    return []


def text_chunks(head: Head, index: int, text: str, sent: str, logprobs: Logprobs = None) -> list[JsonObject]:
    """Return the chunk for new tokens of a choice; the text is sent with the last chunk."""
    return [completion_object(head, KIND, [_sampled(index, logprobs or [])])]


def last_chunks(
    head: Head, index: int, response: Response, sent: str, logprobs: Logprobs = None, earlier: Tokens = ()
) -> list[JsonObject]:
    """Return the last chunk of a choice, with the tokens that were not sent yet."""
    return [completion_object(head, KIND, [_sampled(index, logprobs or []) | _ended(response)])]


def usage_chunk(head: Head, usage: Usage) -> JsonObject:
    """Return the last chunk of a stream, with token counts."""
    return completion_object(head, KIND, []) | {"usage": usage_body(usage)}


def _sampled(index: int, tokens: Tokens) -> JsonObject:
    sampled: JsonObject = {
        "index": index,
        "ids": [token.id for token in tokens],
        "logprobs": [token.logprob for token in tokens],
    }
    tops = [[(likely.id, likely.logprob) for likely in token.top] for token in tokens]
    if any(tops):
        sampled["top_logprobs"] = tops
    return sampled


def _ended(response: Response) -> JsonObject:
    fields = {
        "text": text_of(response.message),
        "finish_reason": response.finish_reason,
        "policy_version": response.tokens.policy_version if response.tokens else None,
        "prompt_logprobs": response.prompt_logprobs,
        "prompt_top_logprobs": response.prompt_top_logprobs,
    }
    return without_none(fields)
