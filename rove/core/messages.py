"""Chat messages in the OpenAI wire format, with access by `m["role"]` and `m.role`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from rove.core.errors import ConfigError, ToolParseError, short_repr
from rove.core.plain import Arguments, Content, JsonMapping, JsonValue, is_list, is_mapping, is_object

FIELDS = frozenset({"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "refusal"})
# "developer" is OpenAI's newer name for "system".
ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
QUOTED = 120
"""Maximum characters of model output in an error message."""


class Message(dict[str, Any]):
    """One chat message: a dict whose fields can also be read as attributes; a missing field reads as None.

    Example:
        >>> message = UserMessage("Hello")
        >>> message["role"], message.content, message.tool_calls
        ('user', 'Hello', None)
    """

    def __getattr__(self, name: str) -> Any:
        if name in FIELDS or name in self:
            return self.get(name)
        raise AttributeError(f"a message has no field '{name}'; its fields are {sorted(FIELDS | self.keys())}")

    def __setattr__(self, name: str, value: object) -> None:
        self[name] = value


class SystemMessage(Message):
    """Instructions for the model."""

    def __init__(self, content: Content = "", **fields: Any):
        super().__init__({"role": "system", **fields, "content": content})


class UserMessage(Message):
    """A message from the environment or the user."""

    def __init__(self, content: Content = "", **fields: Any):
        super().__init__({"role": "user", **fields, "content": content})


class AssistantMessage(Message):
    """A message from the model."""

    def __init__(self, content: Content = None, **fields: Any):
        super().__init__({"role": "assistant", **fields, "content": content})


def tool_call(tool: str, /, **arguments: JsonValue) -> AssistantMessage:
    """Return a message that calls a tool, for scripted policies.

    Example:
        >>> message = tool_call("price", fruit="pear")
        >>> message.tool_calls[0]["function"]
        {'name': 'price', 'arguments': '{"fruit": "pear"}'}
    """
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return AssistantMessage(None, tool_calls=[{"id": f"call_{tool}", "type": "function", "function": function}])


class ToolMessage(Message):
    """The result of the tool call `tool_call_id`."""

    def __init__(self, content: Content = "", tool_call_id: str = "", **fields: Any):
        super().__init__({"role": "tool", **fields, "content": content, "tool_call_id": tool_call_id})


Messages = list[Message]


def as_message(value: Mapping[str, object] | str, role: str = "user") -> Message:
    """Return a mapping, or a text with the role `role`, as a `Message`."""
    if isinstance(value, Message):
        return value
    if isinstance(value, str):
        return Message(role=role, content=value)
    message_role = value.get("role") if is_mapping(value) else None
    if not isinstance(message_role, str) or message_role not in ROLES:
        raise ConfigError(f"not a chat message: {short_repr(value)}; expected a dict with a 'role' in {sorted(ROLES)}")
    content = value.get("content")
    if is_list(content) and not all(isinstance(part, str) or is_mapping(part) for part in content):
        raise ConfigError(
            f"the content of a message is {short_repr(content)}; expected a text, or a list of texts and dicts"
        )
    return Message(value)


def as_messages(
    value: str | Mapping[str, object] | Iterable[Mapping[str, object] | str], role: str = "user"
) -> Messages:
    """Return a text, a message, or several messages as a list of messages; texts get the role `role`."""
    if isinstance(value, list):  # nearly always; asking whether a list is a mapping takes a third of the time
        items: Iterable[Any] = value
    elif isinstance(value, str) or is_mapping(value):
        items = [value]
    elif isinstance(value, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]  users pass anything
        items = value
    else:
        raise ConfigError(
            f"not chat messages: {short_repr(value)}; expected a text, a dict with a 'role', or a list of these"
        )
    return [item if isinstance(item, Message) else as_message(item, role) for item in items]


def text_of(message: JsonMapping) -> str:
    """Return the text of a message: its content, or its text parts joined; "" if there is none."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(part if isinstance(part, str) else str(part.get("text") or "") for part in content)


def call_id(call: object) -> str:
    """Return the id of a tool call; "" if it has no id."""
    identifier = call.get("id") if is_mapping(call) else None
    return identifier if isinstance(identifier, str) else ""


def call_name(call: object) -> str | None:
    """Return the function name of a tool call; None if it has no name."""
    function = call.get("function") if is_mapping(call) else None
    name = function.get("name") if is_mapping(function) else None
    return name if isinstance(name, str) and name else None


def call_arguments(call: JsonValue) -> Arguments:
    """Return the arguments of a tool call, given as a dict, as a JSON text, or as the JSON text of a JSON text. None,
    null and a blank text mean no arguments.
    """
    name = call_name(call)
    arguments = call["function"].get("arguments")
    if isinstance(arguments, str):
        arguments = _decoded(name, arguments)
    if isinstance(arguments, str) and arguments.lstrip().startswith("{"):  # some servers encode the text twice
        arguments = _decoded(name, arguments)
    if arguments is None:
        return {}
    if not is_object(arguments):
        kinds = {"list": "a list", "str": "a text", "int": "a number", "float": "a number"}
        type_name = type(arguments).__name__  # any: a scripted policy is Python code
        kind = kinds.get(type_name, f"a {type_name}")
        raise ToolParseError(f'the arguments of {name} are {kind}; expected a JSON object like {{"name": value}}')
    return arguments


def _decoded(name: str | None, text: str) -> JsonValue:
    """Return the JSON value of a text; None for a blank text."""
    if not text.strip():
        return None
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise ToolParseError(
            f"the arguments of {name} are not JSON ({cut_quotation(str(error))}): {cut_quotation(text)}; expected a JSON object"
        ) from error


def cut_quotation(text: str) -> str:
    """Return a text of the model, shortened to `QUOTED` characters, for an error message."""
    return text if len(text) <= QUOTED else text[:QUOTED] + "…"
