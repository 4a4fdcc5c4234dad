"""The server with the embedded engine returns the same text, tokens and log-probabilities as the engine itself."""

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

MESSAGES: list[Any] = [{"role": "user", "content": "0 1 2"}]
SAMPLING = SamplingParams(max_tokens=6)


class Served:
    """A served engine client with an SDK and an HTTP session connected to it."""

    def __init__(self, client: EngineClient, url: str, sdk: openai.AsyncOpenAI, http: aiohttp.ClientSession):
        self.client = client
        self.url = url
        self.sdk = sdk
        self.http = http

    async def respond_locally(self, seed: int, sampling: SamplingParams = SAMPLING, **fields: Any) -> Any:
        """Return the response of the engine client, without the server."""
        return await self.client.respond(Request(fields.pop("messages", []), sampling, seed=seed, **fields))

    async def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """Return the events of a stream, which must end with [DONE]."""
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
async def test_chat_completions_equal_the_engines_responses(stream: bool):
    async with served() as (server, _):
        expected = [(await server.respond_locally(seed, messages=MESSAGES)).message.content for seed in (4, 5, 6)]
        create: Any = server.sdk.chat.completions.create
        response = await create(model="tiny", messages=MESSAGES, n=3, seed=4, max_tokens=6, stream=stream)
        if not stream:
            assert [choice.message.content for choice in response.choices] == expected
            return
        texts = ["", "", ""]
        async for chunk in response:
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        assert texts == expected


async def test_the_bytes_of_the_logprobs_are_the_text():
    async with served() as (server, _):
        create: Any = server.sdk.chat.completions.create
        regex = {"structured_outputs": {"regex": "é€😀"}}
        fields = {"model": "tiny", "messages": MESSAGES, "max_tokens": 20, "logprobs": True, "top_logprobs": 2}
        response = await create(**fields, extra_body=regex)
        entries = response.choices[0].logprobs.content
        text = b"".join(bytes(entry.bytes) for entry in entries).decode()
        assert text.startswith("é€😀") and len(entries) > 3
        assert any(entry.token == "\ufffd" for entry in entries)
        assert all(top.bytes for entry in entries for top in entry.top_logprobs)


async def test_logprobs_are_those_of_the_sampled_tokens():
    async with served() as (server, _):
        tokens = (await server.respond_locally(4, messages=MESSAGES)).tokens
        create: Any = server.sdk.chat.completions.create
        response = await create(model="tiny", messages=MESSAGES, seed=4, max_tokens=6, logprobs=True)
        token_logprobs = response.choices[0].logprobs.content
        assert [entry.logprob for entry in token_logprobs] == pytest.approx(tokens.logprobs)
        assert [entry.token for entry in token_logprobs] == [
            server.client.renderer.decode([id]) for id in tokens.completion_ids
        ]
        stream = await create(model="tiny", messages=MESSAGES, seed=4, max_tokens=6, logprobs=True, stream=True)
        chunks = [choice async for chunk in stream for choice in chunk.choices if choice.logprobs]
        assert [entry for chunk in chunks for entry in chunk.logprobs.content] == token_logprobs
        assert len(chunks) > 2  # streamed incrementally, each piece with its tokens
        for chunk in chunks:
            chunk_text = "".join(entry.token for entry in chunk.logprobs.content)
            # A character of several tokens, or an incomplete one.
            assert chunk.delta.content == chunk_text or "\ufffd" in chunk_text
        completion = await server.sdk.completions.create(model="tiny", prompt="0 1", seed=4, max_tokens=6, logprobs=0)
        tokens = (await server.respond_locally(4, text="0 1")).tokens
        logprobs = completion.choices[0].logprobs
        assert logprobs is not None and logprobs.token_logprobs == pytest.approx(tokens.logprobs)
        assert logprobs.text_offset is not None and logprobs.text_offset[0] == 0


async def test_the_model_list_reports_the_context_length():
    async with served(context=96) as (server, _), server.http.get("/v1/models") as reply:
        assert [(model["id"], model["max_model_len"]) for model in (await reply.json())["data"]] == [("tiny", 96)]


async def test_a_prompt_may_be_text_or_token_ids():
    async with served() as (server, _):
        expected = await server.respond_locally(4, text="0 1 2")
        ids = expected.tokens.prompt_ids
        for prompt in ("0 1 2", ids, [ids]):
            response = await server.sdk.completions.create(model="tiny", prompt=prompt, seed=4, max_tokens=6)
            assert response.choices[0].text == expected.message.content
            assert response.choices[0].finish_reason == expected.finish_reason
            assert response.usage is not None and response.usage.prompt_tokens == len(ids)


