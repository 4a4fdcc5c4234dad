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
    choice = (options.tool_choice or {}).get("type", "auto")
    tools = None if choice == "none" else [_tool(tool) for tool in options.tools or []] or None
    system = [SystemMessage(_content(options.system, "system"))] if options.system else []
    messages = [message for i, one in enumerate(options.messages) for message in _messages(one, i)]
    request = Request(
        checked_messages([*system, *messages]),
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


def _tool_choice(given: JsonObject | None, tools: list[JsonObject] | None) -> ToolChoice | None:
    match given:
        case None | {"type": "auto" | "none"}:
            return None
        case {"type": "any"}:
            parallel = given.get("disable_parallel_tool_use") is not True
            return tool_choice_of("required", tools, parallel)
        case {"type": "tool", "name": str() as name}:
            return tool_choice_of({"type": "function", "function": {"name": name}}, tools)
    raise ConfigError(
        f'tool_choice is {excerpt(given)}; expected {{"type": "auto"}}, {{"type": "any"}}, {{"type": "none"}} or '
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
    return [{"type": "message_start", "message": _message(head, [], Usage())}]


def text_chunks(head: Head, index: int, text: str, sent: str, logprobs: Logprobs = None) -> list[JsonObject]:
    """Return the events for a new piece of the text after the text `sent`."""
    if not text:
        return []
    begin = [] if sent else [_start(0, {"type": "text", "text": ""})]
    return [*begin, _delta(0, {"type": "text_delta", "text": text})]


def last_chunks(
    head: Head, index: int, response: Response, sent: str, logprobs: Logprobs = None, earlier: Tokens = ()
) -> list[JsonObject]:
    """Return the last events of an answer after the text `sent`."""
    blocks = _blocks(response.message, text_first=bool(sent))
    events: list[JsonObject] = []
    for position, block in enumerate(blocks):
        begun = position == 0 and bool(sent)
        events += _block_events(position, {**block, "text": unsent_text(response, sent)} if begun else block, begun)
    ended = {"delta": _ended(response), "usage": _usage(response.usage)}
    return [*events, {"type": "message_delta", **ended}, {"type": "message_stop"}]


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
    refused = "refusal" if response.message.get("refusal") else "end_turn"
    return {"stop_reason": _REASONS.get(response.finish_reason, refused), "stop_sequence": None}


def _blocks(message: JsonMapping, text_first: bool = False) -> list[JsonObject]:
    """Return the blocks of an answer; `text_first` if a stream has already sent text."""
    text, thought = text_of(message) or message.get("refusal") or "", message.get("reasoning_content")
    calls = tool_calls_of(message)
    blocks = [{"type": "thinking", "thinking": thought, "signature": ""}] if thought else []
    if text or not calls:
        blocks.insert(0 if text_first else len(blocks), {"type": "text", "text": text})
    for call in calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.function.name, "input": _input(call.function)})
    return blocks


def _input(function: Function) -> JsonObject:
    """Return the arguments of a call; text that is no JSON object becomes {"arguments": text}, since the API needs one."""
    try:
        return msgspec.json.decode(function.arguments.strip() or "{}", type=JsonObject)
    except (ValueError, RecursionError):
        return {"arguments": function.arguments}


def _block_events(position: int, block: JsonObject, begun: bool) -> Iterator[JsonObject]:
    kind = block["type"]
    empty = {"text": {"text": ""}, "thinking": {"thinking": ""}, "tool_use": {"input": {}}}[kind]
    if not begun:
        yield _start(position, {**block, **empty})
    if kind == "tool_use":
        yield _delta(
            position, {"type": "input_json_delta", "partial_json": msgspec.json.encode(block["input"]).decode()}
        )
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
    where = f"messages[{position}]"
    if turn.role == "system":
        return [SystemMessage(_content(turn.content, where))]
    if turn.role not in ("user", "assistant"):
        raise ConfigError(f"the role of {where} is {excerpt(turn.role)}; expected user or assistant")
    if isinstance(turn.content, str):
        return [Message(role=turn.role, content=turn.content)]
    return [_from_assistant(turn.content, where)] if turn.role == "assistant" else _from_user(turn.content, where)


def _from_user(blocks: list[JsonObject], where: str) -> list[Message]:
    messages: list[Message] = []
    for result in (block for block in blocks if block.get("type") == "tool_result"):
        messages.append(ToolMessage(_content(result.get("content") or "", where), result.get("tool_use_id")))  # pyright: ignore[reportArgumentType]  checked later
    rest = [block for block in blocks if block.get("type") != "tool_result"]
    return [*messages, UserMessage(_content(rest, where))] if rest or not messages else messages


def _from_assistant(blocks: list[JsonObject], where: str) -> Message:
    content_blocks = [
        block for block in blocks if block.get("type") not in ("tool_use", "thinking", "redacted_thinking")
    ]
    thoughts = [str(block.get("thinking", "")) for block in blocks if block.get("type") == "thinking"]
    calls = [
        tool_call(block.get("id"), block.get("name"), msgspec.json.encode(block.get("input") or {}).decode())  # pyright: ignore[reportArgumentType]  checked later
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    fields = {"tool_calls": calls, "reasoning_content": "\n\n".join(filter(None, thoughts))}
    content = _content(content_blocks, where) or (None if calls else "")
    return AssistantMessage(content, **{name: value for name, value in fields.items() if value})


def _content(content: object, where: str) -> JsonValue:
    return joined_content(content, lambda block: _part(block, where))


def _part(block: JsonValue, where: str) -> JsonObject:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "text" and isinstance(block.get("text"), str):
        return {"type": "text", "text": block["text"]}
    source = block.get("source") if kind == "image" else None
    if isinstance(source, dict) and isinstance(source.get("url"), str):
        return {"type": "image_url", "image_url": {"url": source["url"]}}
    if isinstance(source, dict) and isinstance(source.get("data"), str):
        url = f"data:{source.get('media_type')};base64,{source['data']}"
        return {"type": "image_url", "image_url": {"url": url}}
    raise ConfigError(f"{where} has the block {excerpt(block)}; expected text, image, tool_use or tool_result")
