"""The server side of Anthropic's Messages API. Pure functions without network access."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from rove.core.errors import ConfigError, excerpt
from rove.core.messages import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage, text_of
from rove.core.plain import JsonMapping, JsonObject, JsonValue
from rove.core.protocols import Request, Response, ToolChoice
from rove.core.records import Usage
from rove.wire.chat import checked_messages
from rove.wire.common import Function, tool_call, tool_calls_of, without_none
from rove.wire.serving import (
    AtLeastOne,
    ChoiceLogprobs,
    ChoiceRequest,
    Head,
    Logprobs,
    ServingRequest,
    StopText,
    Tokens,
    expand_choices,
    fields_of,
    joined_content,
    read_body,
    sampling_of,
    tool_choice_of,
    unsent_text,
)

_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}
_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}


class _Turn(msgspec.Struct):
    role: str
    content: str | list[JsonObject]


class _Body(msgspec.Struct, kw_only=True):
    """Fields of a Messages request that are read or ignored."""

    messages: Annotated[list[_Turn], msgspec.Meta(min_length=1)]
    max_tokens: AtLeastOne
    model: str = ""
    system: str | list[JsonObject] | None = None
    tools: list[JsonObject] | None = None
    tool_choice: JsonObject | None = None
    stream: bool | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    stop_sequences: Annotated[list[StopText], msgspec.Meta(max_length=64)] | None = None
    cache_control: JsonValue = None
    container: JsonValue = None
    context_management: JsonValue = None
    thinking: JsonValue = None


def read_request(body: JsonValue) -> ServingRequest:
    """Parse the body of a Messages request.

    Tool results become separate messages. `tool_choice` of type "none" drops the tools.
    """
    options = read_body(body, _Body)
    sampling = sampling_of(body, options, stop=options.stop_sequences or None)
    tools = None
    if (options.tool_choice or {}).get("type") != "none":
        tools = [_tool(tool) for tool in options.tools or []] or None
    messages: list[Message] = []
    if options.system:
        messages.append(SystemMessage(_content(options.system, "system")))
    for i, turn in enumerate(options.messages):
        messages += _messages(turn, i)
    request = Request(
        checked_messages(messages),
        sampling,
        tools=tools,
        tool_choice=_tool_choice(options.tool_choice, tools),
    )
    return ServingRequest(
        options.model,
        expand_choices(ChoiceRequest(request), 1),
        stream=bool(options.stream),
        fields=fields_of(options),
        api="anthropic",
    )


def _tool_choice(choice: JsonObject | None, tools: list[JsonObject] | None) -> ToolChoice | None:
    match choice:
        case None | {"type": "auto" | "none"}:
            return None
        case {"type": "any"}:
            parallel = choice.get("disable_parallel_tool_use") is not True
            return tool_choice_of("required", tools, parallel)
        case {"type": "tool", "name": str() as name}:
            return tool_choice_of({"type": "function", "function": {"name": name}}, tools)
    raise ConfigError(
        f'tool_choice is {excerpt(choice)}; expected {{"type": "auto"}}, {{"type": "any"}}, {{"type": "none"}} or '
        '{"type": "tool", "name": …}'
    )


def response_body(
    head: Head, responses: Sequence[Response], usage: Usage, logprobs: ChoiceLogprobs = None
) -> JsonObject:
    """Return the JSON of the message."""
    response = responses[0]
    return _message(head, _blocks(response.message), response.usage) | _ended(response)


def first_chunks(head: Head, index: int) -> list[JsonObject]:
    """Return the first events of a stream."""
    # Without usage, which is known when the answer ends.
    return [{"type": "message_start", "message": _message(head, [], Usage())}]


def text_chunks(head: Head, index: int, text: str, sent: str, logprobs: Logprobs = None) -> list[JsonObject]:
    """Return the events for a new piece of the text after the text `sent`."""
    if not text:
        return []
    start = [] if sent else [_start(0, {"type": "text", "text": ""})]
    return [*start, _delta(0, {"type": "text_delta", "text": text})]


def last_chunks(
    head: Head, index: int, response: Response, sent: str, logprobs: Logprobs = None, earlier: Tokens = ()
) -> list[JsonObject]:
    """Return the last events of an answer after the text `sent`."""
    blocks = _blocks(response.message, text_first=bool(sent))
    events: list[JsonObject] = []
    for position, block in enumerate(blocks):
        is_started = position == 0 and bool(sent)
        if is_started:
            block = {**block, "text": unsent_text(response, sent)}
        events += _block_events(position, block, is_started)
    events.append({"type": "message_delta", "delta": _ended(response), "usage": _usage(response.usage)})
    return [*events, {"type": "message_stop"}]


def error_body(status: int, message: str) -> JsonObject:
    """Return an error in Anthropic's form."""
    return {"type": "error", "error": {"type": _ERRORS.get(status, "api_error"), "message": message}}


def _message(head: Head, blocks: list[JsonObject], usage: Usage) -> JsonObject:
    message = {"id": head.id, "type": "message", "role": "assistant", "model": head.model, "content": blocks}
    return {**message, "stop_reason": None, "stop_sequence": None, "usage": _usage(usage)}


def _usage(usage: Usage) -> dict[str, int]:
    cached = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens, **cached}


