"""OpenAI's text-completions JSON for clients and for the server, for models without a chat template. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from rove.core.errors import ConfigError, InvalidModelResponseError, excerpt
from rove.core.messages import text_of
from rove.core.plain import JsonObject, JsonValue, MessageDict
from rove.core.protocols import Request, Response
from rove.core.records import Usage
from rove.wire.common import (
    UNFINISHED,
    build_response,
    count,
    finish_reason,
    parts_of,
    sampling_fields,
    text_or_refusal,
    unsendable,
    without_none,
)
from rove.wire.serving import (
    MAX_CHOICES,
    ChoiceLogprobs,
    ChoiceRequest,
    Head,
    Logprobs,
    ServingRequest,
    TokenLogprob,
    TokenOptions,
    Tokens,
    completion_object,
    expand_choices,
    prompt_logprobs_of,
    read_body,
    refuse,
    sampling_of,
    token_ids_of,
    unsent_text,
    usage_body,
)


class _Choice(msgspec.Struct):
    text: str | None
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]
    usage: JsonValue = None


def request_body(request: Request) -> JsonObject:
    """Return the JSON body of a completions request; the prompt is the text of the request's only message, a user message.

    Fields that are None are left out. Many servers stop after 16 tokens without `max_tokens`, so set it.
    `sampling_params.extra` takes precedence; None in it removes a field.
    """
    if request.tools:
        raise ConfigError(f"{len(request.tools)} tools given; expected none, the completions API cannot call tools")
    sampling = request.sampling_params
    body: JsonObject = {
        "model": request.model or None,
        "prompt": _prompt(request.messages),
        **sampling_fields(sampling),
        "logprobs": sampling.logprobs,
        **sampling.extra,
    }
    return without_none(body)


def read_response(body: object) -> Response:
    """Return the continuation in a decoded completion as an assistant message.

    Missing usage counts as 0 tokens, a missing text as "". Any finish reason except "length" and the reasons in `UNFINISHED`
    counts as "stop".
    """
    try:
        completion = msgspec.convert(body, _Completion)
    except msgspec.ValidationError as error:
        raise InvalidModelResponseError(f"not a completion ({error}): {excerpt(body)}") from error
    choice = completion.choices[0]
    usage = Usage(count(completion.usage, "prompt_tokens"), count(completion.usage, "completion_tokens"))
    reason = choice.finish_reason or ""
    if reason not in UNFINISHED:  # servers have their own names for an end token and a stop text
        reason = finish_reason(reason == "length", tool_calls=None)
    return build_response(body, choice.text or "", usage, reason)


def _prompt(messages: list[MessageDict]) -> str:
    roles = [message.get("role") for message in messages]
    if roles != ["user"]:
        raise ConfigError(
            f"messages of {roles}; expected exactly one of 'user', whose text is the prompt of a completion: "
            "for a conversation use chat completions"
        )
    prompt = ""
    for part in parts_of(messages[0]):
        text = text_or_refusal(part)
        if text is None:
            raise unsendable(part, "the completions API", "text")
        prompt += text
    return prompt


KIND = "text_completion"
Ids = Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(min_length=1)]


class _Body(TokenOptions, kw_only=True):
    prompt: str | list[JsonValue]
    max_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


def read_request(body: JsonValue) -> ServingRequest:
    """Parse the body of a completions request; its prompt is one text, several texts, one list of token ids, or several
    such lists.

    Unknown fields are passed to the client as `sampling_params.extra`.
    """
    options = read_body(body, _Body)
    refuse(body, ("suffix",), "this server continues prompts and cannot fill in between two texts")
    if options.echo and options.stream:
        raise ConfigError("echo and stream are both true; expected one of them: streams begin after the prompt")
    if options.best_of not in (None, 1, options.n):
        raise ConfigError(f"best_of is {options.best_of}; expected that of n: every answer sampled is sent")
    # With `echo`, `logprobs` holds for the prompt as well; of two numbers the larger one serves both.
    prompt_logprobs = prompt_logprobs_of(options)
    if options.echo and options.logprobs is not None:
        prompt_logprobs = max(options.logprobs, prompt_logprobs or 0)
    sampling = sampling_of(body, options, top_logprobs=options.logprobs or None, prompt_logprobs=prompt_logprobs)
    prompts = _prompts(options.prompt)
    if len(prompts) * (options.n or 1) > MAX_CHOICES:
        raise ConfigError(f"{len(prompts)} prompts with n {options.n or 1}; expected {MAX_CHOICES} answers at most")
    choices = []
    for prompt in prompts:
        if isinstance(prompt, str):
            choice = ChoiceRequest(Request([], sampling, text=prompt))
        else:
            choice = ChoiceRequest(Request([], sampling), prompt_ids=prompt)
        choices += expand_choices(choice, options.n)
    return ServingRequest.of(
        options,
        choices,
        options.logprobs,
        echo=bool(options.echo),
        prompt_logprobs=options.prompt_logprobs is not None,
        return_token_ids=bool(options.return_token_ids),
    )


def response_body(
    head: Head, responses: Sequence[Response], usage: Usage, logprobs: ChoiceLogprobs = None
) -> JsonObject:
    """Return the JSON of a completion; `logprobs` are the tokens of each choice."""
    choices = []
    for i, response in enumerate(responses):
        tokens = None if logprobs is None else logprobs[i]
        choices.append(_choice(i, text_of(response.message), response.finish_reason, tokens))
    return completion_object(head, KIND, choices) | {"usage": usage_body(usage)}


def with_tokens(
    body: JsonObject, responses: Sequence[Response], token_ids: bool, prompt_logprobs: Sequence[list[JsonValue]] | None
) -> JsonObject:
    """Return the body with vLLM's fields `prompt_logprobs`, `prompt_token_ids` and `token_ids`, if they were requested."""
    # One completion request may have several prompts, so each choice has its own.
    choices: list[JsonObject] = body["choices"]
    if prompt_logprobs is not None:
        pairs = zip(choices, prompt_logprobs, strict=True)
        choices = [{**choice, "prompt_logprobs": logprobs} for choice, logprobs in pairs]
    if token_ids:
        triples = zip(choices, *token_ids_of(responses), strict=True)
        choices = [{**choice, "prompt_token_ids": prompt, "token_ids": ids} for choice, prompt, ids in triples]
    return {**body, "choices": choices}


