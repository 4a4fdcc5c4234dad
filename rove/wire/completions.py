"""Our nouns as OpenAI text-completions JSON, and that JSON as our nouns. Pure functions; no network here.

For models without a chat template: the prompt is continued as it stands.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from rove.errors import ConfigError, InvalidModelResponseError
from rove.protocols import Request, Response
from rove.records import Usage
from rove.wire.common import answer, count, excerpt, finish_reason, parts_of, said, unsendable, without_none


class _Choice(msgspec.Struct):
    text: str
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    """The parts of a completion that we read."""

    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]
    usage: Any = None


def request_body(request: Request) -> dict[str, Any]:
    """The JSON body of one completions request; the prompt is the text of its only message, a user's.

    What is None is left out; many servers then stop after 16 tokens, so give `max_tokens`. `sampling.extra` is merged
    in last and wins; None in it removes a field.

    Raises:
        ConfigError: there are other messages, parts that are not text, or tools; a raw prompt has no place for them.
    """
    if request.tools:
        raise ConfigError(f"{len(request.tools)} tools given; expected none, the completions API cannot call tools")
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": request.model or None,
        "prompt": _prompt(request.messages),
        "temperature": sampling.temperature,
        "max_tokens": sampling.max_tokens,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stop": sampling.stop,
        **sampling.extra,
    }
    return without_none(body)


def read_response(body: Any) -> Response:
    """The continuation inside a completion, given as decoded JSON, as an assistant message.

    Missing usage counts as 0 tokens, any finish reason but "length" as "stop".

    Raises:
        InvalidModelResponseError: this is not a completion.
        EmptyModelResponseError: its text is empty, and no length limit explains that.
    """
    try:
        completion = msgspec.convert(body, _Completion)
    except msgspec.ValidationError as error:
        raise InvalidModelResponseError(f"not a completion ({error}): {excerpt(body)}") from error
    choice = completion.choices[0]
    usage = Usage(count(completion.usage, "prompt_tokens"), count(completion.usage, "completion_tokens"))
    return answer(body, choice.text, usage, finish_reason(choice.finish_reason == "length", tool_calls=None))


def _prompt(messages: list[dict[str, Any]]) -> str:
    roles = [message.get("role") for message in messages]
    if roles != ["user"]:
        raise ConfigError(
            f"messages of {roles}; expected exactly one of 'user', whose text is the prompt of a completion: "
            "for a conversation use chat completions"
        )
    prompt = ""
    for part in parts_of(messages[0]):
        words = said(part)
        if words is None:
            raise unsendable(part, "the completions API", "text")
        prompt += words
    return prompt