def _ended(response: Response) -> JsonObject:
    default = "refusal" if response.message.get("refusal") else "end_turn"
    return {"stop_reason": _REASONS.get(response.finish_reason, default), "stop_sequence": None}


def _blocks(message: JsonMapping, text_first: bool = False) -> list[JsonObject]:
    """Return the blocks of an answer; `text_first` if a stream has already sent text."""
    text = text_of(message) or message.get("refusal") or ""
    thought = message.get("reasoning_content")
    calls = tool_calls_of(message)
    blocks: list[JsonObject] = []
    if thought:
        blocks.append({"type": "thinking", "thinking": thought, "signature": ""})
    if text or not calls:
        # Blocks are numbered in the order in which a stream starts them, so text that was sent stays the first.
        blocks.insert(0 if text_first else len(blocks), {"type": "text", "text": text})
    for call in calls:
        function = call.function
        blocks.append({"type": "tool_use", "id": call.id, "name": function.name, "input": _input(function)})
    return blocks


def _input(function: Function) -> JsonObject:
    """Return the arguments of a call; text that is not a JSON object becomes {"arguments": text}, since the API
    requires an object.
    """
    try:
        return msgspec.json.decode(function.arguments.strip() or "{}", type=JsonObject)
    except (ValueError, RecursionError):
        return {"arguments": function.arguments}


def _block_events(position: int, block: JsonObject, is_started: bool) -> Iterator[JsonObject]:
    kind = block["type"]  # "text" and "thinking" blocks have their text under the name of their type
    if not is_started:  # a block starts empty; its content follows as deltas
        yield _start(position, {**block, "input": {}} if kind == "tool_use" else {**block, kind: ""})
    if kind == "tool_use":
        partial_json = msgspec.json.encode(block["input"]).decode()
        yield _delta(position, {"type": "input_json_delta", "partial_json": partial_json})
    elif block[kind]:
        yield _delta(position, {"type": f"{kind}_delta", kind: block[kind]})
    yield {"type": "content_block_stop", "index": position}


def _start(position: int, block: JsonObject) -> JsonObject:
    return {"type": "content_block_start", "index": position, "content_block": block}


def _delta(position: int, delta: JsonObject) -> JsonObject:
    return {"type": "content_block_delta", "index": position, "delta": delta}


def _tool(tool: JsonMapping) -> JsonObject:
    if tool.get("type", "custom") not in ("custom", None) or not isinstance(tool.get("name"), str):
        raise ConfigError(f"the tool {excerpt(tool)}; expected a name and an input_schema: no others are known here")
    function = {name: tool.get(name) for name in ("name", "description", "strict")}
    return {"type": "function", "function": without_none({**function, "parameters": tool.get("input_schema")})}


def _messages(turn: _Turn, position: int) -> list[Message]:
    path = f"messages[{position}]"
    if turn.role == "system":
        return [SystemMessage(_content(turn.content, path))]
    if turn.role not in ("user", "assistant"):
        raise ConfigError(f"the role of {path} is {excerpt(turn.role)}; expected user or assistant")
    if isinstance(turn.content, str):
        return [Message(role=turn.role, content=turn.content)]
    return [_from_assistant(turn.content, path)] if turn.role == "assistant" else _from_user(turn.content, path)


def _from_user(blocks: list[JsonObject], path: str) -> list[Message]:
    messages: list[Message] = []
    other_blocks: list[JsonObject] = []
    for block in blocks:
        if block.get("type") == "tool_result":
            messages.append(ToolMessage(_content(block.get("content") or "", path), block.get("tool_use_id")))  # pyright: ignore[reportArgumentType]  checked later
        else:
            other_blocks.append(block)
    if other_blocks or not messages:
        messages.append(UserMessage(_content(other_blocks, path)))
    return messages


def _from_assistant(blocks: list[JsonObject], path: str) -> Message:
    content_blocks: list[JsonObject] = []
    thoughts: list[str] = []
    calls: list[JsonObject] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "tool_use":
            arguments = msgspec.json.encode(block.get("input") or {}).decode()
            calls.append(tool_call(block.get("id"), block.get("name"), arguments))  # pyright: ignore[reportArgumentType]  checked later
        elif kind == "thinking":
            thoughts.append(str(block.get("thinking", "")))
        elif kind != "redacted_thinking":  # encrypted for Anthropic's own models
            content_blocks.append(block)
    fields = {"tool_calls": calls, "reasoning_content": "\n\n".join(filter(None, thoughts))}
    content = _content(content_blocks, path) or (None if calls else "")
    return AssistantMessage(content, **{name: value for name, value in fields.items() if value})


def _content(content: object, path: str) -> JsonValue:
    return joined_content(content, lambda block: _part(block, path))


def _part(block: JsonValue, path: str) -> JsonObject:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "text" and isinstance(block.get("text"), str):
        return {"type": "text", "text": block["text"]}
    source = block.get("source") if kind == "image" else None
    if isinstance(source, dict) and isinstance(source.get("url"), str):
        return {"type": "image_url", "image_url": {"url": source["url"]}}
    if isinstance(source, dict) and isinstance(source.get("data"), str):
        url = f"data:{source.get('media_type')};base64,{source['data']}"
        return {"type": "image_url", "image_url": {"url": url}}
    raise ConfigError(f"{path} has the block {excerpt(block)}; expected text, image, tool_use or tool_result")