def chunk_with_prompt(chunk: JsonObject, prompt_token_ids: list[int] | None) -> JsonObject:
    """Return a chunk of a stream with vLLM's field `prompt_token_ids`."""
    choices = [{**choice, "prompt_token_ids": prompt_token_ids} for choice in chunk["choices"]]
    return {**chunk, "choices": choices}


def first_chunks(head: Head, index: int) -> list[JsonObject]:
    """Return the first chunks of a choice: [], because no chunk precedes its text."""
    return []


def text_chunks(head: Head, index: int, text: str, sent: str, logprobs: Logprobs = None) -> list[JsonObject]:
    """Return the chunks for a new piece of a choice's text after the text `sent`, with its tokens."""
    return [completion_object(head, KIND, [_choice(index, text, logprobs=logprobs)])]


def last_chunks(
    head: Head, index: int, response: Response, sent: str, logprobs: Logprobs = None, earlier: Tokens = ()
) -> list[JsonObject]:
    """Return the last chunks of a choice after the text `sent`; `logprobs` are the tokens that were not sent yet."""
    choice = _choice(index, unsent_text(response, sent), response.finish_reason, logprobs)
    return [completion_object(head, KIND, [choice])]


def usage_chunk(head: Head, usage: Usage) -> JsonObject:
    """Return the last chunk of a stream, with token counts."""
    return completion_object(head, KIND, []) | {"usage": usage_body(usage)}


def _choice(index: int, text: str, finish_reason: str | None = None, logprobs: Logprobs = None) -> JsonObject:
    listed = None if logprobs is None else _logprobs(logprobs)
    return {"index": index, "text": text, "logprobs": listed, "finish_reason": finish_reason}


def _logprobs(tokens: list[TokenLogprob]) -> JsonObject:
    tops = [None if token.logprob is None else _by_text(token.top) for token in tokens]
    return {
        "tokens": [token.token for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": tops if any(tops) else None,
        "text_offset": [token.offset for token in tokens],
    }


def _by_text(tokens: Tokens) -> dict[str, float | None]:
    """Return log-probabilities by text; if several tokens have the same text, the first and most likely token counts."""
    logprobs: dict[str, float | None] = {}
    for token in tokens:
        logprobs.setdefault(token.token, token.logprob)
    return logprobs


def _prompts(prompt: str | list[JsonValue]) -> list[str] | list[list[int]]:
    # First as one prompt, then as several: [1, 2] is one prompt of two tokens.
    forms = (([prompt], list[str]), ([prompt], list[Ids]), (prompt, list[str]), (prompt, list[Ids]))
    for value, kind in forms:
        try:
            prompts = msgspec.convert(value, kind)
        except msgspec.ValidationError:
            continue
        if prompts:
            return prompts
    raise ConfigError(
        f"prompt is {excerpt(prompt)}; expected a text, texts, token ids, or lists of these that are not empty"
    )