async def test_echo_returns_the_prompt_logprobs_of_the_model():
    async with served() as (server, _):
        ids = server.client.renderer.text_ids("0 1 2 hello")
        scores, decode = server.client.engine.score(ids), server.client.renderer.decode
        request_fields: dict[str, Any] = {"echo": True, "logprobs": 2, "seed": 4, "max_tokens": 1}
        (sampled,) = (
            await server.respond_locally(4, SamplingParams(max_tokens=1), text="0 1 2 hello")
        ).tokens.completion_ids
        for prompt in ("0 1 2 hello", ids):
            status, response = await post(server.http, "/v1/completions", {"prompt": prompt, **request_fields})
            (choice,) = response["choices"]
            logprobs = choice["logprobs"]
            assert (status, choice["text"]) == (200, decode([*ids, sampled]))
            assert logprobs["tokens"] == [decode([id]) for id in [*ids, sampled]]
            assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
            assert logprobs["token_logprobs"][1:-1] == pytest.approx(scores, abs=1e-5)
            for token, logprob, top in list(
                zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"])
            )[1:]:
                assert max(top.values()) >= logprob and (token not in top or top[token] == logprob)
            assert logprobs["text_offset"] == [len("".join(logprobs["tokens"][:i])) for i in range(len(ids) + 1)]
        text = {"prompt": "0 1 2 hello", "echo": True, "max_tokens": 0}
        _, response = await post(server.http, "/v1/completions", text)
        (choice,) = response["choices"]
        assert (choice["text"], choice["logprobs"], choice["finish_reason"]) == ("0 1 2 hello", None, "length")
        assert response["usage"]["completion_tokens"] == 0
        status, answer = await post(server.http, "/v1/completions", {**text, "stream": True})
        assert (status, "echo and stream" in answer["error"]["message"]) == (400, True)


@pytest.mark.parametrize("path", ["/v1/completions", "/generate"])
async def test_max_tokens_0_generates_nothing(path: str):
    async with served() as (server, _):
        prompt: dict[str, Any] = {"prompt": "0 1"} if path == "/v1/completions" else {"prompt_ids": [5, 6]}
        status, response = await post(server.http, path, {**prompt, "max_tokens": 0, "prompt_logprobs": 0, "n": 2})
        assert (status, response["usage"]["completion_tokens"], len(response["choices"])) == (200, 0, 2)
        assert {(choice["text"], choice["finish_reason"]) for choice in response["choices"]} == {("", "length")}
        assert all(choice["prompt_logprobs"] for choice in response["choices"])
        (end,) = [event["choices"][0] for event in await server.events(path, {**prompt, "max_tokens": 0})]
        assert (end["text"], end["finish_reason"]) == ("", "length")


async def test_prompt_logprobs_have_the_format_of_vllm():
    async with served() as (server, _):
        ids, decode = server.client.renderer.prompt_ids(MESSAGES), server.client.renderer.decode
        scores = server.client.engine.score(ids)
        body: dict[str, Any] = {"seed": 4, "max_tokens": 2, "prompt_logprobs": 2}
        _, chat = await post(server.http, "/v1/chat/completions", {"messages": MESSAGES, **body})
        _, text = await post(server.http, "/v1/completions", {"prompt": [ids, ids], **body})
        assert [entry["prompt_logprobs"] for entry in text["choices"]] == [chat["prompt_logprobs"]] * 2
        first, *later_entries = chat["prompt_logprobs"]
        assert first is None and len(later_entries) == len(scores)
        for id, score, candidates in zip(ids[1:], scores, later_entries, strict=True):
            assert candidates[str(id)]["logprob"] == pytest.approx(score, abs=1e-5)
            assert candidates[str(id)]["decoded_token"] == decode([id]) and 2 <= len(candidates) <= 3
            ranked = {entry["rank"]: entry["logprob"] for entry in candidates.values()}
            assert ranked[1] >= ranked[2] >= ranked.get(None, -99)
        status, answer = await post(server.http, "/v1/chat/completions", {"messages": MESSAGES, **body, "stream": True})
        assert (status, "prompt_logprobs is 2 and stream is true" in answer["error"]["message"]) == (400, True)


async def test_token_ids_are_returned_with_and_without_streaming():
    async with served() as (server, _):
        expected = (await server.respond_locally(4, messages=MESSAGES)).tokens
        body: dict[str, Any] = {"seed": 4, "max_tokens": 6, "return_token_ids": True}
        _, chat = await post(server.http, "/v1/chat/completions", {"messages": MESSAGES, **body})
        assert chat["prompt_token_ids"] == expected.prompt_ids
        assert [choice_body["token_ids"] for choice_body in chat["choices"]] == [expected.completion_ids]
        assert chat["choices"][0]["logprobs"] is None
        _, text = await post(server.http, "/v1/completions", {"prompt": expected.prompt_ids, **body})
        (choice,) = text["choices"]
        assert (choice["prompt_token_ids"], choice["token_ids"]) == (expected.prompt_ids, expected.completion_ids)
        for path, prompt in (
            ("chat/completions", {"messages": MESSAGES}),
            ("completions", {"prompt": expected.prompt_ids}),
        ):
            events = await server.events(f"/v1/{path}", {**prompt, **body})
            ids = [
                id for event in events for choice_body in event["choices"] for id in choice_body.get("token_ids", [])
            ]
            end = events[-1] if path == "chat/completions" else events[-1]["choices"][0]
            assert (ids, end["prompt_token_ids"]) == (expected.completion_ids, expected.prompt_ids)


