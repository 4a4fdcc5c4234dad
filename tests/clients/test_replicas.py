from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fault_endpoint import FaultEndpoint, HttpResponse
from hypothesis import given
from hypothesis import strategies as st
from toy_envs import Talk

import rove as vf
from rove.clients.endpoint import EndpointClient
from rove.clients.limiter import AdmissionLimiter, Change
from rove.clients.openai import OpenAIClient, ResponsesClient
from rove.clients.replicas import AVOID_S, MAX_REMEMBERED_ROLLOUTS, Replicas
from rove.core.errors import (
    ConfigError,
    InfraError,
    InvalidModelResponseError,
    ModelError,
    OverlongPromptError,
    unanswered_attempts,
)
from rove.core.messages import AssistantMessage, UserMessage
from rove.core.protocols import Client, Request, Response
from rove.core.state import State

pytestmark = pytest.mark.filterwarnings("error")  # a connection left open is a failure


class Clock:
    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@asynccontextmanager
async def replicas_of(
    *servers: FaultEndpoint | str, clock: Clock | None = None, **settings: Any
) -> AsyncIterator[Replicas]:
    """Yield a client for these servers or URLs, which name the model model-0, model-1, …"""
    settings = {"backoff": 0.0, "max_retries": 0, **settings}
    urls = [server if isinstance(server, str) else server.base_url for server in servers]
    clients = [(OpenAIClient(url, **settings), f"model-{i}") for i, url in enumerate(urls)]
    replicas = Replicas(clients, "tiny", clock or Clock())
    yield replicas
    await replicas.close()


def make_request(text: str = "hello", rollout: int | None = None) -> Request:
    state = None if rollout is None else State(seed=rollout)
    return Request([UserMessage(text)], model="tiny", state=state)


async def stopped_server_url() -> str:
    """Return the URL of a server that has stopped."""
    async with FaultEndpoint() as server:
        return server.base_url


async def test_a_single_replica_gets_requests_under_its_own_model_name():
    async with FaultEndpoint(["500"]) as server, replicas_of(server, max_retries=1) as client:
        response = await client.respond(make_request())
        assert isinstance(client, Client)
        assert response.message.content == "hello"
        assert [line[:8] for line in response.attempts] == ["HTTP 500"]
    assert server.bodies[0]["model"] == "model-0"


def test_the_identity_contains_the_endpoint_name_but_no_urls():
    def identity(*urls: str) -> dict[str, Any]:
        return Replicas([(OpenAIClient(url), "m") for url in urls], "tiny").identity

    assert identity("http://a/v1") == identity("http://b/v1", "http://c/v1")
    assert identity("http://a/v1") == {"api": "OpenAIClient", "endpoint": "tiny", "model": "m"}
    mixed = Replicas([(ResponsesClient("http://a/v1"), "n"), (OpenAIClient("http://a/v1"), "m")], "tiny")
    assert mixed.identity == {"api": "OpenAIClient, ResponsesClient", "endpoint": "tiny", "model": "m, n"}


def test_at_least_one_replica_is_required():
    with pytest.raises(ConfigError, match="'tiny' has no replicas"):
        Replicas([], "tiny")


# Choice of the replica


async def test_requests_go_to_the_replica_with_the_lowest_load():
    async with FaultEndpoint(min_in_flight=2) as small, FaultEndpoint(min_in_flight=4) as large:
        clients = [OpenAIClient(small.base_url, max_concurrent=2), OpenAIClient(large.base_url, max_concurrent=4)]
        replicas = Replicas([(client, "m") for client in clients], "tiny")
        assert replicas.max_concurrent == replicas.limiter_now.limit == 6
        async with asyncio.timeout(20):
            await asyncio.gather(*(replicas.respond(make_request()) for _ in range(6)))
        await replicas.close()
        assert (small.num_requests, large.num_requests) == (2, 4)


class InProcessClient(EndpointClient):
    """Answers in this process unless `is_down` and records the seed of the rollout that each request belongs to."""

    default_base_url = "http://local/v1"
    base_url_var = api_key_var = "NOT_SET"

    def __init__(self) -> None:
        super().__init__(api_key="k", max_concurrent=4)
        self.rollout_seeds: list[int | None] = []
        self.is_down = False

    def auth_headers(self, key: str) -> dict[str, str]:
        return {}

    def translate(self, request: Request) -> Any:
        raise NotImplementedError

    def read(self, request: Request, answer: Any) -> Response:
        raise NotImplementedError

    async def respond(self, request: Request) -> Response:
        if self.is_down:
            raise InfraError("down", ["down"])
        self.rollout_seeds.append(request.state["seed"] if request.state else None)
        await asyncio.sleep(0)
        return Response(AssistantMessage("hi"))


