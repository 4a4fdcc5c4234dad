"""The client side of Anthropic's Messages API. Pure functions without network access."""

from __future__ import annotations

import msgspec

from rove.core.errors import ConfigError, InvalidModelResponseError, excerpt
from rove.core.plain import JsonMapping, JsonObject, JsonValue
from rove.core.protocols import Request, Response
from rove.core.records import Usage
from rove.wire.common import (
    NO_ARGUMENTS,
    ToolCall,
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

API_VERSION = "2023-06-01"
"""The `anthropic-version` for which these bodies are written. From 2026-10-21 on, temperature and top_p are refused."""

DEFAULT_MAX_TOKENS = 16_384
"""Length limit that is sent if a request has no limit, because the API requires a limit. Every current model accepts it, it
leaves space for reasoning, and an answer of this length ends within a client's usual timeout."""

CONTENT = "anthropic_content"
"""Key of an assistant message with the content blocks of an answer that the other fields cannot represent."""

_INSTRUCTIONS = ("system", "developer")
_THINKING = ("thinking", "redacted_thinking")


class _Text(msgspec.Struct):
    text: str


class _Thinking(msgspec.Struct):
    thinking: str


class _ToolUse(msgspec.Struct):
    id: JsonValue = None
    name: JsonValue = None
    input: JsonValue = None


class _Message(msgspec.Struct):
    content: list[JsonObject]
    stop_reason: str | None = None
    stop_details: JsonValue = None
    usage: JsonValue = None


def request_body(request: Request) -> JsonObject:
    """Return the JSON body of a Messages request, to be sent with `anthropic-version: API_VERSION`.

    - System and developer messages become the top-level `system`: few models accept them inside a conversation.
    - Tool results are content of the user; adjacent messages of one role are joined; blank texts, which the API refuses, and
      empty messages are left out.
    - An unedited assistant message of this API is sent back block by block, as signed thinking requires.
    - Tools that are not functions are the API's own and are sent unchanged.
    - `max_tokens` defaults to `DEFAULT_MAX_TOKENS`. `sampling_params.seed`, log-probabilities and a part's `detail` are not
      sent. `sampling_params.extra` takes precedence; None in it removes a field.
    """
    refuse_unsupported(request, "Anthropic's Messages API", "response_format")
    system: list[JsonObject] = []
    turns: list[JsonObject] = []
    for message in request.messages:
        role, blocks = _turn(message)
        if role == "system":
            system += blocks
        elif turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    sampling = request.sampling_params
    if sampling.max_tokens == 0:  # a request that only scores its prompt
        raise ConfigError("max_tokens is 0; expected 1 or more: Anthropic's Messages API always generates")
    body: JsonObject = {
        "model": request.model or None,
        "max_tokens": DEFAULT_MAX_TOKENS if sampling.max_tokens is None else sampling.max_tokens,
        "system": system or None,
        "messages": turns,
        "tools": [_tool(tool) for tool in request.tools or []] or None,
        "tool_choice": _tool_choice(request),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": None if sampling.top_k in (0, -1) else sampling.top_k,
        "stop_sequences": sampling.stop or None,
        **sampling.extra,
    }
    return without_none(body)


def _tool_choice(request: Request) -> JsonObject | None:
    if request.tool_choice is None:
        return None
    name = only_tool(request)
    choice: JsonObject = {"type": "any"} if name is None else {"type": "tool", "name": name}
    if forces_one_call(request):
        choice["disable_parallel_tool_use"] = True
    return choice


def read_response(body: object) -> Response:
    """Return the answer in a decoded Messages response.

    Text blocks are joined, thinking becomes `reasoning_content`, tool use becomes `tool_calls` in chat form. If that loses
    information (signatures, redacted thinking, the API's own tools), `CONTENT` has the original blocks for the next
    request. `refusal` has the API's explanation. Cached prompt tokens count as prompt tokens; missing usage counts as 0.
    """
    try:
        message = msgspec.convert(body, _Message)
        blocks = message.content
        text, calls = _text(blocks), _tool_calls(blocks)
        thinking = [msgspec.convert(block, _Thinking).thinking for block in blocks if block.get("type") == "thinking"]
    except msgspec.ValidationError as error:
        raise InvalidModelResponseError(f"not an Anthropic message ({error}): {excerpt(body)}") from error
    # This API counts cached prompt tokens apart from the others.
    prompt_counts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    prompt_tokens = sum(count(message.usage, name) for name in prompt_counts)
    hit_limit = message.stop_reason in ("max_tokens", "model_context_window_exceeded")
    return build_response(
        body,
        text,
        Usage(prompt_tokens, count(message.usage, "output_tokens")),
        finish_reason(hit_limit, calls),
        tool_calls=calls,
        reasoning_content="\n\n".join(filter(None, thinking)),
        refusal=_refusal(message.stop_details) if message.stop_reason == "refusal" else None,
        **{CONTENT: blocks if _needs_original(blocks) else None},
    )


def _turn(message: JsonMapping) -> tuple[str, list[JsonObject]]:
    """Return the role of the turn that a message belongs to, or "system", and the message's blocks."""
    role = message.get("role")
    if role == "assistant":
        return "assistant", _from_assistant(message)
    blocks = _without_blanks([_block(part) for part in parts_of(message)])
    if role == "tool":
        result = {"type": "tool_result", "tool_use_id": message.get("tool_call_id", ""), "content": blocks or None}
        return "user", [without_none(result)]
    return "system" if role in _INSTRUCTIONS else "user", blocks


def _from_assistant(message: JsonMapping) -> list[JsonObject]:
    original = message.get(CONTENT)
    # Signatures hold for the original blocks only: an edited message is sent without its thinking.
    if original and is_unedited(message, _text(original), _tool_calls(original)):
        return _without_blanks(original)
    blocks = _without_blanks([_block(part) for part in parts_of(message)])
    if not blocks and is_text(message.get("refusal")):
        blocks = [{"type": "text", "text": message["refusal"]}]
    return blocks + [_tool_use(call) for call in tool_calls_of(message)]


def _block(part: JsonObject) -> JsonObject:
    text = text_or_refusal(part)
    if text is not None:
        return {"type": "text", "text": text}
    if part.get("type") == "image_url":
        return {"type": "image", "source": _source(part, text_in(part, "image_url", "url"))}
    raise unsendable(part, "Anthropic's Messages API", "text or image_url")


def _source(part: JsonObject, url: str) -> JsonObject:
    head, _, data = url.partition(",")
    media_type, *options = head.removeprefix("data:").split(";")
    if head.startswith("data:") and media_type and "base64" in options:
        return {"type": "base64", "media_type": media_type, "data": data}
    if url.startswith(("http://", "https://")):
        return {"type": "url", "url": url}
    raise unsendable(part, "Anthropic's Messages API", "a URL like data:image/png;base64,… or https://…")


def _tool_use(call: ToolCall) -> JsonObject:
    text = call.function.arguments
    try:
        arguments = msgspec.json.decode(text.strip() or "{}", type=JsonObject)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"arguments of tool call {call.id!r} are {excerpt(text)} ({error}); expected the text of a JSON object, "
            "Anthropic's Messages API accepts nothing else: correct or remove the call"
        ) from error
    return {"type": "tool_use", "id": call.id, "name": call.function.name, "input": arguments}