async def test_chat_template_arguments_are_applied():
    async with served() as (server, _):
        tokenizer: Any = server.client.renderer.tokenizer
        tokenizer.chat_template = (
            "{{ 'no thoughts ' if enable_thinking is false }}{{ messages[0].content }}"
            "{{ ' go' if add_generation_prompt }}"
        )
        body: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 1, "return_token_ids": True}
        prompts = []
        for template_fields in (
            {},
            {"add_generation_prompt": False},
            {"chat_template_kwargs": {"enable_thinking": False}},
        ):
            status, response = await post(server.http, "/v1/chat/completions", {**body, **template_fields})
            assert status == 200
            prompts.append(server.client.renderer.decode(response["prompt_token_ids"]))
            _, tokenized = await post(server.http, "/tokenize", {"messages": MESSAGES, **template_fields})
            assert tokenized["tokens"] == response["prompt_token_ids"]
        assert prompts == ["0 1 2 go", "0 1 2", "no thoughts 0 1 2 go"]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_responses_api_returns_logprobs(stream: bool):
    async with served() as (server, _):
        expected = await server.respond_locally(4, SamplingParams(max_tokens=6, logprobs=2), messages=MESSAGES)
        decode = server.client.renderer.decode
        body = {
            "input": MESSAGES,
            "max_output_tokens": 6,
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 2,
            "seed": 4,
        }
        if stream:
            async with server.http.post("/v1/responses", json={**body, "stream": True}) as reply:
                lines = [line for line in (await reply.text()).splitlines() if line.startswith("data: ")]
            events = [json.loads(line.removeprefix("data: ")) for line in lines]
            parts = [event for event in events if event["type"] == "response.output_text.delta"]
            streamed_tokens = [entry["token"] for part in parts for entry in part["logprobs"]]
            (done,) = [event for event in events if event["type"] == "response.output_text.done"]
            response = events[-1]["response"]
            logprobs = done["logprobs"]
            assert [entry["token"] for entry in logprobs][: len(streamed_tokens)] == streamed_tokens and len(
                streamed_tokens
            ) > 2
        else:
            _, response = await post(server.http, "/v1/responses", body)
            logprobs = response["output"][0]["content"][0]["logprobs"]
        assert response["output"][0]["content"][0]["logprobs"] == logprobs
        assert [entry["token"] for entry in logprobs] == [decode([id]) for id in expected.tokens.completion_ids]
        assert [entry["logprob"] for entry in logprobs] == pytest.approx(expected.tokens.logprobs)
        tops = [[alternative["token"] for alternative in entry["top_logprobs"]] for entry in logprobs]
        assert tops == [[decode([id]) for id, _ in top] for top in expected.top_logprobs]
        status, answer = await post(server.http, "/v1/responses", {"input": MESSAGES, "top_logprobs": 2})
        assert (status, "expected include" in answer["error"]["message"]) == (400, True)


async def test_the_messages_api_counts_tokens():
    tool: Any = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
    chat: Any = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
    async with served() as (server, _):
        body: dict[str, Any] = {"model": "tiny", "system": "be brief", "messages": MESSAGES, "tools": [tool]}
        ids = server.client.renderer.prompt_ids([{"role": "system", "content": "be brief"}, *MESSAGES], tools=[chat])
        assert await post(server.http, "/v1/messages/count_tokens", body) == (200, {"input_tokens": len(ids)})
        status, response = await post(server.http, "/v1/messages", {**body, "max_tokens": 1})
        assert response["usage"]["input_tokens"] == len(ids)
        for wrong, message in (({"messages": []}, "messages"), ({"model": "other"}, "no model 'other'")):
            status, answer = await post(server.http, "/v1/messages/count_tokens", {**body, **wrong})
            assert (status in (400, 404), answer["type"]) == (True, "error") and message in answer["error"]["message"]


async def test_generate_takes_and_returns_token_ids():
    async with served() as (server, _):
        server.client.engine.update_weights(3)
        expected = (await server.respond_locally(4, messages=MESSAGES)).tokens
        body: dict[str, Any] = {"prompt_ids": expected.prompt_ids, "seed": 4, "max_tokens": 6}
        status, response = await post(server.http, "/generate", {**body, "n": 2})
        assert status == 200
        first, second = response["choices"]
        assert (first["ids"], first["policy_version"]) == (expected.completion_ids, 3)
        assert first["logprobs"] == pytest.approx(expected.logprobs)
        assert second["ids"] == (await server.respond_locally(5, messages=MESSAGES)).tokens.completion_ids
        for bad, reason in (
            ({"prompt_ids": []}, "prompt_ids"),
            ({"prompt_ids": [99999]}, "99999 is not a token id"),
            ({"prompt_ids": ["a"]}, "prompt_ids"),
            ({"stream": 3}, "stream"),
            ({"beams": 2}, "beams"),
            ({"structured_outputs": {"json": {"type": "nothing"}}}, "nothing"),
            ({"model": "other"}, "tiny"),
        ):
            status, answer = await post(server.http, "/generate", {**body, **bad})
            assert status in (400, 404) and reason in answer["error"]["message"]


