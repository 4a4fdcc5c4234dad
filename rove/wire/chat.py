"""OpenAI's chat-completions JSON for clients and for the server. Pure functions without network access."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from rove.core.errors import ConfigError, InvalidModelResponseError, excerpt
from rove.core.messages import FIELDS, ROLES, text_of
from rove.core.plain import JsonObject, JsonValue, MessageDict, ToolDefinition
from rove.core.protocols import Request, Response, checked_template_kwargs
from rove.core.records import Usage
from rove.wire.common import (
    PRIVATE_FIELDS,
    build_response,
    count,
    forces_one_call,
    function_of,
    is_text,
    only_tool,
    parts_of,
    sampling_fields,
    text_or_refusal,
    tool_calls_of,
    without_none,
)
from rove.wire.serving import (
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
    logprobs_content,
    prompt_logprobs_of,
    read_body,
    sampling_of,
    token_ids_of,
    tool_choice_of,
    unsent_text,
    usage_body,
)


class _Message(msgspec.Struct):
    content: str | list[JsonObject] | None = None
    tool_calls: list[JsonValue] | None = None
    function_call: JsonValue = None
    reasoning_content: JsonValue = None
    reasoning: JsonValue = None
    refusal: JsonValue = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    """Fields of a chat completion that are read; other fields are ignored."""

    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]
    usage: JsonValue = None


def request_body(request: Request, reasoning: str = "reasoning_content") -> JsonObject:
    """Return the JSON body of a chat-completions request; `reasoning` is the server's name of the field for reasoning.

    Fields that are None are left out of the body and of each message, but not of nested values, since null has a
    meaning inside a tool's schema. The `PRIVATE_FIELDS` of messages are not sent. `sampling_params.extra` takes precedence. The
    length limit is sent as `max_tokens`, which every compatible server knows. `state`, `previous` and `seed` of the request are
    not sent, but `sampling_params.seed` is.
    """
    sampling = request.sampling_params
    body: JsonObject = {
        "model": request.model or None,
        "messages": [_sent(message, reasoning) for message in request.messages],
        "tools": request.tools or None,  # OpenAI refuses an empty list
        "tool_choice": _tool_choice(request),
        "chat_template_kwargs": request.chat_template_kwargs or None,
        # Defaults are left out: OpenAI refuses fields that it does not know, such as this one.
        "add_generation_prompt": None if request.add_generation_prompt else False,
        "parallel_tool_calls": False if forces_one_call(request) else None,
        **sampling_fields(sampling),
        # Chat completions has a switch and a number, text completions only a number.
        "logprobs": None if sampling.logprobs is None else True,
        "top_logprobs": sampling.logprobs or None,
        **sampling.extra,
    }
    return without_none(body)


def _sent(message: JsonObject, reasoning: str) -> JsonObject:
    sent = {name: value for name, value in without_none(message).items() if name not in PRIVATE_FIELDS}
    if "reasoning_content" in sent:
        sent[reasoning] = sent.pop("reasoning_content")
    return sent


def _tool_choice(request: Request) -> str | JsonObject | None:
    if request.tool_choice is None:
        return None
    name = only_tool(request)
    return "required" if name is None else {"type": "function", "function": {"name": name}}


def read_response(body: object) -> Response:
    """Return the answer in a decoded chat completion.

    Text parts are joined. Tool calls are read as described in `normalized_calls`, or from the older field `function_call`.
    Reasoning is read from `reasoning_content` or `reasoning`. Missing usage counts as 0 tokens, a missing finish reason as
    "stop".
    """
    try:
        completion = msgspec.convert(body, _Completion)
    except msgspec.ValidationError as error:
        raise InvalidModelResponseError(f"not a chat completion ({error}): {excerpt(body)}") from error
    choice = completion.choices[0]
    message = choice.message
    tool_calls = message.tool_calls
    if not tool_calls and isinstance(message.function_call, dict) and is_text(message.function_call.get("name")):
        tool_calls = [{"function": message.function_call}]
    reasoning = message.reasoning_content if is_text(message.reasoning_content) else message.reasoning
    return build_response(
        body,
        text_of({"content": message.content}),
        Usage(count(completion.usage, "prompt_tokens"), count(completion.usage, "completion_tokens")),
        _finish_reason(choice.finish_reason),
        tool_calls=tool_calls,
        reasoning_content=reasoning if is_text(reasoning) else None,
        refusal=message.refusal if is_text(message.refusal) else None,
    )


def _finish_reason(reason: str | None) -> str:
    """Return a finish reason by OpenAI's name for it."""
    if reason is not None and reason.lower() in ("model_length", "max_tokens"):  # Mistral, Gemini
        return "length"
    return reason or "stop"


