"""The server's Responses and Messages APIs, called through OpenAI's and Anthropic's SDKs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import openai
import pytest

from rove.core.errors import InfraError
from rove.wire.common import tool_call
from tests.server.test_server import HI, RecordingClient, http, post, sdk_client, serving

if TYPE_CHECKING:  # imports thousands of modules; only the broad tests that use the SDK import it
    import anthropic

CALL = {"role": "assistant", "content": "I look", "tool_calls": [tool_call("c1", "weather", '{"city": "Rome"}')]}


@asynccontextmanager
async def anthropic_sdk(client: RecordingClient, **options: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    import anthropic

    async with (
        serving(client, **options) as (url, _),
        anthropic.AsyncAnthropic(base_url=url.removesuffix("/v1"), api_key="k", max_retries=0) as sdk,
    ):
        yield sdk


async def test_the_responses_api_returns_the_same_text_with_and_without_streaming():
    client = RecordingClient(pieces=("hello ", "the"))
    async with sdk_client(client) as sdk:
        response = await sdk.responses.create(model="toy", input="hi", instructions="be brief", max_output_tokens=9)
        async with sdk.responses.stream(model="toy", input=[*response.output, *HI]) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
    assert (response.output_text, response.status, response.usage and response.usage.total_tokens) == (
        "hello there",
        "completed",
        5,
    )
    assert final.output_text == "hello there"
    assert [e.delta for e in events if e.type == "response.output_text.delta"] == ["hello ", "the", "re"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    first, second = client.requests
    assert [m["role"] for m in first.messages] == ["system", "user"] and first.sampling_params.max_tokens == 9
    assert second.messages == [{"role": "assistant", "content": "hello there"}, *HI]


async def test_the_responses_api_returns_function_calls():
    tool: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}
    async with sdk_client(RecordingClient(CALL)) as sdk:
        async with sdk.responses.stream(model="toy", input="hi", tools=[tool]) as stream:
            response = await stream.get_final_response()
        assert response.output_text == "I look"
        (call,) = (item for item in response.output if item.type == "function_call")
        assert (call.call_id, call.name, call.arguments) == ("c1", "weather", '{"city": "Rome"}')
        with pytest.raises(openai.BadRequestError, match="tool_choice requires a call of weather"):
            await sdk.responses.create(model="toy", input="hi", tools=[tool], tool_choice="required")


@pytest.mark.broad
async def test_the_messages_api_returns_the_same_message_with_and_without_streaming():
    client = RecordingClient(CALL, pieces=("I l",))
    async with anthropic_sdk(client) as sdk:
        created = await sdk.messages.create(model="toy", max_tokens=9, system="be brief", messages=HI)
        result: Any = {"type": "tool_result", "tool_use_id": "c1", "content": "sunny"}
        history: Any = [
            *HI,
            {"role": "assistant", "content": created.content},
            {"role": "user", "content": [result]},
        ]
        async with sdk.messages.stream(model="toy", max_tokens=9, messages=history) as stream:
            streamed = await stream.get_final_message()
    for message in (created, streamed):
        text, call = message.content
        assert (text.type, call.type, message.stop_reason) == ("text", "tool_use", "tool_use")
        assert text.type == "text" and text.text == "I look"
        assert call.type == "tool_use" and (call.id, call.name, call.input) == ("c1", "weather", {"city": "Rome"})
        assert (message.usage.input_tokens, message.usage.output_tokens) == (3, 2)
    assert [m["role"] for m in client.requests[1].messages] == ["user", "assistant", "tool"]


@pytest.mark.broad
async def test_anthropic_errors_raise_the_sdks_exceptions():
    import anthropic

    async with anthropic_sdk(RecordingClient(), api_key="right") as sdk:
        with pytest.raises(anthropic.AuthenticationError, match="wrong or missing API key") as wrong:
            await sdk.messages.create(model="toy", max_tokens=9, messages=HI)
        assert isinstance(wrong.value.body, dict) and wrong.value.body["error"]["type"] == "authentication_error"
        sdk.api_key = "right"
        response = await sdk.messages.create(model="toy", max_tokens=9, messages=HI)
        assert response.content[0].type == "text"
        with pytest.raises(anthropic.NotFoundError, match="no model 'tony'"):
            await sdk.messages.create(model="tony", max_tokens=9, messages=HI)


async def test_an_invalid_request_returns_an_error_in_the_format_of_the_api():
    async with http(RecordingClient()) as (session, _):
        status, body = await post(session, "/v1/messages", {"messages": HI})
        assert (status, body["error"]["type"]) == (400, "invalid_request_error") and "max_tokens" in body["error"][
            "message"
        ]
        status, body = await post(session, "/v1/responses", {"input": []})
        assert (status, body["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.broad
async def test_an_error_in_a_stream_has_the_format_of_the_api():
    import anthropic

    client = RecordingClient(InfraError("the endpoint is gone"), pieces=("I l",))
    async with anthropic_sdk(client) as sdk:
        with pytest.raises(anthropic.APIStatusError, match="the endpoint is gone"):
            async with sdk.messages.stream(model="toy", max_tokens=9, messages=HI) as stream:
                await stream.get_final_message()
    async with sdk_client(client) as sdk:
        with pytest.raises(openai.APIError, match="the endpoint is gone"):
            async with sdk.responses.stream(model="toy", input="hi") as stream:
                await stream.get_final_response()