async def test_tokenize_and_detokenize():
    async with served() as (server, _):
        renderer = server.client.renderer
        status, answer = await post(server.http, "/tokenize", {"messages": MESSAGES})
        assert (status, answer) == (200, {"tokens": (ids := renderer.prompt_ids(MESSAGES)), "count": len(ids)})
        assert (await post(server.http, "/detokenize", {"tokens": ids})) == (200, {"prompt": renderer.decode(ids)})
        status, answer = await post(server.http, "/tokenize", {"prompt": "0 1"})
        assert answer["tokens"] == renderer.text_ids("0 1")
        for path, body in (
            ("tokenize", {}),
            ("tokenize", {"prompt": "a", "messages": MESSAGES}),
            ("tokenize", {"messages": [{"role": "robot"}]}),
            ("tokenize", {"messages": [{"role": "user"}]}),
            ("detokenize", {"tokens": [-1]}),
            ("detokenize", {"tokens": "a"}),
        ):
            assert (await post(server.http, f"/{path}", body))[0] == 400


async def test_top_logprobs_are_returned_by_both_apis():
    async with served() as (server, _):
        expected = await server.respond_locally(4, SamplingParams(max_tokens=6, logprobs=3), messages=MESSAGES)
        decode = server.client.renderer.decode
        tops = [[(decode([id]), pytest.approx(logprob)) for id, logprob in top] for top in expected.top_logprobs]
        create: Any = server.sdk.chat.completions.create
        request_fields: dict[str, Any] = {
            "model": "tiny",
            "messages": MESSAGES,
            "seed": 4,
            "max_tokens": 6,
            "logprobs": True,
        }
        response = await create(**request_fields, top_logprobs=3)
        stream = await create(**request_fields, top_logprobs=3, stream=True)
        streamed = [
            entry async for chunk in stream for c in chunk.choices if c.logprobs for entry in c.logprobs.content
        ]
        for logprobs in (response.choices[0].logprobs.content, streamed):
            assert [
                [(alternative.token, alternative.logprob) for alternative in entry.top_logprobs] for entry in logprobs
            ] == tops
        expected = await server.respond_locally(4, SamplingParams(max_tokens=6, logprobs=2), text="0 1")
        text: Any = {"model": "tiny", "prompt": "0 1", "seed": 4, "max_tokens": 6, "logprobs": 2}
        whole = (await server.sdk.completions.create(**text)).choices[0].logprobs
        assert whole is not None and whole.tokens is not None and whole.text_offset is not None
        assert [set(top) for top in whole.top_logprobs or []] == [
            {decode([i]) for i, _ in top} for top in expected.top_logprobs
        ]
        parts = [event["choices"][0]["logprobs"] for event in await server.events("/v1/completions", text)]
        for name in ("tokens", "token_logprobs", "text_offset"):
            assert [entry for part in parts for entry in part[name]] == getattr(whole, name)
        assert whole.text_offset == [len("".join(whole.tokens[:i])) for i in range(len(whole.tokens))]