def reasoning_field(body: object) -> str | None:
    """Return the field in which a chat completion has reasoning; None without reasoning."""
    try:
        message = msgspec.convert(body, _Completion).choices[0].message
    except msgspec.ValidationError:
        return None
    if is_text(message.reasoning_content):
        return "reasoning_content"
    return "reasoning" if is_text(message.reasoning) else None


class _Body(TokenOptions):
    messages: Annotated[list[JsonObject], msgspec.Meta(min_length=1)]
    tools: list[ToolDefinition] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    response_format: JsonObject | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    chat_template_kwargs: JsonObject | None = None
    add_generation_prompt: bool | None = None


def read_request(body: JsonValue) -> ServingRequest:
    """Parse the body of a chat-completions request.

    Contents that consist of text parts become one text. `tool_choice` "none" drops the tools. Unknown fields
    are passed to the client as `sampling_params.extra`.
    """
    options = read_body(body, _Body)
    if options.top_logprobs and not options.logprobs:
        raise ConfigError("top_logprobs is given without logprobs; expected logprobs: true next to it")
    for tool in options.tools or []:
        if function_of(tool) is None:
            raise ConfigError(f"a tool of type {excerpt(tool['type'])}; expected 'function'")
    response_format = options.response_format
    if response_format == {"type": "text"}:  # the default, written out
        response_format = None
    sampling = sampling_of(
        body,
        options,
        response_format=response_format,
        top_logprobs=options.top_logprobs or None,
        prompt_logprobs=prompt_logprobs_of(options),
    )
    tools = None if options.tool_choice == "none" else options.tools or None
    choice = tool_choice_of(options.tool_choice, tools, options.parallel_tool_calls)
    request = Request(
        checked_messages(options.messages),
        sampling,
        tools=tools,
        tool_choice=choice,
        add_generation_prompt=options.add_generation_prompt is not False,
        chat_template_kwargs=checked_template_kwargs(options.chat_template_kwargs),
    )
    return ServingRequest.of(
        options,
        expand_choices(ChoiceRequest(request), options.n),
        (options.top_logprobs or 0) if options.logprobs else None,
        prompt_logprobs=options.prompt_logprobs is not None,
        return_token_ids=bool(options.return_token_ids),
    )


def response_body(
    head: Head, responses: Sequence[Response], usage: Usage, logprobs: ChoiceLogprobs = None
) -> JsonObject:
    """Return the JSON of a chat completion; `logprobs` are the tokens of each choice."""
    choices = []
    for i, response in enumerate(responses):
        # Only chat's own fields: others, such as the sampled text, serve rove itself. `content` may be null, but not missing.
        message = {name: value for name, value in without_none(response.message).items() if name in FIELDS}
        choice = {
            "index": i,
            "message": {"content": None} | message,
            "logprobs": None if logprobs is None else _logprobs(logprobs[i]),
            "finish_reason": response.finish_reason,
        }
        choices.append(choice)
    return completion_object(head, "chat.completion", choices) | {"usage": usage_body(usage)}


