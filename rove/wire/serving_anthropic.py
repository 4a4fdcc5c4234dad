"""Anthropic's Messages API where we are the one who is asked. Pure functions; no network here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from rove.core.errors import ConfigError
from rove.core.messages import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage, text_of
from rove.core.protocols import Request, Response, ToolChoice
from rove.core.records import Usage
from rove.wire.chat import asked_messages
from rove.wire.common import excerpt, tool_call, tool_calls_of, without_none
from rove.wire.serving import (
    Asked,
    AtLeastOne,
    Head,
    Question,
    StopText,
    TokenLogprob,
    fields_of,
    questions_of,
    read_body,
    rest_of,
    sampling_of,
    tool_choice_of,
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


class _Said(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]]


class _Body(msgspec.Struct, kw_only=True):
    """The fields of a Messages request that we read, or that say nothing about the answer."""

    messages: Annotated[list[_Said], msgspec.Meta(min_length=1)]
    max_tokens: AtLeastOne
    model: str = ""
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    stream: bool | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    stop_sequences: Annotated[list[StopText], msgspec.Meta(max_length=64)] | None = None
    cache_control: Any = None
    container: Any = None
    context_management: Any = None
    thinking: Any = None


def read_request(body: Any) -> Asked:
    """What a Messages body asks for.

    Results of tools become messages of their own. `tool_choice` of type "none" drops the tools.

    Raises:
        ConfigError: it is no such body, or asks for what nobody here can do; the message says what.
    """
    options = read_body(body, _Body)
    sampling = sampling_of(body, options, stop=options.stop_sequences or None)
    choice = (options.tool_choice or {}).get("type", "auto")
    tools = None if choice == "none" else [_tool(tool) for tool in options.tools or []] or None
    system = [SystemMessage(_content(options.system, "system"))] if options.system else []
    messages = [message for i, one in enumerate(options.messages) for message in _messages(one, i)]
    request = Request(
        asked_messages([*system, *messages]),
        sampling,
        tools=tools,
        tool_choice=_tool_choice(options.tool_choice, tools),
    )
    return Asked(
        options.model,
        questions_of(Question(request), 1),
        stream=bool(options.stream),
        fields=fields_of(options),
        api="anthropic",
    )


def _tool_choice(given: dict[str, Any] | None, tools: list[dict[str, Any]] | None) -> ToolChoice | None:
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
    head: Head, responses: Sequence[Response], usage: Usage, logprobs: Sequence[list[TokenLogprob]] | None = None
) -> dict[str, Any]:
    """The JSON of a message with the one answer there is."""
    response = responses[0]
    return _message(head, _blocks(response.message), response.usage) | _ended(response)


def first_chunks(head: Head, index: int) -> list[dict[str, Any]]:
    """How a stream begins."""
    return [{"type": "message_start", "message": _message(head, [], Usage())}]


def text_chunks(
    head: Head, index: int, text: str, told: str, logprobs: list[TokenLogprob] | None = None
) -> list[dict[str, Any]]:
    """A further piece of the text, which was streamed as far as `told`."""
    if not text:
        return []
    begin = [] if told else [_start(0, {"type": "text", "text": ""})]
    return [*begin, _delta(0, {"type": "text_delta", "text": text})]


def last_chunks(
    head: Head,
    index: int,
    response: Response,
    told: str,
    logprobs: list[TokenLogprob] | None = None,
    earlier: Sequence[TokenLogprob] = (),
) -> list[dict[str, Any]]:
    """What is left of an answer whose text was streamed as far as `told`, and how it ended."""
    blocks = _blocks(response.message, text_first=bool(told))
    events: list[dict[str, Any]] = []
    for place, block in enumerate(blocks):
        begun = place == 0 and bool(told)
        events += _block_events(place, {**block, "text": rest_of(response, told)} if begun else block, begun)
    ended = {"delta": _ended(response), "usage": _usage(response.usage)}
    return [*events, {"type": "message_delta", **ended}, {"type": "message_stop"}]


def error_body(status: int, message: str) -> dict[str, Any]:
    """An error in Anthropic's shape."""
    return {"type": "error", "error": {"type": _ERRORS.get(status, "api_error"), "message": message}}


def _message(head: Head, blocks: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
    told = {"id": head.id, "type": "message", "role": "assistant", "model": head.model, "content": blocks}
    return {**told, "stop_reason": None, "stop_sequence": None, "usage": _usage(usage)}


def _usage(usage: Usage) -> dict[str, int]:
    cached = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens, **cached}


