"""Our nouns as Anthropic Messages JSON, and that JSON as our nouns. Pure functions; no network here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rove.core.errors import ConfigError, InvalidModelResponseError
from rove.core.protocols import Request, Response
from rove.core.records import Usage
from rove.wire.common import (
    NO_ARGUMENTS,
    ToolCall,
    answer,
    count,
    excerpt,
    finish_reason,
    forces_one_call,
    function_of,
    is_text,
    only_tool,
    parts_of,
    refuse_sampling,
    refuse_template_options,
    said,
    still_says,
    text_in,
    tool_call,
    tool_calls_of,
    unsendable,
    without_none,
)

API_VERSION = "2023-06-01"
"""The `anthropic-version` these bodies are written for. From 2026-10-21 on, temperature and top_p are refused."""

DEFAULT_MAX_TOKENS = 16_384
"""Sent when a request names no limit, because the API demands one: every current model takes it, it leaves room to
think, and an answer of that length still ends within a client's usual timeout."""

CONTENT = "anthropic_content"
"""The key of an assistant message that holds an answer's content blocks, where they say what our fields cannot."""

_INSTRUCTIONS = ("system", "developer")
_THINKING = ("thinking", "redacted_thinking")
_LACKING = (
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "stop_token_ids",
    "min_tokens",
    "ignore_eos",
    "response_format",
    "structured_outputs",
)


class _Text(msgspec.Struct):
    text: str


class _Thinking(msgspec.Struct):
    thinking: str


class _ToolUse(msgspec.Struct):
    id: str
    name: str
    input: dict[str, Any] = {}


class _Message(msgspec.Struct):
    """The parts of an answer that we read."""

    content: list[dict[str, Any]]
    stop_reason: str | None = None
    stop_details: Any = None
    usage: Any = None


