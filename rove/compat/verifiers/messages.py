"""v0's chat messages, and how they become rove's and come back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rove.compat.verifiers.models import Model, plain
from rove.core.messages import Message as RoveMessage

Messages = list[Any]
"""Messages as in `Message`; plain dicts are accepted everywhere."""


class TextContentPart(Model):
    """Text in a content."""

    defaults: ClassVar = {"type": "text", "text": ""}


class ImageUrlSource(Model):
    """Where an image is."""

    required = ("url",)


class ImageUrlContentPart(Model):
    """An image in a content."""

    defaults: ClassVar = {"type": "image_url", "image_url": None}

    def __init__(self, **values: Any):
        super().__init__(**values)
        self["image_url"] = ImageUrlSource.model_validate(self["image_url"])


class InputAudioSource(Model):
    """Sound, in base64."""

    required = ("data", "format")


class InputAudioContentPart(Model):
    """Sound in a content."""

    defaults: ClassVar = {"type": "input_audio", "input_audio": None}

    def __init__(self, **values: Any):
        super().__init__(**values)
        self["input_audio"] = InputAudioSource.model_validate(self["input_audio"])


class GenericContentPart(Model):
    """Any other part of a content."""

    required = ("type",)


_PARTS: dict[Any, type[Model]] = {
    "text": TextContentPart,
    "image_url": ImageUrlContentPart,
    "input_audio": InputAudioContentPart,
}


class ToolCall(Model):
    """A model's call of a tool; `arguments` is JSON.

    OpenAI's form can be read too, as packages for 0.1.2 to 0.1.10 do: `call.function.name`, `call["function"]["name"]`.
    """

    required = ("id", "name", "arguments")

    def __missing__(self, key: str) -> Any:
        if key == "function":
            return Model(name=self["name"], arguments=self["arguments"])
        if key == "type":
            return "function"
        raise KeyError(key)

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or `default`."""
        return self[key] if key in self or key in ("function", "type") else default


class FormerToolCall(ToolCall):
    """A call as packages that are written for 0.1.2 to 0.1.10 get it: `model_dump` has OpenAI's form."""

    def model_dump(self, exclude_none: bool = False, **ignored: Any) -> dict[str, Any]:
        """The call in OpenAI's form."""
        function = {"arguments": self["arguments"], "name": self["name"]}
        return {"id": self["id"], "function": function, "type": "function"}


def former_messages(messages: Any) -> Any:
    """Messages without the fields that are None, as they were before 0.1.11: `"tool_calls" in message` holds where there
    are calls. The content of an assistant message is a text."""
    if not isinstance(messages, list):
        return messages
    return [_former_message(message) if isinstance(message, Model) else message for message in messages]


def _former_message(message: Model) -> Model:
    made = message.copy()
    if made.get("role") == "assistant" and made.get("content") is None:
        made["content"] = ""
    if made.get("tool_calls"):
        made["tool_calls"] = [FormerToolCall(**call) for call in made["tool_calls"]]
    for name in [name for name, value in made.items() if value is None or (name == "tool_calls" and not value)]:
        del made[name]
    return made


class _ChatMessage(Model):
    def __init__(self, **values: Any):
        super().__init__(**values)
        content = self["content"]
        if isinstance(content, (list, tuple)):
            self["content"] = [_part(part) for part in content]
        elif not isinstance(content, str) and (content is not None or "content" in self.required):
            raise ValueError(f"content of a {self['role']} message is {content!r}; expected a text or a list of parts")

    @classmethod
    def order(cls) -> tuple[str, ...]:
        return ("role", *(name for name in super().order() if name != "role"))


def _part(part: Any) -> Any:
    kind = _PARTS.get(part.get("type")) if isinstance(part, Mapping) else None
    return part if kind is None else kind.model_validate(part)


class TextMessage(_ChatMessage):
    """A raw text, for completion endpoints."""

    required = ("content",)
    defaults: ClassVar = {"role": "text"}

    def __init__(self, **values: Any):
        super().__init__(**values)
        if not isinstance(self["content"], str):
            raise ValueError(f"content of a text message is {self['content']!r}; expected a text")


class SystemMessage(_ChatMessage):
    """Instructions to the model."""

    required = ("content",)
    defaults: ClassVar = {"role": "system"}

    @classmethod
    def from_path(cls, path: str | Path) -> SystemMessage:
        """The text of a file as instructions."""
        return cls(content=Path(path).read_text(encoding="utf-8"))


class UserMessage(_ChatMessage):
    """What the environment says."""

    required = ("content",)
    defaults: ClassVar = {"role": "user"}


class AssistantMessage(_ChatMessage):
    """What the model says."""

    defaults: ClassVar = {
        "role": "assistant",
        "content": None,
        "reasoning_content": None,
        "thinking_blocks": None,
        "tool_calls": None,
    }

    def __init__(self, **values: Any):
        super().__init__(**values)
        if self["tool_calls"] is not None:
            self["tool_calls"] = [ToolCall.model_validate(call) for call in self["tool_calls"]]


class ToolMessage(_ChatMessage):
    """What a tool returned."""

    required = ("tool_call_id", "content")
    defaults: ClassVar = {"role": "tool"}


Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage | TextMessage

_ROLES: dict[Any, type[Model]] = {
    "text": TextMessage,
    "system": SystemMessage,
    "user": UserMessage,
    "assistant": AssistantMessage,
    "tool": ToolMessage,
}


