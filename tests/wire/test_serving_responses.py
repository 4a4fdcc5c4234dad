"""OpenAI's Responses API from the server's side, held against what our own client sends and reads."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def plain(messages: list[Any]) -> list[dict[str, Any]]:
    return [{key: value for key, value in message.items() if value is not None} for message in messages]


def merged(messages: list[Message]) -> list[dict[str, Any]]:
    """As the items of the API can say it: calls belong to the assistant's message before them."""
    made: list[dict[str, Any]] = []
    for message in plain(messages):
        if made and made[-1]["role"] == message["role"] == "assistant" and "content" not in message:
            made[-1]["tool_calls"] = [*made[-1].get("tool_calls", []), *message["tool_calls"]]
        else:
            made.append(dict(message))
    return made


@given(conversations, st.none() | st.just([TOOL]), st.none() | st.integers(1, 99), st.none() | st.floats(0, 2))
def test_a_request_is_read_as_it_was_meant(messages: list[Message], tools: Any, most: int | None, heat: float | None):
    request = Request([dict(m) for m in messages], SamplingParams(max_tokens=most, temperature=heat), "toy", tools)
    asked = read_request(over_json(responses.request_body(request)))
    (question,) = asked.questions
    assert plain(question.request.messages) == merged(messages)
    assert (question.request.sampling_params.max_tokens, question.request.sampling_params.temperature) == (most, heat)
    assert (asked.model, asked.api, question.request.sampling_params.extra) == ("toy", "responses", {})
    if tools is not None:
        function = {**TOOL["function"], "strict": False}
        assert question.request.tools == [{"type": "function", "function": function}]


@given(answers, st.sampled_from(["", "so I think"]), st.sampled_from(["stop", "length", "tool_calls"]), st.data())
def test_an_answer_is_read_as_it_was_given_whole_and_streamed(message: Message, thought: str, reason: str, data: Any):
    if thought:
        message = Message(message, reasoning_content=thought)
    reason = reason if reason == "length" else "tool_calls" if message.tool_calls else "stop"
    response = Response(message, Usage(3, 1), reason)
    body = over_json(response_body(HEAD, [response], response.usage))
    read = responses.read_response(body)
    assert (read.message, read.usage, read.finish_reason) == (message, response.usage, reason)

    text = message.content or ""
    told = text[: data.draw(st.integers(0, len(text)))]
    events = [*first_chunks(HEAD, 0), *text_chunks(HEAD, 0, told, ""), *last_chunks(HEAD, 0, response, told)]
    assert responses.read_response(events[-1]["response"]).message == message
    assert events[-1]["type"] == "response." + body["status"]
    assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta") == text
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["item"] for event in done] == events[-1]["response"]["output"]
    assert [event["output_index"] for event in done] == list(range(len(done)))
    assert sum(event["type"] == "response.output_item.added" for event in events) == len(done)


def test_instructions_reasoning_and_calls_become_messages():
    body = {
        "instructions": "be brief",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look"}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "x"},
            {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AA=="}]},
        ],
    }
    calls = [tool_call("1", "f", "{}"), tool_call("2", "g", "{}")]
    assert read_request(body).questions[0].request.messages == [
        SystemMessage("be brief"),
        UserMessage("ab"),
        AssistantMessage("I look", reasoning_content="hm", tool_calls=calls),
        ToolMessage("x", "1"),
        UserMessage([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]),
    ]


def test_forms_and_choices():
    form = {"type": "json_schema", "name": "trip", "schema": {"type": "object"}}
    tools = [{"type": "function", "name": "f", "parameters": {}}]
    asked = read_request({"input": "a", "text": {"format": form}, "tools": tools, "tool_choice": "required"})
    inner = {"name": "trip", "schema": {"type": "object"}}
    sampling = asked.questions[0].request.sampling_params
    assert sampling.response_format == {"type": "json_schema", "json_schema": inner}
    assert asked.questions[0].request.tool_choice == ToolChoice(("f",))
    named = read_request({"input": "a", "tools": tools, "tool_choice": {"type": "function", "name": "f"}})
    assert named.questions[0].request.tool_choice == ToolChoice(("f",), False)
    none = read_request({"input": "a", "text": {"format": {"type": "text"}}, "tools": tools, "tool_choice": "none"})
    assert (none.questions[0].request.tool_choice, none.questions[0].request.tools) == (None, None)
    assert none.questions[0].request.sampling_params.response_format is None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "missing required field `input`"),
        ({"input": []}, "length >= 1"),
        ({"input": "a", "previous_response_id": "resp_1"}, "previous_response_id .* this server is stateless"),
        ({"input": "a", "background": True}, "background is true"),
        ({"input": "a", "top_logprobs": 2}, "top_logprobs is given without include"),
        ({"input": "a", "tools": [{"type": "web_search"}]}, "web_search.*expected type 'function'"),
        ({"input": [{"type": "item_reference", "id": "1"}]}, r"input\[0\] is of type item_reference"),
        ({"input": [{"role": "king", "content": "a"}]}, "the role is king"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, r"input\[0\] has the content part"),
        ({"input": [{"type": "function_call_output", "output": "a"}]}, "tool_call_id"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "tool_calls"),
    ],
)
def test_what_cannot_be_done_is_refused(body: Any, said: str):
    with pytest.raises(ConfigError, match=said):
        read_request(body)
