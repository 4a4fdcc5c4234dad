"""What `rove doctor` finds out about an endpoint: a real server on loopback that can do everything, and ones that cannot."""

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
from fault_endpoint import Answer, FaultEndpoint, completion

from rove.clients.anthropic import AnthropicClient
from rove.clients.openai import CompletionsClient, OpenAIClient
from rove.doctor import endpoint
from rove.doctor.endpoint import CHECKS, check_context, check_endpoint, check_latency, logprobs_in
from rove.doctor.findings import FAIL, OK, SKIP, WARN, Finding, failed
from rove.engine.client import EngineClient
from rove.server import base_url_of, listening, make_app

ANY = [{"id": "tiny"}]


class Model:
    """A chat server that can do everything it is asked about.

    Args:
        can: what of "tools", "logprobs", "repeat", "stream", "context" it can do.
        listed: its list of models; None = it has none.
        key: what requests must bring.
        logprob: of each token.
    """

    def __init__(
        self,
        can: str = "tools logprobs repeat stream",
        listed: Any = ANY,
        key: str = "",
        logprob: Any = -0.5,
        text: str = "OK.",
    ):
        self.can = can.split()
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
        """What the doctor says, by name."""
        await self.server.start_server()
        client = OpenAIClient(str(self.server.make_url("/v1")), key, max_retries=0, timeout=timeout_s)
        try:
            return {finding.name: finding async for finding in check_endpoint(client, model, **options)}
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
            told = "This model's maximum context length is 4,096 tokens." if "context" in self.can else "no"
            raise web.HTTPBadRequest(text=json.dumps({"error": {"message": told}}))
        if body.get("stream") and "stream" in self.can:
            return web.Response(text='data: {"choices": []}\n\ndata: [DONE]\n\n', content_type="text/event-stream")
        text = self.text if "repeat" in self.can else f"{self.text} {next(self.counter)}"
        made = completion(text)
        if body.get("tools") and "tools" in self.can:
            function = {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
            made = completion(None, tool_calls=[{"id": "1", "type": "function", "function": function}])
        if body.get("logprobs") and "logprobs" in self.can:
            made["choices"][0]["logprobs"] = {"content": [{"token": "O", "logprob": self.logprob}] * 3}
        return web.json_response(made)


def statuses(findings: dict[str, Finding]) -> dict[str, str]:
    return {name: finding.status for name, finding in findings.items()}


async def test_all_is_well():
    found = await Model(listed=[{"id": "tiny", "max_model_len": 8192}], key="sk-something").findings()
    assert set(statuses(found).values()) == {OK}
    assert len(found) == CHECKS
    assert found["context"].seen == "8,192 tokens (its max_model_len)"
    assert found["log-probs"].seen == "3 tokens, finite, sum -1.50"
    assert found["tools"].seen == "called get_weather(city='Oslo')"


async def test_a_slow_server_is_asked_for_few_tokens_and_is_not_broken(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(endpoint, "FAST_RESPONSE_S", -1.0)
    server = Model(can="repeat logprobs stream")
    asked: list[int] = []
    chat = server._chat

    async def cut(request: web.Request) -> web.StreamResponse:
        asked.append((await request.json())["max_tokens"])
        if asked[-1] > 4096:
            raise web.HTTPBadRequest(text='{"error": {"message": "no"}}')
        return (
            web.json_response(completion("OK, and", finish_reason="length")) if len(asked) < 3 else await chat(request)
        )

    server._chat = cut
    found = await server.findings()
    assert not failed(found.values())
    assert (found["response"].status, found["response"].advice) == (
        OK,
        "truncated at 32 tokens, because the server is slow",
    )
    assert max(count for count in asked if count < 4096) <= 64


async def test_a_server_that_does_not_answer_in_time_is_slow_and_not_broken():
    server = Model(listed=[{"id": "tiny", "max_model_len": 8192}])
    chat, count = server._chat, itertools.count()

    async def hang(request: web.Request) -> web.StreamResponse:
        if next(count):
            await asyncio.sleep(5)
        return await chat(request)

    server._chat = hang
    started: list[str] = []
    found = await server.findings(timeout_s=0.2, on_check=started.append)
    assert not failed(found.values())
    assert found["tools"].status == WARN and "no answer within 0.2 s" in found["tools"].seen
    assert (found["other checks"].status, "latency" in found) == (SKIP, False)
    assert started == ["models", "response", "context", "tools"]
    always = Model()
    always._chat = hang
    found = await always.findings(timeout_s=0.2)
    assert (found["response"].status, found["other checks"].status) == (WARN, SKIP)
    assert not failed(found.values())


async def test_nobody_listens():
    server = Model()
    await server.server.start_server()
    url = str(server.server.make_url("/v1"))
    await server.server.close()
    client = OpenAIClient(url, max_retries=0)
    findings = [finding async for finding in check_endpoint(client, "tiny")]
    await client.close()
    assert [(one.status, one.name) for one in findings] == [(FAIL, "reachable")]
    assert failed(findings)
    assert url in findings[0].advice


async def test_a_wrong_key_is_found_though_models_are_listed_to_anybody():
    found = await Model(key="sk-right-one").findings(key="sk-wrong-one")
    assert statuses(found) == {"key": FAIL, "models": OK, "response": FAIL, "other checks": SKIP}
    assert "HTTP 401: no such key" in found["key"].seen
    assert not any("sk-wrong-one" in finding.seen for finding in found.values())


async def test_a_misspelt_model():
    found = await Model().findings("tinny")
    assert statuses(found) == {"key": SKIP, "models": WARN, "response": FAIL, "other checks": SKIP}
    assert found["models"].advice == "did you mean 'tiny'?"
    assert found["response"].seen == "HTTP 404: no such model"


@pytest.mark.parametrize("listed", [None, []])
async def test_a_server_without_a_list_is_no_failure(listed: Any):
    found = await Model(listed=listed).findings()
    assert found["models"].status == SKIP
    assert found["response"].status == OK


async def test_what_a_server_cannot_do_is_warned_of():
    found = await Model(can="").findings()
    lacking = {"tools", "log-probs", "temperature 0", "seed", "streaming"}
    assert {name for name, finding in found.items() if finding.status == WARN} == lacking
    assert found["context"].status == SKIP
    assert not failed(found.values())
    assert all(found[name].advice for name in lacking)


@pytest.mark.parametrize("value", [0.5, -9999.0, None])
async def test_log_probs_that_are_none(value: Any):
    assert (await Model(logprob=value).findings())["log-probs"].status == WARN


async def test_the_context_is_read_from_a_refusal():
    assert (await Model(can="context").findings())["context"].seen == "4,096 tokens (from an error message)"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (completion("and so on", "length"), "does not end"),
        (completion(None, reasoning_content="hm"), "only reasoning"),
    ],
)
async def test_an_answer_that_says_nothing_or_never_ends(answer: dict[str, Any], said: str):
    async with FaultEndpoint(Answer(body=answer)) as server:
        client = OpenAIClient(server.base_url, max_retries=0)
        found = {one.name: one async for one in check_endpoint(client, "tiny")}
        await client.close()
    assert found["response"].status == WARN
    assert said in found["response"].advice


