"""Both directions of the wire together: what our own clients send is read back as it was meant, and so are the answers."""

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
def test_a_chat_request_is_read_as_it_was_meant(
    messages: list[Message], sampling: SamplingParams, tools: Any, model: str
):
    request = Request([dict(message) for message in messages], sampling, model, tools)
    asked = chat.read_request(over_json(chat.request_body(request)))
    (question,) = asked.choices
    # null is what is not there, in a message too
    wanted = [{key: value for key, value in message.items() if value is not None} for message in messages]
    assert (question.request.messages, question.request.tools, asked.model) == (wanted, tools, model)
    assert question.request.sampling_params == sampling
    assert question.prompt_ids is None
    if sampling.seed is not None:
        assert question.request.seed == sampling.seed


@given(st.text(), samplings)
def test_a_completion_request_is_read_as_it_was_meant(text: str, sampling: SamplingParams):
    body = over_json(completions.request_body(Request([UserMessage(text)], sampling, "toy")))
    (question,) = completions.read_request(body).choices
    assert (question.request.text, question.request.messages, question.request.sampling_params) == (text, [], sampling)


@given(answers, st.integers(0, 9), st.sampled_from(["stop", "length", "tool_calls"]))
def test_a_chat_answer_is_read_as_it_was_given(message: Message, tokens: int, reason: str):
    response = Response(message, Usage(tokens, 1), reason)
    read = chat.read_response(over_json(chat.response_body(HEAD, [response], usage_of([response], 1))))
    assert (read.message, read.usage, read.finish_reason) == (message, response.usage, reason)


@given(st.text(min_size=1), st.sampled_from(["stop", "length"]))
def test_a_completion_is_read_as_it_was_given(text: str, reason: str):
    response = Response(AssistantMessage(text), Usage(1, 2), reason)
    read = completions.read_response(over_json(completions.response_body(HEAD, [response], response.usage)))
    assert (read.message, read.usage, read.finish_reason) == (response.message, response.usage, reason)


@given(answers, st.data())
def test_the_pieces_of_a_stream_are_the_answer(message: Message, data: st.DataObject):
    text = message.content or ""
    cut = data.draw(st.integers(0, len(text)))
    response = Response(message, Usage(1, 2))
    chunks = [*chat.first_chunks(HEAD, 0), *chat.text_chunks(HEAD, 0, text[:cut], "")]
    chunks += chat.last_chunks(HEAD, 0, response, text[:cut])
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == text
    told = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert told == [{"index": i, **call} for i, call in enumerate(message.get("tool_calls") or [])]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "stop"
    parts = [*completions.text_chunks(HEAD, 0, text[:cut], ""), *completions.last_chunks(HEAD, 0, response, text[:cut])]
    assert "".join(part["choices"][0]["text"] for part in parts) == text


def test_log_probabilities_in_both_shapes():
    b = TokenLogprob("b", -2.0)
    tokens = [TokenLogprob("é", -1.0, [TokenLogprob("é", -1.0), b]), TokenLogprob("b", -2.0, [b], offset=1)]
    response = Response(AssistantMessage("éb"))
    told = chat.response_body(HEAD, [response], Usage(), [tokens])["choices"][0]["logprobs"]["content"]
    assert [(one["token"], one["logprob"], bytes(one["bytes"]).decode()) for one in told] == [
        ("é", -1, "é"),
        ("b", -2, "b"),
    ]
    assert [len(one["top_logprobs"]) for one in told] == [2, 1]
    told = completions.response_body(HEAD, [response], Usage(), [tokens])["choices"][0]["logprobs"]
    assert (told["tokens"], told["token_logprobs"], told["text_offset"]) == (["é", "b"], [-1.0, -2.0], [0, 1])
    assert told["top_logprobs"] == [{"é": -1.0, "b": -2.0}, {"b": -2.0}]


def test_log_probabilities_are_asked_for():
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]}
    assert chat.read_request(body).logprobs is None
    assert chat.read_request({**body, "logprobs": True}).logprobs == 0
    assert chat.read_request({**body, "logprobs": True, "top_logprobs": 3}).logprobs == 3
    assert completions.read_request({"prompt": "a", "logprobs": 0}).logprobs == 0
    assert completions.read_request({"prompt": "a"}).logprobs is None


def test_seeds_count_up_from_the_one_given():
    given = expand_choices(ChoiceRequest(Request([], SamplingParams(seed=7))), 3)
    assert [one.request.seed for one in given] == [one.request.sampling_params.seed for one in given] == [7, 8, 9]
    free = expand_choices(ChoiceRequest(Request([])), 3)
    assert len({one.request.seed for one in free}) == 3
    assert {one.request.sampling_params.seed for one in free} == {None}


def test_prompts_of_completions():
    def prompts(given: Any) -> list[Any]:
        return [one.request.text or one.prompt_ids for one in completions.read_request({"prompt": given}).choices]

    assert [prompts(given) for given in ("a", ["a", "b"], [1, 2], [[1], [2]])] == [
        ["a"],
        ["a", "b"],
        [[1, 2]],
        [[1], [2]],
    ]
    for wrong in ([], [[]], [["a"]], [1, "a"], None, 3, {}):
        with pytest.raises(ConfigError, match="prompt"):
            prompts(wrong)


def test_the_rest():
    with pytest.raises(ConfigError, match="expected a JSON object"):
        read_body([], chat._Body)
    assert error_body("no", code="c")["error"] == {
        "message": "no",
        "type": "invalid_request_error",
        "param": None,
        "code": "c",
    }
