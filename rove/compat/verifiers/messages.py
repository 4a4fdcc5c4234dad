"""v0's models and chat messages, and their conversion to rove's messages."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from rove.core.messages import Message as RoveMessage

ModelT = TypeVar("ModelT", bound="Model")


class Model(dict[str, Any]):
    """A dict with declared fields that, like v0's pydantic models, has attributes, `model_dump` and similar methods.

    All declared fields are present: `"tool_calls" in message` is true for every assistant message.
    docs/decisions/compat.md explains why it is a dict.

        call = ToolCall(id="1", name="add", arguments="{}")
        call.name == call["name"] == call.get("name")

    Raises:
        ValueError: a required field is missing.
    """

    required: ClassVar[tuple[str, ...]] = ()
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Defaults of the other declared fields; a callable is called for each new object."""
    computed: ClassVar[tuple[str, ...]] = ()
    """Properties that `model_dump` adds, as pydantic does with computed fields."""

    def __init__(self, **values: Any):
        missing = [name for name in self.required if values.get(name) is None]
        if missing:
            raise ValueError(f"{type(self).__name__} needs {', '.join(missing)}; got {sorted(values)}")
        super().__init__()
        # In the order of the declaration: `str(message)` shows the fields in it, and is part of some prompts.
        for name in self.field_names():
            if name in values:
                self[name] = values.pop(name)
            else:
                default = self.defaults[name]
                self[name] = default() if isinstance(default, Callable) else default
        for name, value in values.items():
            self[name] = value

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        """Return the declared fields in the order in which they are shown."""
        return (*cls.required, *cls.defaults)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no field '{name}'; it has {sorted(self)}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        del self[name]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._format_fields(', ')})"

    def __str__(self) -> str:
        return self._format_fields(" ")

    def _format_fields(self, between: str) -> str:
        return between.join(f"{name}={value!r}" for name, value in self.items())

    def copy(self: ModelT) -> ModelT:
        """Return a shallow copy."""
        return copy.copy(self)

    def model_dump(
        self, exclude_none: bool = False, include: Any = None, exclude: Any = None, **ignored: Any
    ) -> dict[str, Any]:
        """Return the fields as plain dicts and lists.

        Args:
            exclude_none: leave out fields that are None, including those of nested objects.
            include, exclude: names of the only fields to return, and names of fields to leave out; pydantic's nested
                forms (`{"function": {"name"}}`, `{"strict": True}`) select within a field.
        """
        dumped: dict[str, Any] = {}
        for name, value in self.items():
            if value is not None or not exclude_none:
                dumped[name] = plain(value, exclude_none)
        for name in self.computed:
            dumped[name] = getattr(self, name)
        return _selected(dumped, include, exclude)

    def model_dump_json(
        self, exclude_none: bool = False, include: Any = None, exclude: Any = None, **options: Any
    ) -> str:
        """Return `model_dump` as JSON."""
        return json.dumps(self.model_dump(exclude_none, include=include, exclude=exclude), **options)

    def model_copy(self: ModelT, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> ModelT:
        """Return a copy with some fields replaced."""
        copied = copy.deepcopy(self) if deep else copy.copy(self)
        copied.update(update or {})
        return copied

    @classmethod
    def model_validate(cls: type[ModelT], value: Any, **ignored: Any) -> ModelT:
        """Create an object from a mapping; an object of this type is returned as it is.

        Raises:
            ValueError: the value is neither, or lacks a field.
        """
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(f"{cls.__name__} from {value!r}; expected a dict with {', '.join(cls.field_names())}")
        return cls(**value)

    @property
    def model_extra(self) -> dict[str, Any]:
        """The fields that are not declared."""
        return {name: value for name, value in self.items() if name not in self.field_names()}


def _selected(dumped: Any, include: Any, exclude: Any) -> Any:
    """Return a dict without fields that are excluded or not included; both selections may be sets of names or nested dicts."""
    if not isinstance(dumped, dict):
        return dumped
    included = _by_field(list(dumped) if include is None else include)
    excluded = _by_field(exclude or ())
    selected = {}
    for name, value in dumped.items():
        field_include, field_exclude = included.get(name, False), excluded.get(name, False)
        # pydantic accepts True and `...` for a whole field; anything else selects within it.
        if field_include is False or field_exclude is True or field_exclude is ...:
            continue
        nested_include = field_include if isinstance(field_include, (set, frozenset, Mapping)) else None
        selected[name] = _selected(value, nested_include, field_exclude or None)
    return selected


def _by_field(selection: Any) -> Mapping[str, Any]:
    """Return a selection as a mapping from field to the part of it; a set of names selects whole fields."""
    return selection if isinstance(selection, Mapping) else dict.fromkeys(selection, True)


def plain(value: Any, exclude_none: bool = False) -> Any:
    """Return a value with every `Model` in it converted to a dict."""
    if isinstance(value, Model):
        return value.model_dump(exclude_none)
    if isinstance(value, (list, tuple)):
        return type(value)(plain(item, exclude_none) for item in value)
    if isinstance(value, dict):
        return {name: plain(item, exclude_none) for name, item in value.items()}
    return value


Messages = list[Any]
"""A list of `Message`; plain dicts are accepted everywhere."""


class TextContentPart(Model):
    """A text part of a content."""

    defaults: ClassVar = {"type": "text", "text": ""}


class ImageUrlSource(Model):
    """URL of an image."""

    required = ("url",)


class ImageUrlContentPart(Model):
    """An image part of a content."""

    defaults: ClassVar = {"type": "image_url", "image_url": None}

    def __init__(self, **values: Any):
        super().__init__(**values)
        self["image_url"] = ImageUrlSource.model_validate(self["image_url"])


class InputAudioSource(Model):
    """Audio data in base64."""

    required = ("data", "format")


class InputAudioContentPart(Model):
    """An audio part of a content."""

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
    """A tool call of a model; `arguments` is JSON.

    It can also be read in OpenAI's form, as packages for 0.1.2 to 0.1.10 do: `call.function.name`,
    `call["function"]["name"]`.
    """

    required = ("id", "name", "arguments")

    def __missing__(self, key: str) -> Any:
        if key == "function":
            return Model(name=self["name"], arguments=self["arguments"])
        if key == "type":
            return "function"
        raise KeyError(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value, or `default`."""
        return self[key] if key in self or key in ("function", "type") else default


class LegacyToolCall(ToolCall):
    """A tool call for packages written for 0.1.0 to 0.1.6: it is dumped and shown as OpenAI's object."""

    def model_dump(self, *args: Any, **ignored: Any) -> dict[str, Any]:
        """Return the call in OpenAI's form."""
        function = {"arguments": self["arguments"], "name": self["name"]}
        return {"id": self["id"], "function": function, "type": "function"}

    def _format_fields(self, between: str) -> str:
        function = f"Function(arguments={self['arguments']!r}, name={self['name']!r})"
        return between.join((f"id={self['id']!r}", f"function={function}", "type='function'"))

    def __repr__(self) -> str:
        return f"ChatCompletionMessageToolCall({self._format_fields(', ')})"


class LegacyToolCallDict(LegacyToolCall):
    """A tool call for packages written for 0.1.7 to 0.1.10: a dict in OpenAI's form."""

    def __repr__(self) -> str:
        return repr(self.model_dump())

    __str__ = __repr__


def as_legacy_messages(messages: Any, has_call_objects: bool = True) -> Any:
    """Return messages as before 0.1.11, when they were dicts: they are shown as dicts, and have no fields that are None.

    So `"tool_calls" in message` is true only if there are calls, and `str(message)` in a prompt looks like a dict. The
    content of an assistant message is always a string.

    Args:
        has_call_objects: whether tool calls are OpenAI's objects, as until 0.1.6, or dicts.
    """
    if not isinstance(messages, list):
        return messages
    call_type = LegacyToolCall if has_call_objects else LegacyToolCallDict
    return [_as_legacy_message(message, call_type) if isinstance(message, Model) else message for message in messages]


def _as_legacy_message(message: Model, call_type: type[LegacyToolCall]) -> Model:
    values = dict(message)
    if values.get("role") == "assistant" and values.get("content") is None:
        values["content"] = ""
    if values.get("tool_calls"):
        values["tool_calls"] = [call_type(**call) for call in values["tool_calls"]]
    if values.get("role") == "tool":  # the order in which the old ToolEnv wrote them
        values = {"role": "tool", "content": values.pop("content"), **values}
    if values.get("tool_calls") == []:
        del values["tool_calls"]
    message_type = _LEGACY_TYPES.get(type(message), type(message))
    # Without `__init__`, which would add the declared fields that are missing.
    legacy_message = message_type.__new__(message_type)
    legacy_message.update({name: value for name, value in values.items() if value is not None})
    return legacy_message


class _ChatMessage(Model):
    def __init__(self, **values: Any):
        super().__init__(**values)
        content = self["content"]
        if isinstance(content, (list, tuple)):
            self["content"] = [_part(part) for part in content]
        elif not isinstance(content, str) and (content is not None or "content" in self.required):
            raise ValueError(f"content of a {self['role']} message is {content!r}; expected a text or a list of parts")

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        return ("role", *(name for name in super().field_names() if name != "role"))


def _part(part: Any) -> Any:
    part_type = _PARTS.get(part.get("type")) if isinstance(part, Mapping) else None
    return part if part_type is None else part_type.model_validate(part)


class TextMessage(_ChatMessage):
    """Raw text, for completion endpoints."""

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
        """Return the text of a file as instructions."""
        return cls(content=Path(path).read_text(encoding="utf-8"))


class UserMessage(_ChatMessage):
    """A message of the user or the environment."""

    required = ("content",)
    defaults: ClassVar = {"role": "user"}


class AssistantMessage(_ChatMessage):
    """A message of the model."""

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
    """The result of a tool."""

    required = ("tool_call_id", "content")
    defaults: ClassVar = {"role": "tool"}


Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage | TextMessage


class _ShownAsDict(_ChatMessage):
    """A message that `str` and `repr` show as a dict."""

    def __repr__(self) -> str:
        return dict.__repr__(self)

    __str__ = __repr__


class _LegacySystemMessage(_ShownAsDict, SystemMessage):
    pass


class _LegacyUserMessage(_ShownAsDict, UserMessage):
    pass


class _LegacyAssistantMessage(_ShownAsDict, AssistantMessage):
    pass


class _LegacyToolMessage(_ShownAsDict, ToolMessage):
    pass


_LEGACY_TYPES: dict[type[Model], type[Model]] = {
    SystemMessage: _LegacySystemMessage,
    UserMessage: _LegacyUserMessage,
    AssistantMessage: _LegacyAssistantMessage,
    ToolMessage: _LegacyToolMessage,
}
_ROLES: dict[Any, type[Model]] = {
    "text": TextMessage,
    "system": SystemMessage,
    "user": UserMessage,
    "assistant": AssistantMessage,
    "tool": ToolMessage,
}


def from_raw_message(message: Mapping[str, Any]) -> Any:
    """Create a message from a dict, whose tool calls may be in OpenAI's form."""
    message_type = _ROLES.get(message.get("role"))
    if message_type is None:
        raise ValueError(f"Unknown role: {message.get('role')!r}; expected one of {', '.join(_ROLES)}")
    values = dict(message)
    if message_type is AssistantMessage and isinstance(values.get("tool_calls"), list):
        values["tool_calls"] = [_flat_call(call) for call in values["tool_calls"]]
    return message_type(**values)


def _flat_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if isinstance(call, Mapping) and "name" in call and "arguments" in call:
        return call
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        return call
    arguments, call_id = function.get("arguments"), call.get("id")
    if not isinstance(arguments, str):
        try:
            arguments = json.dumps({} if arguments is None else arguments)
        except (TypeError, ValueError):
            arguments = str(arguments)
    name = function["name"]
    # As in v0, a call without an id, as in hand-written examples, has the tool's name as its id.
    return ToolCall(id=call_id if isinstance(call_id, str) else name, name=name, arguments=arguments)


def normalize_messages(value: Any, *, field_name: str = "messages") -> Messages:
    """Create messages from a string, dicts or messages."""
    if isinstance(value, str):
        return [TextMessage(content=value)]
    messages: Messages = []
    for message in value:
        if isinstance(message, tuple(_ROLES.values())):
            messages.append(message)
        elif isinstance(message, Mapping):
            messages.append(from_raw_message(message))
        # Such as a message of the package `openai`, which packages append as they got it.
        elif hasattr(message, "role") and hasattr(message, "content"):
            messages.append(message)
        else:
            raise TypeError(
                f"Invalid {field_name} item type: {type(message).__name__}. Expected vf.Message-like objects."
            )
    return messages


def maybe_normalize_messages(value: Any, *, field_name: str = "messages") -> Messages:
    """Call `normalize_messages`, which does not change messages."""
    return normalize_messages(value, field_name=field_name)


def get_messages(messages: Sequence[Any], role: str | None = None) -> Messages:
    """Return the messages of a role, or all."""
    normalized = normalize_messages(messages)
    return normalized if role is None else [message for message in normalized if message.role == role]


def field_of(message: Any, name: str, default: Any = None) -> Any:
    """Return a field of a message, which is a mapping or an object with attributes."""
    return message.get(name, default) if isinstance(message, Mapping) else getattr(message, name, default)


def message_role(message: Any) -> str | None:
    """Return the role of a message; None if it has none."""
    value = field_of(message, "role")
    return value if isinstance(value, str) else None


def concat_messages(messages_list: Iterable[Iterable[Any]]) -> Any:
    """Concatenate conversations; or texts, as completion environments had until 0.1.10."""
    parts: list[Any] = list(messages_list)
    if parts and all(isinstance(part, str) for part in parts):
        return "".join(parts)
    return list(chain.from_iterable(parts))


def sanitize_tool_calls(messages: Any) -> Any:
    """Convert the tool calls of messages to JSON strings; anything but a list is returned unchanged."""
    if not isinstance(messages, list):
        return messages
    return [_with_calls_as_json(message) for message in messages]


def _with_calls_as_json(message: Any) -> Any:
    get = partial(field_of, message)
    calls = get("tool_calls")
    if not calls:
        return message
    json_calls = [call if isinstance(call, str) else _dumped(call) for call in calls]
    converted = {"role": get("role"), "content": get("content") or "", "tool_calls": json_calls}
    if isinstance(get("reasoning_content"), str):
        converted["reasoning_content"] = get("reasoning_content")
    return converted


def _dumped(call: Any) -> str:
    dump = getattr(call, "model_dump", None)
    return json.dumps(call if dump is None else dump(exclude_none=True))


def content_text(content: Any, between: str = " ") -> str:
    """Return the text of a content: a string itself, or its text parts; "" for anything else."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = [part for part in content if isinstance(part, Mapping)]
    texts = [part.get("text") for part in parts if part.get("type") == "text"]
    return between.join(text for text in texts if isinstance(text, str)).strip()


def messages_to_printable(messages: Any) -> Any:
    """Replace images and audio in messages with placeholders."""
    return messages if isinstance(messages, str) else [message_to_printable(message) for message in messages or []]


def message_to_printable(message: Any) -> Any:
    """Replace images and audio in a message with placeholders."""
    if not isinstance(message, Mapping) or not isinstance(message.get("content"), list):
        return message
    texts: list[str] = []
    for part in message["content"]:
        if isinstance(part, Mapping):
            kind = str(part.get("type"))
            text = part.get("text") if kind == "text" else _PLACEHOLDERS.get(kind)
            if isinstance(text, str):
                texts.append(text)
    printable = {"role": message.get("role"), "content": " ".join(texts).strip()}
    for name in ("reasoning_content", "tool_calls"):
        if message.get(name) is not None:
            printable[name] = message.get(name)
    return printable


_PLACEHOLDERS = {"image_url": "[image]", "input_audio": "[audio]", "audio": "[audio]"}
"""Type of a content part → its placeholder in tables of rollouts."""


def to_rove(messages: Iterable[Any]) -> list[RoveMessage]:
    """Convert messages to the OpenAI wire form, as v0's clients send them."""
    return [_wire(message) for message in normalize_messages(messages)]


def _wire(message: Any) -> RoveMessage:
    get = partial(field_of, message)
    role = get("role")
    wire_message = RoveMessage(role="user" if role == "text" else role, content=plain(get("content")))
    if role == "assistant":
        calls = get("tool_calls")
        if calls is not None:
            wire_message["tool_calls"] = [_wire_call(call) for call in calls]
        if get("reasoning_content") is not None:
            wire_message["reasoning_content"] = get("reasoning_content")
    elif role == "tool":
        wire_message["tool_call_id"] = get("tool_call_id")
    return wire_message


def _wire_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": call["arguments"]}
    return {"type": "function", "id": call["id"], "function": function}
