"""Anthropic's Messages API from the server's side, held against what our own client sends and reads."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rove.core.errors import ConfigError
from rove.core.messages import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage
from rove.core.protocols import Request, Response, SamplingParams, ToolChoice
from rove.core.records import Usage
from rove.wire import anthropic
from rove.wire.common import tool_call
from rove.wire.serving_anthropic import (
    error_body,
    first_chunks,
    last_chunks,
    read_request,
    response_body,
    text_chunks,
)
from tests.wire.test_serving import HEAD, TOOL, over_json

words = st.text(min_size=1).filter(str.strip)
calls = st.lists(
    st.builds(tool_call, st.uuids().map(str), words, st.sampled_from(["{}", '{"a":1}'])),
    min_size=1,
    max_size=3,
    unique_by=lambda call: call["id"],
)
answers = st.builds(AssistantMessage, words) | st.builds(
    lambda text, calls: AssistantMessage(text, tool_calls=calls), st.none() | words, calls
)
rounds = st.tuples(st.builds(UserMessage, words), answers)


@given(st.none() | words, st.lists(rounds, min_size=1, max_size=3), st.none() | st.just([TOOL]), st.booleans())
def test_a_request_is_read_as_it_was_meant(system: str | None, turns: list[Any], tools: Any, seeing: bool):
    messages: list[Message] = [SystemMessage(system)] if system else []
    for asked, answer in turns:
        messages += [asked, answer]
        messages += [ToolMessage("seen", call["id"]) for call in answer.tool_calls or []]
    if seeing:
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
        messages.append(UserMessage([{"type": "text", "text": "look"}, image]))
    request = Request([dict(m) for m in messages], SamplingParams(max_tokens=9, stop=["x"]), "toy", tools)
    asked = read_request(over_json(anthropic.request_body(request)))
    (question,) = asked.choices
    assert question.request.messages == messages
    assert (question.request.sampling_params, asked.model, asked.api) == (request.sampling_params, "toy", "anthropic")
    assert question.request.tools == tools


@given(answers, st.sampled_from(["", "so I think"]), st.booleans(), st.data())
def test_an_answer_is_read_as_it_was_given_whole_and_streamed(message: Message, thought: str, cut: bool, data: Any):
    if thought:
        message = Message(message, reasoning_content=thought)
    response = Response(message, Usage(3, 1), "length" if cut else "tool_calls" if message.tool_calls else "stop")
    body = over_json(response_body(HEAD, [response], response.usage))
    read = anthropic.read_response(body)
    read.message.pop(anthropic.CONTENT, None)
    assert (read.message, read.usage, read.finish_reason) == (message, response.usage, response.finish_reason)

    text = message.content or ""
    told = text[: data.draw(st.integers(0, len(text)))]
    events = [*first_chunks(HEAD, 0), *text_chunks(HEAD, 0, told, ""), *last_chunks(HEAD, 0, response, told)]
    streamed = played(events)
    assert sorted(map(str, streamed["content"])) == sorted(map(str, body["content"]))
    assert {name: streamed[name] for name in ("stop_reason", "usage", "id")} == {
        name: body[name] for name in ("stop_reason", "usage", "id")
    }


def played(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that the events of a stream add up to."""
    message: dict[str, Any] = {}
    parts: dict[int, str] = {}
    for event in over_json(events):
        kind, place = event["type"], event.get("index")
        if kind == "message_start":
            message = event["message"]
        elif kind == "content_block_start":
            assert place == len(message["content"])
            message["content"].append(event["content_block"])
        elif kind == "content_block_delta" and event["delta"]["type"] == "input_json_delta":
            parts[place] = parts.get(place, "") + event["delta"]["partial_json"]
        elif kind == "content_block_delta":
            name = event["delta"]["type"].removesuffix("_delta")
            message["content"][place][name] += event["delta"][name]
        elif kind == "content_block_stop" and place in parts:
            message["content"][place]["input"] = msgspec.json.decode(parts[place])
        elif kind == "message_delta":
            message |= {**event["delta"], "usage": event["usage"]}
    assert events[-1] == {"type": "message_stop"}
    return message


def test_results_come_before_what_the_user_says_beside_them():
    blocks = [
        {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "sunny"}], "is_error": False},
        {"type": "tool_result", "tool_use_id": "2"},
        {"type": "text", "text": "and now?", "cache_control": {"type": "ephemeral"}},
    ]
    said = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "tool_use", "id": "1", "name": "f", "input": {}},
    ]
    body = {
        "max_tokens": 5,
        "messages": [{"role": "assistant", "content": said}, {"role": "user", "content": blocks}],
    }
    assert read_request(body).choices[0].request.messages == [
        AssistantMessage(None, tool_calls=[tool_call("1", "f", "{}")], reasoning_content="hm"),
        ToolMessage("sunny", "1"),
        ToolMessage("", "2"),
        UserMessage("and now?"),
    ]


def test_arguments_that_are_no_object_are_shown_as_they_were_written():
    message = AssistantMessage(tool_calls=[tool_call("1", "f", "oops")])
    body = response_body(HEAD, [Response(message, finish_reason="tool_calls")], Usage())
    assert body["content"] == [{"type": "tool_use", "id": "1", "name": "f", "input": {"arguments": "oops"}}]


def test_which_tool_has_to_be_called():
    body = {
        "max_tokens": 5,
        "messages": [{"role": "user", "content": "a"}],
        "tools": [{"name": "f", "input_schema": {}}],
    }

    def choice(**given: Any) -> ToolChoice | None:
        return read_request({**body, "tool_choice": given}).choices[0].request.tool_choice

    assert choice(type="any") == ToolChoice(("f",))
    assert (
        choice(type="any", disable_parallel_tool_use=True) == choice(type="tool", name="f") == ToolChoice(("f",), False)
    )
    assert choice(type="auto") is None
    assert read_request({**body, "tool_choice": {"type": "none"}}).choices[0].request.tools is None
    for wrong, message in (
        ({"type": "some"}, 'tool_choice is {"type": "some"}'),
        ({"type": "tool", "name": "g"}, "names 'g'"),
    ):
        with pytest.raises(ConfigError, match=message):
            choice(**wrong)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "Expected `int` >= 1"),
        ({"messages": []}, "length >= 1"),
        ({"messages": [{"role": "tool", "content": "a"}]}, r"the role of messages\[0\] is tool"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, r"messages\[0\] has the block"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "the tool .*expected a name and an input_schema"),
        ({"system": [{"type": "image"}]}, "system has the block"),
    ],
)
def test_what_cannot_be_done_is_refused(fields: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        read_request({"max_tokens": 5, "messages": [{"role": "user", "content": "a"}], **fields})


def test_errors_have_its_shape():
    assert error_body(404, "none") == {"type": "error", "error": {"type": "not_found_error", "message": "none"}}
    assert error_body(502, "none")["error"]["type"] == "api_error"