@given(waves=st.lists(st.lists(st.integers(0, 9), unique=True, max_size=10), max_size=8), count=st.integers(1, 4))
def test_all_turns_of_a_rollout_go_to_one_replica(waves: list[list[int]], count: int):
    clients = [InProcessClient() for _ in range(count)]

    async def send_all() -> None:
        replicas = Replicas([(client, "m") for client in clients], "tiny")
        for wave in waves:
            await asyncio.gather(*(replicas.respond(make_request(rollout=seed)) for seed in wave))

    asyncio.run(send_all())
    rollouts_by_client = [set(client.rollout_seeds) for client in clients]
    assert sum(map(len, rollouts_by_client)) == len(set().union(*rollouts_by_client))
    assert sum(len(client.rollout_seeds) for client in clients) == sum(map(len, waves))


@given(rollouts=st.integers(1, 40), count=st.integers(1, 4))
def test_new_rollouts_are_distributed_evenly(rollouts: int, count: int):
    clients = [InProcessClient() for _ in range(count)]

    async def send_all() -> None:
        replicas = Replicas([(client, "m") for client in clients], "tiny")
        await asyncio.gather(*(replicas.respond(make_request(rollout=seed)) for seed in range(rollouts)))

    asyncio.run(send_all())
    counts = [len(client.rollout_seeds) for client in clients]
    assert max(counts) - min(counts) <= 1


async def test_the_number_of_remembered_rollouts_is_bounded(monkeypatch: pytest.MonkeyPatch):
    assert MAX_REMEMBERED_ROLLOUTS > 10_000
    monkeypatch.setattr("rove.clients.replicas.MAX_REMEMBERED_ROLLOUTS", 3)
    replicas = Replicas([(InProcessClient(), "m"), (InProcessClient(), "m")], "tiny")
    for seed in (1, 2, 3, 1, 4, 5):
        await replicas.respond(make_request(rollout=seed))
    assert list(replicas._assigned) == [1, 4, 5]


async def test_an_evaluation_uses_all_replicas_and_keeps_each_rollout_on_one():
    async with FaultEndpoint(min_in_flight=2) as first_server, FaultEndpoint(min_in_flight=2) as second_server:
        async with replicas_of(first_server, second_server) as client:
            async with asyncio.timeout(60):
                records = await vf.generate(Talk(turns=3, count=4), client, "tiny", max_concurrent=4)  # pyright: ignore[reportArgumentType]
            assert client.limiter._reserved == []
        assert [record.error for record in records] == [None] * 4
        requests = [
            Counter(body["messages"][0]["content"] for body in server.bodies)
            for server in (first_server, second_server)
        ]
        assert [set(count.values()) for count in requests] == [{3}, {3}]
        assert {body["model"] for body in second_server.bodies} == {"model-1"}


# Replicas that fail


@pytest.mark.parametrize("fault", ["500", "close", "504"])
async def test_requests_fail_over_from_a_failing_replica_which_is_avoided_until_it_answers(fault: str):
    clock = Clock()
    async with (
        FaultEndpoint([fault]) as bad,
        FaultEndpoint() as healthy,
        replicas_of(bad, healthy, clock=clock) as client,
    ):
        response = await client.respond(make_request())
        assert response.message.content == "hello"
        assert [line.startswith(f"{bad.base_url}: ") for line in response.attempts] == [True]
        clock.seconds += AVOID_S - 1
        await asyncio.gather(*(client.respond(make_request()) for _ in range(3)))
        assert (bad.num_requests, healthy.num_requests) == (1, 4)
        clock.seconds += 2  # now one request tests the replica
        await asyncio.gather(*(client.respond(make_request()) for _ in range(3)))
        assert (bad.num_requests, healthy.num_requests) == (2, 6)
        await asyncio.gather(*(client.respond(make_request()) for _ in range(2)))
        assert (bad.num_requests, healthy.num_requests) == (3, 7)


