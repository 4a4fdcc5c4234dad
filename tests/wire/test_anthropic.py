from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import each_row

from rove.core.errors import ConfigError, EmptyModelResponseError, InvalidModelResponseError
from rove.core.messages import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage, text_of
from rove.core.protocols import Request, SamplingParams, ToolChoice
from rove.core.records import Usage
from rove.wire.anthropic import CONTENT, DEFAULT_MAX_TOKENS, read_response, request_body
from rove.wire.common import tool_call
from tests.wire.test_common import JSON, NAMES, OBJECTS, TEXT, blocks, garbage

PNG = "data:image/png;base64,iVBORw0KGgo="
THOUGHT = {"type": "thinking", "thinking": "2 + 2", "signature": "EqQB"}
REDACTED_THOUGHT = {"type": "redacted_thinking", "data": "EmwK"}
TOOL_USE = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 2, "b": 2}}
CALL = tool_call("toolu_1", "add", '{"a":2,"b":2}')


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def response_json(*content: Any, stop_reason: Any = "end_turn", **fields: Any) -> dict[str, Any]:
    usage = {"input_tokens": 3, "cache_creation_input_tokens": 5, "cache_read_input_tokens": None, "output_tokens": 2}
    body = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [*content]}
    return body | {"stop_reason": stop_reason, "stop_sequence": None, "usage": usage} | fields


def sent_messages(*messages: Message) -> list[dict[str, Any]]:
    return request_body(Request([*messages]))["messages"]


def test_a_complete_request():
    add = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "default": None}, "strict": True}
    tools = [
        {"type": "function", "function": add},
        {"type": "function", "function": {"name": "now"}},
        {"type": "web_search_20250305", "name": "web_search"},
    ]
    sampling = SamplingParams(temperature=0.5, max_tokens=7, top_p=0.9, seed=3, stop=["END"], top_k=20)
    messages = [
        SystemMessage("Be brief."),
        UserMessage(["What is this?", {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}]),
        AssistantMessage("Sums.", tool_calls=[CALL, tool_call("toolu_2", "now", "")], reasoning_content="hm"),
        ToolMessage("4", "toolu_1"),
        ToolMessage([text_block("noon"), {"type": "image_url", "image_url": {"url": "https://a/b,c.png"}}], "toolu_2"),
        UserMessage("And?", name="Ann"),
        Message(role="developer", content="Hurry."),
    ]
    assert request_body(Request(messages, sampling, "claude", tools, seed=9)) == {
        "model": "claude",
        "max_tokens": 7,
        "system": [text_block("Be brief."), text_block("Hurry.")],
        "messages": [
            {
                "role": "user",
                "content": [
                    text_block("What is this?"),
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
                    },
                ],
            },
            {
                "role": "assistant",
                "content": [
                    text_block("Sums."),
                    TOOL_USE,
                    {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text_block("4")]},
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_2",
                        "content": [
                            text_block("noon"),
                            {"type": "image", "source": {"type": "url", "url": "https://a/b,c.png"}},
                        ],
                    },
                    text_block("And?"),
                ],
            },
        ],
        "tools": [
            {"name": "add", "description": "Adds.", "input_schema": add["parameters"], "strict": True},
            {"name": "now", "input_schema": {"type": "object", "properties": {}}},
            {"type": "web_search_20250305", "name": "web_search"},
        ],
        "temperature": 0.5,
        "top_p": 0.9,
        "stop_sequences": ["END"],
        "top_k": 20,
    }


def test_unset_parameters_are_omitted_except_max_tokens():
    body = request_body(Request([UserMessage("hi")], SamplingParams(seed=1, stop=[]), tools=[]))
    assert body == {"max_tokens": DEFAULT_MAX_TOKENS, "messages": [{"role": "user", "content": [text_block("hi")]}]}


@pytest.mark.parametrize(
    "parameters", [{"min_p": 0.1}, {"presence_penalty": 1}, {"response_format": {"type": "json_object"}}]
)
def test_parameters_that_the_api_lacks_are_refused(parameters: dict[str, Any]):
    with pytest.raises(ConfigError, match=rf"{next(iter(parameters))} is .*; expected none, Anthropic's Messages API"):
        request_body(Request([], SamplingParams(**parameters)))
    neutral = SamplingParams(top_k=-1, logprobs=2, prompt_logprobs=1, repetition_penalty=1.0)
    assert request_body(Request([], neutral)) == {"max_tokens": DEFAULT_MAX_TOKENS, "messages": []}


