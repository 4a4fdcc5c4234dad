"""Limit the concurrent requests at an endpoint, to a fixed number or adaptively."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

START_LIMIT = 16
"""Number of concurrent requests with which an adaptive limit starts."""
MAX_LIMIT = 1024
"""Upper bound of an adaptive limit."""
MIN_ROUND_SIZE = 8
"""Minimum number of responses in a round; the median of fewer latencies means little."""
OVERLOAD_FACTOR = 0.9
"""Factor by which a refusal or timeout reduces the limit."""
LATENCY_FACTOR = 0.7
"""Factor by which a slow round reduces the limit."""
LATENCY_RATIO = 2.0
"""Ratio between the median latencies of a round and of the fastest round above which requests may be queueing."""
IMPROVED_RATIO = 0.85
"""Maximum ratio between the median latencies after and before a cut for which the cut is kept."""
MIN_THROUGHPUT_RATIO = 1.15
"""Ratio between the throughput and the throughput with half as many requests above which the higher latency is accepted."""


class Change(NamedTuple):
    """One entry of the history of a limiter."""

    seconds: float
    """Seconds since the limiter was created."""
    limit: int
    reason: str
    """Reason for the change: "start", "grown", "refused" (HTTP 429 etc.), "unanswered" (timeout), "slower", or "restored"
    (after a cut that did not help)."""


@runtime_checkable
class AdmissionLimiter(Protocol):
    """The part of a limiter that `rove.rollouts` uses to start rollouts only when their first request can be sent."""

    adaptive: bool
    on_change: Callable[[Change], None] | None

    async def reserve(self) -> None:
        """Wait until one more rollout can start."""
        ...

    def unreserve(self) -> None:
        """Give up the reservation, because the first request is about to be sent or will never be sent."""
        ...


class Limiter:
    """Admits requests in order of arrival, at most `limit` concurrently.

    With `adaptive=True` the limit starts low and adapts. It grows by one per response until the first cut (slow start), then
    by one in the next round, two in the round after it, and so on; a round is as many responses as the limit at its start. It
    grows only while requests are waiting. Three events cut the limit:

    - Refusal: the new limit is 0.9 of the concurrent requests. Refusals of requests sent before the cut do not cut again. If a
      whole round is refused, no request is admitted until the longest requested pause is over.
    - Timeout: the same, but without a pause. Errors and dropped connections do not count: they are unrelated to the load.
    - Slow round: the limit is multiplied by 0.7 if a round took twice as long as the fastest round, with hardly more throughput
      than half as many requests. If latency then drops, requests had been queueing, and the cut stays; otherwise, the old limit
      is restored.

    Args:
        limit: maximum number of concurrent requests; for an adaptive limiter, the initial limit.
        adaptive: whether to adapt the limit between 1 and `maximum`.
        clock: a monotonic clock in seconds.

    Example:
        limiter = Limiter(adaptive=True)
        admitted = await limiter.acquire()
        ...
        limiter.release(admitted, "answered")
    """

    def __init__(
        self,
        limit: int = START_LIMIT,
        *,
        adaptive: bool = False,
        maximum: int = MAX_LIMIT,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.adaptive = adaptive
        self.maximum = max(limit, maximum) if adaptive else limit
        self.under_way = 0
        self.history: deque[Change] = deque(maxlen=1000)
        """Changes of the limit, the newest last; growth is recorded in steps of a fifth."""
        self.on_change: Callable[[Change], None] | None = None
        """Called with every new entry of the history."""
        self._limit = float(limit)
        self._clock = clock
        self._created = clock()
        self._queue: deque[asyncio.Future[None]] = deque()
        self._arrivals: deque[asyncio.Future[None]] = deque()
        self._reserved = 0
        self._open_at = 0.0
        self._timer_is_set = False
        self._slow_start = True
        self._cut_at = -math.inf
        self._rounds = 0
        """Number of rounds since the last cut."""
        self._refused_in_a_row = 0
        self._round_started = self._created
        self._round_size = max(MIN_ROUND_SIZE, limit)
        self._was_full = False
        """Whether requests waited for the limit in this round."""
        self._latencies: list[float] = []
        self._lowest_latency = math.inf
        """Lowest median latency of a round."""
        self._rates: dict[int, float] = {}
        """Answers per second by the number of concurrent requests, in half octaves."""
        self._trial: tuple[float, float] | None = None
        """Limit and latency before a cut that is on trial."""
        self._note("start")

    @property
    def limit(self) -> int:
        """The current limit of concurrent requests."""
        return int(self._limit)

    def restart(self) -> None:
        """Forget all requests: their event loop has ended."""
        self.under_way = self._reserved = 0
        self._queue.clear()
        self._arrivals.clear()
        self._timer_is_set = False

    async def acquire(self) -> float:
        """Wait for admission; return its time, to be passed to `release`."""
        if self._queue or self.under_way >= self.limit or self._is_closed:
            await self._wait_in(self._queue, self._retract)  # `_wake` has already counted this request
        else:
            self.under_way += 1
        return self._clock()

    def release(self, admitted: float, outcome: str = "answered", pause: float = 0.0) -> None:
        """End a request.

        Args:
            outcome: "answered", "refused" (the endpoint is overloaded), "unanswered" (timeout) or "failed" (unrelated
                to the load).
            pause: seconds of pause that a refusing endpoint requested.
        """
        try:
            if self.adaptive:
                self._learn(admitted, outcome, pause)
        finally:  # `on_change` is foreign code and may raise
            self._retract()

    async def _wait_in(self, queue: deque[asyncio.Future[None]], give_back: Callable[[], None]) -> None:
        """Wait until `_wake` admits this task; call `give_back` if the task is cancelled after its admission."""
        waiter = asyncio.get_running_loop().create_future()
        queue.append(waiter)
        self._wake_later()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                give_back()
            raise

    def _retract(self) -> None:
        self.under_way -= 1
        self._wake()

    async def reserve(self) -> None:
        """Wait until a new rollout's first request would be admitted at once.

        Call `unreserve` right before that request, or when it will not be sent.
        """
        if not self._arrivals and self._has_room:
            self._reserved += 1
            return
        await self._wait_in(self._arrivals, self.unreserve)

    def unreserve(self) -> None:
        """Give up a reservation. A request sent right after this call is still admitted at once."""
        self._reserved = max(0, self._reserved - 1)  # `restart` may have cleared it
        asyncio.get_running_loop().call_soon(self._wake)

    @property
    def _is_closed(self) -> bool:
        return self._open_at > 0 and self._clock() < self._open_at

    @property
    def _has_room(self) -> bool:
        return self.under_way + self._reserved < self.limit and not self._is_closed

    def _wake(self) -> None:
        """Admit waiting requests of running rollouts, then waiting new rollouts."""
        while self._queue and self.under_way < self.limit and not self._is_closed:
            waiter = self._queue.popleft()
            if not waiter.done():
                self.under_way += 1
                waiter.set_result(None)
        while self._arrivals and not self._queue and self._has_room:
            waiter = self._arrivals.popleft()
            if not waiter.done():
                self._reserved += 1
                waiter.set_result(None)
        self._wake_later()

    def _wake_later(self) -> None:
        """Set a timer for the end of a pause, because no release wakes the queue during the pause."""
        if self._is_closed and (self._queue or self._arrivals) and not self._timer_is_set:
            self._timer_is_set = True
            asyncio.get_running_loop().call_later(self._open_at - self._clock(), self._on_timer)

    def _on_timer(self) -> None:
        self._timer_is_set = False
        self._wake()

    def _learn(self, admitted: float, outcome: str, pause: float) -> None:
        if outcome == "answered":
            self._answered(admitted)
        elif outcome == "refused":
            self._refused_in_a_row += 1
            if self._refused_in_a_row >= self.limit:
                self._open_at = max(self._open_at, self._clock() + pause)
        if outcome in ("refused", "unanswered") and admitted >= self._cut_at:
            self._trial = None
            self._cut(OVERLOAD_FACTOR * min(self._limit, self.under_way), outcome)

    def _answered(self, admitted: float) -> None:
        self._refused_in_a_row = 0
        if self.under_way + self._reserved >= self.limit:
            self._was_full = True
            self._grow()
        # Requests that were sent before a cut show the latency of the old limit.
        if admitted >= self._cut_at:
            self._latencies.append(self._clock() - admitted)
            if len(self._latencies) >= self._round_size:
                self._end_round()

    def _grow(self) -> None:
        if self.limit >= self.maximum or self._trial:
            return
        step = 1.0 if self._slow_start else max(1, self._rounds) / self._limit
        self._limit = min(float(self.maximum), self._limit + step)
        if self.limit >= 1.2 * self.history[-1].limit:
            self._note("grown")

    def _end_round(self) -> None:
        latency = statistics.median(self._latencies)
        rate = len(self._latencies) / max(1e-9, self._clock() - self._round_started)
        concurrency = rate * statistics.fmean(self._latencies)  # Little's law: mean number of concurrent requests
        was_full, trial = self._was_full, self._trial
        self._start_round()
        self._rounds += 1
        is_slow = latency > LATENCY_RATIO * self._lowest_latency
        if trial:
            # Latency alone may not lower the limit: conversations grow, and runs with longer turns starved (benchmarks/LOG.md).
            self._trial = None
            old_limit, old_latency = trial
            if latency > IMPROVED_RATIO * old_latency:
                self._limit, self._lowest_latency = old_limit, latency
                self._note("restored")
        elif was_full and self.limit > 1 and is_slow and not self._pays(rate, concurrency):
            self._trial = (self._limit, latency)
            self._cut(LATENCY_FACTOR * min(self._limit, concurrency), "slower")
        self._lowest_latency = min(self._lowest_latency, latency)
        size = _half_octave(concurrency)
        self._rates[size] = (rate + self._rates.get(size, rate)) / 2

    def _pays(self, rate: float, concurrency: float) -> bool:
        """Return whether throughput is clearly higher than with half as many requests."""
        # Not than the best throughput so far: the limit grows by a few percent per round, and a server that only queued the
        # additional requests never looked slower (benchmarks/LOG.md).
        smaller = [size for size in self._rates if size <= _half_octave(concurrency) - 2]
        return not smaller or rate > MIN_THROUGHPUT_RATIO * self._rates[max(smaller)]

    def _start_round(self) -> None:
        self._latencies.clear()
        self._round_size = max(MIN_ROUND_SIZE, self.limit)
        self._round_started = self._clock()
        self._was_full = False

    def _cut(self, limit: float, reason: str) -> None:
        self._limit = max(1.0, limit)
        self._slow_start = False
        self._rounds = 0
        self._cut_at = self._clock()
        self._start_round()
        self._note(reason)

    def _note(self, reason: str) -> None:
        change = Change(round(self._clock() - self._created, 3), self.limit, reason)
        self.history.append(change)
        if self.on_change is not None:
            self.on_change(change)


def _half_octave(concurrency: float) -> int:
    return round(2 * math.log2(max(1.0, concurrency)))