def with_tokens(
    body: JsonObject, responses: Sequence[Response], token_ids: bool, prompt_logprobs: Sequence[list[JsonValue]] | None
) -> JsonObject:
    """Return the body with vLLM's fields `prompt_logprobs`, `prompt_token_ids` and `token_ids`, if they were requested."""
    # All choices of a chat completion have the same prompt, so vLLM writes it once, next to them.
    if prompt_logprobs is not None:
        body = {**body, "prompt_logprobs": prompt_logprobs[0]}
    if token_ids:
        prompt_ids, completion_ids = token_ids_of(responses)
        pairs = zip(body["choices"], completion_ids, strict=True)
        choices = [{**choice, "token_ids": ids} for choice, ids in pairs]
        body = {**body, "choices": choices, "prompt_token_ids": prompt_ids[0]}
    return body


def chunk_with_prompt(chunk: JsonObject, prompt_token_ids: list[int] | None) -> JsonObject:
    """Return a chunk of a stream with vLLM's field `prompt_token_ids`."""
    return {**chunk, "prompt_token_ids": prompt_token_ids}


def first_chunks(head: Head, index: int) -> list[JsonObject]:
    """Return the first chunk of the stream of a choice."""
    return [_chunk(head, index, {"role": "assistant", "content": ""})]


def text_chunks(head: Head, index: int, text: str, sent: str, logprobs: Logprobs = None) -> list[JsonObject]:
    """Return the chunks for a new piece of a choice's text after the text `sent`, with its tokens."""
    return [_chunk(head, index, {"content": text}, logprobs=logprobs)]


def last_chunks(
    head: Head, index: int, response: Response, sent: str, logprobs: Logprobs = None, earlier: Tokens = ()
) -> list[JsonObject]:
    """Return the last chunks of a choice after the text `sent`; `logprobs` are the tokens that were not sent yet."""
    message = response.message
    # Calls are sent whole: only the complete text shows whether it is a call and whether it is valid.
    calls = [{"index": i, **call} for i, call in enumerate(message.get("tool_calls") or [])]
    delta = without_none(
        {
            "content": unsent_text(response, sent) or None,
            "tool_calls": calls or None,
            "reasoning_content": message.get("reasoning_content") or None,
            "refusal": message.get("refusal") or None,
        }
    )
    chunks = [_chunk(head, index, delta, logprobs=logprobs)] if delta or logprobs else []
    return [*chunks, _chunk(head, index, {}, response.finish_reason)]


def usage_chunk(head: Head, usage: Usage) -> JsonObject:
    """Return the last chunk of a stream, with token counts."""
    return completion_object(head, "chat.completion.chunk", []) | {"usage": usage_body(usage)}


def _chunk(
    head: Head,
    index: int,
    delta: JsonObject,
    finish_reason: str | None = None,
    logprobs: Logprobs = None,
) -> JsonObject:
    listed = None if logprobs is None else _logprobs(logprobs)
    choice = {"index": index, "delta": delta, "logprobs": listed, "finish_reason": finish_reason}
    return completion_object(head, "chat.completion.chunk", [choice])


def _logprobs(tokens: list[TokenLogprob]) -> JsonObject:
    return {"content": logprobs_content(tokens), "refusal": None}


def checked_messages(messages: Sequence[MessageDict]) -> list[JsonObject]:
    """Check messages of a request and join lists of text parts."""
    checked = []
    for i, message in enumerate(messages):
        try:
            checked.append(_checked_message(message))
        except ConfigError as error:
            raise ConfigError(f"messages[{i}]: {error}") from error
    return checked


def _checked_message(message: JsonObject) -> JsonObject:
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:  # a list or an object cannot be looked up
        raise ConfigError(f"the role is {excerpt(role)}; expected one of {', '.join(sorted(ROLES))}")
    tool_calls_of(message)
    if role in ("user", "system", "developer") and message.get("content") is None:
        raise ConfigError(f"a message of role '{role}' without content; expected a text, or a list of content parts")
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        raise ConfigError("a message of role 'tool' without tool_call_id; expected the id of the call that it answers")
    texts = [text_or_refusal(part) for part in parts_of(message)]
    # Most chat templates expect a text, and would print a list of parts as such.
    if isinstance(message.get("content"), list) and None not in texts:
        return {**message, "content": "".join(filter(None, texts))}
    return message
