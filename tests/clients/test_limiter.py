"""Limiter: concurrency limit, first-in-first-out order, and an adaptive limit that finds a server's capacity."""

from __future__ import annotations

import asyncio
import heapq
import statistics
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rove.clients.limiter import START_LIMIT, AdmissionLimiter, Change, Limiter


async def test_the_limit_holds_and_requests_are_admitted_in_order():
    limiter = Limiter(2)
    order: list[int] = []

    async def send_request(number: int) -> None:
        admitted = await limiter.acquire()
        order.append(number)
        assert limiter.under_way <= 2
        await asyncio.sleep(0)
        limiter.release(admitted)

    await asyncio.gather(*(send_request(number) for number in range(20)))
    assert order == list(range(20))
    assert limiter.under_way == 0


@given(cancelled=st.sets(st.integers(0, 9)), limit=st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_cancelled_requests_release_their_capacity(cancelled: set[int], limit: int):
    async def main() -> None:
        limiter = Limiter(limit)

        async def send_request() -> None:
            admitted = await limiter.acquire()
            try:
                await asyncio.sleep(0.001)
            finally:
                limiter.release(admitted)

        tasks = [asyncio.create_task(send_request()) for _ in range(10)]
        await asyncio.sleep(0)
        for number in cancelled:
            tasks[number].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert limiter.under_way == 0
        async with asyncio.timeout(5):
            for _ in range(limit):
                await limiter.acquire()

    asyncio.run(main())


async def test_rollouts_reserve_capacity_before_they_start():
    limiter = Limiter(2, adaptive=True, maximum=2)
    for _ in range(2):
        await limiter.reserve()
    third = asyncio.create_task(limiter.reserve())
    await asyncio.sleep(0)
    assert not third.done()
    limiter.unreserve()
    admitted = await limiter.acquire()  # uses the reserved capacity
    await asyncio.sleep(0.001)
    assert not third.done()
    limiter.release(admitted)
    await third
    fourth = asyncio.create_task(limiter.reserve())
    await asyncio.sleep(0)
    fourth.cancel()
    await asyncio.wait([fourth])
    limiter.unreserve()
    limiter.unreserve()
    await asyncio.sleep(0.001)
    assert limiter._reserved == 0


async def test_a_pause_blocks_admission_until_it_ends():
    time_s = 0.0
    limiter = Limiter(1, adaptive=True, clock=lambda: time_s)
    limiter.release(await limiter.acquire(), "refused", pause=0.05)
    waiting = asyncio.create_task(limiter.acquire())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    time_s = 1.0
    await asyncio.wait_for(waiting, 5)


@pytest.mark.parametrize("outcome", ["answered", "refused", "unanswered"])
async def test_a_failing_callback_costs_no_capacity(outcome: str):
    def fail(change: Change) -> None:
        raise OSError("disk full")

    limiter = Limiter(1, adaptive=True)
    limiter.on_change = fail
    admitted = await limiter.acquire()
    waiting = asyncio.create_task(limiter.acquire())
    await asyncio.sleep(0)
    with pytest.raises(OSError, match="disk full"):
        limiter.release(admitted, outcome)
    await asyncio.wait_for(waiting, 5)
    assert limiter.under_way == 1


async def test_a_reservation_cleared_by_restart_is_not_released_twice():
    limiter = Limiter(1, adaptive=True)
    await limiter.reserve()
    limiter.restart()
    limiter.unreserve()
    assert limiter._reserved == 0


def test_a_limiter_implements_the_admission_limiter_protocol():
    assert isinstance(Limiter(), AdmissionLimiter)
    assert not isinstance(asyncio.Semaphore(), AdmissionLimiter)


SimulatedResponse = tuple[float, str]


def simulate(
    serve: Callable[[float, int], SimulatedResponse], *, requests: int = 20_000, limiter: Limiter | None = None
) -> tuple[Limiter, list[float], float]:
    """Simulate a limiter and a server in virtual time: `serve(now, under_way)` returns latency and outcome.

    Return the limiter, its limit after every response, and the virtual seconds elapsed.
    """
    time_s = 0.0
    limiter = limiter or Limiter(adaptive=True, clock=lambda: time_s)
    limiter._clock, limiter._created, limiter._round_started = (lambda: time_s), 0.0, 0.0
    events: list[tuple[float, int, float, str]] = []
    limits: list[float] = []
    sent = 0
    while sent < requests or events:
        while sent < requests and limiter.under_way < limiter.limit and time_s >= limiter._open_at:
            limiter.under_way += 1
            latency, outcome = serve(time_s, limiter.under_way)
            heapq.heappush(events, (time_s + latency, sent, time_s, outcome))
            sent += 1
        if not events:
            time_s = limiter._open_at
            continue
        time_s, _, admitted, outcome = heapq.heappop(events)
        limiter.release(admitted, outcome, 0.0)
        limits.append(limiter.limit)
    return limiter, limits, time_s


@pytest.fixture(autouse=True)
async def loop_for_the_limiter():
    """Provide an event loop, because `release` may schedule a timer."""


@pytest.mark.parametrize("capacity", [5, 50, 300])
def test_the_limit_settles_at_the_capacity_of_a_server_that_rejects_requests(capacity: int):
    def serve(time_s: float, under_way: int) -> SimulatedResponse:
        return (0.5, "answered") if under_way <= capacity else (0.01, "refused")

    _, limits, _ = simulate(serve)
    settled = statistics.mean(limits[len(limits) // 2 :])
    assert abs(settled - capacity) <= max(1, 0.1 * capacity)


def test_the_limit_grows_to_the_maximum_without_failures():
    limiter, limits, _ = simulate(lambda time_s, under_way: (0.5, "answered"))
    assert limits[-1] == limiter.maximum
    assert limits.index(limiter.maximum) < 3 * limiter.maximum  # slow start doubles every round


def test_the_limit_stays_near_the_capacity_of_a_server_with_fixed_throughput():
    def serve(time_s: float, under_way: int) -> SimulatedResponse:  # more than 64 at a time add no throughput
        return (0.1 * max(1.0, under_way / 64), "answered")

    _, limits, _ = simulate(serve)
    settled = limits[len(limits) // 2 :]
    assert min(settled) >= 40
    assert max(settled) <= 200


def test_higher_latency_with_higher_throughput_does_not_reduce_the_limit():
    def serve(
        time_s: float, under_way: int
    ) -> SimulatedResponse:  # like a GPU: at 512, 10x the latency, 50x the throughput
        return (0.1 * (1 + 9 * under_way / 512), "answered")

    _limiter, limits, _ = simulate(serve)
    assert limits[-1] > 100
    assert max(limits) >= 256


def test_a_later_rise_of_latency_does_not_reduce_the_limit_for_long():
    def serve(
        time_s: float, under_way: int
    ) -> SimulatedResponse:  # longer conversations: five times the latency at any limit
        return (0.5 if time_s < 20 else 2.5, "answered")

    _, limits, _ = simulate(serve, limiter=Limiter(adaptive=True, maximum=100))
    assert statistics.mean(limits[len(limits) // 2 :]) > 80


def test_few_requests_do_not_grow_the_limit():
    limiter = Limiter(adaptive=True)
    for _ in range(100):
        limiter.under_way += 1
        limiter.release(limiter._clock())
    assert limiter.limit == START_LIMIT


async def test_the_history_records_the_reason_for_each_change():
    reasons: list[str] = []
    limiter = Limiter(4, adaptive=True)
    limiter.on_change = lambda change: reasons.append(change.reason)
    admitted = [await limiter.acquire() for _ in range(4)]
    limiter.release(admitted[0])
    limiter.release(admitted[1], "refused")
    limiter.release(admitted[2], "refused")  # sent before the reduction: no further reduction
    assert [change.reason for change in limiter.history] == ["start", "grown", "refused"]
    assert reasons == ["grown", "refused"]
    assert limiter.limit < 4


# Requests that time out


@pytest.mark.parametrize("capacity", [5, 50, 300])
def test_the_limit_settles_at_the_capacity_of_a_server_where_requests_time_out(capacity: int):
    def serve(time_s: float, under_way: int) -> SimulatedResponse:
        return (0.5, "answered") if under_way <= capacity else (5.0, "unanswered")

    _, limits, _ = simulate(serve)
    settled = statistics.mean(limits[len(limits) // 2 :])
    assert 0.6 * capacity <= settled <= 1.2 * capacity


def test_the_limit_falls_to_one_if_all_requests_time_out():
    limiter, limits, _ = simulate(lambda time_s, under_way: (5.0, "unanswered"), limiter=Limiter(500, adaptive=True))
    assert limits[-1] == 1
    assert limiter.history[1].reason == "unanswered"


async def test_timeouts_reduce_the_limit_once_per_round_without_a_pause():
    limiter = Limiter(10, adaptive=True)
    admitted = [await limiter.acquire() for _ in range(10)]
    for admission in admitted:
        limiter.release(admission, "unanswered", pause=60.0)
    assert limiter.limit == 9
    assert not limiter._is_closed


def test_other_errors_do_not_change_the_limit():
    _, limits, _ = simulate(
        lambda time_s, under_way: (0.5, "failed"), requests=1000, limiter=Limiter(50, adaptive=True)
    )
    assert set(limits) == {50}
