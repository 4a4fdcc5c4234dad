"""Checks of an endpoint by `rove doctor`, against local servers with and without all features."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from api_endpoint import ApiEndpoint, anthropic_message
from fakes import tiny_model
from fault_endpoint import FaultEndpoint, HttpResponse, completion
from tiers import each_row

from rove.clients.anthropic import AnthropicClient
from rove.clients.openai import CompletionsClient, OpenAIClient
from rove.core.errors import InfraError
from rove.core.findings import HIGH, MEDIUM, OK, SKIPPED, Finding, Severity
from rove.doctor import endpoint
from rove.doctor.endpoint import CHECKS, check_context, check_endpoint, check_latency, logprobs_in
from rove.engine.client import EngineClient
from rove.server import base_url_of, listening, make_app

DEFAULT_MODELS = [{"id": "tiny"}]


class ChatServer:
    """A chat server with configurable features.

    Args:
        features: Supported features: "tools", "logprobs", "repeat" (equal responses), "stream", "context" (in error messages).
        listed: Its list of models; None = no list.
        key: The API key that requests must have; "" = any.
        logprob: The log-probability of each token.
        text: The text of responses.
    """

    def __init__(
        self,
        features: str = "tools logprobs repeat stream",
        listed: Any = DEFAULT_MODELS,
        key: str = "",
        logprob: Any = -0.5,
        text: str = "OK.",
    ):
        self.features = features.split()
        self.listed = listed
        self.key = key
        self.logprob = logprob
        self.text = text
        self.counter = itertools.count()
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._post)
        self.server = TestServer(app)

    async def findings(
        self, model: str = "tiny", key: str = "sk-something", timeout_s: float = 600, **options: Any
    ) -> dict[str, Finding]:
        """Return the findings of the checks by name."""
        await self.server.start_server()
        client = OpenAIClient(str(self.server.make_url("/v1")), key, max_retries=0, timeout=timeout_s)
        try:
            return {finding.id: finding async for finding in check_endpoint(client, model, **options)}
        finally:
            await client.close()
            await self.server.close()

    def _let_in(self, request: web.Request) -> None:
        if self.key and request.headers["Authorization"] != f"Bearer {self.key}":
            body = json.dumps({"error": {"message": f"no such key: {request.headers['Authorization']}"}})
            raise web.HTTPUnauthorized(text=body)

    async def _models(self, request: web.Request) -> web.Response:
        if self.listed is None:
            raise web.HTTPNotFound
        return web.json_response({"data": self.listed})

    async def _post(self, request: web.Request) -> web.StreamResponse:
        return await self._chat(request)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self._let_in(request)
        body = await request.json()
        if body["model"] != "tiny":
            raise web.HTTPNotFound(text='{"error": {"message": "no such model"}}')
        if body["max_tokens"] > 4096:
            message = "This model's maximum context length is 4,096 tokens." if "context" in self.features else "no"
            raise web.HTTPBadRequest(text=json.dumps({"error": {"message": message}}))
        if body.get("stream") and "stream" in self.features:
            return web.Response(text='data: {"choices": []}\n\ndata: [DONE]\n\n', content_type="text/event-stream")
        text = self.text if "repeat" in self.features else f"{self.text} {next(self.counter)}"
        response = completion(text)
        if body.get("tools") and "tools" in self.features:
            function = {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
            response = completion(None, tool_calls=[{"id": "1", "type": "function", "function": function}])
        if body.get("logprobs") and "logprobs" in self.features:
            response["choices"][0]["logprobs"] = {"content": [{"token": "O", "logprob": self.logprob}] * 3}
        return web.json_response(response)


def statuses(findings: dict[str, Finding]) -> dict[str, Severity]:
    return {name: finding.severity for name, finding in findings.items()}


async def test_a_server_with_all_features_passes_all_checks():
    findings = await ChatServer(listed=[{"id": "tiny", "max_model_len": 8192}], key="sk-something").findings()
    assert set(statuses(findings).values()) == {OK}
    assert len(findings) == CHECKS
    assert findings["context"].text == "8,192 tokens (its max_model_len)"
    assert findings["logprobs"].text == "3 tokens, finite, sum -1.50"
    assert findings["tools"].text == "called get_weather(city='Oslo')"


async def test_a_slow_server_gets_small_requests_and_does_not_fail(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(endpoint, "FAST_RESPONSE_S", -1.0)
    server = ChatServer(features="repeat logprobs stream")
    requested_tokens: list[int] = []
    chat = server._chat

    async def respond_truncated(request: web.Request) -> web.StreamResponse:
        requested_tokens.append((await request.json())["max_tokens"])
        if requested_tokens[-1] > 4096:
            raise web.HTTPBadRequest(text='{"error": {"message": "no"}}')
        return (
            web.json_response(completion("OK, and", finish_reason="length"))
            if len(requested_tokens) < 3
            else await chat(request)
        )

    server._chat = respond_truncated
    findings = await server.findings()
    assert not any(finding.severity is HIGH for finding in findings.values())
    assert (findings["response"].severity, findings["response"].remedy) == (
        OK,
        "truncated at 32 tokens, because the server is slow",
    )
    assert max(count for count in requested_tokens if count < 4096) <= 64


async def test_a_timeout_is_a_warning_and_skips_later_checks():
    server = ChatServer(listed=[{"id": "tiny", "max_model_len": 8192}])
    chat, count = server._chat, itertools.count()

    async def hang(request: web.Request) -> web.StreamResponse:
        if next(count):
            await asyncio.sleep(5)
        return await chat(request)

    server._chat = hang
    started: list[str] = []
    findings = await server.findings(timeout_s=0.2, on_check=started.append)
    assert not any(finding.severity is HIGH for finding in findings.values())
    assert findings["tools"].severity == MEDIUM and "no answer within 0.2 s" in repr(findings["tools"])
    assert (findings["other_checks"].severity, "latency" in findings) == (SKIPPED, False)
    assert started == ["models", "response", "context", "tools"]
    hanging = ChatServer()
    hanging._chat = hang
    findings = await hanging.findings(timeout_s=0.2)
    assert (findings["response"].severity, findings["other_checks"].severity) == (MEDIUM, SKIPPED)
    assert not any(finding.severity is HIGH for finding in findings.values())


async def test_an_unreachable_endpoint_fails():
    server = ChatServer()
    await server.server.start_server()
    url = str(server.server.make_url("/v1"))
    await server.server.close()
    client = OpenAIClient(url, max_retries=0)
    findings = [finding async for finding in check_endpoint(client, "tiny")]
    await client.close()
    assert [(finding.severity, finding.id) for finding in findings] == [(HIGH, "reachable")]
    assert any(finding.severity is HIGH for finding in findings)
    assert url in repr(findings[0])


async def test_a_wrong_key_is_found_although_the_model_list_is_public():
    findings = await ChatServer(key="sk-right-one").findings(key="sk-wrong-one")
    assert statuses(findings) == {"key": HIGH, "models": OK, "response": HIGH, "other_checks": SKIPPED}
    assert "HTTP 401: no such key" in repr(findings["key"])
    assert not any("sk-wrong-one" in repr(finding) for finding in findings.values())


async def test_a_misspelled_model_name_fails_with_a_suggestion():
    findings = await ChatServer().findings("tinny")
    assert statuses(findings) == {"key": SKIPPED, "models": MEDIUM, "response": HIGH, "other_checks": SKIPPED}
    assert findings["models"].remedy == "did you mean 'tiny'?"
    assert findings["response"].text == "HTTP 404: no such model"


@pytest.mark.parametrize("listed", [None, []])
async def test_a_missing_model_list_is_skipped(listed: Any):
    findings = await ChatServer(listed=listed).findings()
    assert findings["models"].severity == SKIPPED
    assert findings["response"].severity == OK


async def test_missing_features_are_warnings():
    findings = await ChatServer(features="").findings()
    missing = {"tools", "logprobs", "temperature_0", "seed", "streaming"}
    assert {name for name, finding in findings.items() if finding.severity == MEDIUM} == missing
    assert findings["context"].severity == SKIPPED
    assert not any(finding.severity is HIGH for finding in findings.values())
    assert all(findings[name].remedy for name in missing)


@pytest.mark.parametrize("value", [0.5, -9999.0, None])
async def test_invalid_log_probs_are_a_warning(value: Any):
    assert (await ChatServer(logprob=value).findings())["logprobs"].severity == MEDIUM


async def test_the_context_length_is_read_from_an_error_message():
    assert (await ChatServer(features="context").findings())["context"].text == "4,096 tokens (from an error message)"


@pytest.mark.parametrize(
    ("answer", "warning"),
    [
        (completion("and so on", "length"), "does not end"),
        (completion(None, reasoning_content="hm"), "only reasoning"),
    ],
)
async def test_truncated_and_reasoning_only_responses_are_warnings(answer: dict[str, Any], warning: str):
    async with FaultEndpoint(HttpResponse(body=answer)) as server:
        client = OpenAIClient(server.base_url, max_retries=0)
        findings = {finding.id: finding async for finding in check_endpoint(client, "tiny")}
        await client.close()
    assert findings["response"].severity == MEDIUM
    assert warning in repr(findings["response"])


async def test_checks_continue_after_http_errors():
    async with FaultEndpoint(lambda number, body: "ok" if number < 2 else "500") as server:
        client = OpenAIClient(server.base_url, max_retries=0)
        findings = {finding.id: finding async for finding in check_endpoint(client, "tiny")}
        await client.close()
    assert findings["response"].severity == OK
    assert {findings[name].severity for name in ("tools", "logprobs", "seed", "streaming", "latency")} == {MEDIUM}
    assert findings["latency"].text.endswith("HTTP 500: told to answer 500")


async def test_an_empty_response_is_a_warning():
    async with FaultEndpoint("empty") as server:
        client = OpenAIClient(server.base_url, max_retries=0)
        findings = {finding.id: finding async for finding in check_endpoint(client, "tiny")}
        await client.close()
    assert (findings["key"].severity, findings["response"].severity, findings["latency"].severity) == (OK, MEDIUM, OK)
    assert not any(finding.severity is HIGH for finding in findings.values())


async def test_a_slow_response_is_a_latency_warning(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rove.doctor.endpoint.SLOW_RESPONSE_S", 0.0)
    async with FaultEndpoint() as server:
        client = OpenAIClient(server.base_url)
        assert (await check_latency(client, "tiny")).severity == MEDIUM
        await client.close()


async def test_an_anthropic_endpoint_is_checked_without_log_probs():
    async with ApiEndpoint("/v1/messages", anthropic_message, reply=lambda body: "OK.") as server:
        client = AnthropicClient(server.base_url, max_retries=0)
        findings = {finding.id: finding async for finding in check_endpoint(client, "tiny")}
        await client.close()
    assert findings["response"].severity == OK
    assert findings["logprobs"].severity == SKIPPED


@pytest.mark.broad
@pytest.mark.parametrize("kind", [OpenAIClient, CompletionsClient])
async def test_a_model_served_by_rove_passes_the_checks(kind: type[OpenAIClient]):
    engine = EngineClient.from_model(tiny_model(context=512))
    async with listening(make_app(engine, "tiny")) as runner:
        client = kind(base_url_of(runner), "k", max_retries=0)
        findings = {finding.id: finding async for finding in check_endpoint(client, "tiny")}
        assert (await check_context(client, "tiny", [])).severity == SKIPPED
        await client.close()
    assert findings["context"].text.startswith("512 tokens")
    assert findings["tools"].severity == (MEDIUM if kind is OpenAIClient else SKIPPED)
    passing = ("key", "models", "logprobs", "temperature_0", "seed", "streaming", "latency")
    assert {findings[name].severity for name in passing} == {OK}


@each_row(
    ("message", "length"),
    [
        ("This model's maximum context length is 4,096 tokens.", "4,096 tokens"),
        ("max_tokens is too large: 1073741824. This model supports at most 16384 completion tokens.", "unknown"),
        ("At most 8192 output tokens fit into the context of 131072 tokens.", "131,072 tokens"),
        ("max_tokens exceeds the limit, got 1073741824", "unknown"),
    ],
)
async def test_the_context_length_in_an_error_message(message: str, length: str):
    async def respond(client: Any, request: Any) -> InfraError:
        return InfraError(message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(endpoint, "_respond", respond)
        finding = await check_context(OpenAIClient("http://localhost/v1", "k"), "tiny", [])
    assert finding.text.startswith(length)


MALFORMED_LOGPROBS = [{"choices": [{"logprobs": None}]}, {"choices": [{"logprobs": {"token_logprobs": 5}}]}]


@each_row("answer", [None, {}, {"choices": []}, {"choices": ["x"]}, *MALFORMED_LOGPROBS])
def test_logprobs_in_returns_nothing_for_malformed_responses(answer: Any):
    assert logprobs_in(answer) == []
