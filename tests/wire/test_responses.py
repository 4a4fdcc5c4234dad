from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import FunctionToolParam
from openai.types.responses import Response as OpenAIResponse
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
from pydantic import TypeAdapter
from tiers import each_row

from rove.core.errors import ConfigError, EmptyModelResponseError, InvalidModelResponseError, ModelError
from rove.core.messages import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage, text_of
from rove.core.protocols import Request, SamplingParams, ToolChoice
from rove.core.records import Usage
from rove.wire.common import tool_call
from rove.wire.responses import OUTPUT, read_response, request_body
from tests.wire.test_common import JSON, NAMES, TEXT, blocks, garbage

BODY = TypeAdapter(ResponseCreateParamsNonStreaming)
IMAGE = {"type": "image_url", "image_url": {"url": "https://a/b.png", "detail": "low"}}
THOUGHT = {
    "id": "rs_1",
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "Adding."}, {"type": "summary_text", "text": "Done."}],
    "encrypted_content": "gAAA",
}
FUNCTION_CALL = {
    "id": "fc_1",
    "type": "function_call",
    "status": "completed",
    "call_id": "call_1",
    "name": "add",
    "arguments": '{"a": 2}',
}
CALL = tool_call("call_1", "add", '{"a": 2}')


def message_item(text: Any, kind: str = "output_text", **fields: Any) -> dict[str, Any]:
    part = {"type": kind, "text": text, "annotations": []} if kind == "output_text" else {"type": kind, kind: text}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    return message | fields


def response_json(*output: Any, status: Any = "completed", **fields: Any) -> dict[str, Any]:
    usage = {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 5,
    }
    body = {"id": "resp_1", "object": "response", "created_at": 0, "model": "m", "status": status, "output": [*output]}
    defaults = {
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "incomplete_details": None,
    }
    return body | defaults | {"usage": usage} | fields


def read_validated(body: dict[str, Any]):
    """Return `read_response(body)` after validating the body with OpenAI's own types."""
    OpenAIResponse.model_validate(body, strict=True)
    return read_response(body)


def sent_items(*messages: Message) -> list[dict[str, Any]]:
    body = request_body(Request([*messages]))
    BODY.validate_python(body)
    return body["input"]


def test_a_complete_request():
    add = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "default": None}, "strict": True}
    tools = [
        {"type": "function", "function": add},
        {"type": "function", "function": {"name": "now"}},
        {"type": "web_search"},
    ]
    sampling = SamplingParams(temperature=0.5, max_tokens=7, top_p=0.9, seed=3, extra={"reasoning": {"effort": "low"}})
    messages = [
        SystemMessage("Be brief."),
        UserMessage(["What is this?", IMAGE], name="Ann"),
        AssistantMessage("Sums.", tool_calls=[CALL, tool_call("call_2", "now", "{")], reasoning_content="hm"),
        ToolMessage("4", "call_1"),
        ToolMessage([{"type": "text", "text": "noon"}, IMAGE], "call_2"),
        Message(role="developer", content="Hurry."),
    ]
    image = {"type": "input_image", "image_url": "https://a/b.png", "detail": "low"}
    body = request_body(Request(messages, sampling, "gpt", tools, seed=9))
    assert body == {
        "model": "gpt",
        "input": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "What is this?"}, image]},
            {"role": "assistant", "content": "Sums."},
            {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": '{"a": 2}'},
            {"type": "function_call", "call_id": "call_2", "name": "now", "arguments": "{"},
            {"type": "function_call_output", "call_id": "call_1", "output": "4"},
            {
                "type": "function_call_output",
                "call_id": "call_2",
                "output": [{"type": "input_text", "text": "noon"}, image],
            },
            {"role": "developer", "content": "Hurry."},
        ],
        "tools": [
            {"type": "function", **add},
            # Chat completions default to non-strict tools; this API would default to strict.
            {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}, "strict": False},
            {"type": "web_search"},
        ],
        "temperature": 0.5,
        "max_output_tokens": 7,
        "top_p": 0.9,
        "store": False,
        "reasoning": {"effort": "low"},
    }
    BODY.validate_python(body)
    for tool in body["tools"][:2]:
        TypeAdapter(FunctionToolParam).validate_python(tool)


def test_unset_parameters_are_omitted():
    body = request_body(Request([UserMessage("hi")], SamplingParams(seed=1, stop=[]), tools=[]))
    assert body == {"input": [{"role": "user", "content": "hi"}], "store": False}


