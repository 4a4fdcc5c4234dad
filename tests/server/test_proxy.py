"""The recording proxy: serves a rollout's turns through three APIs, with one key per rollout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import openai
import pytest

import rove as vf
from rove.core.errors import cancelled_unanswered, phase_of
from rove.core.protocols import Limits, Request, SamplingParams
from rove.core.state import bookkeeping
from rove.rollouts.runner import Allowance, make_turn
from rove.server.proxy import Access, AgentTurns, Proxy
from rove.wire.common import tool_call
from tests.server.test_server import HI, RecordingClient, post, wait_until

if TYPE_CHECKING:  # imports thousands of modules; only the broad tests that use the SDK import it
    import anthropic

CALL = {"role": "assistant", "content": None, "tool_calls": [tool_call("c1", "weather", '{ "city":"Rome" }')]}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def new_state() -> vf.State:
    return vf.State(input={"prompt": []}, trajectory=[], seed=1, is_truncated=False, stop_condition=None)


class Rollout:
    """A rollout whose turns agents request through the proxy."""

    def __init__(self, client: Any, allowance: Allowance, stop_after: int, honored: tuple[str, ...]):
        async def stops(state: vf.State) -> bool:
            if len(state["trajectory"]) < stop_after:
                return False
            bookkeeping(state).stop_condition = "enough"
            return True

        self.client = client
        self.state = new_state()
        turn = make_turn(client, "the-run's", SamplingParams(temperature=0.5), allowance)
        self.turns = AgentTurns(turn, self.state, honored, stops)
        self.access = Access("", "")

    @property
    def steps(self) -> list[vf.TrajectoryStep]:
        return self.state["trajectory"]

    @asynccontextmanager
    async def openai(self) -> AsyncIterator[openai.AsyncOpenAI]:
        url, key = self.access.base_url, self.access.api_key
        async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as sdk:
            yield sdk

    @asynccontextmanager
    async def anthropic(self) -> AsyncIterator[anthropic.AsyncAnthropic]:
        import anthropic

        url, key = self.access.root, self.access.api_key
        async with anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0) as sdk:
            yield sdk

    @asynccontextmanager
    async def http(self) -> AsyncIterator[aiohttp.ClientSession]:
        headers = {"Authorization": f"Bearer {self.access.api_key}"}
        async with aiohttp.ClientSession(self.access.root, headers=headers) as session:
            yield session


@asynccontextmanager
async def open_rollout(
    client: Any = None,
    limits: Limits = Limits(),  # noqa: B008  frozen
    stop_after: int = 1000,
    honored: tuple[str, ...] = ("max_tokens", "stop"),
) -> AsyncIterator[Rollout]:
    rollout = Rollout(client or RecordingClient(), Allowance(limits), stop_after, honored)
    proxy = Proxy()
    await proxy.start()
    try:
        async with proxy.opened(rollout.turns) as access:
            rollout.access = access
            yield rollout
    finally:
        await proxy.close()


@pytest.mark.broad
async def test_every_api_records_a_step():
    async with open_rollout() as rollout:
        async with rollout.openai() as sdk:
            chat = await sdk.chat.completions.create(model="gpt-9", messages=HI, tools=[TOOL], tool_choice="required")  # pyright: ignore[reportArgumentType, reportCallIssue]
            assert chat.choices[0].message.content == "hello there"
            assert (await sdk.responses.create(model="gpt-9", input="hi")).output_text == "hello there"
            assert [model.id async for model in sdk.models.list()] == ["rove"]
        async with rollout.anthropic() as sdk:
            response = await sdk.messages.create(model="claude", max_tokens=9, system="s", messages=HI)
            assert response.content[0].type == "text" and response.usage.output_tokens == 2
        first, second, third = rollout.steps
    assert (first.prompt, first.completion, first.usage.prompt_tokens) == (HI, [vf.AssistantMessage("hello there")], 3)
    assert [message["role"] for message in third.prompt] == ["system", "user"]
    assert rollout.state["tools"] == [TOOL] and (first.tools, second.tools, third.tools) == (None, [], [])
    assert {request.model for request in rollout.client.requests} == {"the-run's"}
    assert [request.tools for request in rollout.client.requests] == [[TOOL], None, None]


@pytest.mark.broad
async def test_streamed_requests_record_steps_and_are_streamed_incrementally():
    async with open_rollout(RecordingClient(pieces=("hello ", "the"))) as rollout:
        async with rollout.openai() as sdk:
            stream = await sdk.chat.completions.create(model="x", messages=HI, stream=True)
            pieces = [chunk.choices[0].delta.content async for chunk in stream]
            async with sdk.responses.stream(model="x", input="hi") as events:
                assert (await events.get_final_response()).output_text == "hello there"
        async with rollout.anthropic() as sdk, sdk.messages.stream(model="x", max_tokens=9, messages=HI) as message:
            assert await message.get_final_text() == "hello there"
        assert [piece for piece in pieces if piece] == ["hello ", "the", "re"]
        assert len(rollout.steps) == 3


async def test_the_runs_sampling_parameters_override_all_but_the_honored_fields():
    fields: Any = {"max_tokens": 9, "stop": ["x"], "temperature": 0.1, "top_p": 0.2, "seed": 3, "verbosity": "low"}
    samplings = []
    for honored in (("max_tokens", "stop"), ("temperature",)):
        async with open_rollout(honored=honored) as rollout, rollout.http() as session:
            assert (await post(session, "/v1/chat/completions", {"messages": HI, **fields}))[0] == 200
            samplings.append(rollout.client.requests[0].sampling_params)
    assert samplings == [SamplingParams(temperature=0.5, max_tokens=9, stop=["x"]), SamplingParams(temperature=0.1)]


async def test_the_key_is_accepted_in_every_header_and_in_the_path_and_wrong_keys_are_not():
    body = {"messages": HI, "max_tokens": 5}
    async with open_rollout() as rollout, aiohttp.ClientSession(rollout.access.root) as session:
        path = rollout.access.keyed_root.removeprefix(rollout.access.root) + "/v1"
        key = rollout.access.api_key
        assert (await post(session, f"{path}/chat/completions", body))[0] == 200
        assert (await post(session, f"{path}/messages", body))[0] == 200
        assert (await post(session, "/v1/messages", body, headers={"x-api-key": key}))[0] == 200
        two_keys = {"Authorization": "Bearer of somebody else", "x-api-key": key}
        assert (await post(session, "/v1/messages", body, headers=two_keys))[0] == 200
        async with session.get(f"{path}/models") as reply:
            assert (await reply.json())["data"][0]["id"] == "rove"
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {key}"}):
            status, response = await post(session, "/v1/chat/completions", body, headers=headers)
            assert (status, response["error"]["code"]) == (401, "invalid_api_key")
        status, response = await post(session, "/v1/messages", body, headers={"x-api-key": "wrong"})
        assert (status, response["error"]["type"]) == (401, "authentication_error")
        status, response = await post(session, f"{path}/embeddings", body)
        assert status == 404 and "/v1/messages" in response["error"]["message"]
        assert len(rollout.steps) == 4 and not rollout.turns.over.is_set()


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("chat/completions", b"{", "not JSON"),
        ("chat/completions", {"messages": []}, "length >= 1"),
        ("chat/completions", {"messages": HI, "temperature": -1}, "temperature"),
        ("chat/completions", {"messages": HI, "logprobs": True}, "request text only"),
        ("responses", {"input": "a", "previous_response_id": "r"}, "this server is stateless"),
        ("messages", {"messages": HI}, "max_tokens"),
    ],
)
async def test_a_malformed_request_is_refused_without_ending_the_rollout(path: str, body: Any, message: str):
    async with open_rollout() as rollout, rollout.http() as session:
        status, reply = await post(session, f"/v1/{path}", body)
        assert status == 400 and message in reply["error"]["message"]
        assert not rollout.turns.over.is_set() and rollout.turns.failure is None
        assert (await post(session, "/v1/chat/completions", {"messages": HI}))[0] == 200


@pytest.mark.broad
async def test_messages_that_the_agent_sends_back_are_restored_as_recorded():
    async with open_rollout(RecordingClient({**CALL, "sampled_text": "as written"})) as rollout:
        async with rollout.anthropic() as sdk:
            response = await sdk.messages.create(model="x", max_tokens=9, messages=HI)
            result: Any = {"type": "tool_result", "tool_use_id": "c1", "content": "sunny"}
            history: Any = [
                *HI,
                {"role": "assistant", "content": response.content},
                {"role": "user", "content": [result]},
            ]
            await sdk.messages.create(model="x", max_tokens=9, messages=history)
            history[1]["content"] = [{"type": "text", "text": "edited"}]
            await sdk.messages.create(model="x", max_tokens=9, messages=history[:2] + HI)
        first, second, third = rollout.steps
    assert second.prompt[: len(first.prompt) + 1] == [*first.prompt, *first.completion]
    assert second.prompt[1]["sampled_text"] == "as written"
    assert third.prompt[1] == {"role": "assistant", "content": "edited"}


async def test_a_limit_ends_the_rollout_and_returns_an_error():
    async with open_rollout(limits=Limits(max_turns=1)) as rollout:
        async with rollout.openai() as sdk:
            await sdk.chat.completions.create(model="x", messages=HI)
            with pytest.raises(openai.PermissionDeniedError, match="max_turns_reached"):
                await sdk.chat.completions.create(model="x", messages=HI)
            assert rollout.turns.over.is_set() and str(rollout.turns.failure) == "max_turns_reached"
            with pytest.raises(openai.PermissionDeniedError, match="the rollout is over: max_turns_reached"):
                await sdk.responses.create(model="x", input="hi")
        async with rollout.http() as session:
            status, response = await post(session, "/v1/messages", {"messages": HI, "max_tokens": 9})
            assert status == 403 and "the rollout is over" in response["error"]["message"]
        assert len(rollout.steps) == 1


@pytest.mark.broad
async def test_a_limit_raises_an_error_in_anthropics_sdk():
    import anthropic

    async with open_rollout(limits=Limits(max_turns=1)) as rollout, rollout.anthropic() as sdk:
        await sdk.messages.create(model="x", max_tokens=9, messages=HI)
        with pytest.raises(anthropic.PermissionDeniedError, match="max_turns_reached"):
            await sdk.messages.create(model="x", max_tokens=9, messages=HI)
        with pytest.raises(anthropic.PermissionDeniedError, match="the rollout is over"):
            await sdk.messages.create(model="x", max_tokens=9, messages=HI)
        assert len(rollout.steps) == 1


async def test_a_stop_condition_ends_the_rollout_after_the_last_response():
    async with open_rollout(stop_after=2) as rollout, rollout.openai() as sdk:
        for _ in range(2):
            await sdk.chat.completions.create(model="x", messages=HI)
        assert rollout.turns.over.is_set() and rollout.turns.failure is None
        with pytest.raises(openai.PermissionDeniedError, match="the rollout is over: enough"):
            await sdk.chat.completions.create(model="x", messages=HI)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (vf.InfraError("gone"), 503),
        (vf.EmptyModelResponseError("nothing"), 502),
        (KeyError("player"), 500),
        (vf.ConfigError("no tools here"), 400),
        (SystemExit(3), 500),
    ],
)
async def test_a_client_error_ends_the_rollout_and_is_returned(error: BaseException, status: int):
    def fail(request: Any) -> Any:
        raise error

    async with open_rollout(RecordingClient(fail)) as rollout, rollout.http() as session:
        assert (await post(session, "/v1/chat/completions", {"messages": HI}))[0] == status
        assert rollout.turns.failure is error and rollout.turns.over.is_set()
        assert phase_of(error) == "model"


async def test_an_overlong_prompt_does_not_end_the_rollout():
    def answer(request: Any) -> Any:
        return vf.OverlongPromptError("too long") if len(request.messages) > 1 else "short"

    async with open_rollout(RecordingClient(answer)) as rollout, rollout.openai() as sdk:
        with pytest.raises(openai.BadRequestError, match="too long") as raised:
            await sdk.chat.completions.create(model="x", messages=HI * 2)
        assert raised.value.code == "context_length_exceeded"
        assert rollout.turns.overlong is not None and not rollout.turns.over.is_set()
        await sdk.chat.completions.create(model="x", messages=HI)
        assert len(rollout.steps) == 1


async def test_concurrent_requests_of_a_rollout_each_get_their_own_response():
    barrier = asyncio.Barrier(8)

    async def echo(request: Any) -> str:
        await barrier.wait()
        return request.messages[-1]["content"]

    async with open_rollout(RecordingClient(lambda request: echo(request))) as rollout, rollout.openai() as sdk:

        async def send_request(i: int) -> str | None:
            message: Any = {"role": "user", "content": f"q{i}"}
            return (await sdk.chat.completions.create(model="x", messages=[message])).choices[0].message.content

        assert await asyncio.gather(*map(send_request, range(8))) == [f"q{i}" for i in range(8)]
        assert all(step.completion[0]["content"] == step.prompt[0]["content"] for step in rollout.steps)
        assert len({request.seed for request in rollout.client.requests}) == 8


async def test_the_end_of_a_rollout_cancels_open_requests_and_leaves_no_tasks():
    client = RecordingClient(lambda request: asyncio.sleep(3600))
    proxy, turns = Proxy(), Rollout(client, Allowance(), 1000, ()).turns
    await proxy.start()
    async with proxy.opened(turns) as access, aiohttp.ClientSession(access.root) as session:
        headers = {"Authorization": f"Bearer {access.api_key}"}
        request_task = asyncio.create_task(post(session, "/v1/chat/completions", {"messages": HI}, headers=headers))
        await wait_until(lambda: client.under_way == 1)
    await asyncio.wait((request_task,))
    assert client.under_way == 0 and turns.over.is_set()
    async with aiohttp.ClientSession(access.root) as session:
        status, response = await post(session, "/v1/chat/completions", {"messages": HI}, headers=headers)
        assert status == 401 and "the rollout is over" in response["error"]["message"]
    await proxy.close()
    assert len(asyncio.all_tasks()) == 1


async def test_a_disconnected_agent_cancels_its_turn_and_records_no_step():
    client = RecordingClient(lambda request: asyncio.sleep(3600))
    async with open_rollout(client) as rollout, rollout.http() as session:
        request_task = asyncio.create_task(post(session, "/v1/chat/completions", {"messages": HI}))
        await wait_until(lambda: client.under_way == 1)
        request_task.cancel()
        await wait_until(lambda: client.under_way == 0)
        assert rollout.steps == [] and not rollout.turns.over.is_set()


async def test_failures_of_an_unanswered_request_are_recorded_when_it_is_canceled():
    async def never(request: Any) -> str:
        try:
            return await asyncio.sleep(3600, "never")
        except asyncio.CancelledError as cancelled:
            raise cancelled_unanswered(["HTTP 503"]) from cancelled

    client = RecordingClient(lambda request: never(request))
    async with open_rollout(client) as rollout, rollout.http() as session:
        request_task = asyncio.create_task(post(session, "/v1/chat/completions", {"messages": HI}))
        await wait_until(lambda: client.under_way == 1)
        request_task.cancel()
        await wait_until(lambda: client.under_way == 0)
        await wait_until(lambda: bool(rollout.turns.unanswered))
        assert rollout.turns.unanswered == ["HTTP 503"]


def test_access_environment_configures_both_sdks():
    access = Access("http://127.0.0.1:1", "key")
    assert access.keyed_root == "http://127.0.0.1:1/k/key"
    assert access.environment == {
        "OPENAI_BASE_URL": "http://127.0.0.1:1/v1",
        "OPENAI_API_BASE": "http://127.0.0.1:1/v1",
        "OPENAI_API_KEY": "key",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:1",
        "ANTHROPIC_API_KEY": "key",
    }


async def test_malformed_tool_calls_of_a_model_are_recorded_unchanged():
    malformed_calls = [{"id": 3}, "call me", {"function": {"name": "f", "arguments": object}}]
    async with open_rollout(
        RecordingClient({"role": "assistant", "content": "hm", "tool_calls": malformed_calls})
    ) as rollout:
        await rollout.turns.respond(Request(HI))
        assert len(rollout.steps) == 1 and rollout.turns.failure is None


async def test_equal_messages_are_restored_at_their_own_position():
    def think(request: Request) -> vf.Message:
        return vf.AssistantMessage("yes", reasoning_content=f"thought {len(request.messages)}")

    async with open_rollout(RecordingClient(think)) as rollout:
        messages: list[Any] = [vf.UserMessage("a")]
        for text in "bc":
            await rollout.turns.respond(Request(messages))
            messages = [*messages, vf.AssistantMessage("yes"), vf.UserMessage(text)]
        await rollout.turns.respond(Request(messages))
        thoughts = [message.get("reasoning_content") for message in rollout.steps[-1].prompt]
        assert thoughts == [None, "thought 1", None, "thought 3", None]


async def test_steps_share_message_objects_of_common_prefixes():
    async with open_rollout() as rollout, rollout.openai() as sdk:
        messages: list[Any] = [{"role": "user", "content": "a"}]
        for _ in range(2):
            response = await sdk.chat.completions.create(model="x", messages=messages)
            messages += [{"role": "assistant", "content": response.choices[0].message.content}, *HI]
        await sdk.chat.completions.create(model="x", messages=messages)
        first, second, third = rollout.steps
        assert third.prompt[0] is second.prompt[0] is first.prompt[0]
        assert third.prompt[1] is first.completion[0] and third.prompt[3] is second.completion[0]
