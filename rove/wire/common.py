"""Functions shared by the wire modules: read the parts of messages, build requests and responses."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rove.core.errors import ConfigError, EmptyModelResponseError, InvalidModelResponseError, as_json, excerpt
from rove.core.messages import AssistantMessage, text_of
from rove.core.plain import JsonMapping, JsonObject, JsonValue
from rove.core.protocols import Request, Response, SamplingParams
from rove.core.records import Usage

UNFINISHED = frozenset({"abort", "aborted", "cancelled", "error"})
"""Finish reasons that mean that the server, not the model, ended an answer."""
MAX_TOKENS = 10**9
"""Largest plausible token count of one response; a larger or negative count is treated as not reported."""
PRIVATE_FIELDS = frozenset({"sampled_text", "opened_reasoning", "responses_output", "anthropic_content"})
"""Fields of messages that only rove reads. They are not sent to other servers, which may refuse unknown fields."""
NO_ARGUMENTS = {"type": "object", "properties": {}}
"""JSON schema of a function without arguments; chat tools may omit it, but other APIs require it."""

_ONLY_COMPLETIONS = (
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "stop_token_ids",
    "min_tokens",
    "ignore_eos",
    "structured_outputs",
)
"""Sampling parameters that only (chat) completions APIs have."""


class Function(msgspec.Struct):
    """The function inside a tool call."""

    name: str
    arguments: str = ""
    """JSON text as the model wrote it, possibly invalid."""


class ToolCall(msgspec.Struct):
    """A tool call of an assistant message in its chat form."""

    id: str
    function: Function


def tool_call(id: str, name: str, arguments: str) -> JsonObject:
    """Return a tool call in chat form, for `tool_calls` of a message."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool_calls_of(message: JsonMapping) -> list[ToolCall]:
    """Return the tool calls of a message."""
    try:
        return msgspec.convert(message.get("tool_calls") or [], list[ToolCall])
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"tool_calls {excerpt(message['tool_calls'])}: {error}; expected a list like "
            f"{excerpt([tool_call('call_1', 'add', '{}')])}"
        ) from error


def function_of(tool: JsonMapping) -> JsonObject | None:
    """Return the function of a chat tool definition; None for a tool of another type (an API's own)."""
    if tool.get("type", "function") != "function":
        return None
    function = tool.get("function")
    if not isinstance(function, dict) or not is_text(function.get("name")):
        raise ConfigError(
            f"tool {excerpt(tool)} describes no function; expected "
            '{"type": "function", "function": {"name": …, "description": …, "parameters": …}}'
        )
    return function


def parts_of(message: JsonMapping) -> list[JsonObject]:
    """Return the content of a message as content parts; a plain text is one text part."""
    content = message.get("content")
    parts = [content] if isinstance(content, str) else content or []
    if not isinstance(parts, list) or not all(isinstance(part, str | dict) for part in parts):
        raise ConfigError(f"message content {excerpt(content)}; expected a text or a list of content parts")
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]


def text_or_refusal(part: JsonMapping) -> str | None:
    """Return the text of a text or refusal part; None for a part of another type."""
    kind = part.get("type")
    return text_in(part, kind) if kind in ("text", "refusal") else None


def text_in(part: JsonMapping, *path: str) -> str:
    """Return the text at a path inside a content part."""
    value: JsonValue = part
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    if not isinstance(value, str):
        raise ConfigError(f"content part {excerpt(part)} has no {'.'.join(path)}")
    return value


def unsendable(part: JsonMapping, api: str, supported: str) -> ConfigError:
    """Return the error for a content part that an API does not support; `supported` lists the parts that it supports."""
    return ConfigError(f"{api} cannot take the content part {excerpt(part)}; expected {supported}")


def is_unedited(message: JsonMapping, text: str, tool_calls: list[JsonObject]) -> bool:
    """Return whether a message still has this text and these tool calls."""
    return text_of(message) == text and (message.get("tool_calls") or []) == tool_calls


