"""What the wire modules share: reading our messages part by part, and building a response out of what was read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rove.core.errors import ConfigError, EmptyModelResponseError, InvalidModelResponseError, in_json
from rove.core.messages import AssistantMessage, text_of
from rove.core.protocols import Request, Response, SamplingParams
from rove.core.records import Usage

MAX_TOKENS = 10**9
"""Largest token count of one response that is believed; a larger or negative one counts as not reported."""
NO_ARGUMENTS = {"type": "object", "properties": {}}
"""JSON schema of a function without arguments; chat tools may leave it out, other APIs may not."""


class Function(msgspec.Struct):
    """The function inside a tool call."""

    name: str
    arguments: str = ""
    """JSON text, as the model wrote it: not always valid."""


class ToolCall(msgspec.Struct):
    """A tool call of an assistant message in its chat form."""

    id: str
    function: Function


def tool_call(id: str, name: str, arguments: str) -> dict[str, Any]:
    """A tool call in chat form, for `tool_calls` of a message."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool_calls_of(message: Mapping[str, Any]) -> list[ToolCall]:
    """The tool calls of a message, checked.

    Raises:
        ConfigError: they are not in chat form.
    """
    try:
        return msgspec.convert(message.get("tool_calls") or [], list[ToolCall])
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"tool_calls {excerpt(message['tool_calls'])}: {error}; expected a list like "
            f"{excerpt([tool_call('call_1', 'add', '{}')])}"
        ) from error


def function_of(tool: Mapping[str, Any]) -> dict[str, Any] | None:
    """The function that a chat tool definition describes; None for a tool of another type (an API's own).

    Raises:
        ConfigError: the definition has no function, or the function no name.
    """
    if tool.get("type", "function") != "function":
        return None
    function = tool.get("function")
    if not isinstance(function, dict) or not is_text(function.get("name")):
        raise ConfigError(
            f"tool {excerpt(tool)} describes no function; expected "
            '{"type": "function", "function": {"name": …, "description": …, "parameters": …}}'
        )
    return function


