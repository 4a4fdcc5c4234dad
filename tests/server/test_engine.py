"""The server over the embedded engine: the same words, tokens and log-probabilities as without it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from fakes import tiny_model
from tiers import first_quick

import rove as vf
from rove.core.protocols import Request, SamplingParams
from rove.engine.client import EngineClient
from rove.server import base_url_of, listening, make_app
from rove.server.app import QUEUE
from rove.wire.serving import ServingRequest
from tests.server.test_server import post

ASK: list[Any] = [{"role": "user", "content": "0 1 2"}]
SAMPLING = SamplingParams(max_tokens=6)


class Served:
    """An engine's client, and the ways to ask it."""

    def __init__(self, client: EngineClient, url: str, sdk: openai.AsyncOpenAI, http: aiohttp.ClientSession):
        self.client = client
        self.url = url
        self.sdk = sdk
        self.http = http

    async def here(self, seed: int, sampling: SamplingParams = SAMPLING, **fields: Any) -> Any:
        """What it says without the server."""
        return await self.client.respond(Request(fields.pop("messages", []), sampling, seed=seed, **fields))

    async def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The events of a stream, which must end with [DONE]."""
        async with self.http.post(path, json={**body, "stream": True}) as reply:
            assert reply.status == 200
            events = [line.removeprefix("data: ") for line in (await reply.text()).split("\n\n") if line]
        assert events.pop() == "[DONE]"
        return [json.loads(event) for event in events]


@asynccontextmanager
async def served(context: int = 1024, **options: Any) -> AsyncIterator[tuple[Served, Any]]:
    client = EngineClient.from_model(tiny_model(seed=1, context=context), max_batch=8)
    app = make_app(client, "tiny", **options)
    async with listening(app) as runner:
        url = base_url_of(runner)
        async with (
            openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as sdk,
            aiohttp.ClientSession(url.removesuffix("/v1"), connector=aiohttp.TCPConnector(limit=2000)) as http,
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
        chunks = [choice async for chunk in stream for choice in chunk.choices if choice.logprobs]
        assert [one for chunk in chunks for one in chunk.logprobs.content] == told
        assert len(chunks) > 2  # as they come, each piece with the tokens that it is made of
        for chunk in chunks:
            words = "".join(one.token for one in chunk.logprobs.content)
            assert chunk.delta.content == words or "\ufffd" in words  # of several tokens, or never finished
        text = await at.sdk.completions.create(model="tiny", prompt="0 1", seed=4, max_tokens=6, logprobs=0)
        tokens = (await at.here(4, text="0 1")).tokens
        logprobs = text.choices[0].logprobs
        assert logprobs is not None and logprobs.token_logprobs == pytest.approx(tokens.logprobs)
        assert logprobs.text_offset is not None and logprobs.text_offset[0] == 0


async def test_the_list_of_models_tells_the_context():
    async with served(context=96) as (at, _), at.http.get("/v1/models") as reply:
        assert [(one["id"], one["max_model_len"]) for one in (await reply.json())["data"]] == [("tiny", 96)]


async def test_a_prompt_may_be_text_or_ids():
    async with served() as (at, _):
        wanted = await at.here(4, text="0 1 2")
        ids = wanted.tokens.prompt_ids
        for prompt in ("0 1 2", ids, [ids]):
            made = await at.sdk.completions.create(model="tiny", prompt=prompt, seed=4, max_tokens=6)
            assert made.choices[0].text == wanted.message.content
            assert made.choices[0].finish_reason == wanted.finish_reason
            assert made.usage is not None and made.usage.prompt_tokens == len(ids)


async def test_an_echo_scores_the_prompt_as_the_model_does():
    async with served() as (at, _):
        ids = at.client.renderer.text_ids("0 1 2 hello")
        scores, decode = at.client.engine.score(ids), at.client.renderer.decode
        asked: dict[str, Any] = {"echo": True, "logprobs": 2, "seed": 4, "max_tokens": 1}
        (sampled,) = (await at.here(4, SamplingParams(max_tokens=1), text="0 1 2 hello")).tokens.completion_ids
        for prompt in ("0 1 2 hello", ids):
            status, made = await post(at.http, "/v1/completions", {"prompt": prompt, **asked})
            (choice,) = made["choices"]
            told = choice["logprobs"]
            assert (status, choice["text"]) == (200, decode([*ids, sampled]))
            assert told["tokens"] == [decode([id]) for id in [*ids, sampled]]
            assert told["token_logprobs"][0] is None and told["top_logprobs"][0] is None
            assert told["token_logprobs"][1:-1] == pytest.approx(scores, abs=1e-5)
            for token, logprob, top in list(zip(told["tokens"], told["token_logprobs"], told["top_logprobs"]))[1:]:
                assert max(top.values()) >= logprob and (token not in top or top[token] == logprob)
            assert told["text_offset"] == [len("".join(told["tokens"][:i])) for i in range(len(ids) + 1)]
        text = {"prompt": "0 1 2 hello", "echo": True, "max_tokens": 0}
        _, made = await post(at.http, "/v1/completions", text)
        (choice,) = made["choices"]
        assert (choice["text"], choice["logprobs"], choice["finish_reason"]) == ("0 1 2 hello", None, "length")
        assert made["usage"]["completion_tokens"] == 0
        status, answer = await post(at.http, "/v1/completions", {**text, "stream": True})
        assert (status, "echo and stream" in answer["error"]["message"]) == (400, True)


@pytest.mark.parametrize("path", ["/v1/completions", "/generate"])
async def test_max_tokens_0_generates_nothing(path: str):
    async with served() as (at, _):
        prompt: dict[str, Any] = {"prompt": "0 1"} if path == "/v1/completions" else {"prompt_ids": [5, 6]}
        status, made = await post(at.http, path, {**prompt, "max_tokens": 0, "prompt_logprobs": 0, "n": 2})
        assert (status, made["usage"]["completion_tokens"], len(made["choices"])) == (200, 0, 2)
        assert {(one["text"], one["finish_reason"]) for one in made["choices"]} == {("", "length")}
        assert all(one["prompt_logprobs"] for one in made["choices"])
        (end,) = [event["choices"][0] for event in await at.events(path, {**prompt, "max_tokens": 0})]
        assert (end["text"], end["finish_reason"]) == ("", "length")


async def test_prompt_logprobs_have_the_shape_of_vllm():
    async with served() as (at, _):
        ids, decode = at.client.renderer.prompt_ids(ASK), at.client.renderer.decode
        scores = at.client.engine.score(ids)
        body: dict[str, Any] = {"seed": 4, "max_tokens": 2, "prompt_logprobs": 2}
        _, chat = await post(at.http, "/v1/chat/completions", {"messages": ASK, **body})
        _, text = await post(at.http, "/v1/completions", {"prompt": [ids, ids], **body})
        assert [one["prompt_logprobs"] for one in text["choices"]] == [chat["prompt_logprobs"]] * 2
        first, *rest = chat["prompt_logprobs"]
        assert first is None and len(rest) == len(scores)
        for id, score, told in zip(ids[1:], scores, rest, strict=True):
            assert told[str(id)]["logprob"] == pytest.approx(score, abs=1e-5)
            assert told[str(id)]["decoded_token"] == decode([id]) and 2 <= len(told) <= 3
            ranked = {one["rank"]: one["logprob"] for one in told.values()}
            assert ranked[1] >= ranked[2] >= ranked.get(None, -99)
        status, answer = await post(at.http, "/v1/chat/completions", {"messages": ASK, **body, "stream": True})
        assert (status, "prompt_logprobs is 2 and stream is true" in answer["error"]["message"]) == (400, True)


async def test_token_ids_are_returned_whole_and_streamed():
    async with served() as (at, _):
        wanted = (await at.here(4, messages=ASK)).tokens
        body: dict[str, Any] = {"seed": 4, "max_tokens": 6, "return_token_ids": True}
        _, chat = await post(at.http, "/v1/chat/completions", {"messages": ASK, **body})
        assert chat["prompt_token_ids"] == wanted.prompt_ids
        assert [one["token_ids"] for one in chat["choices"]] == [wanted.completion_ids]
        assert chat["choices"][0]["logprobs"] is None
        _, text = await post(at.http, "/v1/completions", {"prompt": wanted.prompt_ids, **body})
        (choice,) = text["choices"]
        assert (choice["prompt_token_ids"], choice["token_ids"]) == (wanted.prompt_ids, wanted.completion_ids)
        for path, prompt in (("chat/completions", {"messages": ASK}), ("completions", {"prompt": wanted.prompt_ids})):
            events = await at.events(f"/v1/{path}", {**prompt, **body})
            ids = [id for event in events for one in event["choices"] for id in one.get("token_ids", [])]
            end = events[-1] if path == "chat/completions" else events[-1]["choices"][0]
            assert (ids, end["prompt_token_ids"]) == (wanted.completion_ids, wanted.prompt_ids)


async def test_arguments_of_the_chat_template():
    async with served() as (at, _):
        tokenizer: Any = at.client.renderer.tokenizer
        tokenizer.chat_template = (
            "{{ 'no thoughts ' if enable_thinking is false }}{{ messages[0].content }}"
            "{{ ' go' if add_generation_prompt }}"
        )
        body: dict[str, Any] = {"messages": ASK, "max_tokens": 1, "return_token_ids": True}
        seen = []
        for more in ({}, {"add_generation_prompt": False}, {"chat_template_kwargs": {"enable_thinking": False}}):
            status, made = await post(at.http, "/v1/chat/completions", {**body, **more})
            assert status == 200
            seen.append(at.client.renderer.decode(made["prompt_token_ids"]))
            _, told = await post(at.http, "/tokenize", {"messages": ASK, **more})
            assert told["tokens"] == made["prompt_token_ids"]
        assert seen == ["0 1 2 go", "0 1 2", "no thoughts 0 1 2 go"]


@pytest.mark.parametrize("stream", [False, True])
async def test_responses_return_log_probabilities(stream: bool):
    async with served() as (at, _):
        wanted = await at.here(4, SamplingParams(max_tokens=6, logprobs=2), messages=ASK)
        decode = at.client.renderer.decode
        body = {
            "input": ASK,
            "max_output_tokens": 6,
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 2,
            "seed": 4,
        }
        if stream:
            async with at.http.post("/v1/responses", json={**body, "stream": True}) as reply:
                lines = [line for line in (await reply.text()).splitlines() if line.startswith("data: ")]
            events = [json.loads(line.removeprefix("data: ")) for line in lines]
            parts = [event for event in events if event["type"] == "response.output_text.delta"]
            told = [one["token"] for part in parts for one in part["logprobs"]]
            (done,) = [event for event in events if event["type"] == "response.output_text.done"]
            made = events[-1]["response"]
            logprobs = done["logprobs"]
            assert [one["token"] for one in logprobs][: len(told)] == told and len(told) > 2
        else:
            _, made = await post(at.http, "/v1/responses", body)
            logprobs = made["output"][0]["content"][0]["logprobs"]
        assert made["output"][0]["content"][0]["logprobs"] == logprobs
        assert [one["token"] for one in logprobs] == [decode([id]) for id in wanted.tokens.completion_ids]
        assert [one["logprob"] for one in logprobs] == pytest.approx(wanted.tokens.logprobs)
        tops = [[other["token"] for other in one["top_logprobs"]] for one in logprobs]
        assert tops == [[decode([id]) for id, _ in top] for top in wanted.top_logprobs]
        status, answer = await post(at.http, "/v1/responses", {"input": ASK, "top_logprobs": 2})
        assert (status, "expected include" in answer["error"]["message"]) == (400, True)


async def test_anthropic_counts_tokens():
    tool: Any = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
    chat: Any = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
    async with served() as (at, _):
        body: dict[str, Any] = {"model": "tiny", "system": "be brief", "messages": ASK, "tools": [tool]}
        ids = at.client.renderer.prompt_ids([{"role": "system", "content": "be brief"}, *ASK], tools=[chat])
        assert await post(at.http, "/v1/messages/count_tokens", body) == (200, {"input_tokens": len(ids)})
        status, made = await post(at.http, "/v1/messages", {**body, "max_tokens": 1})
        assert made["usage"]["input_tokens"] == len(ids)
        for wrong, message in (({"messages": []}, "messages"), ({"model": "other"}, "no model 'other'")):
            status, answer = await post(at.http, "/v1/messages/count_tokens", {**body, **wrong})
            assert (status in (400, 404), answer["type"]) == (True, "error") and message in answer["error"]["message"]


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
            ({"prompt_ids": [99999]}, "99999 is not a token id"),
            ({"prompt_ids": ["a"]}, "prompt_ids"),
            ({"stream": 3}, "stream"),
            ({"beams": 2}, "beams"),
            ({"structured_outputs": {"json": {"type": "nothing"}}}, "nothing"),
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
            ("tokenize", {"messages": [{"role": "user"}]}),
            ("detokenize", {"tokens": [-1]}),
            ("detokenize", {"tokens": "a"}),
        ):
            assert (await post(at.http, f"/{path}", body))[0] == 400


async def test_the_likeliest_tokens_are_told_in_both_apis():
    async with served() as (at, _):
        wanted = await at.here(4, SamplingParams(max_tokens=6, logprobs=3), messages=ASK)
        decode = at.client.renderer.decode
        tops = [[(decode([id]), pytest.approx(logprob)) for id, logprob in top] for top in wanted.top_logprobs]
        create: Any = at.sdk.chat.completions.create
        asked: dict[str, Any] = {"model": "tiny", "messages": ASK, "seed": 4, "max_tokens": 6, "logprobs": True}
        made = await create(**asked, top_logprobs=3)
        stream = await create(**asked, top_logprobs=3, stream=True)
        streamed = [one async for chunk in stream for c in chunk.choices if c.logprobs for one in c.logprobs.content]
        for told in (made.choices[0].logprobs.content, streamed):
            assert [[(other.token, other.logprob) for other in one.top_logprobs] for one in told] == tops
        wanted = await at.here(4, SamplingParams(max_tokens=6, logprobs=2), text="0 1")
        text: Any = {"model": "tiny", "prompt": "0 1", "seed": 4, "max_tokens": 6, "logprobs": 2}
        whole = (await at.sdk.completions.create(**text)).choices[0].logprobs
        assert whole is not None and whole.tokens is not None and whole.text_offset is not None
        assert [set(top) for top in whole.top_logprobs or []] == [
            {decode([i]) for i, _ in top} for top in wanted.top_logprobs
        ]
        parts = [event["choices"][0]["logprobs"] for event in await at.events("/v1/completions", text)]
        for name in ("tokens", "token_logprobs", "text_offset"):
            assert [one for part in parts for one in part[name]] == getattr(whole, name)
        assert whole.text_offset == [len("".join(whole.tokens[:i])) for i in range(len(whole.tokens))]


@pytest.mark.parametrize("api", first_quick(["chat", "text", "ids"]))
async def test_a_stop_text_ends_an_answer_whole_and_streamed(api: str):
    async with served() as (at, _):
        prompt: dict[str, Any] = {"messages": ASK} if api == "chat" else {"text": "0 1"}
        tries = [(seed, await at.here(seed, SamplingParams(max_tokens=30), **prompt)) for seed in range(20)]
        seed, free = next(one for one in tries if len(one[1].message.content) > 20)
        said = free.message.content
        stop = said[11:14]  # which begins and ends somewhere inside tokens
        body: dict[str, Any] = {"model": "tiny", "seed": seed, "max_tokens": 30, "stop": ["never said", stop]}
        ids = free.tokens.prompt_ids
        body |= {"messages": ASK} if api == "chat" else {"prompt": "0 1" if api == "text" else ids}
        path = "/v1/chat/completions" if api == "chat" else "/v1/completions"
        status, made = await post(at.http, path, body)
        (choice,) = made["choices"]
        text = choice["message"]["content"] if api == "chat" else choice["text"]
        assert (status, text, choice["finish_reason"]) == (200, said[: said.index(stop)], "stop")
        pieces = [event["choices"][0] for event in await at.events(path, body)]
        told = [piece["delta"].get("content", "") if api == "chat" else piece["text"] for piece in pieces]
        assert "".join(told) == text and pieces[-1]["finish_reason"] == "stop"
        assert len(list(filter(None, told))) > 2  # it did not wait for the end
        assert (await at.here(seed, SamplingParams(max_tokens=30, stop=body["stop"]), **prompt)).message.content == text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_is_called_and_its_result_answered(stream: bool):
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    call = '<tool_call>{"name": "f", "arguments": {"city": "Rome"}}</tool_call>'
    async with served() as (at, _):
        create: Any = at.sdk.chat.completions.create
        asked: dict[str, Any] = {"model": "tiny", "messages": ASK, "tools": [tool], "max_tokens": 200, "stream": stream}
        made = await create(**asked, n=2, extra_body={"structured_outputs": {"choice": [call]}})
        if stream:
            choices = [choice async for chunk in made for choice in chunk.choices]
            ended = [choice.finish_reason for choice in choices if choice.finish_reason]
            calls = [one for choice in choices for one in choice.delta.tool_calls or []]
            assert not any(choice.delta.content for choice in choices)
        else:
            ended = [choice.finish_reason for choice in made.choices]
            calls = [one for choice in made.choices for one in choice.message.tool_calls]
            assert [choice.message.content for choice in made.choices] == [None, None]
        assert ended == ["tool_calls"] * 2
        assert [(one.function.name, json.loads(one.function.arguments)) for one in calls] == [
            ("f", {"city": "Rome"})
        ] * 2
        said = vf.AssistantMessage(None, tool_calls=[calls[0].model_dump(exclude={"index"})])
        asked["messages"] = [*ASK, said, vf.ToolMessage("sunny", calls[0].id)]
        made = await create(**asked, extra_body={"structured_outputs": {"choice": ["It is sunny."]}})
        if stream:
            pieces = [choice.delta.content async for chunk in made for choice in chunk.choices if choice.delta.content]
            text = "".join(pieces)
            assert len(pieces) > 3  # although it might have called
        else:
            text = made.choices[0].message.content
        assert text == "It is sunny."


TRIP: Any = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"enum": [1, 2]}},
    "required": ["city"],
}


@pytest.mark.parametrize("choice", first_quick(["required", "named"]))
async def test_a_forced_tool_call_matches_the_schema_in_every_api(choice: str):
    functions: list[Any] = [{"name": "book", "parameters": TRIP}, {"name": "plan", "parameters": TRIP}]
    chat: Any = [{"type": "function", "function": one} for one in functions]
    named, calls = choice == "named", []
    async with served() as (at, _):
        forced: Any = {"type": "function", "function": {"name": "plan"}} if named else "required"
        create: Any = at.sdk.chat.completions.create
        asked: Any = {"model": "tiny", "messages": ASK, "tools": chat, "tool_choice": forced}
        made = await create(**asked, n=2, parallel_tool_calls=False)
        assert [one.finish_reason for one in made.choices] == ["tool_calls"] * 2
        calls += [call.function for one in made.choices for call in one.message.tool_calls]
        stream = await create(**asked, parallel_tool_calls=False, stream=True)
        calls += [call.function async for part in stream for one in part.choices for call in one.delta.tool_calls or []]
        respond: Any = at.sdk.responses.create
        made = await respond(
            model="tiny",
            input="hi",
            tools=[{"type": "function", "strict": False, **one} for one in functions],
            tool_choice={"type": "function", "name": "plan"} if named else "required",
            parallel_tool_calls=False,
        )
        calls += made.output
        body = {
            "max_tokens": 200,
            "messages": ASK,
            "tools": [{"name": one["name"], "input_schema": TRIP} for one in functions],
            "tool_choice": {"type": "tool", "name": "plan"}
            if named
            else {"type": "any", "disable_parallel_tool_use": True},
        }
        status, made = await post(at.http, "/v1/messages", body)
        assert (status, made["stop_reason"], len(made["content"])) == (200, "tool_use", 1)
    assert len(calls) == 4
    arguments = [json.loads(call.arguments) for call in calls] + [made["content"][0]["input"]]
    for trip in arguments:
        assert trip["city"] in ("Rome", "Oslo") and trip.get("days", 1) in (1, 2) and trip.keys() <= {"city", "days"}
    names = {call.name for call in calls} | {made["content"][0]["name"]}
    assert names == {"plan"} if named else names <= {"book", "plan"}


SCHEMA: Any = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
FORM: Any = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA, "strict": True}}


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_has_the_form_of_its_schema(stream: bool):
    async with served() as (at, _):
        create: Any = at.sdk.chat.completions.create
        made = await create(model="tiny", messages=ASK, response_format=FORM, n=3, seed=1, stream=stream)
        texts = ["", "", ""]
        if stream:
            async for chunk in made:
                texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        else:
            texts = [choice.message.content for choice in made.choices]
        for trip in map(json.loads, texts):
            assert trip.keys() == {"city", "days"} and trip["city"] in ("Rome", "Oslo") and trip["days"] in range(1, 8)
        made = await create(model="tiny", messages=ASK, response_format={"type": "text"}, seed=4, max_tokens=6)
        assert made.choices[0].message.content == (await at.here(4, messages=ASK)).message.content


async def test_a_bias_and_penalties_reach_the_engine():
    async with served() as (at, _):
        (token, *_) = at.client.renderer.encode("4")
        create: Any = at.sdk.chat.completions.create
        made = await create(model="tiny", messages=ASK, logit_bias={str(token): 100}, max_tokens=4, temperature=0)
        assert made.choices[0].message.content == at.client.renderer.decode([token] * 4)
        sampling = SamplingParams(top_p=0.5, presence_penalty=1.0, top_k=5, max_tokens=6)
        wanted = (await at.here(4, sampling, messages=ASK)).message.content
        asked: dict[str, Any] = {"top_p": 0.5, "presence_penalty": 1.0, "max_tokens": 6, "extra_body": {"top_k": 5}}
        assert (await create(model="tiny", messages=ASK, seed=4, **asked)).choices[0].message.content == wanted


async def test_tokens_are_told_as_they_come():
    async with served() as (at, _):
        ids = at.client.renderer.prompt_ids(ASK)
        body: dict[str, Any] = {"prompt_ids": ids, "seed": 4, "max_tokens": 6, "n": 2, "logprobs": 2}
        _, whole = await post(at.http, "/generate", {**body, "prompt_logprobs": 0})
        events = await at.events("/generate", {**body, "stream_options": {"include_usage": True}})
        assert events.pop()["usage"] == whole["usage"]
        for i, choice in enumerate(whole["choices"]):
            parts = [event["choices"][0] for event in events if event["choices"][0]["index"] == i]
            assert len(parts) == len(choice["ids"]) + 1  # one event for each token, and one for the end
            for name in ("ids", "logprobs", "top_logprobs"):
                assert [one for part in parts for one in part.get(name, [])] == choice[name]
            for name in ("text", "finish_reason", "policy_version"):
                assert parts[-1][name] == choice[name]
            assert choice["text"] == at.client.renderer.read_text(ids, choice["ids"]).content
            assert choice["prompt_logprobs"] == pytest.approx(at.client.engine.score(ids), abs=1e-5)
        text = {"prompt": ids, "seed": 4, "max_tokens": 6}
        prompt = [event["choices"][0]["text"] for event in await at.events("/v1/completions", text)]
        assert "".join(prompt) == whole["choices"][0]["text"] and len(prompt) > 2


PICTURE: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TWO_FORMS: Any = {"response_format": FORM, "structured_outputs": {"regex": "a"}}


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, PICTURE]}]},
        "image_url.*expected 'text'",
    ),
    ({"beams": 2}, "^no field 'beams' here; leave it out. docs/serving.md lists all fields$"),
    ({"temprature": 2}, "^no field 'temprature' here; did you mean 'temperature'?"),
    ({"max_token": 2}, "did you mean 'max_tokens'?"),
    ({"modalities": ["text", "audio"]}, "no field 'modalities' here"),
    ({"functions": [{"name": "f"}]}, "no field 'functions' here"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"max_tokens": 0}, "`int` >= 1.*max_tokens"),
    ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs has 'tools'; expected variables"),
    ({"logit_bias": {"a": 1}}, "logit_bias.*token ids"),
    ({"logit_bias": {"99999": 1}}, "99999.*expected ids"),
    ({"stop_token_ids": [5, 99999]}, r"stop_token_ids.*\[99999\]; expected ids from 0 to"),
    ({"stop_token_ids": [-1]}, r"stop_token_ids.*\[-1\]; expected ids from 0 to"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, '{"regex": "a", "choice": .*exactly one'),
    ({"top_k": "many"}, '{"top_k": "many"}.*top_k'),
    ({"min_tokens": 9, "max_tokens": 3}, "min_tokens.*max_tokens"),
    ({"stop": ""}, "stop.*not empty"),
    ({"stop": ["a" * 1001]}, "length <= 1000.*stop"),
    ({"extra": 3}, "extra is 3; expected"),
    ({"response_format": {"type": "xml"}}, "xml.*expected"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "expected.*schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}}, "nothing"),
    ({"structured_outputs": {"regex": "("}}, "not possible"),
    ({"structured_outputs": {"grammar": "start: nothing"}}, "not possible"),
    ({"structured_outputs": {"choice": []}}, "expected exactly one"),
    ({"structured_outputs": {"json": {"$ref": "#"}}}, "no text matches it"),
    (TWO_FORMS, "expected one"),
    ({"tool_choice": "required"}, "tool_choice is required without tools; expected"),
    ({"max_tokens": "many"}, 'int.*max_tokens.*given: "many"'),
    ({"messages": [{"role": "user", "content": "hello " * 2000}]}, "tokens.*context.*shorten"),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_says_what_was_given_and_what_was_expected(stream: bool):
    async with served() as (at, app):
        for body, reason in REFUSED:
            status, answer = await post(at.http, "/v1/chat/completions", {"messages": ASK, **body, "stream": stream})
            assert status == 400, (body, answer)
            assert re.search(reason, answer["error"]["message"]), (body, answer)
            assert left_behind(at, app) == NOTHING, body


async def test_fields_that_ask_for_nothing_are_ignored():
    harmless: dict[str, Any] = {
        "reasoning_effort": "low",
        "modalities": ["text"],
        "functions": [],
        "tools": [],
        "metadata": {"a": "b"},
        "store": True,
        "user": "me",
        "service_tier": "auto",
        "parallel_tool_calls": False,
        "safety_identifier": "a",
        "prompt_cache_key": "b",
    }
    body = {"messages": ASK, "seed": 4, "max_tokens": 6}
    async with served() as (at, _):
        _, wanted = await post(at.http, "/v1/chat/completions", body)
        for name, value in harmless.items():
            status, made = await post(at.http, "/v1/chat/completions", {**body, name: value})
            assert (status, made.get("choices")) == (200, wanted["choices"]), (name, made)


async def test_developers_speak_as_the_system_where_the_template_knows_none():
    async with served() as (at, _):
        seen = []
        for role in ("developer", "system"):
            messages = [
                {"role": role, "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "kind"}]},
                *ASK,
            ]
            seen.append((await post(at.http, "/tokenize", {"messages": messages}))[1]["tokens"])
        assert seen[0] == seen[1] and "be kind" in at.client.renderer.decode(seen[0])


async def test_a_template_may_refuse_a_conversation():
    async with served() as (at, _):
        tokenizer: Any = at.client.renderer.tokenizer
        for template, reason in (
            ("{{ raise_exception('users and assistants take turns') }}", "take turns"),
            (None, "/v1/completions"),
        ):
            tokenizer.chat_template = template
            status, answer = await post(at.http, "/v1/chat/completions", {"messages": ASK})
            assert (status, reason in answer["error"]["message"]) == (400, True)


async def test_a_prompt_that_does_not_fit_is_refused():
    async with served(context=16) as (at, _):
        with pytest.raises(openai.BadRequestError, match="context") as refused:
            await at.sdk.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hello " * 20}])
        assert refused.value.code == "context_length_exceeded"


async def test_a_prompt_far_too_long_is_refused_before_it_is_tokenised(monkeypatch: pytest.MonkeyPatch):
    async with served(context=16) as (at, _):

        def encode(*_: Any, **__: Any) -> list[int]:
            raise AssertionError("it was tokenised")

        hello, talk = "hello " * 1_000_000, [{"role": "user", "content": "hello " * 1_000_000}]
        fits = "a" * at.client.renderer.longest_token * 16
        status, answer = await post(at.http, "/tokenize", {"prompt": fits})
        assert (status, answer["tokens"]) == (200, at.client.renderer.text_ids(fits))
        monkeypatch.setattr(at.client.renderer, "encode", encode)
        for path, body in (
            ("/v1/chat/completions", {"messages": talk}),
            ("/v1/chat/completions", {"messages": talk, "stream": True}),
            ("/v1/completions", {"prompt": hello}),
            ("/v1/completions", {"prompt": fits + "a"}),
            ("/tokenize", {"prompt": hello}),
            ("/tokenize", {"messages": talk}),
        ):
            status, answer = await post(at.http, path, body)
            assert (status, answer["error"]["code"]) == (400, "context_length_exceeded"), (path, answer)
            assert re.search("characters.*16 tokens.*shorten", answer["error"]["message"])


async def test_tools_go_through_the_chat_template():
    async with served() as (at, _):
        tool: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        create: Any = at.sdk.chat.completions.create
        tokenizer: Any = at.client.renderer.tokenizer
        shows, tokenizer.chat_template = tokenizer.chat_template, "{{ messages[0].content }}"
        with pytest.raises(openai.BadRequestError, match="no known tool-call format"):
            await create(model="tiny", messages=ASK, tools=[tool])
        tokenizer.chat_template = shows
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


# A crowd

NOTHING = {"rows": 0, "under way": 0, "queued": 0, "sampled": 0, "free places": 8}


def left_behind(at: Served, app: Any) -> dict[str, int]:
    """What is left of requests, besides keys and values that the next ones may want."""
    queue, engine = app[QUEUE], at.client.engine
    return {
        "rows": len(engine._runner.active()),
        "under way": queue.metrics.under_way,
        "queued": queue.metrics.queued,
        "sampled": sum(not row.request.future.done() for row in engine._sampler_rows),
        "free places": queue._slots._value,
    }


TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
GOOD: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": ASK}),
    ("/v1/chat/completions", {"messages": ASK, "n": 3, "logprobs": True, "top_logprobs": 2}),
    ("/v1/chat/completions", {"messages": ASK, "stop": ["o", " 4"]}),
    (
        "/v1/chat/completions",
        {"messages": ASK, "tools": [TOOL], "structured_outputs": {"choice": [CALL]}, "max_tokens": 60},
    ),
    ("/v1/chat/completions", {"messages": ASK, "response_format": FORM, "max_tokens": 60}),
    ("/v1/completions", {"prompt": ["0 1", "hello"], "logprobs": 1, "presence_penalty": 0.5}),
    ("/v1/completions", {"prompt": [5, 6, 7], "top_p": 0.5, "stop": "e"}),
    ("/generate", {"prompt_ids": [5, 6], "logprobs": 1, "prompt_logprobs": 1}),
]
BAD: list[tuple[str, Any]] = [
    ("/v1/chat/completions", b"{"),
    ("/v1/chat/completions", b'{"messages": 3}'),
    ("/v1/chat/completions", {"messages": ASK, "model": "other"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello " * 300}]}),  # too many tokens
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello " * 9000}]}),  # too many bytes
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [PICTURE]}]}),
    ("/v1/chat/completions", {"messages": ASK, "response_format": {"type": "json_schema"}}),
    ("/v1/completions", {"prompt": "a", "structured_outputs": {"regex": "("}}),
    ("/v1/completions", {"prompt": "a", "structured_outputs": {"json": {"type": "nothing"}}}),
    ("/v1/completions", {"prompt": [99999]}),
    ("/generate", {"prompt_ids": [5], "temperature": -1}),
]


async def soak(count: int) -> dict[str, int]:
    """All kinds of requests at once, a third of those who ask go away before the end; returns how many there were of each."""
    async with served(context=256, max_body=20_000) as (at, app):
        queue, rng, seen = app[QUEUE], random.Random(0), Counter()

        async def one(i: int) -> None:
            path, body = GOOD[i // 4 % len(GOOD)] if i % 4 else BAD[i // 4 % len(BAD)]
            stream = rng.random() < 0.5
            if isinstance(body, dict):
                body = {"max_tokens": rng.randint(1, 12), **body, "seed": i, "stream": stream}
            task = asyncio.create_task(_ask(at, path, body))
            if i % 3 == 1 and i >= 4 * len(BAD):  # one bad request of each kind waits for its answer
                await asyncio.sleep(rng.choice((0, 0.01, 0.1, 1)))
                if not task.done():
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                    seen["gone"] += 1
                    return
            status, text = await task
            seen[str(status)] += 1
            if i % 4:
                assert status == 200, (path, body, text)
                assert text.endswith("data: [DONE]\n\n") if stream else json.loads(text)["choices"]
            else:
                assert status in (400, 404, 413) and len(json.loads(text)["error"]["message"]) > 20, (path, body, text)

        await asyncio.gather(*map(one, range(count)))
        await queue.idle.wait()  # those disconnected clients are noticed a little later
        while at.client.engine._task is not None and not at.client.engine._task.done():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert left_behind(at, app) == NOTHING
        cache = at.client.engine._runner.cache  # pyright: ignore[reportAttributeAccessIssue]
        assert cache.allocated_bytes <= cache.budget
        assert not [task for task in asyncio.all_tasks() if "_ask" in repr(task.get_coro())]
        wanted = await at.here(4, messages=ASK)
        status, made = await post(
            at.http, "/generate", {"prompt_ids": wanted.tokens.prompt_ids, "seed": 4, "max_tokens": 6}
        )
        assert (status, made["choices"][0]["ids"]) == (200, wanted.tokens.completion_ids)
        return dict(seen)


async def _ask(at: Served, path: str, body: Any) -> tuple[int, str]:
    data = body if isinstance(body, bytes) else json.dumps(body)
    async with at.http.post(path, data=data, headers={"Content-Type": "application/json"}) as reply:
        return reply.status, await reply.text()


@pytest.mark.parametrize("count", [60, pytest.param(200, marks=pytest.mark.broad)])
async def test_a_crowd_leaves_nothing_behind(count: int):
    assert (await soak(count)).keys() >= {"200", "400", "404", "413", "gone"}


@pytest.mark.slow
async def test_a_large_crowd_leaves_nothing_behind():
    assert (await soak(2000)).keys() >= {"200", "400", "404", "413", "gone"}


def test_what_is_asked_without_a_name_means_the_first_model():
    app = make_app(EngineClient.from_model(tiny_model(), max_batch=2), ["a", "b"])
    assert app[QUEUE].admit(ServingRequest("", [])).model == "a"
    assert app[QUEUE].admit(ServingRequest("b", [])).model == "b"


# In processes of their own


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_requests():
    script = Path(__file__).parents[2] / "benchmarks/serve.py"
    done = subprocess.run([sys.executable, script, "10000"], capture_output=True, text=True, check=True)
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    used = {int(row[0]): float(row[1]) for row in rows}
    assert used[10_000] - used[2_000] < 5, done.stdout


INSPECT = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool

@tool
def add():
    async def execute(x: int, y: int):
        \"\"\"Add two numbers.

        Args:
            x: First number.
            y: Second number.
        \"\"\"
        return x + y
    return execute

@task
def plain():
    return Task(dataset=[Sample(input=f"Say {i}", target="e") for i in range(4)], solver=generate(), scorer=includes())

@task
def tools():
    solver = [use_tools(add()), generate(tool_calls="single")]
    return Task(dataset=[Sample(input="What is 1 + 1?", target="2")], solver=solver, scorer=includes(), message_limit=4)
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("inspect") is None, reason="no inspect-ai here")
@pytest.mark.parametrize("name", ["plain", "tools"])
async def test_an_evaluation_by_inspect(tmp_path: Path, name: str):
    (tmp_path / "task.py").write_text(INSPECT)
    call = '<tool_call>{"name": "add", "arguments": {"x": 1, "y": 1}}</tool_call>'
    form = ["--extra-body", json.dumps({"structured_outputs": {"choice": [call]}})] if name == "tools" else []
    words = [
        "--model",
        "openai-api/rove/tiny",
        "--display",
        "plain",
        "--log-format",
        "json",
        "--max-tokens",
        "80",
        *form,
    ]
    async with served() as (at, _):
        env = {**os.environ, "ROVE_BASE_URL": at.url, "ROVE_API_KEY": "none", "NO_PROXY": "*"}
        env.pop("PYTHONPATH", None)  # it has packages of its own
        inspect = await asyncio.create_subprocess_exec(
            "inspect", "eval", f"task.py@{name}", *words, cwd=tmp_path, env=env, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await inspect.communicate()
    (log,) = (json.loads(file.read_text()) for file in (tmp_path / "logs").glob("*.json"))
    assert (inspect.returncode, log["status"]) == (0, "success"), out.decode()
    if name == "tools":
        (sample,) = log["samples"]
        assert [message["content"] for message in sample["messages"] if message["role"] == "tool"] == ["2"]