@pytest.mark.parametrize("fault", ["429", "503"])
async def test_requests_fail_over_from_a_busy_replica_which_is_not_avoided(fault: str):
    async with FaultEndpoint(["500", fault, fault]) as busy, FaultEndpoint() as healthy:
        async with replicas_of(busy, healthy, max_retries=1) as client:
            response = await client.respond(make_request())
            assert [line.split(": ")[1] for line in response.attempts] == ["HTTP 500", f"HTTP {fault}"]
            assert client._replicas[0].avoided_until == 0
            await client.respond(make_request())
        assert (busy.num_requests, healthy.num_requests) == (4, 1)


async def test_a_busy_response_ends_the_avoidance_of_a_replica():
    clock = Clock()
    async with FaultEndpoint(["500", "429"]) as first_server, FaultEndpoint() as second_server:
        async with replicas_of(first_server, second_server, clock=clock) as client:
            await client.respond(make_request())
            clock.seconds += AVOID_S + 1
            await client.respond(make_request())
            await client.respond(make_request())
        assert (first_server.num_requests, second_server.num_requests) == (3, 2)


async def test_an_unreachable_replica_costs_one_attempt_per_avoidance_period():
    clock = Clock()
    stopped = await stopped_server_url()
    async with FaultEndpoint() as healthy, replicas_of(stopped, healthy, clock=clock) as client:
        for _ in range(3):
            responses = await asyncio.gather(*(client.respond(make_request()) for _ in range(3)))
            if clock.seconds == Clock.seconds:  # two of three requests use it before it is avoided
                assert sum(len(response.attempts) for response in responses) == 2
            else:
                assert sum(len(response.attempts) for response in responses) == 1
            clock.seconds += AVOID_S + 1
        assert healthy.num_requests == 9


async def test_rollouts_of_a_failed_replica_move_to_another_and_stay_there():
    clock, first_client, second_client = Clock(), InProcessClient(), InProcessClient()
    replicas = Replicas([(first_client, "m"), (second_client, "m")], "tiny", clock)
    await replicas.respond(make_request(rollout=7))
    first_client.is_down = True
    for _ in range(2):
        await replicas.respond(make_request(rollout=7))
    first_client.is_down = False
    clock.seconds += AVOID_S + 1
    await replicas.respond(make_request(rollout=7))
    assert (first_client.rollout_seeds, second_client.rollout_seeds) == ([7], [7, 7, 7])


async def test_if_all_replicas_fail_each_gets_one_request_and_all_attempts_are_listed():
    stopped = await stopped_server_url()
    async with (
        FaultEndpoint(lambda number, body: "500") as failing,
        replicas_of(failing, stopped, max_retries=1) as client,
    ):
        for _ in range(2):  # even while avoided: no replica is better
            with pytest.raises(InfraError, match="in 2 tries") as caught:
                await client.respond(make_request())
            attempts_by_url = Counter(line.split(": ")[0] for line in caught.value.attempts)
            assert attempts_by_url == {failing.base_url: 2, stopped: 2}
        assert failing.num_requests == 4


async def test_an_invalid_response_goes_to_another_replica_without_avoiding_the_first():
    async with FaultEndpoint(["garbage"]) as first_server, FaultEndpoint(["aborted"]) as second_server:
        async with replicas_of(first_server, second_server) as client:
            with pytest.raises(InvalidModelResponseError, match="the answer is empty") as caught:
                await client.respond(make_request())
            assert ["not JSON" in line for line in caught.value.attempts] == [True, False]
            await client.respond(make_request())
        assert (first_server.num_requests, second_server.num_requests) == (2, 1)


@pytest.mark.parametrize(("fault", "kind"), [("context", OverlongPromptError), ("404", ModelError)])
async def test_a_client_error_of_any_replica_is_final(fault: str, kind: type[Exception]):
    async with (
        FaultEndpoint(["500"]) as first_server,
        FaultEndpoint(fault) as second_server,
        replicas_of(first_server, second_server) as client,
    ):
        with pytest.raises(kind) as caught:
            await client.respond(make_request())
        attempts = caught.value.attempts  # pyright: ignore[reportAttributeAccessIssue]
        assert [line.split(": ")[1][:5] for line in attempts] == ["HTTP ", "HTTP "]
        assert (first_server.num_requests, second_server.num_requests) == (1, 1)