def parts_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The content of a message as content parts; a plain text is one text part, no content is none.

    Raises:
        ConfigError: the content is neither a text nor a list of parts.
    """
    content = message.get("content")
    parts = [content] if isinstance(content, str) else content or []
    if not isinstance(parts, list) or not all(isinstance(part, str | dict) for part in parts):
        raise ConfigError(f"message content {excerpt(content)}; expected a text or a list of content parts")
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]


def said(part: Mapping[str, Any]) -> str | None:
    """The words of a text or refusal part; None for a part of another type."""
    return text_in(part, part["type"]) if part.get("type") in ("text", "refusal") else None


def text_in(part: Mapping[str, Any], *path: str) -> str:
    """The text at this path inside a content part.

    Raises:
        ConfigError: there is none.
    """
    value: Any = part
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    if not isinstance(value, str):
        raise ConfigError(f"content part {excerpt(part)} has no {'.'.join(path)}")
    return value


def unsendable(part: Mapping[str, Any], api: str, known: str) -> ConfigError:
    """The error for a content part without a counterpart in an API, which does have those `known`."""
    return ConfigError(f"{api} cannot take the content part {excerpt(part)}; expected {known}")


def still_says(message: Mapping[str, Any], text: str, tool_calls: list[dict[str, Any]]) -> bool:
    """Whether nobody has edited these words and calls of a message."""
    return text_of(message) == text and (message.get("tool_calls") or []) == tool_calls


def sampling_fields(sampling: SamplingParams) -> dict[str, Any]:
    """How to sample, under the names that servers of (chat) completions know; some are None.

    Those that are not OpenAI's are vLLM's, SGLang's and others' at the top level of the body. Log-probabilities of the
    answer are missing: the two APIs ask for them in different ways.
    """
    bias = sampling.logit_bias
    return {
        "temperature": sampling.temperature,
        "max_tokens": sampling.max_tokens,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stop": sampling.stop,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "logit_bias": None if bias is None else {str(token): value for token, value in bias.items()},
        "stop_token_ids": sampling.stop_token_ids,
        "min_tokens": sampling.min_tokens,
        "ignore_eos": sampling.ignore_eos,
        "prompt_logprobs": sampling.prompt_logprobs,
        "response_format": sampling.response_format,
        "structured_outputs": sampling.structured_outputs,
    }


def only_tool(request: Request) -> str | None:
    """Return the name of the tool that must be called; None if any of them may be.

    Raises:
        ConfigError: some of several tools may be called, which the APIs cannot express.
    """
    names, count = request.tool_choice.names if request.tool_choice else (), len(request.tools or [])
    if len(names) == 1:
        return names[0]
    if 0 < len(names) < count:
        raise ConfigError(f"tool_choice allows {', '.join(names)} of {count} tools; expected one, or all")
    return None


def forces_one_call(request: Request) -> bool:
    """Whether exactly one tool call is required."""
    return request.tool_choice is not None and not request.tool_choice.parallel


def refuse_template_options(request: Request, api: str) -> None:
    """Refuse arguments of a chat template, which this API does not have.

    Raises:
        ConfigError: there is one.
    """
    if request.chat_template_kwargs or not request.add_generation_prompt:
        name = "chat_template_kwargs" if request.chat_template_kwargs else "add_generation_prompt"
        raise ConfigError(f"{name} is given, but {api} has no such argument; leave it out or use chat completions")


def refuse_sampling(sampling: SamplingParams, api: str, *names: str) -> None:
    """Refuse what an API does not have: without it the model would say something else than was asked for.

    Raises:
        ConfigError: one of these arguments is given and not off.
    """
    off = {"top_k": (0, -1), "repetition_penalty": (1,)}
    for name in names:
        value = getattr(sampling, name)
        if value and value not in off.get(name, ()):
            raise ConfigError(
                f"{name} is {value!r}; expected none, {api} has no such argument: leave it out or ask through chat "
                "completions (what a server has beyond the API goes into extra)"
            )


def answer(body: Any, text: str, usage: Usage, finish_reason: str, **fields: Any) -> Response:
    """The response with this text and those message fields that are not empty.

    Raises:
        InvalidModelResponseError: two tool calls have one id, so that nobody could tell their results apart.
        EmptyModelResponseError: there is neither text nor a field, and no length limit explains that.
    """
    told = {name: value for name, value in fields.items() if value}
    ids = [call["id"] for call in told.get("tool_calls", ())]
    if len(set(ids)) < len(ids):
        raise InvalidModelResponseError(f"two tool calls have the same id, out of {ids}: {excerpt(body)}")
    if not (text or told or finish_reason == "length"):
        raise EmptyModelResponseError(f"the answer has neither text nor tool calls: {excerpt(body)}")
    # Next to tool calls "no text" is null, as chat servers send it and expect it back; alone it must be a text.
    message = AssistantMessage(text or (None if "tool_calls" in told else ""), **told)
    return Response(message, usage, finish_reason)


def finish_reason(hit_limit: bool, tool_calls: Any) -> str:
    """Our name for why an answer ended; a length limit outweighs tool calls, which it may have cut."""
    return "length" if hit_limit else "tool_calls" if tool_calls else "stop"


def excerpt(value: Any, limit: int = 200) -> str:
    """The first `limit` characters of what was given, as JSON unless it is a text, on one line, for an error message."""
    if value is None or isinstance(value, bool | dict | list):
        value = in_json(value)
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    line = " ".join(text.split())
    return (line if len(line) <= limit else line[:limit] + "…") or "(nothing)"


def without_none(fields: dict[str, Any]) -> dict[str, Any]:
    """A copy without the fields that are None."""
    return {name: value for name, value in fields.items() if value is not None}


def is_text(value: Any) -> bool:
    """Whether this is a text that says something."""
    return isinstance(value, str) and value != ""


def count(usage: Any, name: str) -> int:
    """Return a token count of a server's usage; 0 if it is missing or impossible (see `MAX_TOKENS`)."""
    value = usage.get(name) if isinstance(usage, dict) else None
    if not isinstance(value, int) or isinstance(value, bool):
        return 0
    return value if 0 <= value <= MAX_TOKENS else 0