def from_raw_message(message: Mapping[str, Any]) -> Any:
    """A message of v0's from a dict, whose tool calls may be in OpenAI's form.

    Raises:
        ValueError: its role is unknown, or it lacks a field.
    """
    kind = _ROLES.get(message.get("role"))
    if kind is None:
        raise ValueError(f"Unknown role: {message.get('role')!r}; expected one of {', '.join(_ROLES)}")
    values = dict(message)
    if kind is AssistantMessage and isinstance(values.get("tool_calls"), list):
        values["tool_calls"] = [_flat_call(call) for call in values["tool_calls"]]
    return kind(**values)


def _flat_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if isinstance(call, Mapping) and "name" in call and "arguments" in call:
        return call
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        return call
    arguments, given = function.get("arguments"), call.get("id")
    if not isinstance(arguments, str):
        try:
            arguments = json.dumps({} if arguments is None else arguments)
        except (TypeError, ValueError):
            arguments = str(arguments)
    return ToolCall(
        id=given if isinstance(given, str) else function["name"], name=function["name"], arguments=arguments
    )


def normalize_messages(value: Any, *, field_name: str = "messages") -> Messages:
    """Messages of v0's from a text, dicts and messages.

    Raises:
        TypeError: one of them is something else.
        ValueError: as `from_raw_message`.
    """
    if isinstance(value, str):
        return [TextMessage(content=value)]
    made: Messages = []
    for message in value:
        if isinstance(message, tuple(_ROLES.values())):
            made.append(message)
        elif isinstance(message, Mapping):
            made.append(from_raw_message(message))
        elif hasattr(message, "role") and hasattr(message, "content"):
            made.append(message)
        else:
            raise TypeError(
                f"Invalid {field_name} item type: {type(message).__name__}. Expected vf.Message-like objects."
            )
    return made


def maybe_normalize_messages(value: Any, *, field_name: str = "messages") -> Messages:
    """`normalize_messages`, of what is not normal yet."""
    return normalize_messages(value, field_name=field_name)


def get_messages(messages: Sequence[Any], role: str | None = None) -> Messages:
    """The messages of a role, or all."""
    return [message for message in normalize_messages(messages) if role is None or message.role == role]


def message_role(message: Any) -> str | None:
    """Who says it; None where that is not told."""
    value = message.get("role") if isinstance(message, Mapping) else getattr(message, "role", None)
    return value if isinstance(value, str) else None


def concat_messages(messages_list: Iterable[Iterable[Any]]) -> Messages:
    """Several conversations, one after the other."""
    return [message for messages in messages_list for message in messages]


def sanitize_tool_calls(messages: Any) -> Any:
    """Messages whose tool calls are JSON texts; what is no list is returned as it is."""
    if not isinstance(messages, list):
        return messages
    return [_with_calls_as_json(message) for message in messages]


def _with_calls_as_json(message: Any) -> Any:
    get = message.get if isinstance(message, Mapping) else lambda name: getattr(message, name, None)
    given = get("tool_calls")
    if not given:
        return message
    calls = [call if isinstance(call, str) else _dumped(call) for call in given]
    made = {"role": get("role"), "content": get("content") or "", "tool_calls": calls}
    if isinstance(get("reasoning_content"), str):
        made["reasoning_content"] = get("reasoning_content")
    return made


def _dumped(call: Any) -> str:
    dump = getattr(call, "model_dump", None)
    return json.dumps(call if dump is None else dump(exclude_none=True))


def content_text(content: Any, between: str = " ") -> str:
    """The text of a content: itself, or its text parts; "" of anything else."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = [part.get("text") for part in content if isinstance(part, Mapping) and part.get("type") == "text"]
    return between.join(part for part in parts if isinstance(part, str)).strip()


def messages_to_printable(messages: Any) -> Any:
    """Messages whose images and sounds are told in a word."""
    return messages if isinstance(messages, str) else [message_to_printable(message) for message in messages or []]


def message_to_printable(message: Any) -> Any:
    """A message whose images and sounds are told in a word."""
    if not isinstance(message, Mapping) or not isinstance(message.get("content"), list):
        return message
    words = {"image_url": "[image]", "input_audio": "[audio]", "audio": "[audio]"}
    said = [
        part.get("text") if part.get("type") == "text" else words.get(str(part.get("type")))
        for part in message["content"]
        if isinstance(part, Mapping)
    ]
    told = {"role": message.get("role"), "content": " ".join(text for text in said if isinstance(text, str)).strip()}
    more = {name: message.get(name) for name in ("reasoning_content", "tool_calls")}
    return told | {name: value for name, value in more.items() if value is not None}


def to_rove(messages: Iterable[Any]) -> list[RoveMessage]:
    """Messages in the OpenAI wire form, as v0's clients send them: role, content and what the role has beside it."""
    return [_wire(message) for message in normalize_messages(list(messages))]


def _wire(message: Any) -> RoveMessage:
    role = message["role"] if isinstance(message, Mapping) else message.role
    get = message.get if isinstance(message, Mapping) else lambda name: getattr(message, name, None)
    made = RoveMessage(role="user" if role == "text" else role, content=plain(get("content")))
    if role == "assistant":
        calls = get("tool_calls")
        if calls is not None:
            made["tool_calls"] = [
                {"type": "function", "id": c["id"], "function": {"name": c["name"], "arguments": c["arguments"]}}
                for c in calls
            ]
        if get("reasoning_content") is not None:
            made["reasoning_content"] = get("reasoning_content")
    elif role == "tool":
        made["tool_call_id"] = get("tool_call_id")
    return made
