"""Requests that try to occupy the server: costly grammars, long prompts to score, and bodies that never arrive."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from rove.engine import grammar_check
from rove.engine.grammar_check import GrammarChecker
from rove.server import base_url_of, handlers, listening, make_app
from rove.server.listen import IDLE_TIMEOUT_S
from tests.server.test_engine import served

PROMPT = {"prompt": "0 1 2", "max_tokens": 4}
SIMULTANEOUS_PATTERNS = {"type": "string", "allOf": [{"pattern": f".*a.{{{i}}}"} for i in range(24)]}
HOSTILE: dict[str, dict[str, Any]] = {
    "simultaneous patterns": {"structured_outputs": {"json": SIMULTANEOUS_PATTERNS}},
    "a regular expression of 1 MB": {"structured_outputs": {"regex": "(a|b)" * 200_000}},
    "100,000 branches": {"structured_outputs": {"regex": "|".join(f"x{i}" for i in range(100_000))}},
    "100,000 choices": {"structured_outputs": {"choice": [f"option {i}" for i in range(100_000)]}},
    "a choice of 1 MB": {"structured_outputs": {"choice": ["a" * 1_000_000]}},
    "nested repeats": {"structured_outputs": {"regex": "x((((a{100}){100}){100}){100}){100}"}},
    "nested repeats of rules": {
        "structured_outputs": {"grammar": 'start: a{1000}\na: b{1000}\nb: c{1000}\nc: "x"{1000}'}
    },
    "deep brackets": {"structured_outputs": {"grammar": "start: " + "(" * 50_000 + '"x"' + ")" * 50_000}},
    "a large enum": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "a", "schema": {"enum": list(range(90_000))}},
        }
    },
    "a schema of bad types": {
        "structured_outputs": {"json": {"properties": {"a": {"pattern": 3, "enum": "x"}}, "allOf": 7}}
    },
}


@pytest.mark.broad
async def test_hostile_structured_outputs_are_bad_requests(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(grammar_check, "CPU_SECONDS", 1)
    monkeypatch.setattr(grammar_check, "MEMORY_BYTES", 256 << 20)
    async with served() as (server, _):
        statuses = {}
        for name, fields in HOSTILE.items():
            async with server.http.post("/v1/completions", json={**PROMPT, **fields}) as reply:
                statuses[name] = reply.status
                assert len((await reply.json())["error"]["message"]) <= 1000
        assert statuses == dict.fromkeys(HOSTILE, 400)
        usual = {"structured_outputs": {"choice": ["yes", "no"]}, **PROMPT}
        async with server.http.post("/v1/completions", json=usual) as reply:
            assert (await reply.json())["choices"][0]["text"] in ("yes", "no", "y", "n", "ye")


async def test_health_answers_while_a_grammar_is_checked(monkeypatch: pytest.MonkeyPatch):
    checking, healthy = asyncio.Event(), asyncio.Event()

    async def check_slowly(self: GrammarChecker, grammar: str) -> str:
        checking.set()
        await asyncio.wait_for(healthy.wait(), 60)
        return "it is too large"

    monkeypatch.setattr(GrammarChecker, "_try", check_slowly)
    async with served() as (server, _):
        body = {**PROMPT, "structured_outputs": {"regex": "a+"}}
        request = asyncio.create_task(post_status(server.http, "/v1/completions", body))
        await checking.wait()
        async with server.http.get("/health") as reply:
            assert reply.status == 200
        healthy.set()
        assert await request == 400


async def post_status(http: Any, path: str, body: dict[str, Any]) -> int:
    async with http.post(path, json=body) as reply:
        return reply.status


async def test_a_grammar_that_fails_while_sampling_is_a_bad_request(monkeypatch: pytest.MonkeyPatch):
    async def accept(self: GrammarChecker, grammar: str) -> str:
        return ""

    monkeypatch.setattr(GrammarChecker, "_try", accept)
    monkeypatch.setattr("rove.engine.constraints.MAX_MASK_SECONDS", -1.0)
    async with served() as (server, _):
        body = {**PROMPT, "structured_outputs": {"regex": "a+"}}
        async with server.http.post("/v1/completions", json=body) as reply:
            assert reply.status == 400
            assert "the structured output broke off" in (await reply.json())["error"]["message"]


async def test_other_requests_are_answered_between_two_scored_prompts(monkeypatch: pytest.MonkeyPatch):
    async with served() as (server, _):
        passes, scored_at = 0, []
        score = server.client.engine._score_prompt

        def record(*args: Any) -> Any:
            scored_at.append(passes)
            return score(*args)

        async def count_passes() -> None:
            nonlocal passes
            while True:
                passes += 1
                await asyncio.sleep(0)

        monkeypatch.setattr(server.client.engine, "_score_prompt", record)
        counting = asyncio.create_task(count_passes())
        body = {"prompt": ["0 1 2"] * 16, "max_tokens": 0, "echo": True, "logprobs": 1}
        async with server.http.post("/v1/completions", json=body) as reply:
            choices = (await reply.json())["choices"]
        counting.cancel()
        assert len(choices) == len(scored_at) == 16
        assert len(choices[0]["logprobs"]["tokens"]) > 1
        assert len(set(scored_at)) == 16  # each in its own pass of the event loop


async def read_after(app: Any, sent: bytes, **options: Any) -> bytes:
    """Return what the server sends after these bytes until it closes the connection."""
    async with listening(app, **options) as runner:
        port = int(base_url_of(runner).split(":")[2].split("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        try:
            return await asyncio.wait_for(reader.read(), 60)
        finally:
            writer.close()


class Silent:
    max_concurrent = 1


async def test_a_body_that_does_not_arrive_ends_the_request(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(handlers, "BODY_TIMEOUT_S", 0.1)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += b"Content-Length: 99\r\n\r\n"
    app = make_app(Silent(), "silent")  # pyright: ignore[reportArgumentType]
    reply = await read_after(app, head + b'{"messages"', lingering_time=0.1)
    assert reply.startswith(b"HTTP/1.1 408 ")
    error = json.loads(reply.partition(b"\r\n\r\n")[2])["error"]
    assert error["code"] == "body_timeout"
    assert error["message"] == "the request's body did not arrive within 0.1 s; send it without pauses"


async def test_a_header_that_does_not_arrive_closes_the_connection():
    app = make_app(Silent(), "silent")  # pyright: ignore[reportArgumentType]
    assert await read_after(app, b"POST /v1/chat/completions HTTP/1.1\r\nHost: loc", keepalive_timeout=0.1) == b""
    assert IDLE_TIMEOUT_S <= 600


async def test_a_body_beyond_the_limit_is_refused():
    app = make_app(Silent(), "silent", max_body=1000)  # pyright: ignore[reportArgumentType]
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    reply = await read_after(app, head + b"Content-Length: 100000\r\nConnection: close\r\n\r\n" + b"a" * 100_000)
    assert reply.startswith(b"HTTP/1.1 413 ")
