"""What an endpoint's failures and cancelled requests tell those above. (The rest: `test_clients_openai`.)"""

from __future__ import annotations

import asyncio

import pytest
from fault_endpoint import Answer, FaultEndpoint

from rove.clients.openai import OpenAIClient
from rove.core.errors import InfraError, ModelError, unanswered_attempts
from rove.core.messages import UserMessage
from rove.core.protocols import Request

pytestmark = pytest.mark.filterwarnings("error")  # a connection left open is a failure


def ask() -> Request:
    return Request([UserMessage("hello")], model="tiny")


async def cancelled(client: OpenAIClient, server: FaultEndpoint, requests: int) -> list[str] | None:
    """What is told by the cancellation of a request, when so many have arrived."""
    task = asyncio.create_task(client.respond(ask()))
    await server.arrived(requests)
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    return unanswered_attempts(caught.value)


async def test_who_is_cancelled_between_tries_tells_of_them():
    async with FaultEndpoint(["500", Answer(429, "later", {"Retry-After": "60"})]) as server:
        client = OpenAIClient(server.base_url, backoff=0.0)
        told = await cancelled(client, server, 2)
        await client.close()
    assert told is not None
    assert [line[:8] for line in told] == ["HTTP 500", "HTTP 429"]


async def test_who_is_cancelled_during_a_later_try_tells_of_those_before():
    async with FaultEndpoint(["500", "hang"]) as server:
        client = OpenAIClient(server.base_url, backoff=0.0)
        told = await cancelled(client, server, 2)
        await client.close()
    assert told is not None
    assert [line[:8] for line in told] == ["HTTP 500"]


async def test_who_is_cancelled_while_the_first_try_is_answered_tells_nothing_and_who_waits_does():
    async with FaultEndpoint("hang") as server:
        client = OpenAIClient(server.base_url, max_concurrent=1)
        assert await cancelled(client, server, 1) is None
        first = asyncio.create_task(client.respond(ask()))
        assert await cancelled(client, server, 2) == ["waited for admission"]
        first.cancel()
        await asyncio.wait([first])
        await client.close()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("hang", "unanswered"), ("502", "unanswered"), ("504", "unanswered"), ("429", "refused"), ("503", "refused")]
    + [(fault, "start") for fault in ("500", "garbage", "close", "404")],
)
async def test_what_cuts_an_adaptive_limit(fault: str, reason: str):
    async with FaultEndpoint(fault) as server:
        client = OpenAIClient(server.base_url, max_retries=0, timeout=0.3 if fault == "hang" else 30)
        with pytest.raises((InfraError, ModelError)):
            await client.respond(ask())
        await client.close()
    assert client.limiter_now.history[-1].reason == reason


@pytest.mark.parametrize("fault", ["429", "500", "hang"])
async def test_what_status_the_last_try_had(fault: str):
    async with FaultEndpoint(fault) as server:
        client = OpenAIClient(server.base_url, max_retries=0, timeout=0.3 if fault == "hang" else 30)
        with pytest.raises(InfraError) as caught:
            await client.respond(ask())
        await client.close()
    status = caught.value.status  # pyright: ignore[reportAttributeAccessIssue]
    assert status == (int(fault) if fault.isdigit() else None)


async def test_what_is_opened_is_refused_with_the_same_errors():
    refusals = [Answer(401, "no such key: sk-something"), Answer(500, "sk-something broke"), "close", "ok"]
    async with FaultEndpoint(refusals) as server:
        client = OpenAIClient(server.base_url, "sk-something")
        for kind, said in ((ModelError, "HTTP 401"), (InfraError, "HTTP 500"), (InfraError, "Disconnected")):
            with pytest.raises(kind, match=said) as caught:
                async with client.opened("chat/completions", {"messages": []}):
                    raise AssertionError("refused before")
            assert "sk-something" not in str(caught.value)
        async with client.opened("chat/completions", {"messages": [{"content": "hello"}]}) as reply:
            assert b"hello" in await reply.read()
        with pytest.raises(ModelError, match="HTTP 405"):
            async with client.opened("chat/completions"):
                raise AssertionError("there is nothing to GET")
        await client.close()
