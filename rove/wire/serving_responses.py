"""The server side of OpenAI's Responses API. Pure functions without network access.

The server is stateless: every request contains the whole conversation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import msgspec

from rove.core.errors import ConfigError, excerpt
from rove.core.messages import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage, text_of
from rove.core.plain import JsonMapping, JsonObject, JsonValue
from rove.core.protocols import Request, Response
from rove.core.records import Usage
from rove.wire.chat import checked_messages
from rove.wire.common import text_or_refusal, tool_call, tool_calls_of, without_none
from rove.wire.serving import (
    AtLeastOne,
    ChoiceLogprobs,
    ChoiceRequest,
    Head,
    Logprobs,
    ServingRequest,
    Tokens,
    expand_choices,
    fields_of,
    joined_content,
    logprobs_content,
    read_body,
    refuse,
    sampling_of,
    tool_choice_of,
    unsent_text,
)

LOGPROBS = "message.output_text.logprobs"
"""Value in `include` that requests log-probabilities."""
_ITEMS = "message, function_call, function_call_output or reasoning"


class _Text(msgspec.Struct):
    format: JsonObject | None = None
    verbosity: JsonValue = None


class _Body(msgspec.Struct, kw_only=True):
    """Fields of a Responses request that are read or ignored."""

    input: str | Annotated[list[JsonObject], msgspec.Meta(min_length=1)]
    model: str = ""
    instructions: str | None = None
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    max_output_tokens: AtLeastOne | None = None
    text: _Text | None = None
    background: bool | None = None
    conversation: JsonValue = None
    previous_response_id: str | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    include: list[str] | None = None
    max_tool_calls: JsonValue = None
    prompt_cache_retention: JsonValue = None
    reasoning: JsonValue = None
    stream_options: JsonValue = None
    truncation: JsonValue = None


def read_request(body: JsonValue) -> ServingRequest:
    """Parse the body of a Responses request.

    Function calls and reasoning are joined to the adjacent assistant message. `tool_choice` "none" drops the tools.
    """
    options = read_body(body, _Body)
    refuse(
        body,
        ("previous_response_id", "conversation"),
        "this server is stateless: send the whole conversation as input",
    )
    refuse(body, ("background",), "this server answers in the response of the same request")
    with_logprobs = LOGPROBS in (options.include or [])
    if options.top_logprobs and not with_logprobs:
        raise ConfigError(f'top_logprobs is given without include; expected include: ["{LOGPROBS}"] next to it')
    sampling = sampling_of(
        body,
        options,
        max_tokens=options.max_output_tokens,
        response_format=_chat_format(options.text.format if options.text else None),
        top_logprobs=options.top_logprobs or None,
    )
    tools = None
    if options.tool_choice != "none":
        tools = [_tool(tool) for tool in options.tools or []] or None
    choice = tool_choice_of(options.tool_choice, tools, options.parallel_tool_calls)
    request = Request(checked_messages(_messages(options)), sampling, tools=tools, tool_choice=choice)
    return ServingRequest(
        options.model,
        expand_choices(ChoiceRequest(request), 1),
        stream=bool(options.stream),
        logprobs=(options.top_logprobs or 0) if with_logprobs else None,
        fields=fields_of(options),
        api="responses",
    )


def response_body(
    head: Head, responses: Sequence[Response], usage: Usage, logprobs: ChoiceLogprobs = None
) -> JsonObject:
    """Return the JSON of the response."""
    tokens = logprobs[0] if logprobs else []
    return _response(head, responses[0], _output(head, responses[0].message, logprobs=tokens))


def first_chunks(head: Head, index: int) -> list[JsonObject]:
    """Return the first events of a stream."""
    response = _response(head, None, [])
    return [{"type": f"response.{name}", "response": response} for name in ("created", "in_progress")]


def text_chunks(head: Head, index: int, text: str, sent: str, logprobs: Logprobs = None) -> list[JsonObject]:
    """Return the events for a new piece of the text after the text `sent`."""
    if not text:
        return []
    start = [] if sent else list(_text_start(_message_item(head, {"type": "output_text"}), 0))
    return [*start, _text_event(head, 0, "delta", delta=text, logprobs=logprobs_content(logprobs or ()))]


def last_chunks(
    head: Head, index: int, response: Response, sent: str, logprobs: Logprobs = None, earlier: Tokens = ()
) -> list[JsonObject]:
    """Return the last events of an answer after the text `sent`."""
    output = _output(head, response.message, bool(sent), [*earlier, *(logprobs or [])])
    events: list[JsonObject] = []
    for position, item in enumerate(output):
        if item["type"] == "message" and item["content"][0]["type"] == "output_text":
            text, tokens = unsent_text(response, sent), logprobs_content(logprobs or ())
            events += _text_events(head, position, item, text, tokens, bool(sent))
        else:
            events += _item_events(position, item)
    # The last event repeats the whole response: clients may read it alone.
    whole = _response(head, response, output)
    return [*events, {"type": f"response.{whole['status']}", "response": whole}]


def _response(head: Head, response: Response | None, output: list[JsonObject]) -> JsonObject:
    is_cut = response is not None and response.finish_reason == "length"
    status = "incomplete" if is_cut else "completed"
    return {
        "id": head.id,
        "object": "response",
        "created_at": head.created,
        "status": "in_progress" if response is None else status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "instructions": None,
        "metadata": {},
        "model": head.model,
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": None if response is None else _usage(response.usage),
    }


def _usage(usage: Usage) -> JsonObject:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _output(head: Head, message: JsonMapping, text_first: bool = False, logprobs: Tokens = ()) -> list[JsonObject]:
    """Return the items of an answer; `text_first` if a stream has already sent text."""
    text, refusal, thought = text_of(message), message.get("refusal"), message.get("reasoning_content")
    calls = tool_calls_of(message)
    items: list[JsonObject] = []
    if thought:
        summary = [{"type": "summary_text", "text": thought}]
        items.append({"type": "reasoning", "id": f"rs_{head.id}", "summary": summary})
    if text or refusal or not calls:
        part: JsonObject = {"type": "refusal", "refusal": refusal}
        if text or not refusal:
            part = {"type": "output_text", "text": text, "logprobs": logprobs_content(logprobs)}
        # Items are numbered in the order in which a stream adds them, so text that was sent stays the first.
        items.insert(0 if text_first else len(items), _message_item(head, part))
    for i, call in enumerate(calls):
        ids = {"id": f"fc_{i}_{head.id}", "call_id": call.id}
        function = {"name": call.function.name, "arguments": call.function.arguments}
        items.append({"type": "function_call", **ids, "status": "completed", **function})
    return items


def _message_item(head: Head, part: JsonObject) -> JsonObject:
    if part["type"] == "output_text":
        part = {"text": "", "annotations": [], "logprobs": [], **part}
    item = {"type": "message", "id": f"msg_{head.id}", "role": "assistant", "status": "completed"}
    return {**item, "content": [part]}


def _part_event(name: str, item_id: str, position: int, **fields: Any) -> JsonObject:
    """Return an event about an item's only content part."""
    return {"type": f"response.{name}", "item_id": item_id, "output_index": position, "content_index": 0, **fields}


