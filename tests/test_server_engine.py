"""The server over the embedded engine: the same words, tokens and log-probabilities as without it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import openai
import pytest
from fakes import tiny_model
from test_renderer_tools import TEMPLATES
from test_server import post

import rove as vf
from rove.engine.client import EngineClient
from rove.protocols import Request, Sampling
from rove.server import base_url_of, listening, make_app
from rove.server.app import DESK
from rove.wire.serving import Asked

ASK: list[Any] = [{"role": "user", "content": "0 1 2"}]
SAMPLING = Sampling(max_tokens=6)


class Served:
    """An engine's client, and the ways to ask it."""

    def __init__(self, client: EngineClient, url: str, sdk: openai.AsyncOpenAI, http: aiohttp.ClientSession):
        self.client = client
        self.url = url
        self.sdk = sdk
        self.http = http

    async def here(self, seed: int, **fields: Any) -> Any:
        """What it says without the server."""
        return await self.client.respond(Request(fields.pop("messages", []), SAMPLING, seed=seed, **fields))


@asynccontextmanager
async def served(context: int = 1024, **options: Any) -> AsyncIterator[tuple[Served, Any]]:
    client = EngineClient.of(tiny_model(seed=1, context=context), max_batch=8)
    app = make_app(client, "tiny", **options)
    async with listening(app) as runner:
        url = base_url_of(runner)
        async with (
            openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as sdk,
            aiohttp.ClientSession(url.removesuffix("/v1")) as http,
        ):
            yield Served(client, url, sdk, http), app


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_says_what_the_engine_says(stream: bool):
    async with served() as (at, _):
        wanted = [(await at.here(seed, messages=ASK)).message.content for seed in (4, 5, 6)]
        create: Any = at.sdk.chat.completions.create
        made = await create(model="tiny", messages=ASK, n=3, seed=4, max_tokens=6, stream=stream)
        if not stream:
            assert [choice.message.content for choice in made.choices] == wanted
            return
        texts = ["", "", ""]
        async for chunk in made:
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        assert texts == wanted


async def test_log_probabilities_are_those_of_the_sampled_tokens():
    async with served() as (at, _):
        tokens = (await at.here(4, messages=ASK)).tokens
        create: Any = at.sdk.chat.completions.create
        made = await create(model="tiny", messages=ASK, seed=4, max_tokens=6, logprobs=True)
        told = made.choices[0].logprobs.content
        assert [one.logprob for one in told] == pytest.approx(tokens.logprobs)
        assert [one.token for one in told] == [at.client.renderer.decode([id]) for id in tokens.completion_ids]
        stream = await create(model="tiny", messages=ASK, seed=4, max_tokens=6, logprobs=True, stream=True)
        streamed = [
            one
            async for chunk in stream
            for choice in chunk.choices
            if choice.logprobs
            for one in choice.logprobs.content
        ]
        assert streamed == told
        text = await at.sdk.completions.create(model="tiny", prompt="0 1", seed=4, max_tokens=6, logprobs=0)
        tokens = (await at.here(4, text="0 1")).tokens
        logprobs = text.choices[0].logprobs
        assert logprobs is not None and logprobs.token_logprobs == pytest.approx(tokens.logprobs)
        assert logprobs.text_offset is not None and logprobs.text_offset[0] == 0


async def test_a_prompt_may_be_text_or_ids():
    async with served() as (at, _):
        wanted = await at.here(4, text="0 1 2")
        ids = wanted.tokens.prompt_ids
        for prompt in ("0 1 2", ids, [ids]):
            made = await at.sdk.completions.create(model="tiny", prompt=prompt, seed=4, max_tokens=6)
            assert made.choices[0].text == wanted.message.content
            assert made.choices[0].finish_reason == wanted.finish_reason
            assert made.usage is not None and made.usage.prompt_tokens == len(ids)


async def test_tokens_in_and_tokens_out():
    async with served() as (at, _):
        at.client.engine.update_weights(3)
        wanted = (await at.here(4, messages=ASK)).tokens
        body: dict[str, Any] = {"prompt_ids": wanted.prompt_ids, "seed": 4, "max_tokens": 6}
        status, made = await post(at.http, "/generate", {**body, "n": 2})
        assert status == 200
        first, second = made["choices"]
        assert (first["ids"], first["policy_version"]) == (wanted.completion_ids, 3)
        assert first["logprobs"] == pytest.approx(wanted.logprobs)
        assert second["ids"] == (await at.here(5, messages=ASK)).tokens.completion_ids
        for bad, reason in (
            ({"prompt_ids": []}, "prompt_ids"),
            ({"prompt_ids": [99999]}, "99999 is no token id"),
            ({"prompt_ids": ["a"]}, "prompt_ids"),
            ({"stream": True}, "stream"),
            ({"model": "other"}, "tiny"),
        ):
            status, answer = await post(at.http, "/generate", {**body, **bad})
            assert status in (400, 404) and reason in answer["error"]["message"]