def test_extra_parameters_override_the_others():
    sampling = SamplingParams(temperature=0.5, extra={"temperature": None, "store": True})
    assert request_body(Request([], sampling)) == {"input": [], "store": True}


def test_response_format_and_logprobs_are_sent_under_the_apis_names():
    schema = {"name": "move", "schema": {"type": "object"}, "strict": True}
    sampling = SamplingParams(response_format={"type": "json_schema", "json_schema": schema}, logprobs=3)
    assert request_body(Request([], sampling)) == {
        "input": [],
        "store": False,
        "text": {"format": {"type": "json_schema", **schema}},
        "top_logprobs": 3,
        "include": ["message.output_text.logprobs"],
    }
    plain = request_body(Request([], SamplingParams(response_format={"type": "json_object"}, logprobs=0)))
    assert plain["text"] == {"format": {"type": "json_object"}}
    assert "top_logprobs" not in plain


@pytest.mark.parametrize(
    "parameters", [{"top_k": 5}, {"logit_bias": {1: 2.0}}, {"ignore_eos": True}, {"structured_outputs": {"regex": "a"}}]
)
def test_parameters_that_the_api_lacks_are_refused(parameters: dict[str, Any]):
    with pytest.raises(ConfigError, match=rf"{next(iter(parameters))} is .*; expected none, OpenAI's Responses API"):
        request_body(Request([], SamplingParams(**parameters)))


def test_neutral_parameters_are_not_refused():
    neutral = SamplingParams(
        top_k=-1, min_p=0, repetition_penalty=1.0, presence_penalty=0, min_tokens=0, ignore_eos=False
    )
    assert request_body(Request([], neutral)) == {"input": [], "store": False}
    assert request_body(Request([], SamplingParams(extra={"top_k": 5})))["top_k"] == 5


def test_stop_sequences_are_refused():
    with pytest.raises(ConfigError, match=r"stop is \['END'\]; expected none"):
        request_body(Request([], SamplingParams(stop=["END"])))


def test_audio_and_files_are_sent():
    audio = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    file = {"file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"}
    (message,) = request_body(Request([UserMessage([audio, {"type": "file", "file": file}])]))["input"]
    assert message["content"] == [audio, {"type": "input_file", **file}]


