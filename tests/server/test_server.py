"""The server with a scripted client, called through OpenAI's SDK and plain HTTP."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web

import rove as vf
from rove.core.errors import ConfigError, InfraError, InvalidModelResponseError, OverlongPromptError
from rove.core.protocols import Client, Request, Response
from rove.core.records import Usage
from rove.server import base_url_of, is_loopback, listening, make_app
from rove.server.app import QUEUE
from rove.wire.common import tool_call
from rove.wire.serving import MAX_CHOICES

HI: list[Any] = [{"role": "user", "content": "a b c"}]
JSON = {"Content-Type": "application/json"}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


class RecordingClient:
    """A client that answers with a function of the request and records all requests."""

    def __init__(self, answer: Any = "hello there", pieces: tuple[str, ...] = (), max_concurrent: int = 64):
        self.answer = answer
        self.pieces = pieces
        self.max_concurrent = max_concurrent
        self.requests: list[Request] = []
        self.under_way = 0

    async def respond(self, request: Request) -> Response:
        self.requests.append(request)
        self.under_way += 1
        try:
            for piece in self.pieces:
                await asyncio.sleep(0)
                if request.on_text:
                    request.on_text(piece)
            answer = self.answer(request) if callable(self.answer) else self.answer
            if asyncio.iscoroutine(answer):
                answer = await answer
        finally:
            self.under_way -= 1
        if isinstance(answer, Exception):
            raise answer
        message = vf.AssistantMessage(answer) if isinstance(answer, str) else vf.Message(answer)
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        return Response(message, Usage(3, 2), reason)

    async def close(self) -> None:
        pass


@asynccontextmanager
async def serving(client: Client, model: str = "toy", **options: Any) -> AsyncIterator[tuple[str, web.Application]]:
    app = make_app(client, model, **options)
    async with listening(app) as runner:
        yield base_url_of(runner), app


@asynccontextmanager
async def sdk_client(client: Client, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        serving(client, **options) as (url, _),
        openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as sdk,
    ):
        yield sdk


@asynccontextmanager
async def http(client: Client, **options: Any) -> AsyncIterator[tuple[aiohttp.ClientSession, web.Application]]:
    async with serving(client, **options) as (url, app), aiohttp.ClientSession(url.removesuffix("/v1")) as session:
        yield session, app


async def post(
    session: aiohttp.ClientSession, path: str, body: Any, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body)
    async with session.post(path, data=data, headers={**JSON, **(headers or {})}) as reply:
        return reply.status, await reply.json()


async def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  no event signals it
        await asyncio.sleep(0.001)


# Through the OpenAI SDK


async def test_a_chat_completion_passes_parameters_and_returns_usage():
    client = RecordingClient()
    async with sdk_client(client) as sdk:
        response = await sdk.chat.completions.create(
            model="toy", messages=HI, temperature=0.5, max_completion_tokens=9, seed=5, stop="x", user="me"
        )
    choice = response.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "hello there", "stop")
    assert (response.model, response.object, response.id[:9]) == ("toy", "chat.completion", "chatcmpl-")
    assert response.usage is not None and (response.usage.prompt_tokens, response.usage.total_tokens) == (3, 5)
    (request,) = client.requests
    sampling = request.sampling_params
    assert (request.messages, request.model, request.seed) == (HI, "toy", 5)
    assert (sampling.temperature, sampling.max_tokens, sampling.stop, sampling.extra) == (0.5, 9, ["x"], {})


async def test_several_choices_have_consecutive_seeds_and_share_the_prompt():
    client = RecordingClient(lambda request: str(request.seed))
    async with sdk_client(client) as sdk:
        response = await sdk.chat.completions.create(model="toy", messages=HI, n=3, seed=7)
        unseeded = await sdk.chat.completions.create(model="toy", messages=HI, n=3)
    assert [choice.message.content for choice in response.choices] == ["7", "8", "9"]
    assert [choice.index for choice in response.choices] == [0, 1, 2]
    assert response.usage is not None and (response.usage.prompt_tokens, response.usage.completion_tokens) == (3, 6)
    assert len({choice.message.content for choice in unseeded.choices}) == 3


@pytest.mark.parametrize("pieces", [(), ("hel", "lo "), ("hello", " there"), ("something else",)])
async def test_a_stream_contains_every_piece_of_text_once(pieces: tuple[str, ...]):
    async with sdk_client(RecordingClient(pieces=pieces)) as sdk:
        stream = await sdk.chat.completions.create(
            model="toy", messages=HI, n=2, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    for index in (0, 1):
        choices = [chunk.choices[0] for chunk in chunks if chunk.choices and chunk.choices[0].index == index]
        text = "".join(choice.delta.content or "" for choice in choices)
        assert text == ("hello there" if pieces != ("something else",) else "something else")
        assert choices[0].delta.role == "assistant"
        assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["stop"]
    assert chunks[-1].choices == [] and chunks[-1].usage is not None
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (3, 4)
    assert len({chunk.id for chunk in chunks}) == 1


async def test_a_stream_is_sent_incrementally():
    go_on = asyncio.Event()

    async def answer(request: Request) -> str:
        await go_on.wait()
        return "hello there"

    async with sdk_client(RecordingClient(answer, pieces=("hello",))) as sdk:
        stream = await sdk.completions.create(model="toy", prompt="a", stream=True)
        assert (await anext(stream)).choices[0].text == "hello"
        go_on.set()
        later_chunks = [chunk.choices[0] async for chunk in stream]
    assert ("".join(choice.text for choice in later_chunks), later_chunks[-1].finish_reason) == (" there", "stop")


@pytest.mark.parametrize("stream", [False, True])
async def test_tools_are_passed_to_the_client_and_tool_calls_are_returned(stream: bool):
    call = tool_call("abc", "weather", '{"city": "Rome"}')
    client = RecordingClient({"role": "assistant", "content": None, "tool_calls": [call], "sampled_text": "…"})
    history: list[Any] = [*HI, vf.AssistantMessage(None, tool_calls=[call]), vf.ToolMessage("sunny", "abc")]
    async with sdk_client(client) as sdk:
        create: Any = sdk.chat.completions.create
        response = await create(model="toy", messages=history, tools=[WEATHER], tool_choice="auto", stream=stream)
        if stream:
            choices = [chunk.choices[0] async for chunk in response]
            (received_call,) = [call for choice in choices for call in choice.delta.tool_calls or []]
            assert (received_call.index, choices[-1].finish_reason) == (0, "tool_calls")
        else:
            assert "sampled_text" not in (response.choices[0].message.model_extra or {})
            (received_call,) = response.choices[0].message.tool_calls or []
            assert response.choices[0].finish_reason == "tool_calls"
        await sdk.chat.completions.create(model="toy", messages=HI, tools=[WEATHER], tool_choice="none")
    assert (received_call.id, received_call.function.name, received_call.function.arguments) == (
        "abc",
        "weather",
        '{"city": "Rome"}',
    )
    assert client.requests[0].tools == [WEATHER] and client.requests[0].messages == history
    assert client.requests[1].tools is None


async def test_unknown_fields_are_passed_to_the_client():
    client = RecordingClient()
    expected: Any = {"type": "json_object"}
    async with sdk_client(client) as sdk:
        await sdk.chat.completions.create(
            model="toy",
            messages=HI,
            response_format=expected,
            reasoning_effort="low",
            extra_body={"chatty": 2, "metadata": None},
        )
    sampling = client.requests[0].sampling_params
    assert getattr(sampling, "response_format", None) == expected
    assert sampling.extra == {"chatty": 2, "reasoning_effort": "low"}


async def test_text_parts_are_joined_unless_other_parts_are_present():
    image = {"type": "image_url", "image_url": {"url": "https://a/b.png"}}
    parts: list[Any] = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    client = RecordingClient()
    async with sdk_client(client) as sdk:
        messages: list[Any] = [{"role": "user", "content": parts}, {"role": "user", "content": [*parts, image]}]
        await sdk.chat.completions.create(model="toy", messages=messages)
    assert [message["content"] for message in client.requests[0].messages] == ["ab", [*parts, image]]


async def test_completions_for_several_prompts():
    client = RecordingClient(lambda request: f"{request.text}!")
    async with sdk_client(client) as sdk:
        response = await sdk.completions.create(model="toy", prompt=["a", "b"], n=2)
        single = await sdk.completions.create(model="toy", prompt="c")
    assert [(choice.index, choice.text) for choice in response.choices] == [(0, "a!"), (1, "a!"), (2, "b!"), (3, "b!")]
    assert response.usage is not None and (response.usage.prompt_tokens, response.usage.completion_tokens) == (6, 8)
    assert [choice.text for choice in single.choices] == ["c!"]


async def test_models_are_listed_and_retrieved():
    async with sdk_client(RecordingClient(), model="org/toy") as sdk:
        assert [model.id async for model in sdk.models.list()] == ["org/toy"]
        assert (await sdk.models.retrieve("org/toy")).id == "org/toy"
        with pytest.raises(openai.NotFoundError, match="org/toy"):
            await sdk.models.retrieve("org/other")


# Refused requests

BAD_REQUESTS: list[tuple[str, Any, str]] = [
    ("chat/completions", b"", "not JSON"),
    ("chat/completions", b"{", "not JSON"),
    ("chat/completions", b"\xff\xfe", "not JSON"),
    ("chat/completions", b"[" * 200_000, "not JSON"),
    ("chat/completions", b"[]", r"the body is \[\]; expected a JSON object"),
    ("chat/completions", b"true", "the body is true; expected a JSON object"),
    (
        "chat/completions",
        {"messages": [{"role": None}]},
        r"messages\[0\]: the role is null; expected one of assistant,",
    ),
    (
        "chat/completions",
        {"messages": [{"role": ["system"], "content": "a"}]},
        r'messages\[0\]: the role is \["system"\]; expected one of assistant,',
    ),
    (
        "chat/completions",
        {"messages": HI, "tool_choice": {"type": "function", "function": {"name": "f"}}},
        "tool_choice names 'f'; expected the name of a tool: none given",
    ),
    (
        "chat/completions",
        {"messages": HI, "tools": [WEATHER], "tool_choice": {"type": "f"}},
        'tool_choice is {"type": "f"}; e',
    ),
    (
        "chat/completions",
        {"messages": HI, "tools": [WEATHER], "tool_choice": "required"},
        "scripted policy, which cannot",
    ),
    ("completions", {"prompt": "a", "echo": True}, "not run by this server|echo and stream are both true"),
    ("chat/completions", {}, "messages"),
    ("chat/completions", {"messages": []}, r"\$.messages"),
    ("chat/completions", {"messages": "hi"}, "Expected `array`, got `str`"),
    ("chat/completions", {"messages": ["hi"]}, r"\$.messages\[0\]"),
    ("chat/completions", {"messages": [{"role": "robot", "content": "x"}]}, "robot"),
    ("chat/completions", {"messages": [{"role": "user", "content": 3}]}, "content"),
    ("chat/completions", {"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "tool_calls"),
    ("chat/completions", {"messages": [*HI, {"role": "user"}]}, r"messages\[1\].*'user' without content"),
    ("chat/completions", {"messages": [{"role": "user", "content": None}]}, "'user' without content; expected a text"),
    ("chat/completions", {"messages": [{"role": "system"}]}, "'system' without content"),
    ("chat/completions", {"messages": [*HI, {"role": "tool", "content": "x"}]}, "'tool' without tool_call_id"),
    ("chat/completions", {"messages": HI, "n": 0}, r"\$.n"),
    ("chat/completions", {"messages": HI, "n": MAX_CHOICES + 1}, r"\$.n"),
    ("chat/completions", {"messages": HI, "temperature": "warm"}, r"\$.temperature"),
    ("chat/completions", {"messages": HI, "temperature": -1}, r"\$.temperature"),
    ("chat/completions", {"messages": HI, "max_tokens": 0}, r"\$.max_tokens"),
    ("chat/completions", {"messages": HI, "stop": 3}, r"\$.stop"),
    ("chat/completions", {"messages": HI, "tool_choice": "required"}, "tool_choice is required without tools"),
    ("chat/completions", {"messages": HI, "tools": [{"type": "function"}]}, "describes no function"),
    ("chat/completions", {"messages": HI, "tools": [{"type": "retrieval"}]}, "retrieval"),
    ("chat/completions", {"messages": HI, "top_logprobs": 2}, "logprobs"),
    ("chat/completions", {"messages": HI, "logprobs": True}, "log-probabilities"),
    ("completions", {}, "prompt"),
    ("completions", {"prompt": []}, "prompt is"),
    ("completions", {"prompt": [[]]}, "prompt is"),
    ("completions", {"prompt": ["a", 1]}, "prompt is"),
    ("completions", {"prompt": [-1]}, "prompt is"),
    ("completions", {"prompt": "a", "suffix": "b"}, "suffix"),
    ("completions", {"prompt": "a", "n": 2, "best_of": 4}, "best_of"),
    ("completions", {"prompt": ["a"] * 100, "n": 2}, "128 answers"),
    ("completions", {"prompt": [1, 2]}, "token"),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_every_bad_request_returns_400_with_a_reason(stream: bool):
    client = RecordingClient()
    async with http(client) as (session, _):
        for path, body, reason in BAD_REQUESTS:
            request_body = {**body, "stream": stream} if isinstance(body, dict) else body
            status, answer = await post(session, f"/v1/{path}", request_body)
            assert status == 400, (path, body)
            assert answer["error"]["type"] == "invalid_request_error"
            with pytest.raises(ValueError, match=reason):
                raise ValueError(answer["error"]["message"])
    assert client.requests == []


async def test_unknown_models_paths_and_methods_and_large_bodies_are_refused():
    async with http(RecordingClient(), max_body=1000) as (session, _):
        status, answer = await post(session, "/v1/chat/completions", {"messages": HI, "model": "other"})
        assert (status, answer["error"]["code"]) == (404, "model_not_found")
        assert "toy" in answer["error"]["message"]
        status, answer = await post(session, "/v1/completions", {"prompt": "a" * 2000})
        assert (status, answer["error"]["code"]) == (413, "body_too_large")
        status, answer = await post(session, "/v1/nothing", {})
        assert (status, "/v1/completions" in answer["error"]["message"]) == (404, True)
        async with session.get("/v1/completions") as reply:
            assert (reply.status, reply.headers["Allow"]) == (405, "POST")
            assert (await reply.json())["error"]["message"] == "this path does not take GET; expected POST"
        for path, body in (
            ("tokenize", {"prompt": "a"}),
            ("detokenize", {"tokens": [1]}),
            ("generate", {"prompt_ids": [1]}),
        ):
            status, answer = await post(session, f"/{path}", body)
            assert (status, "toy" in answer["error"]["message"]) == (400, True)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ConfigError("no such thing"), 400, None),
        (OverlongPromptError("no such thing"), 400, "context_length_exceeded"),
        (InvalidModelResponseError("no such thing"), 502, None),
        (InfraError("no such thing"), 503, None),
        (KeyError("no such thing"), 500, None),
    ],
)
async def test_client_errors_map_to_http_statuses(error: Exception, status: int, code: str | None, stream: bool):
    async with http(RecordingClient(lambda request: error)) as (session, app):
        actual_status, answer = await post(session, "/v1/chat/completions", {"messages": HI, "stream": stream, "n": 3})
        assert (actual_status, answer["error"]["code"]) == (status, code)
        assert "no such thing" in answer["error"]["message"]
    assert (app[QUEUE].metrics.under_way, app[QUEUE].metrics.queued, app[QUEUE].metrics.open) == (0, 0, 0)


async def test_an_error_after_the_first_piece_ends_the_stream():
    async with sdk_client(RecordingClient(lambda request: InfraError("gone"), pieces=("hello",))) as sdk:
        stream = await sdk.completions.create(model="toy", prompt="a", stream=True)
        assert (await anext(stream)).choices[0].text == "hello"
        with pytest.raises(openai.APIError, match="gone"):
            await anext(stream)


async def test_canceled_requests_return_an_error():
    async def answer(request: Request) -> str:
        await asyncio.sleep(1000)
        return "never"

    async with http(RecordingClient(answer)) as (session, app):
        task = asyncio.create_task(post(session, "/v1/completions", {"prompt": "a", "n": 3}))
        await wait_until(lambda: app[QUEUE].metrics.under_way == 3)
        app[QUEUE].cancel_all()
        status, response = await task
        assert (status, "stopped before" in response["error"]["message"]) == (503, True)
        assert (app[QUEUE].metrics.under_way, app[QUEUE].metrics.open) == (0, 0)
    client = RecordingClient(answer, pieces=("hello",))
    async with http(client) as (session, app):
        body = json.dumps({"messages": HI, "n": 2, "stream": True})
        async with session.post("/v1/chat/completions", data=body, headers=JSON) as reply:
            await wait_until(lambda: client.under_way == 2)
            await reply.content.readuntil(b"hello")
            app[QUEUE].cancel_all()
            *_, last = (await reply.text()).strip().split("\n\n")
        assert "stopped before" in json.loads(last.removeprefix("data: "))["error"]["message"]
        await app[QUEUE].idle.wait()


async def test_openai_client_raises_overlong_prompt_error_for_a_full_context():
    async with serving(RecordingClient(lambda request: OverlongPromptError("too much"))) as (url, _):
        client = vf.OpenAIClient(url)
        with pytest.raises(OverlongPromptError):
            await client.respond(Request(HI, model="toy"))
        await client.close()


@pytest.mark.parametrize("sent_key", [None, "Bearer wrong", "Bearer sécret", "secret", "Basic secret", "Bearer"])
async def test_requests_without_the_api_key_are_refused(sent_key: str | None):
    client = RecordingClient()
    headers = {} if sent_key is None else {"Authorization": sent_key}
    async with http(client, api_key="secret") as (session, _):
        status, answer = await post(session, "/v1/chat/completions", {"messages": HI}, headers=headers)
        assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        async with session.get("/health", headers=headers) as reply:
            assert reply.status == 200
        for good in ("Bearer secret", "bearer secret", "BEARER  secret"):
            body, headers = {"messages": HI}, {"Authorization": good}
            assert (await post(session, "/v1/chat/completions", body, headers=headers))[0] == 200
    assert len(client.requests) == 3


# Concurrency


async def test_requests_beyond_max_concurrent_wait_and_beyond_max_queued_are_refused():
    go_on = asyncio.Event()

    async def answer(request: Request) -> str:
        await go_on.wait()
        return "yes"

    client = RecordingClient(answer, max_concurrent=2)
    async with http(client, max_queued=3) as (session, app):
        metrics = app[QUEUE].metrics
        tasks = [asyncio.create_task(post(session, "/v1/completions", {"prompt": "a"})) for _ in range(5)]
        await wait_until(lambda: metrics.under_way + metrics.queued == 5)
        assert (client.under_way, metrics.queued) == (2, 3)
        status, response = await post(session, "/v1/completions", {"prompt": ["a", "b", "c"]})
        assert (status, response["error"]["code"]) == (503, "queue_full")
        go_on.set()
        assert [status for status, _ in await asyncio.gather(*tasks)] == [200] * 5


@pytest.mark.parametrize("stream", [False, True])
async def test_a_disconnected_client_cancels_its_requests(stream: bool):
    client = RecordingClient(lambda request: asyncio.Event().wait(), pieces=("hello",), max_concurrent=3)
    async with http(client) as (session, app):
        metrics = app[QUEUE].metrics
        body = {"prompt": "a", "n": 5, "stream": stream}
        task = asyncio.create_task(post(session, "/v1/completions", body))
        await wait_until(lambda: metrics.under_way + metrics.queued == 5)
        task.cancel()
        await app[QUEUE].idle.wait()  # those disconnected clients are noticed a little later
        assert (client.under_way, metrics.under_way, metrics.queued) == (0, 0, 0)


async def test_metrics_have_the_prometheus_format():
    async with http(RecordingClient()) as (session, _):
        await post(session, "/v1/completions", {"prompt": "a", "n": 2})
        await post(session, "/v1/completions", {})
        await post(session, "/made/up", {})
        async with session.get("/metrics") as reply:
            lines = (await reply.text()).splitlines()
    assert 'rove_requests_total{route="/v1/completions",status="200"} 1' in lines
    assert 'rove_requests_total{route="/v1/completions",status="400"} 1' in lines
    assert 'rove_requests_total{route="other",status="404"} 1' in lines
    assert "rove_prompt_tokens_total 6" in lines and "rove_completion_tokens_total 4" in lines
    assert "rove_requests_open 1" in lines and "rove_answers_under_way 0" in lines
    assert 'rove_request_seconds_bucket{route="/v1/completions",le="+Inf"} 2' in lines
    assert 'rove_request_seconds_count{route="/v1/completions"} 2' in lines


BROKEN_BODIES = [
    b"{",
    b"null",
    b'{"messages": 3}',
    json.dumps({"messages": [{"role": "user", "content": "a" * 30_000}]}).encode(),
]


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET",
        b"\0\0\0\0\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd",
    ],
)
async def test_malformed_http_does_not_affect_the_server(sent: bytes):
    client = RecordingClient()
    async with serving(client) as (url, app):
        _, writer = await asyncio.open_connection("127.0.0.1", int(url.split(":")[2].split("/")[0]))
        writer.write(sent)
        await writer.drain()
        writer.close()
        async with aiohttp.ClientSession() as session:
            assert (await _post(session, f"{url}/completions", {"prompt": "a"}))[0] == 200
        await app[QUEUE].idle.wait()  # those disconnected clients are noticed a little later
    assert len(client.requests) == 1


async def soak(count: int) -> None:
    """Send valid, streamed, invalid, oversized and canceled requests, all at once."""

    async def answer(request: Request) -> str:
        await asyncio.sleep(0.001 * (request.seed % 20))
        return "hello there"

    client = RecordingClient(answer, pieces=("hello",), max_concurrent=32)
    async with serving(client, max_body=20_000) as (url, app):
        connector = aiohttp.TCPConnector(limit=200)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def send_request(i: int) -> None:
                kind = i % 5
                body: Any = {"messages": HI, "seed": i, "stream": kind == 1, "n": 1 + i % 3}
                if kind == 2:
                    body = BROKEN_BODIES[i % len(BROKEN_BODIES)]
                task = asyncio.create_task(_post(session, f"{url}/chat/completions", body))
                if kind == 3:
                    await asyncio.sleep(0.001 * (i % 17))
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                    return
                status, text = await task
                if kind == 2:
                    assert status in (400, 413) and json.loads(text)["error"]["message"]
                else:
                    assert status == 200
                    assert text.endswith("data: [DONE]\n\n") if kind == 1 else json.loads(text)["choices"]

            await asyncio.gather(*map(send_request, range(count)))
            metrics = app[QUEUE].metrics
            await app[QUEUE].idle.wait()  # those disconnected clients are noticed a little later
            assert (client.under_way, metrics.under_way, metrics.queued) == (0, 0, 0)
            assert app[QUEUE]._slots._value == client.max_concurrent
            assert (await _post(session, f"{url}/chat/completions", {"messages": HI}))[0] == 200
        assert len([task for task in asyncio.all_tasks() if "_post" in repr(task.get_coro())]) == 0


async def _post(session: aiohttp.ClientSession, url: str, body: Any) -> tuple[int, str]:
    async with session.post(url, data=body if isinstance(body, bytes) else json.dumps(body), headers=JSON) as reply:
        return reply.status, await reply.text()


@pytest.mark.parametrize("count", [60, pytest.param(400, marks=pytest.mark.broad)])
async def test_concurrent_requests_of_all_kinds_leave_nothing_behind(count: int):
    await soak(count)


@pytest.mark.slow
async def test_2000_concurrent_requests_of_all_kinds_leave_nothing_behind():
    await soak(2000)


# Other clients


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
async def test_curl_gets_whole_and_streamed_responses():
    async with serving(RecordingClient(pieces=("hel", "lo"))) as (url, _):
        for stream, expected in ((False, '"content":"hello there"'), (True, '"content":"hel"')):
            body = json.dumps({"model": "toy", "messages": HI, "stream": stream})
            arguments = [
                "-sS",
                "--noproxy",
                "*",
                f"{url}/chat/completions",
                "-H",
                "Content-Type: application/json",
                "-d",
                body,
            ]
            curl = await asyncio.create_subprocess_exec("curl", *arguments, stdout=asyncio.subprocess.PIPE)
            out, _ = await curl.communicate()
            assert curl.returncode == 0 and expected in out.decode()


async def test_openai_client_gets_the_same_responses_as_the_served_client():
    def policy(messages: vf.Messages, state: vf.State, rng: Any) -> str:
        return f"{messages[-1].content} {len(messages)}"

    env = vf.SingleTurnEnv(dataset=[{"question": f"q{i}"} for i in range(5)])
    local = await vf.generate(env, vf.ScriptedClient(policy))
    async with serving(vf.ScriptedClient(policy)) as (url, _):
        client = vf.OpenAIClient(url)
        remote = await vf.generate(env, client, model="toy")
        await client.close()
    assert [record.completion for record in remote] == [record.completion for record in local]


async def test_an_occupied_port_is_reported():
    async with serving(RecordingClient()) as (url, _):
        port = int(url.split(":")[2].split("/")[0])
        with pytest.raises(ConfigError, match="--port"):
            async with listening(make_app(RecordingClient(), "toy"), port=port):
                pass


def test_is_loopback():
    assert [is_loopback(host) for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "192.168.1.2", "example.org", "")] == [False] * 5
