from __future__ import annotations

import re
from typing import Any

import pytest
from api_endpoint import ApiEndpoint, anthropic_message
from fault_endpoint import Fault, HttpResponse

import rove
from rove.clients.anthropic import AnthropicClient
from rove.core.errors import (
    ConfigError,
    InfraError,
    InvalidModelResponseError,
    MissingKeyError,
    ModelError,
    OverlongPromptError,
)
from rove.core.messages import SystemMessage, UserMessage
from rove.core.protocols import Client, Request, SamplingParams
from rove.core.records import Usage

pytestmark = pytest.mark.filterwarnings("error")  # a connection left open is a failure


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch):
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def echo(body: dict[str, Any]) -> str:
    return f"you said: {body['messages'][-1]['content'][0]['text']}"


def messages_endpoint(faults: Any = "ok") -> ApiEndpoint:
    return ApiEndpoint("/v1/messages", anthropic_message, faults, reply=echo)


def make_request(text: str = "hello", **fields: Any) -> Request:
    return Request([UserMessage(text)], model="tiny", **fields)


async def get_response(base_url: str, request: Request | None = None, **settings: Any):
    client = AnthropicClient(base_url, **{"backoff": 0.0, **settings})
    try:
        return await client.respond(request or make_request())
    finally:
        await client.close()


async def test_round_trip():
    request = Request([SystemMessage("be brief"), UserMessage("hello")], SamplingParams(max_tokens=5), "tiny")
    async with messages_endpoint() as server:
        response = await get_response(server.base_url, request, api_key="sk-ant-1")
    assert response.message == {"role": "assistant", "content": "you said: hello"}
    assert (response.usage, response.finish_reason) == (Usage(3, 2), "stop")
    assert server.paths == ["/v1/messages"]
    assert server.bodies == [
        {
            "model": "tiny",
            "max_tokens": 5,
            "system": [{"type": "text", "text": "be brief"}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
        }
    ]
    [sent] = server.headers
    assert (sent["x-api-key"], sent["anthropic-version"]) == ("sk-ant-1", "2023-06-01")
    assert sent["Content-Type"] == "application/json"
    assert "Authorization" not in sent


async def test_user_headers_override_the_defaults():
    async with messages_endpoint() as server:
        await get_response(server.base_url, headers={"Anthropic-Version": "2099-01-01", "anthropic-beta": "x"})
    [sent] = server.headers
    assert sent.getall("anthropic-version") == ["2099-01-01"]  # pyright: ignore[reportAttributeAccessIssue]
    assert sent["anthropic-beta"] == "x"


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
async def test_the_base_url_may_omit_v1(end: str, monkeypatch: pytest.MonkeyPatch):
    async with messages_endpoint() as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.base_url.removesuffix("/v1") + end)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-env")
        client = AnthropicClient()
        await client.respond(make_request())
        await client.close()
    assert server.headers[0]["x-api-key"] == "sk-env"


def test_the_anthropic_api_requires_its_own_key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    with pytest.raises(MissingKeyError, match=r"no API key for https://api.anthropic.com/v1: set ANTHROPIC_API_KEY"):
        AnthropicClient()
    client = AnthropicClient(api_key="sk-ant-1")
    assert isinstance(client, Client)
    assert client.translate(make_request())[0] == "messages"
    assert client.identity == {"api": "AnthropicClient", "base_url": "https://api.anthropic.com/v1"}


OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
TRANSIENT: dict[str, tuple[Fault, str, type[Exception]]] = {
    "429": (HttpResponse(429, {"error": {"type": "rate_limit_error"}}), "HTTP 429: .*rate_limit_error", InfraError),
    "500": ("500", "HTTP 500: ", InfraError),
    "529": (HttpResponse(529, OVERLOADED), "HTTP 529: .*Overloaded", InfraError),
    "garbage": ("garbage", "not JSON .*Bad gateway", InvalidModelResponseError),
    "error as success": (
        HttpResponse(body=OVERLOADED),
        "not an Anthropic message .*Overloaded",
        InvalidModelResponseError,
    ),
}


@pytest.mark.parametrize("name", TRANSIENT)
async def test_transient_failures_are_retried(name: str):
    fault, line, kind = TRANSIENT[name]
    async with messages_endpoint([fault, fault]) as server:
        response = await get_response(server.base_url)
    assert response.message.content == "you said: hello"
    assert [bool(re.search(line, attempt)) for attempt in response.attempts] == [True, True]
    async with messages_endpoint(fault) as server:
        with pytest.raises(kind, match=line):
            await get_response(server.base_url, max_retries=2)
    assert server.num_requests == 3


async def test_a_prompt_that_is_too_long_raises_overlong_prompt_error():
    body = {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8"}}
    async with messages_endpoint(HttpResponse(400, body)) as server:
        with pytest.raises(OverlongPromptError, match="prompt is too long"):
            await get_response(server.base_url)
    assert server.num_requests == 1


async def test_the_api_key_is_masked_in_errors():
    async with messages_endpoint(HttpResponse(401, "invalid x-api-key: sk-secret")) as server:
        with pytest.raises(ModelError, match=r"invalid x-api-key: \*\*\* .*check ANTHROPIC_API_KEY") as caught:
            await get_response(server.base_url, api_key="sk-secret")
    assert "sk-secret" not in str(caught.value)
    assert server.num_requests == 1


async def test_a_raw_text_is_rejected_before_any_request():
    async with messages_endpoint() as server:
        with pytest.raises(ConfigError, match="cannot continue a raw text; expected messages: use .*'chat'"):
            await get_response(server.base_url, Request([], text="Once upon"))
    assert server.num_requests == 0


def test_the_client_is_exported_by_the_package():
    assert rove.AnthropicClient is AnthropicClient
