from __future__ import annotations

import re
from typing import Any

import pytest
from api_endpoint import ApiEndpoint, anthropic_message
from fault_endpoint import Answer, Fault

import rove
from rove.clients.anthropic import AnthropicClient
from rove.core.errors import (
    ConfigError,
    EmptyModelResponseError,
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


def says_so(body: dict[str, Any]) -> str:
    return f"you said: {body['messages'][-1]['content'][0]['text']}"


def messages_endpoint(faults: Any = "ok") -> ApiEndpoint:
    return ApiEndpoint("/v1/messages", anthropic_message, faults, reply=says_so)


def ask(text: str = "hello", **fields: Any) -> Request:
    return Request([UserMessage(text)], model="tiny", **fields)


async def answer(base_url: str, request: Request | None = None, **settings: Any):
    client = AnthropicClient(base_url, **{"backoff": 0.0, **settings})
    try:
        return await client.respond(request or ask())
    finally:
        await client.close()


async def test_round_trip():
    request = Request([SystemMessage("be brief"), UserMessage("hello")], SamplingParams(max_tokens=5), "tiny")
    async with messages_endpoint() as server:
        response = await answer(server.base_url, request, api_key="sk-ant-1")
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


async def test_headers_of_the_user_win():
    async with messages_endpoint() as server:
        await answer(server.base_url, headers={"Anthropic-Version": "2099-01-01", "anthropic-beta": "x"})
    [sent] = server.headers
    assert sent.getall("anthropic-version") == ["2099-01-01"]  # pyright: ignore[reportAttributeAccessIssue]
    assert sent["anthropic-beta"] == "x"


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
async def test_the_base_url_comes_with_or_without_v1(end: str, monkeypatch: pytest.MonkeyPatch):
    async with messages_endpoint() as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.base_url.removesuffix("/v1") + end)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-env")
        client = AnthropicClient()
        await client.respond(ask())
        await client.close()
    assert server.headers[0]["x-api-key"] == "sk-env"


def test_anthropic_itself_needs_its_key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    with pytest.raises(MissingKeyError, match=r"no API key for https://api.anthropic.com/v1: set ANTHROPIC_API_KEY"):
        AnthropicClient()
    client = AnthropicClient(api_key="sk-ant-1")
    assert isinstance(client, Client)
    assert client.translate(ask())[0] == "messages"
    assert client.identity == {"api": "AnthropicClient", "base_url": "https://api.anthropic.com/v1"}


OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
PASSING: dict[str, tuple[Fault, str, type[Exception]]] = {
    "429": (Answer(429, {"error": {"type": "rate_limit_error"}}), "HTTP 429: .*rate_limit_error", InfraError),
    "500": ("500", "HTTP 500: ", InfraError),
    "529": (Answer(529, OVERLOADED), "HTTP 529: .*Overloaded", InfraError),
    "garbage": ("garbage", "not JSON .*Bad gateway", InvalidModelResponseError),
    "error as success": (Answer(body=OVERLOADED), "not an Anthropic message .*Overloaded", InvalidModelResponseError),
    "empty": ("empty", "neither text nor tool calls", EmptyModelResponseError),
}


@pytest.mark.parametrize("name", PASSING)
async def test_what_may_pass_is_tried_again(name: str):
    fault, line, kind = PASSING[name]
    async with messages_endpoint([fault, fault]) as server:
        response = await answer(server.base_url)
    assert response.message.content == "you said: hello"
    assert [bool(re.search(line, attempt)) for attempt in response.attempts] == [True, True]
    async with messages_endpoint(fault) as server:
        with pytest.raises(kind, match=line):
            await answer(server.base_url, max_retries=2)
    assert server.requests == 3


async def test_a_prompt_that_does_not_fit():
    said = {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8"}}
    async with messages_endpoint(Answer(400, said)) as server:
        with pytest.raises(OverlongPromptError, match="prompt is too long"):
            await answer(server.base_url)
    assert server.requests == 1


async def test_the_key_does_not_show_in_errors():
    async with messages_endpoint(Answer(401, "invalid x-api-key: sk-secret")) as server:
        with pytest.raises(ModelError, match=r"invalid x-api-key: \*\*\* .*check ANTHROPIC_API_KEY") as caught:
            await answer(server.base_url, api_key="sk-secret")
    assert "sk-secret" not in str(caught.value)
    assert server.requests == 1


async def test_a_raw_text_is_refused_before_anything_is_sent():
    async with messages_endpoint() as server:
        with pytest.raises(ConfigError, match="cannot continue a raw text; expected messages: use .*'chat'"):
            await answer(server.base_url, Request([], text="Once upon"))
    assert server.requests == 0


def test_it_is_a_public_name():
    assert rove.AnthropicClient is AnthropicClient
