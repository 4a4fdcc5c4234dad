"""Round trips: the server reads the requests of rove's clients, and the clients read the server's responses."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rove.core.errors import ConfigError
from rove.core.messages import AssistantMessage, Message, ToolMessage, UserMessage
from rove.core.protocols import Request, Response, SamplingParams
from rove.core.records import Usage
from rove.wire import chat, completions
from rove.wire.common import tool_call
from rove.wire.serving import ChoiceRequest, TokenLogprob, error_body, expand_choices, new_head, read_body, usage_of

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
HEAD = new_head("chatcmpl", "toy")

samplings = st.builds(
    SamplingParams,
    temperature=st.none() | st.floats(0, 2),
    max_tokens=st.none() | st.integers(1, 1000),
    top_p=st.none() | st.floats(0.01, 1),
    seed=st.none() | st.integers(-(2**31), 2**31),
    stop=st.none() | st.lists(st.text(min_size=1), min_size=1, max_size=4),
    extra=st.dictionaries(st.sampled_from(["chatty", "guide"]), st.integers() | st.text()),
)
calls = st.lists(
    st.builds(tool_call, st.uuids().map(str), st.text(min_size=1), st.sampled_from(["{}", '{"a": 1}', "oops"])),
    min_size=1,
    max_size=3,
    unique_by=lambda call: call["id"],
)
answers = st.builds(AssistantMessage, st.text(min_size=1)) | st.builds(
    lambda text, calls: AssistantMessage(text or None, tool_calls=calls), st.text(), calls
)
conversations = st.lists(
    st.builds(UserMessage, st.text()) | answers | st.builds(ToolMessage, st.text(), st.text()), min_size=1
)


def over_json(body: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(body))


@given(conversations, samplings, st.none() | st.just([TOOL]), st.text(max_size=9))
def test_a_chat_request_round_trips(messages: list[Message], sampling: SamplingParams, tools: Any, model: str):
    request = Request([dict(message) for message in messages], sampling, model, tools)
    parsed = chat.read_request(over_json(chat.request_body(request)))
    (choice,) = parsed.choices
    # null means absent, in messages too
    expected = [{key: value for key, value in message.items() if value is not None} for message in messages]
    assert (choice.request.messages, choice.request.tools, parsed.model) == (expected, tools, model)
    assert choice.request.sampling_params == sampling
    assert choice.prompt_ids is None
    if sampling.seed is not None:
        assert choice.request.seed == sampling.seed


@given(st.text(), samplings)
def test_a_completion_request_round_trips(text: str, sampling: SamplingParams):
    body = over_json(completions.request_body(Request([UserMessage(text)], sampling, "toy")))
    (choice,) = completions.read_request(body).choices
    assert (choice.request.text, choice.request.messages, choice.request.sampling_params) == (text, [], sampling)


@given(answers, st.integers(0, 9), st.sampled_from(["stop", "length", "tool_calls"]))
def test_a_chat_response_round_trips(message: Message, tokens: int, reason: str):
    response = Response(message, Usage(tokens, 1), reason)
    result = chat.read_response(over_json(chat.response_body(HEAD, [response], usage_of([response], 1))))
    assert (result.message, result.usage, result.finish_reason) == (message, response.usage, reason)


@given(st.text(min_size=1), st.sampled_from(["stop", "length"]))
def test_a_completion_round_trips(text: str, reason: str):
    response = Response(AssistantMessage(text), Usage(1, 2), reason)
    result = completions.read_response(over_json(completions.response_body(HEAD, [response], response.usage)))
    assert (result.message, result.usage, result.finish_reason) == (response.message, response.usage, reason)


@given(answers, st.data())
def test_the_chunks_of_a_stream_add_up_to_the_response(message: Message, data: st.DataObject):
    text = message.content or ""
    cut = data.draw(st.integers(0, len(text)))
    response = Response(message, Usage(1, 2))
    chunks = [*chat.first_chunks(HEAD, 0), *chat.text_chunks(HEAD, 0, text[:cut], "")]
    chunks += chat.last_chunks(HEAD, 0, response, text[:cut])
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == text
    streamed_calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert streamed_calls == [{"index": i, **call} for i, call in enumerate(message.get("tool_calls") or [])]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "stop"
    parts = [*completions.text_chunks(HEAD, 0, text[:cut], ""), *completions.last_chunks(HEAD, 0, response, text[:cut])]
    assert "".join(part["choices"][0]["text"] for part in parts) == text


def test_logprobs_in_the_formats_of_both_apis():
    b = TokenLogprob("b", -2.0)
    tokens = [TokenLogprob("é", -1.0, [TokenLogprob("é", -1.0), b]), TokenLogprob("b", -2.0, [b], offset=1)]
    response = Response(AssistantMessage("éb"))
    logprobs = chat.response_body(HEAD, [response], Usage(), [tokens])["choices"][0]["logprobs"]["content"]
    assert [(entry["token"], entry["logprob"], bytes(entry["bytes"]).decode()) for entry in logprobs] == [
        ("é", -1, "é"),
        ("b", -2, "b"),
    ]
    assert [len(entry["top_logprobs"]) for entry in logprobs] == [2, 1]
    logprobs = completions.response_body(HEAD, [response], Usage(), [tokens])["choices"][0]["logprobs"]
    assert (logprobs["tokens"], logprobs["token_logprobs"], logprobs["text_offset"]) == (
        ["é", "b"],
        [-1.0, -2.0],
        [0, 1],
    )
    assert logprobs["top_logprobs"] == [{"é": -1.0, "b": -2.0}, {"b": -2.0}]


def test_the_bytes_of_parts_of_a_character_are_those_of_the_character_together():
    parts = [TokenLogprob("\ufffd", -1.0, utf8=bytes([byte])) for byte in "é".encode()]
    tokens = [TokenLogprob("a", -1.0), *parts, TokenLogprob("\ufffd", -1.0)]
    logprobs = chat.response_body(HEAD, [Response(AssistantMessage("aé\ufffd"))], Usage(), [tokens])
    entries = logprobs["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == "aé\ufffd"
    assert [len(entry["bytes"]) for entry in entries] == [1, 1, 1, 3]


def test_logprobs_are_read_from_the_request():
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]}
    assert chat.read_request(body).logprobs is None
    assert chat.read_request({**body, "logprobs": True}).logprobs == 0
    assert chat.read_request({**body, "logprobs": True, "top_logprobs": 3}).logprobs == 3
    assert completions.read_request({"prompt": "a", "logprobs": 0}).logprobs == 0
    assert completions.read_request({"prompt": "a"}).logprobs is None


def test_choices_have_consecutive_seeds_starting_at_the_given_one():
    seeded = expand_choices(ChoiceRequest(Request([], SamplingParams(seed=7))), 3)
    assert (
        [choice.request.seed for choice in seeded]
        == [choice.request.sampling_params.seed for choice in seeded]
        == [7, 8, 9]
    )
    unseeded = expand_choices(ChoiceRequest(Request([])), 3)
    assert len({choice.request.seed for choice in unseeded}) == 3
    assert {choice.request.sampling_params.seed for choice in unseeded} == {None}


def test_completion_prompts_may_be_texts_or_token_ids():
    def prompts(prompt: Any) -> list[Any]:
        return [
            choice.request.text or choice.prompt_ids for choice in completions.read_request({"prompt": prompt}).choices
        ]

    assert [prompts(prompt) for prompt in ("a", ["a", "b"], [1, 2], [[1], [2]])] == [
        ["a"],
        ["a", "b"],
        [[1, 2]],
        [[1], [2]],
    ]
    for wrong in ([], [[]], [["a"]], [1, "a"], None, 3, {}):
        with pytest.raises(ConfigError, match="prompt"):
            prompts(wrong)


def test_read_body_and_error_body():
    with pytest.raises(ConfigError, match="expected a JSON object"):
        read_body([], chat._Body)
    assert error_body("no", code="c")["error"] == {
        "message": "no",
        "type": "invalid_request_error",
        "param": None,
        "code": "c",
    }
