"""An empty reply is an answer over every transport, so that a model has the same mean over each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from api_endpoint import ApiEndpoint, anthropic_message, openai_response, text_completion
from fakes import tiny_model
from fault_endpoint import FaultEndpoint

import rove as vf
from rove.clients.anthropic import AnthropicClient
from rove.clients.openai import CompletionsClient, OpenAIClient, ResponsesClient
from rove.engine.client import EngineClient

TRANSPORTS = ["chat", "completions", "responses", "anthropic", "local model"]


@asynccontextmanager
async def silent_client(transport: str) -> AsyncIterator[Any]:
    """Yield a client whose model returns empty replies."""
    if transport == "local model":
        yield EngineClient.from_model(tiny_model())
        return
    servers: dict[str, FaultEndpoint] = {
        "chat": FaultEndpoint("empty"),
        "completions": ApiEndpoint("/v1/completions", text_completion, "empty"),
        "responses": ApiEndpoint("/v1/responses", openai_response, "empty"),
        "anthropic": ApiEndpoint("/v1/messages", anthropic_message, "empty"),
    }
    clients = {
        "chat": OpenAIClient,
        "completions": CompletionsClient,
        "responses": ResponsesClient,
        "anthropic": AnthropicClient,
    }
    async with servers[transport] as server:
        client = clients[transport](server.base_url, "key")
        yield client
        await client.close()
        assert server.num_requests == 2  # none was repeated


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_empty_reply_is_scored_over_every_transport(transport: str):
    def half_if_empty(completion: Any) -> float:
        text = completion if isinstance(completion, str) else completion[-1].content
        return 0.5 if text == "" else 0.0

    end = tiny_model().renderer.tokenizer.eos_token_id
    message_type = "completion" if transport == "completions" else "chat"
    env = vf.SingleTurnEnv(
        dataset=[{"prompt": "a" if message_type == "completion" else [vf.UserMessage("a")]}] * 2,
        rubric=vf.Rubric([half_if_empty]),
        message_type=message_type,
    )
    sampling = {"logit_bias": {end: 100.0}} if transport == "local model" else {}
    records: list[Any] = []
    async with silent_client(transport) as client:
        summary = await vf.evaluate(
            env, client, model="tiny", sampling_args={"max_tokens": 8, **sampling}, on_record=records.append
        )
    assert [(record.error, record.reward) for record in records] == [(None, 0.5)] * 2
    assert (summary.scored, summary.reward.mean) == (2, 0.5)


def save(x: int = 0) -> str:
    """Save a number."""
    return f"saved {x}"


async def outcome_of(*messages: dict[str, Any]) -> vf.RolloutRecord:
    """Return the rollout of a tool environment whose endpoint answers with these messages, and then with an empty one."""

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        message = messages[turn] if turn < len(messages) else {"content": ""}
        return web.json_response({"choices": [{"message": {"role": "assistant", **message}, "finish_reason": "stop"}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    client = OpenAIClient(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", "none", max_retries=0)
    env = vf.ToolEnv(tools=[save], dataset=[{"question": "a"}], rubric=vf.Rubric([lambda completion: 1.0]))
    records: list[vf.RolloutRecord] = []
    await vf.evaluate(env, client, model="tiny", on_record=records.append)
    await client.close()
    await runner.cleanup()
    return records[0]


def tool_call(**fields: Any) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "save", "arguments": '{"x": 1}'}, **fields}


@pytest.mark.parametrize(
    ("calls", "answers"),
    [
        ([tool_call()], ["saved 1"]),
        ([tool_call(id=None)], ["saved 1"]),
        ([tool_call(id=7), tool_call(id=7)], ["saved 1", "saved 1"]),
        ([tool_call(id="")], ["saved 1"]),
        ([tool_call(type=None)], ["saved 1"]),
        ([tool_call(function={"name": "save", "arguments": {"x": 2}})], ["saved 2"]),
        ([tool_call(function={"name": "save", "arguments": None})], ["saved 0"]),
        ([tool_call(function={"name": "save", "arguments": "null"})], ["saved 0"]),
        ([tool_call(function={"name": "save"})], ["saved 0"]),
        ([tool_call(function={"name": "save", "arguments": '"{\\"x\\": 3}"'})], ["saved 3"]),
        ([{"name": "save", "arguments": {"x": 4}}], ["saved 4"]),
        ([tool_call(function={"name": None, "arguments": "{}"})], ["a tool call names no function"]),
    ],
)
async def test_calls_run_whatever_their_ids_and_arguments_look_like_and_an_empty_reply_ends(
    calls: list[Any], answers: list[str]
):
    record = await outcome_of({"content": None, "tool_calls": calls})
    assert (record.error, record.reward, record.completion[-1].content) == (None, 1.0, "")
    results = [message for message in record.completion if message["role"] == "tool"]
    assert all(result["content"].startswith(answer) for result, answer in zip(results, answers, strict=True))
    ids = [call["id"] for call in record.completion[0]["tool_calls"]]
    assert [result["tool_call_id"] for result in results] == ids and len(set(ids)) == len(ids)
