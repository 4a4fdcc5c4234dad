"""The server side of Anthropic's Messages API, tested against rove's own client."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import each_row

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

nonblank_texts = st.text(min_size=1).filter(str.strip)
calls = st.lists(
    st.builds(tool_call, st.uuids().map(str), nonblank_texts, st.sampled_from(["{}", '{"a":1}'])),
    min_size=1,
    max_size=3,
    unique_by=lambda call: call["id"],
)
answers = st.builds(AssistantMessage, nonblank_texts) | st.builds(
    lambda text, calls: AssistantMessage(text, tool_calls=calls), st.none() | nonblank_texts, calls
)
turn_pairs = st.tuples(st.builds(UserMessage, nonblank_texts), answers)


@given(
    st.none() | nonblank_texts, st.lists(turn_pairs, min_size=1, max_size=3), st.none() | st.just([TOOL]), st.booleans()
)
def test_a_request_round_trips(system: str | None, turns: list[Any], tools: Any, seeing: bool):
    messages: list[Message] = [SystemMessage(system)] if system else []
    for user, answer in turns:
        messages += [user, answer]
        messages += [ToolMessage("seen", call["id"]) for call in answer.tool_calls or []]
    if seeing:
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
        messages.append(UserMessage([{"type": "text", "text": "look"}, image]))
    request = Request([dict(m) for m in messages], SamplingParams(max_tokens=9, stop=["x"]), "toy", tools)
    parsed = read_request(over_json(anthropic.request_body(request)))
    (choice,) = parsed.choices
    assert choice.request.messages == messages
    assert (choice.request.sampling_params, parsed.model, parsed.api) == (request.sampling_params, "toy", "anthropic")
    assert choice.request.tools == tools


@given(answers, st.sampled_from(["", "so I think"]), st.booleans(), st.data())
def test_a_response_round_trips_with_and_without_streaming(message: Message, thought: str, cut: bool, data: Any):
    if thought:
        message = Message(message, reasoning_content=thought)
    response = Response(message, Usage(3, 1), "length" if cut else "tool_calls" if message.tool_calls else "stop")
    body = over_json(response_body(HEAD, [response], response.usage))
    result = anthropic.read_response(body)
    result.message.pop(anthropic.CONTENT, None)
    assert (result.message, result.usage, result.finish_reason) == (message, response.usage, response.finish_reason)

    text = message.content or ""
    streamed_text = text[: data.draw(st.integers(0, len(text)))]
    events = [
        *first_chunks(HEAD, 0),
        *text_chunks(HEAD, 0, streamed_text, ""),
        *last_chunks(HEAD, 0, response, streamed_text),
    ]
    streamed = assemble_message(events)
    assert sorted(map(str, streamed["content"])) == sorted(map(str, body["content"]))
    assert {name: streamed[name] for name in ("stop_reason", "usage", "id")} == {
        name: body[name] for name in ("stop_reason", "usage", "id")
    }


def assemble_message(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the message assembled from the events of a stream."""
    message: dict[str, Any] = {}
    parts: dict[int, str] = {}
    for event in over_json(events):
        kind, block_index = event["type"], event.get("index")
        if kind == "message_start":
            message = event["message"]
        elif kind == "content_block_start":
            assert block_index == len(message["content"])
            message["content"].append(event["content_block"])
        elif kind == "content_block_delta" and event["delta"]["type"] == "input_json_delta":
            parts[block_index] = parts.get(block_index, "") + event["delta"]["partial_json"]
        elif kind == "content_block_delta":
            name = event["delta"]["type"].removesuffix("_delta")
            message["content"][block_index][name] += event["delta"][name]
        elif kind == "content_block_stop" and block_index in parts:
            message["content"][block_index]["input"] = msgspec.json.decode(parts[block_index])
        elif kind == "message_delta":
            message |= {**event["delta"], "usage": event["usage"]}
    assert events[-1] == {"type": "message_stop"}
    return message


def test_tool_results_come_before_the_users_text_of_the_same_message():
    blocks = [
        {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "sunny"}], "is_error": False},
        {"type": "tool_result", "tool_use_id": "2"},
        {"type": "text", "text": "and now?", "cache_control": {"type": "ephemeral"}},
    ]
    assistant_blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "tool_use", "id": "1", "name": "f", "input": {}},
    ]
    body = {
        "max_tokens": 5,
        "messages": [{"role": "assistant", "content": assistant_blocks}, {"role": "user", "content": blocks}],
    }
    assert read_request(body).choices[0].request.messages == [
        AssistantMessage(None, tool_calls=[tool_call("1", "f", "{}")], reasoning_content="hm"),
        ToolMessage("sunny", "1"),
        ToolMessage("", "2"),
        UserMessage("and now?"),
    ]


def test_tool_call_arguments_that_are_not_an_object_are_returned_as_text():
    message = AssistantMessage(tool_calls=[tool_call("1", "f", "oops")])
    body = response_body(HEAD, [Response(message, finish_reason="tool_calls")], Usage())
    assert body["content"] == [{"type": "tool_use", "id": "1", "name": "f", "input": {"arguments": "oops"}}]


def test_tool_choice():
    body = {
        "max_tokens": 5,
        "messages": [{"role": "user", "content": "a"}],
        "tools": [{"name": "f", "input_schema": {}}],
    }

    def choice(**tool_choice: Any) -> ToolChoice | None:
        return read_request({**body, "tool_choice": tool_choice}).choices[0].request.tool_choice

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


@each_row(
    ("fields", "message"),
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
def test_unsupported_requests_are_refused(fields: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        read_request({"max_tokens": 5, "messages": [{"role": "user", "content": "a"}], **fields})


def test_errors_have_the_format_of_the_messages_api():
    assert error_body(404, "none") == {"type": "error", "error": {"type": "not_found_error", "message": "none"}}
    assert error_body(502, "none")["error"]["type"] == "api_error"
