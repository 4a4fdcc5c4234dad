from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import each_row

from rove.core.errors import ConfigError, EmptyModelResponseError, InvalidModelResponseError
from rove.core.messages import AssistantMessage, ToolMessage, UserMessage
from rove.core.records import Usage
from rove.wire.common import (
    build_response,
    count,
    finish_reason,
    function_of,
    is_unedited,
    normalized_calls,
    parts_of,
    text_in,
    text_or_refusal,
    tool_call,
    tool_calls_of,
    without_none,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NAMES = st.text("abc_1", min_size=1, max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=3)


def garbage(**fields: Any) -> st.SearchStrategy[Any]:
    """Return a strategy of any JSON, or of objects with valid values or any JSON in the given fields."""
    return JSON | st.fixed_dictionaries({}, optional={name: JSON | good for name, good in fields.items()})


def blocks(types: list[str], **fields: Any) -> st.SearchStrategy[Any]:
    """Return a strategy of lists of typed objects with valid values or any JSON in the given fields."""
    block = garbage(type=st.sampled_from(types), **fields)
    return st.lists(block, max_size=3)


@given(content=JSON)
def test_parts_of_returns_parts_or_raises_a_config_error(content: Any):
    try:
        parts = parts_of({"content": content})
    except ConfigError as error:
        assert "expected a text or a list of content parts" in str(error)
    else:
        assert all(isinstance(part, dict) for part in parts)


def test_content_parts_and_text_access():
    image = {"type": "image_url", "image_url": {"url": "https://a"}}
    assert parts_of(UserMessage(["a", image])) == [{"type": "text", "text": "a"}, image]
    assert parts_of(AssistantMessage(None)) == []
    assert text_or_refusal({"type": "text", "text": "a"}) == "a"
    assert text_or_refusal({"type": "refusal", "refusal": "no"}) == "no"
    assert text_or_refusal(image) is None
    assert text_in(image, "image_url", "url") == "https://a"
    with pytest.raises(ConfigError, match=r"has no image_url\.detail"):
        text_in(image, "image_url", "detail")
    with pytest.raises(ConfigError, match="has no text"):
        text_or_refusal({"type": "text", "text": None})


def test_tool_calls_are_parsed_or_refused():
    call = tool_call("1", "add", "{")
    (parsed,) = tool_calls_of(AssistantMessage(None, tool_calls=[call]))
    assert (parsed.id, parsed.function.name, parsed.function.arguments) == ("1", "add", "{")
    assert tool_calls_of(AssistantMessage("hi")) == []
    with pytest.raises(ConfigError, match="missing required field `id`.*expected a list like"):
        tool_calls_of(AssistantMessage(None, tool_calls=[{"name": "add"}]))


def test_function_of():
    function = {"name": "add"}
    assert function_of({"type": "function", "function": function}) is function
    assert function_of({"function": function}) is function
    assert function_of({"type": "web_search"}) is None
    for wrong in ({}, {"type": "function", "name": "add"}, {"function": {"description": "adds"}}):
        with pytest.raises(ConfigError, match="describes no function"):
            function_of(wrong)


def test_build_response_accepts_an_empty_answer_that_the_model_ended():
    assert build_response({}, "hi", Usage(), "stop", tool_calls=[], refusal=None).message == {
        "role": "assistant",
        "content": "hi",
    }
    assert build_response({}, "", Usage(), "stop", tool_calls=[tool_call("1", "f", "")]).message.content is None
    assert build_response({}, "", Usage(), "stop", reasoning_content="hm").message.content == ""
    assert build_response({}, "", Usage(), "length").message.content == ""
    for reason in ("stop", "content_filter", "eos_token", ""):
        response = build_response({"id": 1}, "", Usage(), reason, tool_calls=[])
        assert (response.message, response.finish_reason) == ({"role": "assistant", "content": ""}, reason)
    with pytest.raises(EmptyModelResponseError, match="ended with 'abort'.*{\"id\": 1}"):
        build_response({"id": 1}, "", Usage(), "abort", tool_calls=[])
    with pytest.raises(InvalidModelResponseError, match="broke the answer off \\('error'\\)"):
        build_response({}, "The answer is", Usage(), "error")  # retried: half an answer is not the model's


@each_row(
    ("given_ids", "kept_ids"),
    [
        (["a", "b"], ["a", "b"]),
        (["a", "a", "b"], ["a", None, "b"]),
        ([7, "7"], ["7", None]),
        ([None, "", "c"], [None, None, "c"]),
        ([True, 1.5, ["x"]], [None, None, None]),
    ],
)
def test_calls_get_unique_ids_and_keep_the_ids_of_the_server(given_ids: list[Any], kept_ids: list[str | None]):
    calls = [{"id": id, "function": {"name": "f", "arguments": "{}"}} for id in given_ids]
    ids = [call["id"] for call in normalized_calls(calls)]
    assert len(set(ids)) == len(ids) and all(isinstance(id, str) and id for id in ids)
    assert all(kept_id in (None, id) for kept_id, id in zip(kept_ids, ids, strict=True))
    assert ids == [call["id"] for call in normalized_calls(calls)]


def test_a_new_id_is_not_the_id_of_a_later_call():
    alone = normalized_calls([{"function": {"name": "f"}}])[0]["id"]
    calls = [{"function": {"name": "f"}}, {"id": alone, "function": {"name": "f"}}]
    ids = [call["id"] for call in normalized_calls(calls)]
    assert ids[1] == alone != ids[0]


@each_row(
    ("arguments", "text"),
    [
        ({"x": "ü"}, '{"x":"ü"}'),
        (None, "{}"),
        ("null", "null"),
        ("", ""),
        ('{"x": 1}', '{"x": 1}'),
        ("not JSON", "not JSON"),
        ([1], "[1]"),
        (3, "3"),
    ],
)
def test_arguments_become_json_text(arguments: Any, text: str):
    (call,) = normalized_calls([{"id": "1", "function": {"name": "f", "arguments": arguments, "more": 1}, "index": 0}])
    function = {"name": "f", "arguments": text, "more": 1}
    assert call == {"id": "1", "type": "function", "function": function, "index": 0}


def test_a_call_without_the_inner_object_or_the_name_is_read():
    (call,) = normalized_calls([{"id": "1", "name": "f", "arguments": {"x": 1}}])
    assert call["function"] == {"name": "f", "arguments": '{"x":1}'}
    (call,) = normalized_calls([{"id": "1", "function": {"name": None}}])
    assert call["function"] == {"name": "", "arguments": "{}"}
    with pytest.raises(InvalidModelResponseError, match="expected an object like"):
        normalized_calls([None])


def test_finish_reason_without_none_count_and_is_unedited():
    assert [finish_reason(*arguments) for arguments in ((True, [1]), (False, [1]), (False, []))] == [
        "length",
        "tool_calls",
        "stop",
    ]
    assert without_none({"a": None, "b": 0}) == {"b": 0}
    assert [count(usage, "n") for usage in (None, [], {"n": "1"}, {"n": 1})] == [0, 0, 0, 1]
    impossible = [-5, 10**9 + 1, 10**30, 1.5, math.nan, math.inf, True, None, [7]]
    assert [count({"n": value}, "n") for value in impossible] == [0] * len(impossible)
    assert count({"n": 10**9}, "n") == 10**9
    assert is_unedited(AssistantMessage(None, tool_calls=[1]), "", [1])
    assert not is_unedited(AssistantMessage("b"), "a", [])
    assert not is_unedited(ToolMessage("a", tool_calls=[1]), "a", [])


@pytest.mark.timeout(20)
def test_many_calls_without_ids_get_ids_in_time_in_proportion_to_their_number():
    calls = [{"function": {"name": "f", "arguments": "{}"}}] * 4_000
    assert len({call["id"] for call in normalized_calls(calls)}) == 4_000
