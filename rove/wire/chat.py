"""Our nouns as OpenAI chat-completions JSON, and that JSON as our nouns. Pure functions; no network here."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from rove.errors import InvalidModelResponseError
from rove.messages import text_of
from rove.protocols import Request, Response
from rove.records import Usage
from rove.wire.common import ToolCall, answer, count, excerpt, is_text, without_none


class _Message(msgspec.Struct):
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: Any = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    """The parts of a chat completion that we read; whatever else a server sends is ignored."""

    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]
    usage: Any = None


def request_body(request: Request) -> dict[str, Any]:
    """The JSON body of one chat-completions request.

    What is None or not set is left out, in the body and in each message, but not deeper: a null inside a tool's
    schema has a meaning. `sampling.extra` is merged in last and wins. The length limit is sent as `max_tokens`, the
    name every compatible server knows. `state`, `previous` and `seed` of the request stay here;
    `sampling.seed` is sent.
    """
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": request.model or None,
        "messages": [without_none(message) for message in request.messages],
        "tools": request.tools or None,
        "temperature": sampling.temperature,
        "max_tokens": sampling.max_tokens,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stop": sampling.stop,
        **sampling.extra,
    }
    return without_none(body)


def read_response(body: Any) -> Response:
    """The answer inside a chat completion, given as decoded JSON.

    Text parts are joined into one text. Tool calls are kept as the server sent them, fields unknown to us included.
    Reasoning is read from `reasoning_content` or `reasoning`. Missing usage counts as 0 tokens, a missing finish
    reason as "stop".

    Raises:
        InvalidModelResponseError: this is not a chat completion.
        EmptyModelResponseError: it has no text, tool call, reasoning or refusal, and no length limit explains that.
    """
    try:
        completion = msgspec.convert(body, _Completion)
        choice = completion.choices[0]
        msgspec.convert(choice.message.tool_calls or [], list[ToolCall])
    except msgspec.ValidationError as error:
        raise InvalidModelResponseError(f"not a chat completion ({error}): {excerpt(body)}") from error

    message = choice.message
    return answer(
        body,
        text_of({"content": message.content}),
        Usage(count(completion.usage, "prompt_tokens"), count(completion.usage, "completion_tokens")),
        choice.finish_reason or "stop",
        tool_calls=message.tool_calls,
        reasoning_content=next(
            (text for text in (message.reasoning_content, message.reasoning) if is_text(text)), None
        ),
        refusal=message.refusal if is_text(message.refusal) else None,
    )