def request_body(request: Request) -> dict[str, Any]:
    """The JSON body of one Messages request, to be sent with `anthropic-version: API_VERSION`.

    System and developer messages become the top-level `system`, wherever they stand: few models take one in the middle
    of a conversation. Tool results are content of the user, and neighbours of one role become one message; texts
    without a visible character, which the API refuses, are left out, and so is a message with nothing else. An
    assistant message that came from this API and that nobody has edited since goes back block by block as it came
    (signed thinking must). Tools that are not functions are the API's own and pass as they are.

    `max_tokens` is `DEFAULT_MAX_TOKENS` where the request names none. `sampling.seed` and a part's `detail` have no
    counterpart and stay here, as do log-probabilities. Some models refuse `temperature` and `top_p`; they are sent if asked for.
    `sampling.extra` is merged in last and wins; None in it removes a field.

    Raises:
        ConfigError: a message holds what the API cannot take: audio, an image that is neither a base64 data URL nor a
            web address, tool arguments that are no JSON object; a tool is not in chat form; or the sampling has what the API
            does not: without it the model would say something else than was asked for.
    """
    refuse_sampling(request.sampling_params, "Anthropic's Messages API", *_LACKING)
    refuse_template_options(request, "Anthropic's Messages API")
    system: list[dict[str, Any]] = []
    turns: list[dict[str, Any]] = []
    for message in request.messages:
        role, blocks = _turn(message)
        if role == "system":
            system += blocks
        elif turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    sampling = request.sampling_params
    if sampling.max_tokens == 0:
        raise ConfigError("max_tokens is 0; expected 1 or more: Anthropic's Messages API always generates")
    body: dict[str, Any] = {
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


def _tool_choice(request: Request) -> dict[str, Any] | None:
    if request.tool_choice is None:
        return None
    name = only_tool(request)
    choice = {"type": "any"} if name is None else {"type": "tool", "name": name}
    return choice | ({"disable_parallel_tool_use": True} if forces_one_call(request) else {})


def read_response(body: Any) -> Response:
    """The answer inside a Messages response, given as decoded JSON.

    Text blocks are joined into one text, thinking into `reasoning_content`; tool use becomes `tool_calls` in chat form.
    Where that loses something (signatures, redacted thinking, the API's own tools) the blocks are also kept under
    `CONTENT`, for the next request. A refusal is kept as `refusal`, in the API's words. Cached prompt tokens count as
    prompt tokens, missing usage as 0.

    Raises:
        InvalidModelResponseError: this is not a Messages response.
        EmptyModelResponseError: it has no text, tool use, thinking or refusal, and no length limit explains that.
    """
    try:
        message = msgspec.convert(body, _Message)
        blocks = message.content
        text, calls = _text(blocks), _tool_calls(blocks)
        thinking = [msgspec.convert(block, _Thinking).thinking for block in blocks if block.get("type") == "thinking"]
    except msgspec.ValidationError as error:
        raise InvalidModelResponseError(f"not an Anthropic message ({error}): {excerpt(body)}") from error
    prompt_tokens = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return answer(
        body,
        text,
        Usage(sum(count(message.usage, name) for name in prompt_tokens), count(message.usage, "output_tokens")),
        finish_reason(message.stop_reason in ("max_tokens", "model_context_window_exceeded"), calls),
        tool_calls=calls,
        reasoning_content="\n\n".join(filter(None, thinking)),
        refusal=_refusal(message.stop_details) if message.stop_reason == "refusal" else None,
        **{CONTENT: blocks if _must_be_kept(blocks) else None},
    )


def _turn(message: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """Whose turn a message belongs to ("system": nobody's), and what it adds to it."""
    role = message.get("role")
    if role == "assistant":
        return role, _said_by_assistant(message)
    blocks = _without_blanks([_block(part) for part in parts_of(message)])
    if role == "tool":
        result = {"type": "tool_result", "tool_use_id": message.get("tool_call_id", ""), "content": blocks or None}
        return "user", [without_none(result)]
    return "system" if role in _INSTRUCTIONS else "user", blocks


def _said_by_assistant(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    kept = message.get(CONTENT)
    if kept and still_says(message, _text(kept), _tool_calls(kept)):
        return _without_blanks(kept)
    blocks = _without_blanks([_block(part) for part in parts_of(message)])
    if not blocks and is_text(message.get("refusal")):
        blocks = [{"type": "text", "text": message["refusal"]}]
    return blocks + [_tool_use(call) for call in tool_calls_of(message)]


def _block(part: dict[str, Any]) -> dict[str, Any]:
    words = said(part)
    if words is not None:
        return {"type": "text", "text": words}
    if part.get("type") == "image_url":
        return {"type": "image", "source": _source(part, text_in(part, "image_url", "url"))}
    raise unsendable(part, "Anthropic's Messages API", "text or image_url")


def _source(part: dict[str, Any], url: str) -> dict[str, Any]:
    head, _, data = url.partition(",")
    media_type, *options = head.removeprefix("data:").split(";")
    if head.startswith("data:") and media_type and "base64" in options:
        return {"type": "base64", "media_type": media_type, "data": data}
    if url.startswith(("http://", "https://")):
        return {"type": "url", "url": url}
    raise unsendable(part, "Anthropic's Messages API", "a URL like data:image/png;base64,… or https://…")


def _tool_use(call: ToolCall) -> dict[str, Any]:
    given = call.function.arguments
    try:
        arguments = msgspec.json.decode(given.strip() or "{}", type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"arguments of tool call {call.id!r} are {excerpt(given)} ({error}); expected the text of a JSON object, "
            "Anthropic's Messages API takes nothing else: mend or drop the call before it is sent"
        ) from error
    return {"type": "tool_use", "id": call.id, "name": call.function.name, "input": arguments}


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
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


def _text(blocks: list[dict[str, Any]]) -> str:
    return "".join(msgspec.convert(block, _Text).text for block in blocks if block.get("type") == "text")


def _tool_calls(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    uses = [msgspec.convert(block, _ToolUse) for block in blocks if block.get("type") == "tool_use"]
    return [tool_call(use.id, use.name, msgspec.json.encode(use.input).decode()) for use in uses]


def _refusal(details: Any) -> str:
    told = details if isinstance(details, dict) else {}
    return next((told[name] for name in ("explanation", "category") if is_text(told.get(name))), "no reason given")


def _must_be_kept(blocks: list[dict[str, Any]]) -> bool:
    """Whether our own fields do not say it all, and the API would take the blocks back."""
    types = [block.get("type") for block in _without_blanks(blocks)]
    plain = all(type in ("text", "tool_use") for type in types)
    return not (plain or types[-1] in _THINKING)  # a message must not end in a thought, such as one cut short


def _without_blanks(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The API writes texts without a visible character but refuses to read them."""
    return [block for block in blocks if block.get("type") != "text" or block["text"].strip()]