@pytest.mark.parametrize("api", first_quick(["chat", "text", "ids"]))
async def test_a_stop_string_ends_a_response_with_and_without_streaming(api: str):
    async with served() as (server, _):
        prompt: dict[str, Any] = {"messages": MESSAGES} if api == "chat" else {"text": "0 1"}
        candidates = [
            (seed, await server.respond_locally(seed, SamplingParams(max_tokens=30), **prompt)) for seed in range(20)
        ]
        seed, unstopped = next(candidate for candidate in candidates if len(candidate[1].message.content) > 20)
        full_text = unstopped.message.content
        stop = full_text[11:14]  # starts and ends inside tokens
        body: dict[str, Any] = {"model": "tiny", "seed": seed, "max_tokens": 30, "stop": ["never said", stop]}
        ids = unstopped.tokens.prompt_ids
        body |= {"messages": MESSAGES} if api == "chat" else {"prompt": "0 1" if api == "text" else ids}
        path = "/v1/chat/completions" if api == "chat" else "/v1/completions"
        status, response = await post(server.http, path, body)
        (choice,) = response["choices"]
        text = choice["message"]["content"] if api == "chat" else choice["text"]
        assert (status, text, choice["finish_reason"]) == (200, full_text[: full_text.index(stop)], "stop")
        pieces = [event["choices"][0] for event in await server.events(path, body)]
        streamed = [piece["delta"].get("content", "") if api == "chat" else piece["text"] for piece in pieces]
        assert "".join(streamed) == text and pieces[-1]["finish_reason"] == "stop"
        assert len(list(filter(None, streamed))) > 2  # streamed before the end
        assert (
            await server.respond_locally(seed, SamplingParams(max_tokens=30, stop=body["stop"]), **prompt)
        ).message.content == text


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_calls_are_returned_and_tool_results_are_accepted(stream: bool):
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    call = '<tool_call>{"name": "f", "arguments": {"city": "Rome"}}</tool_call>'
    async with served() as (server, _):
        create: Any = server.sdk.chat.completions.create
        request_fields: dict[str, Any] = {
            "model": "tiny",
            "messages": MESSAGES,
            "tools": [tool],
            "max_tokens": 200,
            "stream": stream,
        }
        response = await create(**request_fields, n=2, extra_body={"structured_outputs": {"choice": [call]}})
        if stream:
            choices = [choice async for chunk in response for choice in chunk.choices]
            finish_reasons = [choice.finish_reason for choice in choices if choice.finish_reason]
            calls = [tool_call for choice in choices for tool_call in choice.delta.tool_calls or []]
            assert not any(choice.delta.content for choice in choices)
        else:
            finish_reasons = [choice.finish_reason for choice in response.choices]
            calls = [tool_call for choice in response.choices for tool_call in choice.message.tool_calls]
            assert [choice.message.content for choice in response.choices] == [None, None]
        assert finish_reasons == ["tool_calls"] * 2
        assert [(tool_call.function.name, json.loads(tool_call.function.arguments)) for tool_call in calls] == [
            ("f", {"city": "Rome"})
        ] * 2
        assistant = vf.AssistantMessage(None, tool_calls=[calls[0].model_dump(exclude={"index"})])
        request_fields["messages"] = [*MESSAGES, assistant, vf.ToolMessage("sunny", calls[0].id)]
        response = await create(**request_fields, extra_body={"structured_outputs": {"choice": ["It is sunny."]}})
        if stream:
            pieces = [
                choice.delta.content async for chunk in response for choice in chunk.choices if choice.delta.content
            ]
            text = "".join(pieces)
            assert len(pieces) > 3  # streamed although a tool call was possible
        else:
            text = response.choices[0].message.content
        assert text == "It is sunny."


TRIP_SCHEMA: Any = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"enum": [1, 2]}},
    "required": ["city"],
}


@pytest.mark.parametrize("choice", first_quick(["required", "named"]))
async def test_a_forced_tool_call_matches_the_schema_in_every_api(choice: str):
    functions: list[Any] = [{"name": "book", "parameters": TRIP_SCHEMA}, {"name": "plan", "parameters": TRIP_SCHEMA}]
    chat: Any = [{"type": "function", "function": item} for item in functions]
    named, calls = choice == "named", []
    async with served() as (server, _):
        forced: Any = {"type": "function", "function": {"name": "plan"}} if named else "required"
        create: Any = server.sdk.chat.completions.create
        request_fields: Any = {"model": "tiny", "messages": MESSAGES, "tools": chat, "tool_choice": forced}
        response = await create(**request_fields, n=2, parallel_tool_calls=False)
        assert [item.finish_reason for item in response.choices] == ["tool_calls"] * 2
        calls += [call.function for item in response.choices for call in item.message.tool_calls]
        stream = await create(**request_fields, parallel_tool_calls=False, stream=True)
        calls += [
            call.function async for part in stream for item in part.choices for call in item.delta.tool_calls or []
        ]
        respond: Any = server.sdk.responses.create
        response = await respond(
            model="tiny",
            input="hi",
            tools=[{"type": "function", "strict": False, **item} for item in functions],
            tool_choice={"type": "function", "name": "plan"} if named else "required",
            parallel_tool_calls=False,
        )
        calls += response.output
        body = {
            "max_tokens": 200,
            "messages": MESSAGES,
            "tools": [{"name": item["name"], "input_schema": TRIP_SCHEMA} for item in functions],
            "tool_choice": {"type": "tool", "name": "plan"}
            if named
            else {"type": "any", "disable_parallel_tool_use": True},
        }
        status, response = await post(server.http, "/v1/messages", body)
        assert (status, response["stop_reason"], len(response["content"])) == (200, "tool_use", 1)
    assert len(calls) == 4
    arguments = [json.loads(call.arguments) for call in calls] + [response["content"][0]["input"]]
    for trip in arguments:
        assert trip["city"] in ("Rome", "Oslo") and trip.get("days", 1) in (1, 2) and trip.keys() <= {"city", "days"}
    names = {call.name for call in calls} | {response["content"][0]["name"]}
    assert names == {"plan"} if named else names <= {"book", "plan"}


SCHEMA: Any = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
RESPONSE_FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA, "strict": True}}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_matches_its_json_schema(stream: bool):
    async with served() as (server, _):
        create: Any = server.sdk.chat.completions.create
        response = await create(
            model="tiny", messages=MESSAGES, response_format=RESPONSE_FORMAT, n=3, seed=1, stream=stream
        )
        texts = ["", "", ""]
        if stream:
            async for chunk in response:
                texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        else:
            texts = [choice.message.content for choice in response.choices]
        for trip in map(json.loads, texts):
            assert trip.keys() == {"city", "days"} and trip["city"] in ("Rome", "Oslo") and trip["days"] in range(1, 8)
        response = await create(model="tiny", messages=MESSAGES, response_format={"type": "text"}, seed=4, max_tokens=6)
        assert (
            response.choices[0].message.content == (await server.respond_locally(4, messages=MESSAGES)).message.content
        )