async def test_a_client_error_ends_the_avoidance_of_a_replica():
    clock = Clock()
    faults = ["500", HttpResponse(400, "no")]
    async with (
        FaultEndpoint(faults) as first_server,
        FaultEndpoint() as second_server,
        replicas_of(first_server, second_server, clock=clock) as client,
    ):
        await client.respond(make_request())
        clock.seconds += AVOID_S + 1
        with pytest.raises(ModelError, match="no"):
            await client.respond(make_request())
        await asyncio.gather(*(client.respond(make_request()) for _ in range(2)))
        assert (first_server.num_requests, second_server.num_requests) == (3, 2)


async def test_a_cancelled_request_releases_its_replica():
    async with (
        FaultEndpoint("hang") as first_server,
        FaultEndpoint() as second_server,
        replicas_of(first_server, second_server) as client,
    ):
        hanging = asyncio.create_task(client.respond(make_request(rollout=1)))
        await first_server.wait_for_requests(1)
        hanging.cancel()
        await asyncio.wait([hanging])
        assert [replica.under_way for replica in client._replicas] == [0, 0]
        assert client._replicas[0].avoided_until == 0


async def test_a_cancelled_request_reports_the_attempts_of_failed_replicas():
    async with (
        FaultEndpoint("500") as first_server,
        FaultEndpoint(["500", "hang"]) as second_server,
        replicas_of(first_server, second_server, max_retries=1) as client,
    ):
        hanging = asyncio.create_task(client.respond(make_request()))
        await second_server.wait_for_requests(2)
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await hanging
        attempts = unanswered_attempts(caught.value) or []
        assert [line.split(": ")[0] for line in attempts] == [first_server.base_url] * 2 + [second_server.base_url]


# Capacity for new rollouts


async def test_rollouts_reserve_free_capacity_or_wait():
    clients = [OpenAIClient("http://a/v1", max_concurrent=1), OpenAIClient("http://b/v1")]
    replicas = Replicas([(client, "m") for client in clients], "tiny")
    limiter = replicas.limiter
    assert limiter.limit == 17
    for _ in range(17):
        await limiter.reserve()
    waiting, cancelled = (asyncio.create_task(limiter.reserve()) for _ in range(2))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert not waiting.done()
    for _ in range(17):
        limiter.unreserve()
    async with asyncio.timeout(20):
        await waiting
    limiter.unreserve()
    assert [replica.load for replica in replicas._replicas] == [0, 0]


def test_the_limit_is_adaptive_if_that_of_any_replica_is():
    fixed, free = OpenAIClient("http://a/v1", max_concurrent=3), OpenAIClient("http://b/v1")
    assert not Replicas([(fixed, "m")], "tiny").limiter_now.adaptive
    assert Replicas([(fixed, "m"), (free, "m")], "tiny").limiter_now.adaptive


def test_changes_report_the_sum_of_the_limits():
    clients = [OpenAIClient("http://a/v1"), OpenAIClient("http://b/v1", max_concurrent=3)]
    limiter = Replicas([(client, "m") for client in clients], "tiny").limiter_now
    assert limiter.on_change is None
    changes: list[Change] = []
    limiter.on_change = changes.append
    on_change = clients[0].limiter_now.on_change
    assert on_change is not None
    on_change(Change(1.5, 9, "grown"))
    assert changes == [Change(1.5, 19, "grown")]
    limiter.on_change = None
    assert clients[0].limiter_now.on_change is None


async def test_a_reservation_cleared_by_restart_is_not_released_twice():
    replicas = Replicas([(InProcessClient(), "m"), (InProcessClient(), "m")], "tiny")
    await replicas.limiter.reserve()
    replicas.limiter.restart()
    replicas.limiter.unreserve()
    assert [replica.reserved for replica in replicas._replicas] == [0, 0]


def test_the_limiter_implements_the_admission_limiter_protocol():
    assert isinstance(Replicas([(InProcessClient(), "m")], "tiny").limiter_now, AdmissionLimiter)


def test_reservations_are_reset_in_each_event_loop():
    clients = [InProcessClient(), InProcessClient()]
    replicas = Replicas([(client, "m") for client in clients], "tiny")

    async def reserve_without_release() -> int:
        for _ in range(8):
            await replicas.limiter.reserve()
        return len(replicas.limiter._reserved)

    assert [asyncio.run(reserve_without_release()) for _ in range(2)] == [8, 8]
    assert [replica.reserved for replica in replicas._replicas] == [4, 4]
