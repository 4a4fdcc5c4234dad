"""Messages: a dict in the wire form that can also be read by attribute."""

from __future__ import annotations

import copy
import json
import pickle
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import each_row

from rove.core.errors import ConfigError, ToolParseError
from rove.core.messages import (
    FIELDS,
    ROLES,
    AssistantMessage,
    Message,
    SystemMessage,
    ToolMessage,
    UserMessage,
    as_message,
    as_messages,
    call_arguments,
    text_of,
)

CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}"}}

wire_messages = st.builds(
    lambda role, content, fields: {"role": role, "content": content, **fields},
    st.sampled_from(sorted(ROLES)),
    st.none() | st.text(),
    st.dictionaries(st.sampled_from(sorted(FIELDS - {"role", "content"})), st.text(), max_size=2),
)


@given(wire_messages)
def test_fields_can_be_read_by_key_and_by_attribute(wire):
    message = as_message(wire)
    assert message == wire
    assert json.loads(json.dumps(message)) == wire
    for field in FIELDS:
        assert getattr(message, field) == wire.get(field)


def test_extra_fields_are_attributes_and_unknown_ones_raise():
    message = Message(role="user", content="hi", mood="sunny")
    assert message.mood == "sunny"
    assert message.tool_calls is None
    with pytest.raises(AttributeError, match=r"no field 'contents'; its fields are .*'content'.*'mood'"):
        message.contents  # noqa: B018


def test_constructors_set_the_role():
    assert SystemMessage("a") == {"role": "system", "content": "a"}
    assert UserMessage("a", name="ann") == {"role": "user", "content": "a", "name": "ann"}
    assert AssistantMessage() == {"role": "assistant", "content": None}
    assert AssistantMessage(tool_calls=[CALL]).tool_calls == [CALL]
    assert ToolMessage("4", "call_1") == {"role": "tool", "content": "4", "tool_call_id": "call_1"}


@pytest.mark.parametrize("message", [SystemMessage("a"), ToolMessage("4", "call_1"), Message(role="user", x=[1])])
def test_copies_are_messages_and_share_nothing(message):
    for copied in (copy.deepcopy(message), pickle.loads(pickle.dumps(message))):
        assert copied == message
        assert type(copied) is type(message)
    deep = copy.deepcopy(Message(role="user", content=[{"type": "text", "text": "a"}]))
    copy.deepcopy(deep).content.append("more")
    assert deep.content == [{"type": "text", "text": "a"}]


def test_as_message_returns_a_message_unchanged():
    message = UserMessage("hi")
    assert as_message(message) is message


def test_as_message_takes_any_mapping_and_texts():
    assert as_message(MappingProxyType({"role": "tool", "content": "4"})).role == "tool"
    assert as_message("hi") == {"role": "user", "content": "hi"}
    assert as_message("hi", role="assistant").role == "assistant"


@each_row("value", [{}, {"content": "hi"}, {"role": "robot", "content": "hi"}, {"role": None}, None, 5])
def test_invalid_messages_are_refused(value):
    with pytest.raises(ConfigError, match=r"not a chat message: .*expected a dict with a 'role' in \['assistant'"):
        as_messages([value])


@pytest.mark.parametrize("part", [None, 5, [{"type": "text", "text": "hi"}]])
def test_parts_of_a_content_are_texts_or_dicts(part):
    assert as_message({"role": "user", "content": ["hi", {"type": "text", "text": "!"}]}).role == "user"
    with pytest.raises(ConfigError, match="expected a text, or a list of texts and dicts"):
        as_messages([{"role": "user", "content": [part]}])


@pytest.mark.parametrize("value", [None, 5, 1.5])
def test_invalid_lists_of_messages_are_refused(value):
    with pytest.raises(ConfigError, match="not chat messages"):
        as_messages(value)


def test_as_messages_takes_a_text_one_message_or_many():
    assert as_messages("hi") == [UserMessage("hi")]
    assert as_messages({"role": "user", "content": "hi"}) == [UserMessage("hi")]
    assert as_messages(("hi", AssistantMessage("ho")), role="user") == [UserMessage("hi"), AssistantMessage("ho")]
    assert as_messages(message for message in [UserMessage("hi")]) == [UserMessage("hi")]
    assert as_messages([]) == []


@given(st.lists(wire_messages | st.text(), max_size=4))
def test_as_messages_is_idempotent(values):
    once = as_messages(values)
    assert as_messages(once) == once
    assert all(isinstance(message, Message) for message in once)


@each_row(
    ("content", "text"),
    [
        ("hi", "hi"),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ([{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "b"}], "b"),
        ([{"type": "text", "text": None}, "c"], "c"),
    ],
)
def test_text_of(content, text):
    assert text_of({"role": "user", "content": content}) == text


def test_text_of_a_message_without_content():
    assert text_of({"role": "assistant", "tool_calls": [CALL]}) == ""


def test_arguments_of_any_python_type_are_refused() -> None:
    with pytest.raises(ToolParseError, match="the arguments of f are a tuple; expected a JSON object"):
        call_arguments({"function": {"name": "f", "arguments": (1,)}})


def test_setting_an_attribute_sets_the_field_of_the_dict() -> None:
    message = UserMessage("old")
    message.content = "new"
    assert message["content"] == message.content == "new"
    assert dict(message) == {"role": "user", "content": "new"}