async def test_logit_bias_and_penalties_are_passed_to_the_engine():
    async with served() as (server, _):
        (token, *_) = server.client.renderer.encode("4")
        create: Any = server.sdk.chat.completions.create
        response = await create(
            model="tiny", messages=MESSAGES, logit_bias={str(token): 100}, max_tokens=4, temperature=0
        )
        assert response.choices[0].message.content == server.client.renderer.decode([token] * 4)
        sampling = SamplingParams(top_p=0.5, presence_penalty=1.0, top_k=5, max_tokens=6)
        expected = (await server.respond_locally(4, sampling, messages=MESSAGES)).message.content
        request_fields: dict[str, Any] = {
            "top_p": 0.5,
            "presence_penalty": 1.0,
            "max_tokens": 6,
            "extra_body": {"top_k": 5},
        }
        assert (await create(model="tiny", messages=MESSAGES, seed=4, **request_fields)).choices[
            0
        ].message.content == expected


async def test_generate_streams_one_event_per_token():
    async with served() as (server, _):
        ids = server.client.renderer.prompt_ids(MESSAGES)
        body: dict[str, Any] = {"prompt_ids": ids, "seed": 4, "max_tokens": 6, "n": 2, "logprobs": 2}
        _, whole = await post(server.http, "/generate", {**body, "prompt_logprobs": 0})
        events = await server.events("/generate", {**body, "stream_options": {"include_usage": True}})
        assert events.pop()["usage"] == whole["usage"]
        for i, choice in enumerate(whole["choices"]):
            parts = [event["choices"][0] for event in events if event["choices"][0]["index"] == i]
            assert len(parts) == len(choice["ids"]) + 1  # one event per token, and a final one
            for name in ("ids", "logprobs", "top_logprobs"):
                assert [item for part in parts for item in part.get(name, [])] == choice[name]
            for name in ("text", "finish_reason", "policy_version"):
                assert parts[-1][name] == choice[name]
            assert choice["text"] == server.client.renderer.read_text(ids, choice["ids"]).content
            assert choice["prompt_logprobs"] == pytest.approx(server.client.engine.score(ids), abs=1e-5)
        text = {"prompt": ids, "seed": 4, "max_tokens": 6}
        prompt = [event["choices"][0]["text"] for event in await server.events("/v1/completions", text)]
        assert "".join(prompt) == whole["choices"][0]["text"] and len(prompt) > 2


IMAGE_PART: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TWO_CONSTRAINTS: Any = {"response_format": RESPONSE_FORMAT, "structured_outputs": {"regex": "a"}}


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, IMAGE_PART]}]},
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
    ({"stop_token_ids": [-1]}, r"stop_token_ids\[0\] is -1; expected an integer, 0 or more"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, '{"regex": "a", "choice": .*exactly one'),
    ({"top_k": "many"}, "top_k is 'many'; expected an integer"),
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
    (TWO_CONSTRAINTS, "expected one"),
    ({"tool_choice": "required"}, "tool_choice is required without tools; expected"),
    ({"max_tokens": "many"}, 'int.*max_tokens.*given: "many"'),
    ({"messages": [{"role": "user", "content": "hello " * 2000}]}, "tokens.*context.*shorten"),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_error_messages_say_what_was_given_and_what_was_expected(stream: bool):
    async with served() as (server, app):
        for body, reason in REFUSED:
            status, answer = await post(
                server.http, "/v1/chat/completions", {"messages": MESSAGES, **body, "stream": stream}
            )
            assert status == 400, (body, answer)
            assert re.search(reason, answer["error"]["message"]), (body, answer)
            assert remaining_state(server, app) == IDLE_STATE, body


async def test_fields_without_effect_are_ignored():
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
    body = {"messages": MESSAGES, "seed": 4, "max_tokens": 6}
    async with served() as (server, _):
        _, expected = await post(server.http, "/v1/chat/completions", body)
        for name, value in harmless.items():
            status, response = await post(server.http, "/v1/chat/completions", {**body, name: value})
            assert (status, response.get("choices")) == (200, expected["choices"]), (name, response)


async def test_developer_messages_are_system_messages_if_the_template_has_no_developer_role():
    async with served() as (server, _):
        prompts = []
        for role in ("developer", "system"):
            messages = [
                {"role": role, "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "kind"}]},
                *MESSAGES,
            ]
            prompts.append((await post(server.http, "/tokenize", {"messages": messages}))[1]["tokens"])
        assert prompts[0] == prompts[1] and "be kind" in server.client.renderer.decode(prompts[0])


async def test_errors_of_the_chat_template_are_returned():
    async with served() as (server, _):
        tokenizer: Any = server.client.renderer.tokenizer
        for template, reason in (
            ("{{ raise_exception('users and assistants take turns') }}", "take turns"),
            (None, "/v1/completions"),
        ):
            tokenizer.chat_template = template
            status, answer = await post(server.http, "/v1/chat/completions", {"messages": MESSAGES})
            assert (status, reason in answer["error"]["message"]) == (400, True)


async def test_a_prompt_longer_than_the_context_is_refused():
    async with served(context=16) as (server, _):
        with pytest.raises(openai.BadRequestError, match="context") as refused:
            await server.sdk.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "hello " * 20}]
            )
        assert refused.value.code == "context_length_exceeded"