async def test_tokenizing_and_back():
    async with served() as (at, _):
        renderer = at.client.renderer
        status, answer = await post(at.http, "/tokenize", {"messages": ASK})
        assert (status, answer) == (200, {"tokens": (ids := renderer.prompt_ids(ASK)), "count": len(ids)})
        assert (await post(at.http, "/detokenize", {"tokens": ids})) == (200, {"prompt": renderer.decode(ids)})
        status, answer = await post(at.http, "/tokenize", {"prompt": "0 1"})
        assert answer["tokens"] == renderer.text_ids("0 1")
        for path, body in (
            ("tokenize", {}),
            ("tokenize", {"prompt": "a", "messages": ASK}),
            ("tokenize", {"messages": [{"role": "robot"}]}),
            ("detokenize", {"tokens": [-1]}),
            ("detokenize", {"tokens": "a"}),
        ):
            assert (await post(at.http, f"/{path}", body))[0] == 400


async def test_a_prompt_that_does_not_fit_is_refused():
    async with served(context=16) as (at, _):
        with pytest.raises(openai.BadRequestError, match="context") as refused:
            await at.sdk.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hello " * 20}])
        assert refused.value.code == "context_length_exceeded"


async def test_tools_go_through_the_chat_template():
    async with served() as (at, _):
        tool: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        create: Any = at.sdk.chat.completions.create
        with pytest.raises(openai.BadRequestError, match="tools"):  # its template shows none
            await create(model="tiny", messages=ASK, tools=[tool])
        at.client.renderer.tokenizer.chat_template = TEMPLATES["hermes"]  # pyright: ignore[reportAttributeAccessIssue]
        status, plain = await post(at.http, "/tokenize", {"messages": ASK})
        status, shown = await post(at.http, "/tokenize", {"messages": ASK, "tools": [tool]})
        assert (status, shown["count"] > plain["count"]) == (200, True)


async def test_an_evaluation_over_the_wire():
    env = vf.load_environment("reverse_text")
    async with served() as (at, _):
        client = vf.OpenAIClient(at.url)
        there = await vf.generate(env, client, model="tiny", num_examples=4, sampling_args={"max_tokens": 8})
        await client.close()
    assert [record.error for record in there] == [None] * 4
    assert all(record.usage.completion_tokens > 0 for record in there)


async def test_a_crowd_leaves_nothing_behind():
    async with served(context=256, max_body=20_000) as (at, app):
        rng = random.Random(0)

        async def one(i: int) -> None:
            body: Any = {"messages": ASK, "seed": i, "max_tokens": rng.randint(1, 8), "stream": i % 2 == 0}
            if i % 5 == 1:
                body = {"messages": [{"role": "user", "content": "hello " * 2000}]}  # too many tokens
            if i % 5 == 2:
                body = b"{"
            task = asyncio.create_task(_ask(at, body))
            if i % 5 == 3:
                await asyncio.sleep(0.001 * rng.randint(0, 50))
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                return
            assert (await task) == (400 if i % 5 in (1, 2) else 200)

        await asyncio.gather(*map(one, range(200)))
        metrics = app[DESK].metrics
        await app[DESK].idle.wait()
        assert (metrics.under_way, metrics.queued) == (0, 0)
        wanted = await at.here(4, messages=ASK)
        status, made = await post(
            at.http, "/generate", {"prompt_ids": wanted.tokens.prompt_ids, "seed": 4, "max_tokens": 6}
        )
        assert (status, made["choices"][0]["ids"]) == (200, wanted.tokens.completion_ids)


async def _ask(at: Served, body: Any) -> int:
    data = body if isinstance(body, bytes) else json.dumps(body)
    async with at.http.post("/v1/chat/completions", data=data) as reply:
        await reply.read()
        return reply.status


def test_what_is_asked_without_a_name_means_the_first_model():
    app = make_app(EngineClient.of(tiny_model(), max_batch=2), ["a", "b"])
    assert app[DESK].admit(Asked("", [])).model == "a"
    assert app[DESK].admit(Asked("b", [])).model == "b"
