from __future__ import annotations

from typing import Any

import msgspec
import pytest
from fault_endpoint import completion
from hypothesis import given
from hypothesis import strategies as st
from tiers import each_row

from rove.core.errors import ConfigError, EmptyModelResponseError, InvalidModelResponseError, excerpt
from rove.core.messages import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage, text_of
from rove.core.protocols import Request, SamplingParams, ToolChoice
from rove.core.records import StepTokens, Usage
from rove.core.state import State
from rove.rendering.reasoning import OPENED_REASONING
from rove.rendering.renderer import SAMPLED
from rove.wire import anthropic, responses
from rove.wire.chat import read_response, request_body
from rove.wire.common import PRIVATE_FIELDS
from tests.wire.test_common import JSON, TEXT

OWN_NAMES = {
    *SamplingParams.__struct_fields__,
    *("model", "messages", "tools", "max_completion_tokens", "extra_body", "top_logprobs"),
}
COUNT = st.none() | st.integers(0, 20)
SAMPLINGS = st.builds(
    SamplingParams,
    temperature=st.none() | st.floats(0, 2),
    max_tokens=st.none() | st.integers(1, 10**6),
    top_p=st.none() | st.floats(0, 1, exclude_min=True).filter(lambda p: p > 1e-300),
    seed=st.none() | st.integers(0, 2**31),
    stop=st.none() | st.lists(TEXT.filter(bool), max_size=3),
    top_k=st.none() | st.integers(-1, 100),
    min_p=st.none() | st.floats(0, 1),
    repetition_penalty=st.none() | st.floats(0.5, 2),
    presence_penalty=st.none() | st.floats(-2, 2),
    frequency_penalty=st.none() | st.floats(-2, 2),
    logit_bias=st.none() | st.dictionaries(st.integers(0, 50_000), st.floats(-100, 100), max_size=3),
    stop_token_ids=st.none() | st.lists(st.integers(0, 50_000), max_size=3),
    min_tokens=st.none() | st.integers(0, 1),
    ignore_eos=st.none() | st.booleans(),
    logprobs=COUNT,
    prompt_logprobs=COUNT,
    response_format=st.none() | st.just({"type": "json_object"}),
    structured_outputs=st.none() | st.just({"regex": "a+"}),
    extra=st.dictionaries(TEXT.filter(lambda name: name not in OWN_NAMES), JSON.filter(lambda v: v is not None)),
)
MESSAGES = st.lists(
    st.builds(SystemMessage, TEXT)
    | st.builds(UserMessage, TEXT)
    | st.builds(AssistantMessage, st.none() | TEXT, reasoning_content=st.none() | TEXT)
    | st.builds(ToolMessage, TEXT, TEXT),
    max_size=4,
)
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def test_request_body_uses_openai_names():
    tool = {"type": "function", "function": {"name": "add", "parameters": {"default": None}}}
    sampling = SamplingParams(temperature=0.0, max_tokens=7, top_p=0.9, seed=3, stop=["\n"], extra={"top_k": 20})
    request = Request([UserMessage("hi")], sampling, "tiny", [tool])
    assert request_body(request) == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [tool],  # the null in the schema is kept
        "temperature": 0.0,
        "max_tokens": 7,
        "top_p": 0.9,
        "seed": 3,
        "stop": ["\n"],
        "top_k": 20,
    }


def test_parameters_beyond_openai_are_sent_under_vllms_names():
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    parameters = {
        "top_k": 20,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "logit_bias": {"17": -100.0},
        "stop_token_ids": [5],
        "min_tokens": 2,
        "ignore_eos": True,
        "prompt_logprobs": 1,
        "logprobs": True,
        "top_logprobs": 3,
        "response_format": schema,
        "structured_outputs": {"regex": "a+"},
        "guided_regex": "a+",
    }
    assert request_body(Request([], SamplingParams.from_args(parameters))) == {"messages": [], **parameters}
    assert request_body(Request([], SamplingParams.from_args({"logprobs": True}))) == {"messages": [], "logprobs": True}


def test_request_body_omits_unset_parameters():
    assert request_body(Request([UserMessage("hi")], tools=[])) == {"messages": [{"role": "user", "content": "hi"}]}