async def test_a_prompt_far_too_long_is_refused_before_it_is_tokenized(monkeypatch: pytest.MonkeyPatch):
    async with served(context=16) as (server, _):

        def encode(*_: Any, **__: Any) -> list[int]:
            raise AssertionError("it was tokenised")

        hello, talk = "hello " * 1_000_000, [{"role": "user", "content": "hello " * 1_000_000}]
        fits = "a" * server.client.renderer.longest_token * 16
        status, answer = await post(server.http, "/tokenize", {"prompt": fits})
        assert (status, answer["tokens"]) == (200, server.client.renderer.text_ids(fits))
        monkeypatch.setattr(server.client.renderer, "encode", encode)
        for path, body in (
            ("/v1/chat/completions", {"messages": talk}),
            ("/v1/chat/completions", {"messages": talk, "stream": True}),
            ("/v1/completions", {"prompt": hello}),
            ("/v1/completions", {"prompt": fits + "a"}),
            ("/tokenize", {"prompt": hello}),
            ("/tokenize", {"messages": talk}),
        ):
            status, answer = await post(server.http, path, body)
            assert (status, answer["error"]["code"]) == (400, "context_length_exceeded"), (path, answer)
            assert re.search("characters.*16 tokens.*shorten", answer["error"]["message"])


async def test_tools_are_rendered_by_the_chat_template():
    async with served() as (server, _):
        tool: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        create: Any = server.sdk.chat.completions.create
        tokenizer: Any = server.client.renderer.tokenizer
        template, tokenizer.chat_template = tokenizer.chat_template, "{{ messages[0].content }}"
        with pytest.raises(openai.BadRequestError, match="no known tool-call format"):
            await create(model="tiny", messages=MESSAGES, tools=[tool])
        tokenizer.chat_template = template
        status, without_tools = await post(server.http, "/tokenize", {"messages": MESSAGES})
        status, with_tools = await post(server.http, "/tokenize", {"messages": MESSAGES, "tools": [tool]})
        assert (status, with_tools["count"] > without_tools["count"]) == (200, True)


async def test_an_evaluation_through_the_server():
    env = vf.load_environment("reverse_text")
    async with served() as (server, _):
        client = vf.OpenAIClient(server.url)
        records = await vf.generate(env, client, model="tiny", num_examples=4, sampling_args={"max_tokens": 8})
        await client.close()
    assert [record.error for record in records] == [None] * 4
    assert all(record.usage.completion_tokens > 0 for record in records)


# Concurrency

IDLE_STATE = {"rows": 0, "under way": 0, "queued": 0, "sampled": 0, "free places": 8}


def remaining_state(at: Served, app: Any) -> dict[str, int]:
    """Return the state that requests left behind, except reusable keys and values."""
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
GOOD_REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": MESSAGES}),
    ("/v1/chat/completions", {"messages": MESSAGES, "n": 3, "logprobs": True, "top_logprobs": 2}),
    ("/v1/chat/completions", {"messages": MESSAGES, "stop": ["o", " 4"]}),
    (
        "/v1/chat/completions",
        {"messages": MESSAGES, "tools": [TOOL], "structured_outputs": {"choice": [CALL]}, "max_tokens": 60},
    ),
    ("/v1/chat/completions", {"messages": MESSAGES, "response_format": RESPONSE_FORMAT, "max_tokens": 60}),
    ("/v1/completions", {"prompt": ["0 1", "hello"], "logprobs": 1, "presence_penalty": 0.5}),
    ("/v1/completions", {"prompt": [5, 6, 7], "top_p": 0.5, "stop": "e"}),
    ("/generate", {"prompt_ids": [5, 6], "logprobs": 1, "prompt_logprobs": 1}),
]
BAD_REQUESTS: list[tuple[str, Any]] = [
    ("/v1/chat/completions", b"{"),
    ("/v1/chat/completions", b'{"messages": 3}'),
    ("/v1/chat/completions", {"messages": MESSAGES, "model": "other"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello " * 300}]}),  # too many tokens
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello " * 9000}]}),  # too many bytes
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [IMAGE_PART]}]}),
    ("/v1/chat/completions", {"messages": MESSAGES, "response_format": {"type": "json_schema"}}),
    ("/v1/completions", {"prompt": "a", "structured_outputs": {"regex": "("}}),
    ("/v1/completions", {"prompt": "a", "structured_outputs": {"json": {"type": "nothing"}}}),
    ("/v1/completions", {"prompt": [99999]}),
    ("/generate", {"prompt_ids": [5], "temperature": -1}),
]