def _ended(response: Response) -> dict[str, Any]:
    refused = "refusal" if response.message.get("refusal") else "end_turn"
    return {"stop_reason": _REASONS.get(response.finish_reason, refused), "stop_sequence": None}


def _blocks(message: Mapping[str, Any], text_first: bool = False) -> list[dict[str, Any]]:
    """The blocks of an answer; in a stream the text comes first, once some of it was told."""
    text, thought = text_of(message) or message.get("refusal") or "", message.get("reasoning_content")
    calls = tool_calls_of(message)
    blocks = [{"type": "thinking", "thinking": thought, "signature": ""}] if thought else []
    if text or not calls:
        blocks.insert(0 if text_first else len(blocks), {"type": "text", "text": text})
    for call in calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.function.name, "input": _input(call.function)})
    return blocks


def _input(function: Any) -> dict[str, Any]:
    """The arguments of a call; what is no JSON object is shown as it was written, as this API has no other place for it."""
    try:
        return msgspec.json.decode(function.arguments.strip() or "{}", type=dict[str, Any])
    except (ValueError, RecursionError):
        return {"arguments": function.arguments}


def _block_events(place: int, block: dict[str, Any], begun: bool) -> Iterator[dict[str, Any]]:
    kind = block["type"]
    empty = {"text": {"text": ""}, "thinking": {"thinking": ""}, "tool_use": {"input": {}}}[kind]
    if not begun:
        yield _start(place, {**block, **empty})
    if kind == "tool_use":
        yield _delta(place, {"type": "input_json_delta", "partial_json": msgspec.json.encode(block["input"]).decode()})
    elif block[kind]:
        yield _delta(place, {"type": f"{kind}_delta", kind: block[kind]})
    yield {"type": "content_block_stop", "index": place}


def _start(place: int, block: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_start", "index": place, "content_block": block}


def _delta(place: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": place, "delta": delta}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type", "custom") not in ("custom", None) or not isinstance(tool.get("name"), str):
        raise ConfigError(f"the tool {excerpt(tool)}; expected a name and an input_schema: no others are known here")
    function = {name: tool.get(name) for name in ("name", "description", "strict")}
    return {"type": "function", "function": without_none({**function, "parameters": tool.get("input_schema")})}


def _messages(told: _Said, place: int) -> list[Message]:
    where = f"messages[{place}]"
    if told.role == "system":
        return [SystemMessage(_content(told.content, where))]
    if told.role not in ("user", "assistant"):
        raise ConfigError(f"the role of {where} is {excerpt(told.role)}; expected user or assistant")
    if isinstance(told.content, str):
        return [Message(role=told.role, content=told.content)]
    return [_said_by_assistant(told.content, where)] if told.role == "assistant" else _said_by_user(told.content, where)


def _said_by_user(blocks: list[dict[str, Any]], where: str) -> list[Message]:
    messages: list[Message] = []
    for result in (block for block in blocks if block.get("type") == "tool_result"):
        messages.append(ToolMessage(_content(result.get("content") or "", where), result.get("tool_use_id")))  # pyright: ignore[reportArgumentType]  checked later
    rest = [block for block in blocks if block.get("type") != "tool_result"]
    return [*messages, UserMessage(_content(rest, where))] if rest or not messages else messages


def _said_by_assistant(blocks: list[dict[str, Any]], where: str) -> Message:
    words = [block for block in blocks if block.get("type") not in ("tool_use", "thinking", "redacted_thinking")]
    thoughts = [str(block.get("thinking", "")) for block in blocks if block.get("type") == "thinking"]
    calls = [
        tool_call(block.get("id"), block.get("name"), msgspec.json.encode(block.get("input") or {}).decode())  # pyright: ignore[reportArgumentType]  checked later
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    told = {"tool_calls": calls, "reasoning_content": "\n\n".join(filter(None, thoughts))}
    content = _content(words, where) or (None if calls else "")
    return AssistantMessage(content, **{name: value for name, value in told.items() if value})


def _content(content: Any, where: str) -> Any:
    if not isinstance(content, list):
        return content
    parts = [_part(block, where) for block in content]
    return "".join(part["text"] for part in parts) if all("text" in part for part in parts) else parts


def _part(block: Any, where: str) -> dict[str, Any]:
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