def test_request_body_omits_internal_fields():
    tokens = StepTokens([1], [2], [-0.5])
    request = Request([], previous=tokens, seed=5, state=State(secret=1))
    assert request_body(request) == {"messages": []}


def test_extra_parameters_override_the_others():
    sampling = SamplingParams(temperature=0.5, extra={"temperature": 0.7, "max_completion_tokens": 9, "n": None})
    assert request_body(Request([], sampling)) == {"messages": [], "temperature": 0.7, "max_completion_tokens": 9}


def test_messages_are_plain_dicts_without_none():
    message = AssistantMessage(None, tool_calls=[CALL], refusal=None)
    (message_json,) = request_body(Request([message]))["messages"]
    assert type(message_json) is dict
    assert message_json == {"role": "assistant", "tool_calls": [CALL]}
    assert message == {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None}


def test_content_parts_tool_calls_and_reasoning_are_sent_unchanged():
    messages = [
        UserMessage(
            [
                {"type": "text", "text": "Look, listen, read.", "cache_control": {"type": "ephemeral"}},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
                {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
                {"type": "file", "file": {"file_id": "file-1", "filename": None}},
            ]
        ),
        AssistantMessage(
            "Adding.", reasoning_content="2 + 2", tool_calls=[{**CALL, "extra_content": {"signature": None}}]
        ),
        ToolMessage([{"type": "text", "text": "4"}], "call_1", name="add"),
    ]
    assert request_body(Request([*messages]))["messages"] == messages


def test_fields_that_only_rove_reads_are_not_sent():
    assert {SAMPLED, OPENED_REASONING, anthropic.CONTENT, responses.OUTPUT} == PRIVATE_FIELDS
    fields = dict.fromkeys(PRIVATE_FIELDS, "x")
    message = AssistantMessage("hi", reasoning_details=[{"type": "reasoning.text"}], **fields)
    (sent,) = request_body(Request([message]))["messages"]
    assert sent == {"role": "assistant", "content": "hi", "reasoning_details": [{"type": "reasoning.text"}]}
    assert message.keys() > PRIVATE_FIELDS


@given(messages=MESSAGES, sampling=SAMPLINGS, model=TEXT)
def test_request_body_contains_exactly_the_request(messages: list[Message], sampling: SamplingParams, model: str):
    body = request_body(Request([*messages], sampling, model, state=State(), previous=StepTokens([], [], [])))
    assert None not in body.values()
    expected_messages = [{name: value for name, value in message.items() if value is not None} for message in messages]
    assert body["messages"] == expected_messages
    assert not {"state", "previous"} & (body.keys() - sampling.extra.keys())
    assert msgspec.json.decode(msgspec.json.encode(body)) == body
    assert SamplingParams.from_args({k: v for k, v in body.items() if k not in ("model", "messages")}) == sampling


def test_read_response():
    response = read_response(completion("Grüße 🌍", finish_reason="length"))
    assert response.message == {"role": "assistant", "content": "Grüße 🌍"}
    assert isinstance(response.message, Message)
    assert response.usage == Usage(3, 2)
    assert response.finish_reason == "length"
    assert response.tokens is None


@given(text=TEXT.filter(bool))
def test_text_is_unchanged_by_encoding_and_decoding(text: str):
    body = msgspec.json.decode(msgspec.json.encode(completion(text)))
    message = read_response(body).message
    assert message.content == text
    assert request_body(Request([message]))["messages"] == [{"role": "assistant", "content": text}]


def test_tool_calls_are_kept_with_unknown_fields():
    call = {**CALL, "extra_content": {"thought_signature": "abc"}}
    response = read_response(completion(None, "tool_calls", tool_calls=[call]))
    assert response.message == {"role": "assistant", "content": None, "tool_calls": [call]}
    assert response.finish_reason == "tool_calls"


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_stored_as_reasoning_content(name: str):
    message = read_response(completion("4", **{name: "2 + 2"})).message
    assert message == {"role": "assistant", "content": "4", "reasoning_content": "2 + 2"}


@pytest.mark.parametrize(
    ("fields", "finish_reason"), [({"reasoning": "hm"}, "stop"), ({"refusal": "no"}, "stop"), ({}, "length")]
)
def test_a_response_without_text_is_accepted_with_reasoning_refusal_or_length(
    fields: dict[str, Any], finish_reason: str
):
    assert read_response(completion(None, finish_reason, **fields)).message.content == ""


def test_text_parts_are_joined():
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ]
    assert read_response(completion(parts)).message.content == "ab"


