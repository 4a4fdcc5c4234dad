from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rove.clients.scripted import ScriptedClient
from rove.core.errors import InvalidModelResponseError
from rove.core.messages import AssistantMessage, Message, SystemMessage, UserMessage
from rove.core.protocols import Client, Request
from rove.core.records import Usage
from rove.core.state import State

CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}"}}


def test_a_scripted_client_implements_the_client_protocol():
    client = ScriptedClient(lambda messages, state, rng: "hi", name="greeter")
    assert isinstance(client, Client)
    assert (client.name, client.max_concurrent) == ("greeter", 256)


async def test_text_becomes_an_assistant_message_and_words_are_counted():
    client = ScriptedClient(lambda messages, state, rng: f"you said: {messages[-1].content}")
    response = await client.respond(Request([SystemMessage("be brief"), UserMessage("hello  there\nworld")]))
    assert response.message == {"role": "assistant", "content": "you said: hello  there\nworld"}
    assert response.usage == Usage(prompt_tokens=5, completion_tokens=5)
    assert response.finish_reason == "stop"
    await client.close()


async def test_the_policy_may_be_async_and_return_a_message():
    async def policy(messages: list[Message], state: State, rng: random.Random) -> Message:
        return AssistantMessage(None, tool_calls=[CALL])

    response = await ScriptedClient(policy).respond(Request([{"role": "user", "content": "1 + 1"}]))
    assert response.message.tool_calls == [CALL]
    assert response.finish_reason == "tool_calls"
    assert response.usage.completion_tokens == 2  # the name and the arguments of the call


async def test_a_plain_dict_becomes_a_message():
    client = ScriptedClient(lambda messages, state, rng: {"role": "assistant", "content": "hi"})
    assert isinstance((await client.respond(Request([]))).message, Message)


async def test_a_raw_text_is_passed_as_a_user_message():
    client = ScriptedClient(lambda messages, state, rng: f"{messages} and more")
    response = await client.respond(Request([UserMessage("not looked at")], text="Once upon"))
    assert response.message.content == f"{[UserMessage('Once upon')]} and more"
    assert response.usage.prompt_tokens == 2


async def test_the_policy_receives_the_state_of_its_rollout():
    client = ScriptedClient(lambda messages, state, rng: state.get("answer", "nobody knows"))
    assert (await client.respond(Request([], state=State(input={"answer": "42"})))).message.content == "42"
    assert (await client.respond(Request([], state=State()))).message.content == "nobody knows"
    assert (await client.respond(Request([]))).message.content == "nobody knows"


async def test_the_policy_cannot_modify_the_messages_of_the_request():
    def policy(messages: list[Message], state: State, rng: random.Random) -> str:
        messages[0]["content"] = "overwritten"
        messages.clear()
        return "done"

    request = Request([UserMessage("hi")])
    await ScriptedClient(policy).respond(request)
    assert request.messages == [{"role": "user", "content": "hi"}]


@given(seed=st.integers(0, 2**63), other_seeds=st.lists(st.integers(0, 2**63), max_size=3))
async def test_equal_requests_get_equal_responses_regardless_of_others_between_them(seed: int, other_seeds: list[int]):
    client = ScriptedClient(lambda messages, state, rng: f"{rng.random()} {rng.randrange(10**9)}")
    first = await client.respond(Request([UserMessage("roll")], seed=seed))
    for other_seed in other_seeds:
        await client.respond(Request([UserMessage("roll")], seed=other_seed))
    random.random()
    second_response = await client.respond(Request([UserMessage("roll")], seed=seed))
    assert first == second_response


async def test_different_seeds_give_different_responses():
    client = ScriptedClient(lambda messages, state, rng: str(rng.random()))
    answers = {(await client.respond(Request([], seed=seed))).message.content for seed in range(20)}
    assert len(answers) == 20


async def test_errors_of_the_policy_are_not_caught():
    def policy(messages: list[Message], state: State, rng: random.Random) -> str:
        raise ZeroDivisionError("my own mistake")

    with pytest.raises(ZeroDivisionError, match="my own mistake"):
        await ScriptedClient(policy).respond(Request([]))


@pytest.mark.parametrize("answer", [None, 7, {"content": "no role"}, UserMessage("wrong side")])
async def test_policy_results_of_the_wrong_type_are_rejected(answer: Any):
    client = ScriptedClient(lambda messages, state, rng: answer, name="odd")
    with pytest.raises(InvalidModelResponseError, match=r"the scripted policy .odd. returned .*; expected a text or"):
        await client.respond(Request([]))