def _text_start(item: JsonObject, position: int) -> Iterator[JsonObject]:
    empty_item = {**item, "status": "in_progress", "content": []}
    yield {"type": "response.output_item.added", "output_index": position, "item": empty_item}
    empty_part = {**item["content"][0], "text": "", "logprobs": []}
    yield _part_event("content_part.added", item["id"], position, part=empty_part)


def _text_events(
    head: Head, position: int, item: JsonObject, text: str, logprobs: list[JsonObject], is_started: bool
) -> Iterator[JsonObject]:
    if not is_started:
        yield from _text_start(item, position)
    if text:
        yield _text_event(head, position, "delta", delta=text, logprobs=logprobs)
    part = item["content"][0]
    yield _text_event(head, position, "done", text=part["text"], logprobs=part["logprobs"])
    yield _part_event("content_part.done", item["id"], position, part=part)
    yield {"type": "response.output_item.done", "output_index": position, "item": item}


def _text_event(head: Head, position: int, name: str, **fields: Any) -> JsonObject:
    return _part_event(f"output_text.{name}", f"msg_{head.id}", position, **fields)


def _item_events(position: int, item: JsonObject) -> Iterator[JsonObject]:
    """Yield the events of a function call, a refusal or reasoning, which are sent in one piece."""
    is_call = item["type"] == "function_call"
    added = {**item, "status": "in_progress", "arguments": ""} if is_call else item
    yield {"type": "response.output_item.added", "output_index": position, "item": added}
    if is_call:
        event, place = "response.function_call_arguments", {"item_id": item["id"], "output_index": position}
        yield {"type": f"{event}.delta", **place, "delta": item["arguments"]}
        yield {"type": f"{event}.done", **place, "name": item["name"], "arguments": item["arguments"]}
    yield {"type": "response.output_item.done", "output_index": position, "item": item}