@pytest.mark.parametrize("usage", [None, {}, "many", {"prompt_tokens": None, "completion_tokens": "2"}])
def test_missing_or_malformed_usage_is_read_as_zero(usage: Any):
    assert read_response({**completion("hi"), "usage": usage}).usage == Usage(0, 0)


def test_a_missing_finish_reason_is_read_as_stop():
    body = completion("hi", finish_reason=None)
    assert read_response(body).finish_reason == "stop"
    del body["choices"][0]["finish_reason"]
    del body["usage"]
    assert read_response(body).finish_reason == "stop"


@pytest.mark.parametrize("content", [None, "", []])
def test_an_empty_response_is_an_answer(content: Any):
    response = read_response(completion(content, tool_calls=[]))
    assert (response.message, response.finish_reason) == ({"role": "assistant", "content": ""}, "stop")
    with pytest.raises(EmptyModelResponseError, match="ended with 'error'.*chatcmpl-1"):
        read_response(completion(content, tool_calls=[], finish_reason="error"))


def test_a_call_in_the_older_field_is_read():
    body = completion("")
    body["choices"][0]["message"]["function_call"] = {"name": "add", "arguments": '{"a": 1}'}
    (call,) = read_response(body).message["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
    body["choices"][0]["message"]["function_call"] = {}
    assert "tool_calls" not in read_response(body).message


@each_row(
    ("body", "expected"),
    [
        (None, "Expected `object`, got `null`"),
        ([], "Expected `object`, got `array`"),
        ({"error": {"message": "overloaded"}}, "missing required field `choices`.*overloaded"),
        ({"choices": []}, "length >= 1"),
        ({"choices": [{}]}, "missing required field `message`"),
        (completion(7), "got `int`"),
        (completion(None, tool_calls="add(1)"), "got `str`"),
        (completion(None, tool_calls=["add(1)"]), r"tool call add\(1\); expected an object"),
    ],
)
def test_an_invalid_completion_raises_an_error(body: Any, expected: str):
    with pytest.raises(InvalidModelResponseError, match=expected) as caught:
        read_response(body)
    assert not isinstance(caught.value, EmptyModelResponseError)


@given(body=JSON | st.builds(completion, JSON, JSON, tool_calls=JSON, reasoning=JSON, refusal=JSON))
def test_any_json_is_either_read_or_reported_as_invalid(body: Any):
    try:
        response = read_response(body)
    except InvalidModelResponseError as error:
        assert len(str(error)) < 600
    else:
        assert isinstance(text_of(response.message), str)


def test_excerpt_is_short_and_on_one_line():
    assert excerpt(b"a\n  b\xff") == "a b\ufffd"
    assert excerpt("x" * 300) == "x" * 200 + "…"
    assert excerpt(" ") == "(nothing)"


def test_a_forced_tool_call_is_sent():
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in "fgh"]

    def body(names: tuple[str, ...], parallel: bool) -> dict[str, Any]:
        offered = tools[:2] if len(names) > 1 else tools
        return request_body(Request([UserMessage("a")], tools=offered, tool_choice=ToolChoice(names, parallel)))

    assert body(("f", "g"), True)["tool_choice"] == "required" and "parallel_tool_calls" not in body(("f", "g"), True)
    named = body(("f",), False)
    assert (named["tool_choice"], named["parallel_tool_calls"]) == (
        {"type": "function", "function": {"name": "f"}},
        False,
    )
    with pytest.raises(ConfigError, match="tool_choice allows f, g of 3 tools; expected one, or all"):
        request_body(Request([UserMessage("a")], tools=tools, tool_choice=ToolChoice(("f", "g"))))


def test_chat_template_arguments_are_sent():
    request = Request([UserMessage("a")], chat_template_kwargs={"enable_thinking": False}, add_generation_prompt=False)
    body = request_body(request)
    assert (body["chat_template_kwargs"], body["add_generation_prompt"]) == ({"enable_thinking": False}, False)
    assert request_body(Request([UserMessage("a")])).keys() == {"messages"}
