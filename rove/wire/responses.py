"""The client side of OpenAI's Responses API. Pure functions without network access.

The client is stateless: every request contains the whole conversation, and the server stores nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

import msgspec

from rove.core.errors import InvalidModelResponseError, ModelError, excerpt
from rove.core.plain import JsonMapping, JsonObject, JsonValue
from rove.core.protocols import Request, Response
from rove.core.records import Usage
from rove.wire.common import (
    NO_ARGUMENTS,
    arguments_text,
    build_response,
    count,
    finish_reason,
    forces_one_call,
    function_of,
    is_text,
    is_unedited,
    only_tool,
    parts_of,
    refuse_unsupported,
    text_in,
    text_or_refusal,
    tool_call,
    tool_calls_of,
    unsendable,
    without_none,
)

OUTPUT = "responses_output"
"""Key of an assistant message with the output items of an answer that the other fields cannot represent."""


class _FunctionCall(msgspec.Struct):
    call_id: JsonValue = None
    id: JsonValue = None
    name: JsonValue = None
    arguments: JsonValue = None


class _Text(msgspec.Struct):
    text: str


class _Refusal(msgspec.Struct):
    refusal: str


class _Message(msgspec.Struct):
    content: list[JsonObject]


class _Reasoning(msgspec.Struct):
    summary: list[_Text] = []
    content: list[_Text] | None = None
    encrypted_content: str | None = None


class _Result(msgspec.Struct):
    output: list[JsonObject] | None = None
    status: str | None = None
    error: JsonValue = None
    incomplete_details: JsonValue = None
    usage: JsonValue = None


def request_body(request: Request) -> JsonObject:
    """Return the JSON body of a Responses request.

    - System and developer messages stay input items, since `instructions` preserves neither their order nor their parts.
    - An unedited assistant message of this API is sent back item by item, as encrypted reasoning requires.
    - Functions are sent with `strict: false` by default, as in chat completions: otherwise, this API rewrites the
      functions' schemas. Tools of another type are the API's own and are sent unchanged.
    - `response_format` is sent as `text.format`, `logprobs` as `top_logprobs`; `store` is false. `seed`, `prompt_logprobs` and a
      message's `name` are not sent. `sampling_params.extra` takes precedence; None in it removes a field.
    - Encrypted reasoning is not requested, since models without reasoning refuse such a request and OpenAI sends it
      anyway. For a server that sends it only on request, set `extra={"include": ["reasoning.encrypted_content"]}`.
    """
    sampling = request.sampling_params
    refuse_unsupported(request, "OpenAI's Responses API", "stop", "top_k")
    body: JsonObject = {
        "model": request.model or None,
        "input": list(chain.from_iterable(map(_items, request.messages))),
        "tools": [_tool(tool) for tool in request.tools or []] or None,
        "tool_choice": _tool_choice(request),
        "parallel_tool_calls": False if forces_one_call(request) else None,
        "temperature": sampling.temperature,
        "max_output_tokens": sampling.max_tokens,
        "top_p": sampling.top_p,
        "text": {"format": _format(sampling.response_format)} if sampling.response_format else None,
        "top_logprobs": sampling.logprobs or None,
        "include": None if sampling.logprobs is None else ["message.output_text.logprobs"],
        "store": False,
        **sampling.extra,
    }
    return without_none(body)


def _tool_choice(request: Request) -> str | JsonObject | None:
    if request.tool_choice is None:
        return None
    name = only_tool(request)
    return "required" if name is None else {"type": "function", "name": name}


def _format(response_format: JsonMapping) -> JsonObject:
    """Return chat's `response_format` in this API's form, with the schema next to the type."""
    named_schema = response_format.get("json_schema")
    fields = named_schema if isinstance(named_schema, Mapping) else {}
    return {"type": response_format.get("type"), **fields}


def read_response(body: object) -> Response:
    """Return the answer in a decoded Responses object.

    Output texts are joined, function calls become `tool_calls` in chat form, reasoning or its summary becomes
    `reasoning_content`. If that loses information (encrypted reasoning, the API's own tools, the phase of a message), `OUTPUT`
    has the original items for the next request. Missing usage counts as 0 tokens.
    """
    try:
        result = msgspec.convert(body, _Result)
        items = result.output or []
        text, calls = _text(items), _tool_calls(items)
        refusal = "".join(msgspec.convert(part, _Refusal).refusal for part in _parts(items, "refusal"))
        reasoning = [msgspec.convert(item, _Reasoning) for item in items if item.get("type") == "reasoning"]
    except msgspec.ValidationError as error:
        raise InvalidModelResponseError(f"not an OpenAI response ({error}): {excerpt(body)}") from error
    if result.status == "failed":  # this API reports failures with HTTP 200
        raise ModelError(f"the server failed to answer: {excerpt(result.error or body)}")
    if result.output is None or result.status not in (None, "completed", "incomplete"):
        raise InvalidModelResponseError(f"not a finished OpenAI response: {excerpt(body)}")
    details = result.incomplete_details
    hit_limit = isinstance(details, dict) and details.get("reason") == "max_output_tokens"
    # OpenAI sends only a summary of the reasoning, servers of open models the reasoning itself.
    thoughts: list[str] = []
    for item in reasoning:
        thoughts += [part.text for part in item.content or item.summary]
    return build_response(
        body,
        text,
        Usage(count(result.usage, "input_tokens"), count(result.usage, "output_tokens")),
        finish_reason(hit_limit, calls),
        tool_calls=calls,
        reasoning_content="\n\n".join(filter(None, thoughts)),
        refusal=refusal,
        **{OUTPUT: items if _needs_original(items, reasoning) else None},
    )


def _items(message: JsonMapping) -> list[JsonObject]:
    role = message.get("role")
    if role == "assistant":
        return _from_assistant(message)
    if role == "tool":
        call_id = message.get("tool_call_id", "")
        return [{"type": "function_call_output", "call_id": call_id, "output": _content(message)}]
    return [{"role": role, "content": _content(message)}]


def _from_assistant(message: JsonMapping) -> list[JsonObject]:
    original = message.get(OUTPUT)
    if original and is_unedited(message, _text(original), _tool_calls(original)):
        return list(original)
    text = ""
    for part in parts_of(message):
        part_text = text_or_refusal(part)
        if part_text is None:
            raise unsendable(part, "OpenAI's Responses API", "text or refusal in an assistant message")
        text += part_text
    if not text and is_text(message.get("refusal")):
        text = message["refusal"]
    items: list[JsonObject] = [{"role": "assistant", "content": text}] if text else []
    for call in tool_calls_of(message):
        function = {"name": call.function.name, "arguments": call.function.arguments}
        items.append({"type": "function_call", "call_id": call.id, **function})
    return items


def _content(message: JsonMapping) -> str | list[JsonObject]:
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    return [_part(part, message.get("role") == "tool") for part in parts_of(message)]


def _part(part: JsonObject, is_tool_result: bool) -> JsonObject:
    text, kind = text_or_refusal(part), part.get("type")
    if text is not None:
        return {"type": "input_text", "text": text}
    if kind == "image_url":
        url = text_in(part, "image_url", "url")
        return {"type": "input_image", "image_url": url, "detail": part["image_url"].get("detail") or "auto"}
    if kind == "file" and isinstance(part.get("file"), dict):
        return {"type": "input_file", **part["file"]}
    if kind == "input_audio" and not is_tool_result:
        audio = {name: text_in(part, "input_audio", name) for name in ("data", "format")}
        return {"type": "input_audio", "input_audio": audio}
    raise unsendable(
        part, "OpenAI's Responses API", "text, image_url, file or (but not from a tool) input_audio in their chat form"
    )


def _tool(tool: JsonObject) -> JsonObject:
    function = function_of(tool)
    if function is None:
        return tool
    converted = {
        "type": "function",
        "name": function["name"],
        "description": function.get("description"),
        "parameters": function.get("parameters") or NO_ARGUMENTS,
        "strict": bool(function.get("strict")),
    }
    return without_none(converted)


def _parts(items: list[JsonObject], kind: str) -> list[JsonObject]:
    parts: list[JsonObject] = []
    for item in items:
        if item.get("type") == "message":
            content = msgspec.convert(item, _Message).content
            parts += [part for part in content if part.get("type") == kind]
    return parts


def _text(items: list[JsonObject]) -> str:
    return "".join(msgspec.convert(part, _Text).text for part in _parts(items, "output_text"))


def _tool_calls(items: list[JsonObject]) -> list[JsonObject]:
    calls = [msgspec.convert(item, _FunctionCall) for item in items if item.get("type") == "function_call"]
    return [tool_call(call.call_id or call.id, call.name, arguments_text(call.arguments)) for call in calls]


def _needs_original(items: list[JsonObject], reasoning: list[_Reasoning]) -> bool:
    """Return whether to keep the original items: true if the message's other fields lose information and the API
    accepts the items.
    """
    if all(item.get("type") in ("message", "function_call") and not item.get("phase") for item in items):
        return False
    # The API refuses reasoning without content, since the server stores nothing under its id, and reasoning at the end.
    if any(not item.encrypted_content and not item.content for item in reasoning):
        return False
    return items[-1].get("type") != "reasoning"
