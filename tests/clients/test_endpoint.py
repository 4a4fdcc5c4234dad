"""Endpoint clients: errors and reported attempts of failed and cancelled requests. See also `test_openai`."""

from __future__ import annotations

import asyncio

import pytest
from fault_endpoint import FaultEndpoint, HttpResponse

from rove.clients.openai import OpenAIClient
from rove.core.errors import InfraError, ModelError, unanswered_attempts
from rove.core.messages import UserMessage
from rove.core.protocols import Request

pytestmark = pytest.mark.filterwarnings("error")  # a connection left open is a failure


def make_request() -> Request:
    return Request([UserMessage("hello")], model="tiny")


async def attempts_after_cancellation(client: OpenAIClient, server: FaultEndpoint, requests: int) -> list[str] | None:
    """Cancel a request once the server has received `requests` requests; return the attempts that the cancellation reports."""
    task = asyncio.create_task(client.respond(make_request()))
    await server.wait_for_requests(requests)
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    return unanswered_attempts(caught.value)


async def test_a_request_cancelled_between_attempts_reports_them():
    async with FaultEndpoint(["500", HttpResponse(429, "later", {"Retry-After": "60"})]) as server:
        client = OpenAIClient(server.base_url, backoff=0.0)
        attempts = await attempts_after_cancellation(client, server, 2)
        await client.close()
    assert attempts is not None
    assert [line[:8] for line in attempts] == ["HTTP 500", "HTTP 429"]


async def test_a_request_cancelled_during_an_attempt_reports_the_earlier_attempts():
    async with FaultEndpoint(["500", "hang"]) as server:
        client = OpenAIClient(server.base_url, backoff=0.0)
        attempts = await attempts_after_cancellation(client, server, 2)
        await client.close()
    assert attempts is not None
    assert [line[:8] for line in attempts] == ["HTTP 500"]


async def test_cancellation_in_the_first_attempt_reports_at_most_a_wait_for_admission():
    async with FaultEndpoint("hang") as server:
        client = OpenAIClient(server.base_url, max_concurrent=1)
        assert await attempts_after_cancellation(client, server, 1) is None
        first = asyncio.create_task(client.respond(make_request()))
        assert await attempts_after_cancellation(client, server, 2) == ["waited for admission"]
        first.cancel()
        await asyncio.wait([first])
        await client.close()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("hang", "unanswered"), ("502", "unanswered"), ("504", "unanswered"), ("429", "refused"), ("503", "refused")]
    + [(fault, "start") for fault in ("500", "garbage", "close", "404")],
)
async def test_failures_that_reduce_an_adaptive_limit(fault: str, reason: str):
    async with FaultEndpoint(fault) as server:
        client = OpenAIClient(server.base_url, max_retries=0, timeout=0.3 if fault == "hang" else 30)
        with pytest.raises((InfraError, ModelError)):
            await client.respond(make_request())
        await client.close()
    assert client.limiter_now.history[-1].reason == reason


@pytest.mark.parametrize("fault", ["429", "500", "hang"])
async def test_the_error_has_the_http_status_of_the_last_attempt(fault: str):
    async with FaultEndpoint(fault) as server:
        client = OpenAIClient(server.base_url, max_retries=0, timeout=0.3 if fault == "hang" else 30)
        with pytest.raises(InfraError) as caught:
            await client.respond(make_request())
        await client.close()
    status = caught.value.status  # pyright: ignore[reportAttributeAccessIssue]
    assert status == (int(fault) if fault.isdigit() else None)


async def test_open_stream_raises_the_same_errors_as_requests():
    refusals = [HttpResponse(401, "no such key: sk-something"), HttpResponse(500, "sk-something broke"), "close", "ok"]
    async with FaultEndpoint(refusals) as server:
        client = OpenAIClient(server.base_url, "sk-something")
        for kind, message in ((ModelError, "HTTP 401"), (InfraError, "HTTP 500"), (InfraError, "Disconnected")):
            with pytest.raises(kind, match=message) as caught:
                async with client.open_stream("chat/completions", {"messages": []}):
                    raise AssertionError("refused before")
            assert "sk-something" not in str(caught.value)
        async with client.open_stream("chat/completions", {"messages": [{"content": "hello"}]}) as reply:
            assert b"hello" in await reply.read()
        with pytest.raises(ModelError, match="HTTP 405"):
            async with client.open_stream("chat/completions"):
                raise AssertionError("there is nothing to GET")
        await client.close()
