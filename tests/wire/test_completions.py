from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from tiers import each_row

from rove.core.errors import ConfigError, EmptyModelResponseError, InvalidModelResponseError
from rove.core.messages import AssistantMessage, SystemMessage, UserMessage
from rove.core.protocols import Request, Response, SamplingParams
from rove.core.records import Usage
from rove.wire.completions import read_response, request_body, response_body
from rove.wire.serving import Head, TokenLogprob
from tests.wire.test_common import JSON, TEXT, blocks, garbage


def completion_json(text: Any, finish_reason: Any = "stop", **fields: Any) -> dict[str, Any]:
    choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": finish_reason}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    return {
        "id": "1",
        "object": "text_completion",
        "created": 0,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    } | fields


def test_the_prompt_is_the_text_of_the_user_message():
    sampling = SamplingParams(
        temperature=0.0,
        max_tokens=7,
        top_p=0.9,
        seed=3,
        stop=["\n"],
        top_k=5,
        logit_bias={7: 1.5},
        logprobs=2,
        extra={"echo": True, "top_p": None},
    )
    request = Request([UserMessage(["once ", {"type": "text", "text": "upon"}])], sampling, "tiny", tools=[], seed=5)
    assert request_body(request) == {
        "model": "tiny",
        "prompt": "once upon",
        "temperature": 0.0,
        "max_tokens": 7,
        "seed": 3,
        "stop": ["\n"],
        "top_k": 5,
        "logit_bias": {"7": 1.5},
        "logprobs": 2,
        "echo": True,
    }
    assert request_body(Request([UserMessage("")])) == {"prompt": ""}


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [SystemMessage("be good")],
        [SystemMessage("be good"), UserMessage("hi")],
        [UserMessage("a"), AssistantMessage("b")],
    ],
)
def test_a_conversation_is_refused(messages: list[Any]):
    with pytest.raises(ConfigError, match="expected exactly one of 'user'.*use chat completions"):
        request_body(Request(messages))


def test_images_and_tools_are_refused():
    with pytest.raises(ConfigError, match="cannot take the content part.*image_url.*expected text"):
        request_body(Request([UserMessage([{"type": "image_url", "image_url": {"url": "https://a"}}])]))
    with pytest.raises(ConfigError, match="1 tools given; expected none"):
        request_body(Request([UserMessage("hi")], tools=[{"type": "function", "function": {"name": "add"}}]))


@given(text=TEXT)
def test_the_prompt_is_unchanged_by_encoding_and_decoding(text: str):
    body = msgspec.json.decode(msgspec.json.encode(request_body(Request([UserMessage(text)]))))
    assert body == {"prompt": text}


@pytest.mark.parametrize(
    ("theirs", "ours"), [("stop", "stop"), ("length", "length"), ("content_filter", "stop"), (None, "stop")]
)
def test_read_response(theirs: str | None, ours: str):
    body = completion_json(" a time", theirs)
    if theirs:
        Completion.model_validate(body, strict=True)
    response = read_response(body)
    assert response.message == {"role": "assistant", "content": " a time"}
    assert response.usage == Usage(3, 2)
    assert response.finish_reason == ours


@pytest.mark.parametrize("text", ["", None])
def test_an_empty_text_is_an_answer(text: str | None):
    response = read_response(completion_json(text, usage=None))
    assert (response.message.content, response.finish_reason, response.usage) == ("", "stop", Usage(0, 0))
    with pytest.raises(EmptyModelResponseError, match="ended with 'abort'"):
        read_response(completion_json(text, "abort"))


@each_row("body", [None, {}, {"choices": []}, {"choices": [{"message": {}}]}, completion_json(7)])
def test_an_invalid_completion_raises_an_error(body: Any):
    with pytest.raises(InvalidModelResponseError, match="not a completion") as caught:
        read_response(body)
    assert not isinstance(caught.value, EmptyModelResponseError)


@given(body=garbage(choices=blocks(["text"], text=TEXT, finish_reason=st.just("length")), usage=JSON))
def test_any_json_is_either_read_or_reported_as_invalid(body: Any):
    try:
        response = read_response(body)
    except InvalidModelResponseError as error:
        assert len(str(error)) < 600
    else:
        assert isinstance(response.message.content, str)
        assert response.finish_reason in ("stop", "length")


def test_for_top_tokens_with_equal_text_the_most_likely_is_returned():
    top = [TokenLogprob("�", -0.5), TokenLogprob("a", -1.5), TokenLogprob("�", -2.5)]
    response = Response(AssistantMessage("a"), Usage(1, 1))
    body = response_body(Head("id", "model", 0), [response], Usage(1, 1), [[TokenLogprob("a", -1.5, top)]])
    (top_logprobs,) = body["choices"][0]["logprobs"]["top_logprobs"]
    assert list(top_logprobs.items()) == [("�", -0.5), ("a", -1.5)]