def _tool(tool: JsonObject) -> JsonObject:
    function = function_of(tool)
    if function is None:
        return tool
    return without_none(
        {
            "name": function["name"],
            "description": function.get("description"),
            "input_schema": function.get("parameters") or NO_ARGUMENTS,
            "strict": function.get("strict"),
        }
    )


def _text(blocks: list[JsonObject]) -> str:
    return "".join(msgspec.convert(block, _Text).text for block in blocks if block.get("type") == "text")


def _tool_calls(blocks: list[JsonObject]) -> list[JsonObject]:
    uses = [msgspec.convert(block, _ToolUse) for block in blocks if block.get("type") == "tool_use"]
    return [tool_call(use.id, use.name, arguments_text(use.input)) for use in uses]


def _refusal(details: object) -> str:
    if isinstance(details, dict):
        for name in ("explanation", "category"):
            if is_text(details.get(name)):
                return details[name]
    return "no reason given"


def _needs_original(blocks: list[JsonObject]) -> bool:
    """Return whether to keep the original blocks: true if the message's other fields lose information and the API
    accepts the blocks.
    """
    kinds = [block.get("type") for block in _without_blanks(blocks)]
    if all(kind in ("text", "tool_use") for kind in kinds):
        return False
    return kinds[-1] not in _THINKING  # the API refuses messages that end with thinking


def _without_blanks(blocks: list[JsonObject]) -> list[JsonObject]:
    """Return the blocks without blank texts, which the API sends but does not accept."""

    def is_blank(block: JsonObject) -> bool:
        return block.get("type") == "text" and not block["text"].strip()

    return [block for block in blocks if not is_blank(block)]
