"""The server side of OpenAI's Responses API, tested against rove's own client."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import each_row

from rove.core.errors import ConfigError
from rove.core.messages import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage
from rove.core.protocols import Request, Response, SamplingParams, ToolChoice
from rove.core.records import Usage
from rove.wire import responses
from rove.wire.common import tool_call
from rove.wire.serving_responses import first_chunks, last_chunks, read_request, response_body, text_chunks
from tests.wire.test_serving import HEAD, TOOL, answers, over_json

conversations = st.lists(
    st.builds(UserMessage, st.text()) | answers | st.builds(ToolMessage, st.text(), st.text()), min_size=1
)


def without_nulls(messages: list[Any]) -> list[dict[str, Any]]:
    return [{key: value for key, value in message.items() if value is not None} for message in messages]


def merge_tool_calls(messages: list[Message]) -> list[dict[str, Any]]:
    """Merge tool calls into the preceding assistant message, as the API's items represent them."""
    merged_messages: list[dict[str, Any]] = []
    for message in without_nulls(messages):
        if (
            merged_messages
            and merged_messages[-1]["role"] == message["role"] == "assistant"
            and "content" not in message
        ):
            merged_messages[-1]["tool_calls"] = [*merged_messages[-1].get("tool_calls", []), *message["tool_calls"]]
        else:
            merged_messages.append(dict(message))
    return merged_messages


@given(conversations, st.none() | st.just([TOOL]), st.none() | st.integers(1, 99), st.none() | st.floats(0, 2))
def test_a_request_round_trips(messages: list[Message], tools: Any, most: int | None, heat: float | None):
    request = Request([dict(m) for m in messages], SamplingParams(max_tokens=most, temperature=heat), "toy", tools)
    parsed = read_request(over_json(responses.request_body(request)))
    (choice,) = parsed.choices
    assert without_nulls(choice.request.messages) == merge_tool_calls(messages)
    assert (choice.request.sampling_params.max_tokens, choice.request.sampling_params.temperature) == (most, heat)
    assert (parsed.model, parsed.api, choice.request.sampling_params.extra) == ("toy", "responses", {})
    if tools is not None:
        function = {**TOOL["function"], "strict": False}
        assert choice.request.tools == [{"type": "function", "function": function}]


@given(answers, st.sampled_from(["", "so I think"]), st.sampled_from(["stop", "length", "tool_calls"]), st.data())
def test_a_response_round_trips_with_and_without_streaming(message: Message, thought: str, reason: str, data: Any):
    if thought:
        message = Message(message, reasoning_content=thought)
    reason = reason if reason == "length" else "tool_calls" if message.tool_calls else "stop"
    response = Response(message, Usage(3, 1), reason)
    body = over_json(response_body(HEAD, [response], response.usage))
    result = responses.read_response(body)
    assert (result.message, result.usage, result.finish_reason) == (message, response.usage, reason)

    text = message.content or ""
    streamed_text = text[: data.draw(st.integers(0, len(text)))]
    events = [
        *first_chunks(HEAD, 0),
        *text_chunks(HEAD, 0, streamed_text, ""),
        *last_chunks(HEAD, 0, response, streamed_text),
    ]
    assert responses.read_response(events[-1]["response"]).message == message
    assert events[-1]["type"] == "response." + body["status"]
    assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta") == text
    done_events = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["item"] for event in done_events] == events[-1]["response"]["output"]
    assert [event["output_index"] for event in done_events] == list(range(len(done_events)))
    assert sum(event["type"] == "response.output_item.added" for event in events) == len(done_events)


def test_instructions_reasoning_and_calls_become_messages():
    body = {
        "instructions": "be brief",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look"}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "and then"}]},
            {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "x"},
            {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AA=="}]},
        ],
    }
    calls = [tool_call("1", "f", "{}"), tool_call("2", "g", "{}")]
    assert read_request(body).choices[0].request.messages == [
        SystemMessage("be brief"),
        UserMessage("ab"),
        AssistantMessage("I look", reasoning_content="hm\n\nand then", tool_calls=calls),
        ToolMessage("x", "1"),
        UserMessage([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]),
    ]


def test_response_format_and_tool_choice():
    response_format = {"type": "json_schema", "name": "trip", "schema": {"type": "object"}}
    tools = [{"type": "function", "name": "f", "parameters": {}}]
    parsed = read_request(
        {"input": "a", "text": {"format": response_format}, "tools": tools, "tool_choice": "required"}
    )
    json_schema = {"name": "trip", "schema": {"type": "object"}}
    sampling = parsed.choices[0].request.sampling_params
    assert sampling.response_format == {"type": "json_schema", "json_schema": json_schema}
    assert parsed.choices[0].request.tool_choice == ToolChoice(("f",))
    named = read_request({"input": "a", "tools": tools, "tool_choice": {"type": "function", "name": "f"}})
    assert named.choices[0].request.tool_choice == ToolChoice(("f",), False)
    none = read_request({"input": "a", "text": {"format": {"type": "text"}}, "tools": tools, "tool_choice": "none"})
    assert (none.choices[0].request.tool_choice, none.choices[0].request.tools) == (None, None)
    assert none.choices[0].request.sampling_params.response_format is None


@each_row(
    ("body", "message"),
    [
        ({}, "missing required field `input`"),
        ({"input": []}, "length >= 1"),
        ({"input": "a", "previous_response_id": "resp_1"}, "previous_response_id .* this server is stateless"),
        ({"input": "a", "background": True}, "background is true"),
        ({"input": "a", "top_logprobs": 2}, "top_logprobs is given without include"),
        ({"input": "a", "tools": [{"type": "web_search"}]}, "web_search.*expected type 'function'"),
        ({"input": [{"type": "item_reference", "id": "1"}]}, r"input\[0\] is of type item_reference"),
        ({"input": [{"role": "king", "content": "a"}]}, "the role is king"),
        ({"input": [{"type": "reasoning", "summary": 1}]}, r"input\[0\] has the reasoning 1; expected a list of parts"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, r"input\[0\] has the content part"),
        ({"input": [{"type": "function_call_output", "output": "a"}]}, "tool_call_id"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "tool_calls"),
    ],
)
def test_unsupported_requests_are_refused(body: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        read_request(body)