async def test_a_server_that_fails_half_way_is_told_of_and_asked_on():
    async with FaultEndpoint(lambda number, body: "ok" if number < 2 else "500") as server:
        client = OpenAIClient(server.base_url, max_retries=0)
        found = {one.name: one async for one in check_endpoint(client, "tiny")}
        await client.close()
    assert found["response"].status == OK
    assert {found[name].status for name in ("tools", "log-probs", "seed", "streaming", "latency")} == {WARN}
    assert found["latency"].seen.endswith("HTTP 500: told to answer 500")


async def test_who_says_nothing_answers_all_the_same():
    async with FaultEndpoint("empty") as server:
        client = OpenAIClient(server.base_url, max_retries=0)
        found = {one.name: one async for one in check_endpoint(client, "tiny")}
        await client.close()
    assert (found["key"].status, found["response"].status, found["latency"].status) == (OK, WARN, OK)
    assert not failed(found.values())


async def test_latency(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rove.doctor.endpoint.SLOW_RESPONSE_S", 0.0)
    async with FaultEndpoint() as server:
        client = OpenAIClient(server.base_url)
        assert (await check_latency(client, "tiny")).status == WARN
        await client.close()


async def test_another_api():
    async with ApiEndpoint("/v1/messages", anthropic_message, reply=lambda body: "OK.") as server:
        client = AnthropicClient(server.base_url, max_retries=0)
        found = {one.name: one async for one in check_endpoint(client, "tiny")}
        await client.close()
    assert found["response"].status == OK
    assert found["log-probs"].status == SKIP


@pytest.mark.broad
@pytest.mark.parametrize("kind", [OpenAIClient, CompletionsClient])
async def test_a_model_of_our_own(kind: type[OpenAIClient]):
    engine = EngineClient.from_model(tiny_model(context=512))
    async with listening(make_app(engine, "tiny")) as runner:
        client = kind(base_url_of(runner), "k", max_retries=0)
        found = {one.name: one async for one in check_endpoint(client, "tiny")}
        assert (await check_context(client, "tiny", [])).status == SKIP
        await client.close()
    assert found["context"].seen.startswith("512 tokens")
    assert found["tools"].status == (WARN if kind is OpenAIClient else SKIP)
    same = ("key", "models", "log-probs", "temperature 0", "seed", "streaming", "latency")
    assert {found[name].status for name in same} == {OK}


@pytest.mark.parametrize("answer", [None, {}, {"choices": []}, {"choices": [{"logprobs": None}]}, {"choices": ["x"]}])
def test_no_log_probs_in_whatever_comes(answer: Any):
    assert logprobs_in(answer) == []
