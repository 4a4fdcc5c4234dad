from __future__ import annotations

import re
from typing import Any

import pytest
from api_endpoint import ApiEndpoint, openai_response
from fault_endpoint import Fault, HttpResponse

import rove
from rove.clients.openai import ResponsesClient
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
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def echo(body: dict[str, Any]) -> str:
    return f"you said: {body['input'][-1]['content']}"


def responses_endpoint(faults: Any = "ok") -> ApiEndpoint:
    return ApiEndpoint("/v1/responses", openai_response, faults, reply=echo)


def make_request(text: str = "hello", **fields: Any) -> Request:
    return Request([UserMessage(text)], model="tiny", **fields)


async def get_response(base_url: str, request: Request | None = None, **settings: Any):
    client = ResponsesClient(base_url, **{"backoff": 0.0, **settings})
    try:
        return await client.respond(request or make_request())
    finally:
        await client.close()


async def test_round_trip():
    request = Request([SystemMessage("be brief"), UserMessage("hello")], SamplingParams(max_tokens=5), "tiny")
    async with responses_endpoint() as server:
        response = await get_response(server.base_url, request, api_key="sk-1")
    assert response.message == {"role": "assistant", "content": "you said: hello"}
    assert (response.usage, response.finish_reason) == (Usage(3, 2), "stop")
    assert server.paths == ["/v1/responses"]
    assert server.bodies == [
        {
            "model": "tiny",
            "input": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}],
            "max_output_tokens": 5,
            "store": False,
        }
    ]
    [sent] = server.headers
    assert (sent["Authorization"], sent["Content-Type"]) == ("Bearer sk-1", "application/json")


def test_the_openai_api_requires_a_key():
    with pytest.raises(MissingKeyError, match="set OPENAI_API_KEY"):
        ResponsesClient()
    client = ResponsesClient(api_key="sk-1")
    assert isinstance(client, Client)
    assert client.identity == {"api": "ResponsesClient", "base_url": "https://api.openai.com/v1"}


TRANSIENT: dict[str, tuple[Fault, str, type[Exception]]] = {
    "429": ("429", "HTTP 429: ", InfraError),
    "500": ("500", "HTTP 500: ", InfraError),
    "garbage": ("garbage", "not JSON .*Bad gateway", InvalidModelResponseError),
    "error as success": (
        HttpResponse(body={"error": "busy"}),
        "not a finished OpenAI response",
        InvalidModelResponseError,
    ),
}


@pytest.mark.parametrize("name", TRANSIENT)
async def test_transient_failures_are_retried(name: str):
    fault, line, kind = TRANSIENT[name]
    async with responses_endpoint([fault, fault]) as server:
        response = await get_response(server.base_url)
    assert response.message.content == "you said: hello"
    assert [bool(re.search(line, attempt)) for attempt in response.attempts] == [True, True]
    async with responses_endpoint(fault) as server:
        with pytest.raises(kind, match=line):
            await get_response(server.base_url, max_retries=2)
    assert server.num_requests == 3


async def test_a_prompt_that_is_too_long_raises_overlong_prompt_error():
    async with responses_endpoint("context") as server:
        with pytest.raises(OverlongPromptError, match="maximum context length"):
            await get_response(server.base_url)
    assert server.num_requests == 1


async def test_a_failed_response_is_a_model_error():
    failed = openai_response("") | {"status": "failed", "error": {"code": "server_error", "message": "out of luck"}}
    async with responses_endpoint(HttpResponse(body=failed)) as server:
        with pytest.raises(ModelError, match="out of luck"):
            await get_response(server.base_url)
    assert server.num_requests == 1


async def test_the_api_key_is_masked_in_errors():
    async with responses_endpoint(HttpResponse(401, "wrong key: sk-secret")) as server:
        with pytest.raises(ModelError, match=r"wrong key: \*\*\*") as caught:
            await get_response(server.base_url, api_key="sk-secret")
    assert "sk-secret" not in str(caught.value)


async def test_a_raw_text_is_rejected_before_any_request():
    async with responses_endpoint() as server:
        with pytest.raises(ConfigError, match="cannot continue a raw text; expected messages: use .*'chat'"):
            await get_response(server.base_url, Request([], text="Once upon"))
    assert server.num_requests == 0


def test_the_client_is_exported_by_the_package():
    assert rove.ResponsesClient is ResponsesClient