def sampling_fields(sampling: SamplingParams) -> JsonObject:
    """Return sampling parameters under the names of (chat) completions APIs; some are None.

    Parameters unknown to OpenAI have the names of vLLM and SGLang. `logprobs` is left out because the chat
    completions API and the completions API define it differently.
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
    """Return the name of the tool that must be called; None if any tool may be called."""
    if request.tool_choice is None:
        return None
    names, num_tools = request.tool_choice.names, len(request.tools or [])
    if len(names) == 1:
        return names[0]
    if 0 < len(names) < num_tools:  # the APIs can require one tool or any tool, but not one of several
        raise ConfigError(f"tool_choice allows {', '.join(names)} of {num_tools} tools; expected one, or all")
    return None


def forces_one_call(request: Request) -> bool:
    """Return whether exactly one tool call is required."""
    return request.tool_choice is not None and not request.tool_choice.parallel


def refuse_unsupported(request: Request, api: str, *names: str) -> None:
    """Refuse sampling parameters and template arguments that an API lacks, because the answer would differ without them.

    `names` lists parameters that this API lacks in addition to the parameters that only (chat) completions APIs have.
    """
    neutral_values = {"top_k": (0, -1), "repetition_penalty": (1,)}
    for name in (*names, *_ONLY_COMPLETIONS):
        value = getattr(request.sampling_params, name)
        if value and value not in neutral_values.get(name, ()):
            raise ConfigError(
                f"{name} is {value!r}; expected none, {api} has no such argument: leave it out or use chat "
                "completions (fields that only one server supports go into extra)"
            )
    if request.chat_template_kwargs or not request.add_generation_prompt:
        name = "chat_template_kwargs" if request.chat_template_kwargs else "add_generation_prompt"
        raise ConfigError(f"{name} is given, but {api} has no such argument; leave it out or use chat completions")


def build_response(body: object, text: str, usage: Usage, finish_reason: str, **fields: Any) -> Response:
    """Return a response with this text and the message fields that are not empty.

    An empty answer is a valid answer with the text "", as it is for a local model. Otherwise, a model that stays silent
    on hard examples would benefit, because these examples would not count. Tool calls get the form of
    `normalized_calls`.
    """
    message_fields = {name: value for name, value in fields.items() if value}
    if "tool_calls" in message_fields:
        message_fields["tool_calls"] = normalized_calls(message_fields["tool_calls"])
    if finish_reason in UNFINISHED and not text and not message_fields:
        raise EmptyModelResponseError(
            f"the answer is empty and ended with '{finish_reason}'; expected an answer that the model ended: check the "
            f"server's log. Given: {excerpt(body)}"
        )
    if finish_reason in UNFINISHED:
        raise InvalidModelResponseError(
            f"the server broke the answer off ('{finish_reason}'); expected an answer that the model ended. "
            f"Given: {excerpt(body)}"
        )
    # Next to tool calls an empty text is null, as chat servers send and expect it; alone it must be a text.
    empty_text = None if "tool_calls" in message_fields else ""
    message = AssistantMessage(text or empty_text, **message_fields)
    return Response(message, usage, finish_reason)


def normalized_calls(calls: Sequence[object]) -> list[JsonObject]:
    """Return the tool calls of a server in chat form; their ids and arguments may have any form.

    Servers make the ids, which do not change what the model called. A missing, null, empty or repeated id is replaced
    by a new one, because the next request must distinguish the calls; a number becomes a text. Arguments become JSON
    text: an object is encoded, and null means no arguments. A text is not changed, even if it is not JSON; the
    environment then reports the error to the model. Unknown fields are kept.
    """
    # Models do not choose ids, so a missing or repeated one is not their fault (docs/decisions/tools.md).
    server_ids = {_id_text(call.get("id")) for call in calls if isinstance(call, Mapping)}
    new_ids = (id for id in _new_ids(calls) if id not in server_ids)
    used_ids: set[str] = set()
    normalized: list[JsonObject] = []
    for call in calls:
        if not isinstance(call, Mapping):
            raise InvalidModelResponseError(
                f"tool call {excerpt(call)}; expected an object like {excerpt(tool_call('call_1', 'add', '{}'))}"
            )
        id = _id_text(call.get("id"))
        if not id or id in used_ids:
            id = next(new_ids)
        used_ids.add(id)
        kind = call.get("type") or "function"
        normalized.append({**call, "id": id, "type": kind, "function": _function(call)})
    return normalized


def _id_text(id: object) -> str:
    """Return the id of a call as text; "" if it has none."""
    if isinstance(id, int) and not isinstance(id, bool):
        return str(id)
    return id if isinstance(id, str) else ""


def _new_ids(calls: Sequence[object]) -> Iterator[str]:
    """Yield ids for the calls of a message; equal messages get equal ids."""
    digest = hashlib.sha1(as_json(list(calls)).encode(errors="replace"), usedforsecurity=False).hexdigest()
    for number in itertools.count():
        # Mistral's templates require nine letters or digits.
        yield hashlib.sha1(f"{number} {digest}".encode(), usedforsecurity=False).hexdigest()[:9]


def _function(call: JsonMapping) -> JsonObject:
    """Return the function of a call, with its name and arguments as texts; some servers put both next to the id."""
    function = call.get("function")
    if not isinstance(function, Mapping):
        function = {"name": call.get("name"), "arguments": call.get("arguments")}
    name = function.get("name")
    return {
        **function,
        "name": name if isinstance(name, str) else "",
        "arguments": arguments_text(function.get("arguments")),
    }


def arguments_text(arguments: object) -> str:
    """Return the arguments of a call as JSON text; null means no arguments."""
    if arguments is None:
        return "{}"
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()


def finish_reason(hit_limit: bool, tool_calls: object) -> str:
    """Return the finish reason of an answer; a length limit takes precedence, because it may have cut the tool calls."""
    if hit_limit:
        return "length"
    return "tool_calls" if tool_calls else "stop"


def without_none(fields: JsonObject) -> JsonObject:
    """Return a copy without the fields that are None."""
    return {name: value for name, value in fields.items() if value is not None}


def is_text(value: object) -> bool:
    """Return whether a value is a text that is not empty."""
    return isinstance(value, str) and value != ""


def count(usage: object, name: str) -> int:
    """Return a token count of a server's usage; 0 if it is missing or impossible (see `MAX_TOKENS`)."""
    # Usage comes from any server, and one wrong number must not make a paid answer fail.
    value = usage.get(name) if isinstance(usage, dict) else None
    if not isinstance(value, int) or isinstance(value, bool):
        return 0
    return value if 0 <= value <= MAX_TOKENS else 0