def _chat_format(text_format: JsonMapping | None) -> JsonObject | None:
    """Return the format as chat's `response_format`, which has the schema one level deeper."""
    if not text_format or text_format.get("type") == "text":
        return None
    chat_format: JsonObject = {"type": text_format.get("type")}
    named_schema = {name: value for name, value in text_format.items() if name != "type"}
    if named_schema:
        chat_format["json_schema"] = named_schema
    return chat_format


def _tool(tool: JsonMapping) -> JsonObject:
    if tool.get("type") != "function" or not isinstance(tool.get("name"), str):
        raise ConfigError(f"the tool {excerpt(tool)}; expected type 'function' with a name: no others are known here")
    function = {name: value for name, value in tool.items() if name != "type"}
    return {"type": "function", "function": without_none(function)}


def _messages(options: _Body) -> list[JsonObject]:
    messages: list[Message] = [SystemMessage(options.instructions)] if options.instructions else []
    if isinstance(options.input, str):
        return [*messages, UserMessage(options.input)]
    # This API has an item for each part of an answer, chat one message for all of them.
    thoughts: list[str] = []
    for i, item in enumerate(options.input):
        kind = item.get("type", "message")
        if kind == "reasoning":
            thoughts.append(_thought(item, i))
            continue
        message = _message(item, kind, i)
        last = messages[-1] if messages else None
        if kind == "function_call" and last is not None and last["role"] == "assistant":
            last["tool_calls"] = [*(last.get("tool_calls") or []), *message["tool_calls"]]
            thoughts.insert(0, last.get("reasoning_content") or "")
            message = last
        else:
            messages.append(message)
        reasoning = "\n\n".join(filter(None, thoughts))
        if reasoning and message["role"] == "assistant":
            message["reasoning_content"] = reasoning
        thoughts = []
    return list(messages)


def _thought(item: JsonMapping, position: int) -> str:
    """Return the text of an item with reasoning; "" if it has only encrypted reasoning."""
    parts = item.get("content") or item.get("summary") or []
    texts: list[Any] = [parts]
    if isinstance(parts, list):
        texts = [part.get("text") for part in parts if isinstance(part, dict)]
    texts = [text for text in texts if text]
    if not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"input[{position}] has the reasoning {excerpt(parts)}; expected a list of parts with a text")
    return "\n\n".join(texts)


def _message(item: JsonMapping, kind: str, position: int) -> Message:
    if kind == "message":
        return Message(role=item.get("role"), content=_content(item.get("content"), position))
    if kind == "function_call":
        call = tool_call(item.get("call_id"), item.get("name"), item.get("arguments"))  # pyright: ignore[reportArgumentType]  checked later
        return AssistantMessage(tool_calls=[call])
    if kind == "function_call_output":
        return ToolMessage(_content(item.get("output"), position), item.get("call_id"))  # pyright: ignore[reportArgumentType]
    raise ConfigError(f"input[{position}] is of type {excerpt(kind)}; expected {_ITEMS}")


def _content(content: object, position: int) -> JsonValue:
    return joined_content(content, lambda part: _part(part, position))


def _part(part: JsonValue, position: int) -> JsonObject:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("input_text", "output_text"):
        part = {**part, "type": "text"}
    text = text_or_refusal(part) if isinstance(part, dict) else None
    if text is not None:
        return {"type": "text", "text": text}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        image = without_none({"url": part["image_url"], "detail": part.get("detail")})
        return {"type": "image_url", "image_url": image}
    raise ConfigError(
        f"input[{position}] has the content part {excerpt(part)}; expected input_text, output_text, refusal, or input_image with "
        "an image_url"
    )