def test_max_tokens_0_is_refused():
    with pytest.raises(ConfigError, match="max_tokens is 0; expected 1 or more: Anthropic"):
        request_body(Request([UserMessage("hi")], SamplingParams(max_tokens=0)))


def test_extra_parameters_override_the_others():
    sampling = SamplingParams(
        temperature=0.5, extra={"temperature": None, "max_tokens": 9, "thinking": {"type": "adaptive"}}
    )
    assert request_body(Request([], sampling)) == {"max_tokens": 9, "messages": [], "thinking": {"type": "adaptive"}}


def test_empty_messages_are_omitted():
    messages = [UserMessage("a"), AssistantMessage(""), UserMessage("\n"), UserMessage("b"), ToolMessage("", "t")]
    result = {"type": "tool_result", "tool_use_id": "t"}
    assert sent_messages(*messages) == [{"role": "user", "content": [text_block("a"), text_block("b"), result]}]


def test_a_refusal_is_sent_as_text():
    parts = [{"type": "refusal", "refusal": "Never."}]
    for message in (AssistantMessage("", refusal="Never."), AssistantMessage(parts)):
        assert sent_messages(message) == [{"role": "assistant", "content": [text_block("Never.")]}]


@each_row(
    ("part", "expected"),
    [
        (
            {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
            "input_audio.*expected text or image_url",
        ),
        ({"type": "image_url", "image_url": PNG}, "has no image_url.url"),
        ({"type": "image_url", "image_url": {"url": "data:,hello"}}, "expected a URL like data:image/png;base64"),
        ({"type": "image_url", "image_url": {"url": "file:///a.png"}}, "expected a URL like"),
        ({"type": "text"}, "has no text"),
        (7, "expected a text or a list of content parts"),
    ],
)
def test_unsupported_content_parts_are_refused(part: Any, expected: str):
    with pytest.raises(ConfigError, match=expected):
        sent_messages(UserMessage([part]))


@each_row("arguments", ["{", "[1]", "null", "[" * 10_000, "\ud800"])
def test_tool_call_arguments_must_be_a_json_object(arguments: str):
    with pytest.raises(ConfigError, match="arguments of tool call 'c'.*expected the text of a JSON object"):
        sent_messages(AssistantMessage(None, tool_calls=[tool_call("c", "add", arguments)]))


def test_read_response():
    response = read_response(response_json(text_block("Hello "), {**text_block("there."), "citations": None}))
    assert response.message == {"role": "assistant", "content": "Hello there."}
    assert isinstance(response.message, Message)
    assert response.usage == Usage(8, 2)
    assert response.finish_reason == "stop"


@each_row(
    ("stop_reason", "ours"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("pause_turn", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        (None, "stop"),
    ],
)
def test_finish_reasons(stop_reason: str | None, ours: str):
    assert read_response(response_json(text_block("hi"), stop_reason=stop_reason)).finish_reason == ours


def test_tool_use_becomes_tool_calls():
    response = read_response(response_json(TOOL_USE, stop_reason="tool_use"))
    assert response.message == {"role": "assistant", "content": None, "tool_calls": [CALL]}
    assert response.finish_reason == "tool_calls"
    assert read_response(response_json(TOOL_USE, stop_reason="max_tokens")).finish_reason == "length"


def test_thinking_blocks_are_read_and_sent_back_unchanged():
    content = [
        THOUGHT,
        text_block("\n\n"),
        REDACTED_THOUGHT,
        text_block("So:"),
        {**TOOL_USE, "caller": {"type": "direct"}},
    ]
    message = read_response(response_json(*content, stop_reason="tool_use")).message
    assert message == {
        "role": "assistant",
        "content": "\n\nSo:",
        "tool_calls": [CALL],
        "reasoning_content": "2 + 2",
        CONTENT: content,
    }
    stored = msgspec.json.decode(msgspec.json.encode(message))
    (sent_turn,) = sent_messages(stored)
    # The API refuses blank text, even its own.
    assert sent_turn == {
        "role": "assistant",
        "content": [content[0], *content[2:]],
    }


def test_an_edited_message_is_sent_without_its_original_blocks():
    message = read_response(response_json(THOUGHT, text_block("secret"), TOOL_USE, stop_reason="tool_use")).message
    assert sent_messages(Message(message, content="***")) == [
        {"role": "assistant", "content": [text_block("***"), TOOL_USE]}
    ]
    assert sent_messages(Message(message, tool_calls=None)) == [
        {"role": "assistant", "content": [text_block("secret")]}
    ]


def test_truncated_thinking_is_not_sent_back():
    message = read_response(response_json(THOUGHT, stop_reason="max_tokens")).message
    assert message == {"role": "assistant", "content": "", "reasoning_content": "2 + 2"}
    assert sent_messages(UserMessage("a"), message, UserMessage("b")) == [
        {"role": "user", "content": [text_block("a"), text_block("b")]}
    ]


@pytest.mark.parametrize(
    ("details", "refusal"),
    [
        ({"type": "refusal", "category": "bio", "explanation": "Too risky."}, "Too risky."),
        ({"type": "refusal", "category": "bio", "explanation": None}, "bio"),
        (None, "no reason given"),
    ],
)
def test_refusals_are_kept(details: Any, refusal: str):
    response = read_response(response_json(stop_reason="refusal", stop_details=details))
    assert response.message == {"role": "assistant", "content": "", "refusal": refusal}
    assert response.finish_reason == "stop"


@pytest.mark.parametrize("usage", [None, {}, "many", {"input_tokens": None, "output_tokens": "2"}])
def test_missing_or_malformed_usage_is_read_as_zero(usage: Any):
    assert read_response(response_json(text_block("hi"), usage=usage)).usage == Usage(0, 0)


@pytest.mark.parametrize("content", [[], [text_block("")], [REDACTED_THOUGHT]])
def test_an_empty_response_is_an_answer(content: list[Any]):
    response = read_response(response_json(*content))
    assert (response.message, response.finish_reason) == ({"role": "assistant", "content": ""}, "stop")


@pytest.mark.parametrize(
    ("odd", "arguments"),
    [({"input": None}, "{}"), ({"input": '{"a": 2}'}, '{"a": 2}'), ({"id": None}, '{"a":2,"b":2}')],
)
def test_a_tool_use_in_an_odd_form_is_read(odd: dict[str, Any], arguments: str):
    (call,) = read_response(response_json({**TOOL_USE, **odd})).message["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": arguments}
    assert call["id"]


@each_row(
    ("body", "expected"),
    [
        (None, "got `null`"),
        ({"type": "error", "error": {"message": "Overloaded"}}, "missing required field `content`.*Overloaded"),
        (response_json(7), "got `int`"),
        (response_json({"type": "text"}), "missing required field `text`"),
        (response_json(text_block("hi"), content="hi"), "got `str`"),
    ],
)
def test_an_invalid_message_raises_an_error(body: Any, expected: str):
    with pytest.raises(InvalidModelResponseError, match=expected) as caught:
        read_response(body)
    assert not isinstance(caught.value, EmptyModelResponseError)


BLOCKS = blocks(
    ["text", "thinking", "redacted_thinking", "tool_use", "server_tool_use"],
    text=TEXT,
    thinking=TEXT,
    id=TEXT,
    name=TEXT,
    input=OBJECTS,
)
STOP_REASONS = st.sampled_from(["end_turn", "max_tokens", "tool_use", "refusal"])


@given(body=garbage(content=BLOCKS, stop_reason=STOP_REASONS, usage=JSON, stop_details=JSON))
def test_any_json_is_either_read_and_sent_back_or_reported_as_invalid(body: Any):
    try:
        response = read_response(body)
    except InvalidModelResponseError as error:
        assert len(str(error)) < 600
    else:
        assert response.finish_reason in ("stop", "length", "tool_calls")
        assert msgspec.json.encode(request_body(Request([response.message])))


GOOD_BLOCKS = st.lists(
    st.builds(text_block, TEXT)
    | st.builds(lambda text, signature: {**THOUGHT, "thinking": text, "signature": signature}, TEXT, TEXT)
    | st.builds(lambda data: {**REDACTED_THOUGHT, "data": data}, TEXT)
    | st.builds(lambda id, name, input: {**TOOL_USE, "id": id, "name": name, "input": input}, NAMES, NAMES, OBJECTS),
    max_size=5,
).filter(lambda blocks: len({b["id"] for b in blocks if "id" in b}) == sum("id" in b for b in blocks))


@given(content=GOOD_BLOCKS)
def test_blocks_of_a_response_are_sent_back(content: list[dict[str, Any]]):
    message = read_response(response_json(*content, stop_reason="max_tokens")).message
    turns = sent_messages(msgspec.json.decode(msgspec.json.encode(message)))
    visible = [block for block in content if block["type"] != "text" or block["text"].strip()]
    if CONTENT in message:
        assert turns == [{"role": "assistant", "content": visible}]
    else:
        text, uses = text_of({"content": message.content}), [block for block in content if block["type"] == "tool_use"]
        expected = [text_block(text)] * bool(text.strip()) + uses
        assert turns == ([{"role": "assistant", "content": expected}] if expected else [])
    has_thinking = any(block["type"] in ("thinking", "redacted_thinking") for block in visible)
    assert (CONTENT in message) == (has_thinking and visible[-1]["type"] in ("text", "tool_use"))


CALLS = st.builds(lambda id, name, input: (id, name, input), NAMES, NAMES, OBJECTS)
MESSAGES = st.lists(
    st.builds(SystemMessage, TEXT)
    | st.builds(UserMessage, TEXT)
    | st.builds(
        lambda text, calls: AssistantMessage(
            text, tool_calls=[tool_call(id, name, msgspec.json.encode(input).decode()) for id, name, input in calls]
        ),
        st.none() | TEXT,
        st.lists(CALLS, max_size=3),
    )
    | st.builds(ToolMessage, TEXT, NAMES),
    max_size=6,
)


@given(messages=MESSAGES)
def test_a_conversation_is_sent_completely(messages: list[Message]):
    body = request_body(Request([*messages]))
    assert msgspec.json.decode(msgspec.json.encode(body)) == body
    turns = body["messages"]
    assert all(turn["content"] for turn in turns)
    assert all(turn["role"] != next_turn["role"] for turn, next_turn in pairwise(turns))
    for role in ("user", "assistant"):
        sent_blocks = [block for turn in turns if turn["role"] == role for block in turn["content"]]
        texts = [text_of(message) for message in messages if message.role == role]
        assert [block["text"] for block in sent_blocks if block["type"] == "text"] == [
            text for text in texts if text.strip()
        ]
    all_blocks = [block for turn in turns for block in turn["content"]]
    assert [
        tool_call(use["id"], use["name"], msgspec.json.encode(use["input"]).decode())
        for use in all_blocks
        if use["type"] == "tool_use"
    ] == [call for message in messages for call in message.tool_calls or []]
    assert [block["tool_use_id"] for block in all_blocks if block["type"] == "tool_result"] == [
        message.tool_call_id for message in messages if message.role == "tool"
    ]
    instructions = [text for message in messages if message.role == "system" and (text := text_of(message)).strip()]
    assert body.get("system", []) == [text_block(text) for text in instructions]


def test_a_forced_tool_call_is_sent():
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in "fgh"]

    def body(names: tuple[str, ...], parallel: bool) -> dict[str, Any]:
        offered = tools[:2] if len(names) > 1 else tools
        return request_body(Request([UserMessage("a")], tools=offered, tool_choice=ToolChoice(names, parallel)))

    assert body(("f", "g"), True)["tool_choice"] == {"type": "any"}
    assert body(("f",), True)["tool_choice"] == {"type": "tool", "name": "f"}
    assert body(("f",), False)["tool_choice"] == {"type": "tool", "name": "f", "disable_parallel_tool_use": True}
    with pytest.raises(ConfigError, match="tool_choice allows f, g of 3 tools; expected one, or all"):
        request_body(Request([UserMessage("a")], tools=tools, tool_choice=ToolChoice(("f", "g"))))


@pytest.mark.parametrize("arguments", [{"chat_template_kwargs": {"a": 1}}, {"add_generation_prompt": False}])
def test_chat_template_arguments_are_refused(arguments: Any):
    with pytest.raises(ConfigError, match=f"{next(iter(arguments))} is given, but .* has no such argument"):
        request_body(Request([UserMessage("a")], **arguments))