@each_row(
    ("message", "expected"),
    [
        (ToolMessage([{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]), "not from a tool"),
        (UserMessage([{"type": "input_audio", "input_audio": {"data": ""}}]), "has no input_audio.format"),
        (UserMessage([{"type": "image_url", "image_url": "https://a"}]), "has no image_url.url"),
        (UserMessage([{"type": "video_url"}]), "cannot take the content part.*video_url.*expected text"),
        (UserMessage([{"type": "file", "file": "a.pdf"}]), "cannot take the content part"),
        (AssistantMessage([IMAGE]), "expected text or refusal in an assistant message"),
    ],
)
def test_unsupported_content_parts_are_refused(message: Message, expected: str):
    with pytest.raises(ConfigError, match=expected):
        sent_items(message)


def test_empty_assistant_messages_are_omitted():
    assert sent_items(AssistantMessage(""), UserMessage("")) == [{"role": "user", "content": ""}]
    assert sent_items(AssistantMessage("", refusal="No.")) == [{"role": "assistant", "content": "No."}]


def test_read_response():
    response = read_validated(response_json(message_item("Hello "), message_item("there.")))
    assert response.message == {"role": "assistant", "content": "Hello there."}
    assert isinstance(response.message, Message)
    assert response.usage == Usage(3, 2)
    assert response.finish_reason == "stop"


@pytest.mark.parametrize(
    ("reason", "ours"), [("max_output_tokens", "length"), ("content_filter", "stop"), ("steered", "stop")]
)
def test_finish_reason_of_an_incomplete_response(reason: str, ours: str):
    body = response_json(message_item("hi"), FUNCTION_CALL, status="incomplete", incomplete_details={"reason": reason})
    assert read_validated(body).finish_reason == (ours if ours == "length" else "tool_calls")
    assert read_validated({**body, "output": [message_item("hi")]}).finish_reason == ours


def test_a_response_truncated_before_its_first_token_of_text():
    body = response_json(THOUGHT, status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    message = read_validated(body).message
    assert message == {"role": "assistant", "content": "", "reasoning_content": "Adding.\n\nDone."}
    assert sent_items(message) == []


def test_function_calls_become_tool_calls():
    response = read_validated(response_json(FUNCTION_CALL))
    assert response.message == {"role": "assistant", "content": None, "tool_calls": [CALL]}
    assert response.finish_reason == "tool_calls"


def test_reasoning_items_are_read_and_sent_back_unchanged():
    output = [THOUGHT, message_item("Let me add."), FUNCTION_CALL]
    message = read_validated(response_json(*output)).message
    assert message == {
        "role": "assistant",
        "content": "Let me add.",
        "tool_calls": [CALL],
        "reasoning_content": "Adding.\n\nDone.",
        OUTPUT: output,
    }
    assert sent_items(msgspec.json.decode(msgspec.json.encode(message))) == output


def test_reasoning_text_is_preferred_to_its_summary():
    item = {**THOUGHT, "encrypted_content": None, "content": [{"type": "reasoning_text", "text": "2 + 2"}]}
    message = read_validated(response_json(item, message_item("4"))).message
    assert message.reasoning_content == "2 + 2"
    assert sent_items(message) == [item, message_item("4")]


def test_reasoning_with_only_an_id_is_not_sent_back():
    message = read_validated(
        response_json({"id": "rs_1", "type": "reasoning", "summary": []}, message_item("4"), FUNCTION_CALL)
    ).message
    assert message == {"role": "assistant", "content": "4", "tool_calls": [CALL]}
    assert all("id" not in item for item in sent_items(message))


def test_the_phase_of_a_message_is_sent_back():
    output = [message_item("Hm.", phase="commentary"), message_item("4", phase="final_answer")]
    assert sent_items(read_validated(response_json(*output)).message) == output


def test_an_edited_message_is_sent_without_its_original_items():
    message = read_validated(response_json(THOUGHT, message_item("secret"), FUNCTION_CALL)).message
    edited = sent_items(Message(message, content="***"))
    assert edited[0] == {"role": "assistant", "content": "***"}
    assert [item["type"] for item in edited[1:]] == ["function_call"]
    assert sent_items(Message(message, tool_calls=None)) == [{"role": "assistant", "content": "secret"}]


def test_refusals_are_kept():
    response = read_validated(response_json(message_item("I will not.", "refusal")))
    assert response.message == {"role": "assistant", "content": "", "refusal": "I will not."}
    assert response.finish_reason == "stop"


def test_a_failed_response_raises_a_model_error():
    error = {"code": "server_error", "message": "The model crashed."}
    with pytest.raises(ModelError, match="failed to answer.*The model crashed") as caught:
        read_validated(response_json(status="failed", error=error))
    assert not isinstance(caught.value, InvalidModelResponseError)
    with pytest.raises(ModelError, match="failed to answer.*resp_1"):
        read_response(response_json(status="failed"))


@pytest.mark.parametrize("usage", [None, {}, "many", {"input_tokens": None, "output_tokens": "2"}])
def test_missing_or_malformed_usage_is_read_as_zero(usage: Any):
    assert read_response(response_json(message_item("hi"), usage=usage)).usage == Usage(0, 0)


@pytest.mark.parametrize("output", [[], [message_item("")], [{"id": "rs_1", "type": "reasoning", "summary": []}]])
def test_an_empty_response_is_an_answer(output: list[Any]):
    response = read_validated(response_json(*output))
    assert (response.message, response.finish_reason) == ({"role": "assistant", "content": ""}, "stop")


@pytest.mark.parametrize("odd", [{"call_id": None}, {"call_id": ""}, {"arguments": None}, {"arguments": {"a": 1}}])
def test_a_function_call_in_an_odd_form_is_read(odd: dict[str, Any]):
    response = read_response(response_json({**FUNCTION_CALL, **odd}))
    (call,) = response.message["tool_calls"]
    assert call["id"] and call["function"]["name"] == FUNCTION_CALL["name"]
    assert isinstance(json.loads(call["function"]["arguments"]), dict)


@each_row(
    ("body", "expected"),
    [
        (None, "got `null`"),
        ({"error": {"message": "overloaded"}}, "not a finished OpenAI response.*overloaded"),
        (response_json(message_item("hi"), status="in_progress"), "not a finished"),
        (response_json(message_item("hi"), status="cancelled"), "not a finished"),
        (response_json(message_item(7)), "got `int`"),
        (response_json({"type": "message"}), "missing required field `content`"),
        (response_json({**THOUGHT, "summary": "hm"}), "got `str`"),
    ],
)
def test_an_invalid_response_raises_an_error(body: Any, expected: str):
    with pytest.raises(InvalidModelResponseError, match=expected) as caught:
        read_response(body)
    assert not isinstance(caught.value, EmptyModelResponseError)


ITEMS = blocks(
    ["message", "function_call", "reasoning", "web_search_call"],
    content=blocks(["output_text", "refusal", "reasoning_text"], text=TEXT, refusal=TEXT),
    summary=blocks(["summary_text"], text=TEXT),
    encrypted_content=TEXT,
    call_id=TEXT,
    name=TEXT,
    arguments=TEXT,
    phase=TEXT,
)
STATUSES = st.sampled_from(["completed", "incomplete", "failed"])
DETAILS = st.just({"reason": "max_output_tokens"})


@given(body=garbage(output=ITEMS, status=STATUSES, incomplete_details=DETAILS, usage=JSON, error=JSON))
def test_any_json_is_either_read_and_sent_back_or_reported_as_invalid(body: Any):
    try:
        response = read_response(body)
    except ModelError as error:
        assert len(str(error)) < 600
        assert isinstance(error, InvalidModelResponseError) or body["status"] == "failed"
    else:
        assert response.finish_reason in ("stop", "length", "tool_calls")
        assert msgspec.json.encode(request_body(Request([response.message])))


GOOD_ITEMS = st.lists(
    st.builds(message_item, TEXT)
    | st.builds(lambda text: message_item(text, phase="commentary"), TEXT)
    | st.builds(lambda secret: {**THOUGHT, "encrypted_content": secret}, st.none() | TEXT)
    | st.builds(
        lambda id, name, text: {**FUNCTION_CALL, "call_id": id, "name": name, "arguments": text}, NAMES, NAMES, TEXT
    ),
    max_size=5,
).filter(lambda items: len({i["call_id"] for i in items if "call_id" in i}) == sum("call_id" in i for i in items))


@given(output=GOOD_ITEMS)
def test_items_of_a_response_are_sent_back(output: list[dict[str, Any]]):
    truncated = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    message = read_validated(response_json(*output, **truncated)).message
    items = sent_items(msgspec.json.decode(msgspec.json.encode(message)))
    if OUTPUT in message:
        assert items == output
    else:
        uses = [item for item in output if item["type"] == "function_call"]
        text = [{"role": "assistant", "content": message.content}] if message.content else []
        assert items == text + [{k: v for k, v in use.items() if k not in ("id", "status")} for use in uses]


MESSAGES = st.lists(
    st.builds(SystemMessage, TEXT)
    | st.builds(UserMessage, TEXT)
    | st.builds(
        lambda text, calls: AssistantMessage(text, tool_calls=calls),
        st.none() | TEXT,
        st.lists(st.builds(tool_call, NAMES, NAMES, TEXT), max_size=3),
    )
    | st.builds(ToolMessage, TEXT, NAMES),
    max_size=6,
)


@given(messages=MESSAGES)
def test_a_conversation_is_sent_completely(messages: list[Message]):
    actual: list[dict[str, Any]] = []
    for item in sent_items(*messages):
        match item.get("type"):
            case "function_call":
                actual.append(tool_call(item["call_id"], item["name"], item["arguments"]))
            case "function_call_output":
                actual.append(ToolMessage(item["output"], item["call_id"]))
            case _:
                actual.append(item)
    expected: list[dict[str, Any]] = []
    for message in messages:
        if message.role != "assistant":
            expected.append(message)
        elif text_of(message):
            expected.append({"role": "assistant", "content": message.content})
        expected += message.tool_calls or []
    assert actual == expected


def test_a_forced_tool_call_is_sent():
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in "fgh"]

    def body(names: tuple[str, ...], parallel: bool) -> dict[str, Any]:
        offered = tools[:2] if len(names) > 1 else tools
        return request_body(Request([UserMessage("a")], tools=offered, tool_choice=ToolChoice(names, parallel)))

    assert body(("f", "g"), True)["tool_choice"] == "required" and "parallel_tool_calls" not in body(("f", "g"), True)
    named = body(("f",), False)
    assert (named["tool_choice"], named["parallel_tool_calls"]) == ({"type": "function", "name": "f"}, False)
    with pytest.raises(ConfigError, match="tool_choice allows f, g of 3 tools; expected one, or all"):
        request_body(Request([UserMessage("a")], tools=tools, tool_choice=ToolChoice(("f", "g"))))


@pytest.mark.parametrize("arguments", [{"chat_template_kwargs": {"a": 1}}, {"add_generation_prompt": False}])
def test_chat_template_arguments_are_refused(arguments: Any):
    with pytest.raises(ConfigError, match=f"{next(iter(arguments))} is given, but .* has no such argument"):
        request_body(Request([UserMessage("a")], **arguments))