async def soak(count: int) -> dict[str, int]:
    """Send all kinds of requests at once, cancel a third of them, and return the number of each outcome."""
    async with served(context=256, max_body=20_000) as (server, app):
        queue, rng, outcomes = app[QUEUE], random.Random(0), Counter()

        async def send_request(i: int) -> None:
            path, body = (
                GOOD_REQUESTS[i // 4 % len(GOOD_REQUESTS)] if i % 4 else BAD_REQUESTS[i // 4 % len(BAD_REQUESTS)]
            )
            stream = rng.random() < 0.5
            if isinstance(body, dict):
                body = {"max_tokens": rng.randint(1, 12), **body, "seed": i, "stream": stream}
            task = asyncio.create_task(_send(server, path, body))
            if i % 3 == 1 and i >= 4 * len(BAD_REQUESTS):  # one bad request of each kind waits for its response
                await asyncio.sleep(rng.choice((0, 0.01, 0.1, 1)))
                if not task.done():
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                    outcomes["gone"] += 1
                    return
            status, text = await task
            outcomes[str(status)] += 1
            if i % 4:
                assert status == 200, (path, body, text)
                assert text.endswith("data: [DONE]\n\n") if stream else json.loads(text)["choices"]
            else:
                assert status in (400, 404, 413) and len(json.loads(text)["error"]["message"]) > 20, (path, body, text)

        await asyncio.gather(*map(send_request, range(count)))
        await queue.idle.wait()  # those disconnected clients are noticed a little later
        while server.client.engine._task is not None and not server.client.engine._task.done():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert remaining_state(server, app) == IDLE_STATE
        cache = server.client.engine._runner.cache  # pyright: ignore[reportAttributeAccessIssue]
        assert cache.allocated_bytes <= cache.budget
        assert not [task for task in asyncio.all_tasks() if "_ask" in repr(task.get_coro())]
        expected = await server.respond_locally(4, messages=MESSAGES)
        status, response = await post(
            server.http, "/generate", {"prompt_ids": expected.tokens.prompt_ids, "seed": 4, "max_tokens": 6}
        )
        assert (status, response["choices"][0]["ids"]) == (200, expected.tokens.completion_ids)
        return dict(outcomes)


async def _send(at: Served, path: str, body: Any) -> tuple[int, str]:
    data = body if isinstance(body, bytes) else json.dumps(body)
    async with at.http.post(path, data=data, headers={"Content-Type": "application/json"}) as reply:
        return reply.status, await reply.text()


async def test_concurrent_requests_leave_nothing_behind():
    assert (await soak(60)).keys() >= {"200", "400", "404", "413", "gone"}


@pytest.mark.slow
async def test_2000_concurrent_requests_leave_nothing_behind():
    assert (await soak(2000)).keys() >= {"200", "400", "404", "413", "gone"}


def test_a_request_without_a_model_name_uses_the_first_model():
    app = make_app(EngineClient.from_model(tiny_model(), max_batch=2), ["a", "b"])
    assert app[QUEUE].admit(ServingRequest("", [])).model == "a"
    assert app[QUEUE].admit(ServingRequest("b", [])).model == "b"


# In separate processes


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_requests():
    script = Path(__file__).parents[2] / "benchmarks/serve.py"
    completed = subprocess.run([sys.executable, script, "10000"], capture_output=True, text=True, check=True)
    rows = [line.split() for line in completed.stdout.splitlines()[1:]]
    memory_mib = {int(row[0]): float(row[1]) for row in rows}
    assert memory_mib[10_000] - memory_mib[2_000] < 5, completed.stdout


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
async def test_an_evaluation_with_inspect(tmp_path: Path, name: str):
    (tmp_path / "task.py").write_text(INSPECT)
    call = '<tool_call>{"name": "add", "arguments": {"x": 1, "y": 1}}</tool_call>'
    extra_arguments = (
        ["--extra-body", json.dumps({"structured_outputs": {"choice": [call]}})] if name == "tools" else []
    )
    arguments = [
        "--model",
        "openai-api/rove/tiny",
        "--display",
        "plain",
        "--log-format",
        "json",
        "--max-tokens",
        "80",
        *extra_arguments,
    ]
    async with served() as (server, _):
        env = {**os.environ, "ROVE_BASE_URL": server.url, "ROVE_API_KEY": "none", "NO_PROXY": "*"}
        env.pop("PYTHONPATH", None)  # inspect has its own packages
        inspect = await asyncio.create_subprocess_exec(
            "inspect", "eval", f"task.py@{name}", *arguments, cwd=tmp_path, env=env, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await inspect.communicate()
    (log,) = (json.loads(file.read_text()) for file in (tmp_path / "logs").glob("*.json"))
    assert (inspect.returncode, log["status"]) == (0, "success"), out.decode()
    if name == "tools":
        (sample,) = log["samples"]
        assert [message["content"] for message in sample["messages"] if message["role"] == "tool"] == ["2"]
