"""How many requests may be under way at an endpoint: a fixed number, or one that finds itself."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

START = 16
"""Requests at once before anything is known of an endpoint."""
MAXIMUM = 1024
"""Requests at once that are never exceeded when the limit finds itself."""
MIN_ROUND = 8
"""Answers that make a round, at least: a median of fewer says little."""
REFUSED_CUT = 0.9
SLOWER_CUT = 0.7
SLOWER = 2.0
"""A round's median latency over the quickest round's, from which on requests may be queueing."""
SOONER = 0.85
"""The same after a cut over before, below which they were."""
GAIN = 1.15
"""Throughput over that of half as many requests, from which on more latency is worth it."""


class Change(NamedTuple):
    """One entry of a limiter's history."""

    seconds: float
    """Since the limiter was made."""
    limit: int
    reason: str
    """"start", "grown", "refused" (HTTP 429 and the like), "unanswered" (no answer in time), "slower", or "restored" (a
    cut that did not help)."""


@runtime_checkable
class AdmissionLimiter(Protocol):
    """What `rove.groups` and `rove.evaluate` use of the limiter that a client shows as `limiter`."""

    adaptive: bool
    on_change: Callable[[Change], None] | None

    async def reserve(self) -> None:
        """Wait until one more rollout can be started."""
        ...

    def unreserve(self) -> None:
        """Its first request is about to be made, or will not be."""
        ...


class Limiter:
    """Admits requests first come, first served, so that no more than `limit` are under way at once.

    With `adaptive` the limit starts low and finds itself. It grows by one with every answer until the first cut (slow
    start), then by one a round, two in the next, and so on (a round is as many answers as the limit was at its start),
    both only while the limit is what holds requests back. Two things cut it:

    - A refusal, to 0.9 of what was under way; refusals of requests sent before that cut do not cut again. When a whole
      round is refused, nobody is admitted until the longest pause that the endpoint asked for is over.
    - A request that got no answer in time, in the same way, but nobody is ever held back for it: an endpoint that takes
      on more than it can do is not one that asks for a pause. Errors and dropped connections say nothing of its load.
    - A round that took twice as long as the quickest one, though hardly more got done than with half as many requests:
      to 0.7, to see. If answers then come sooner, requests had only queued, at the endpoint or in this process, and the
      cut stays; if not, answers simply take longer now, and the limit goes back to what it was.

    Args:
        limit: requests at once; where an adaptive limiter starts.
        adaptive: let the limit find itself, between 1 and `maximum`.
        maximum: of an adaptive limit.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        limit: int = START,
        *,
        adaptive: bool = False,
        maximum: int = MAXIMUM,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.adaptive = adaptive
        self.maximum = max(limit, maximum) if adaptive else limit
        self.under_way = 0
        self.history: deque[Change] = deque(maxlen=1000)
        """Where the limit was and why it changed, the newest last; growth is noted when it has come to a fifth."""
        self.on_change: Callable[[Change], None] | None = None
        """Called with every new entry of the history."""
        self._limit = float(limit)
        self._clock = clock
        self._began = clock()
        self._queue: deque[asyncio.Future[None]] = deque()
        self._arrivals: deque[asyncio.Future[None]] = deque()
        self._reserved = 0
        self._open_at = 0.0
        self._alarm_is_set = False
        self._slow_start = True
        self._cut_at = -math.inf
        self._rounds = 0  # since the last cut
        self._refused_in_a_row = 0
        self._round_began = self._began
        self._round_size = max(MIN_ROUND, limit)
        self._held_back = False  # in this round the limit was what held requests back
        self._latencies: list[float] = []
        self._quickest = math.inf
        self._rates: dict[int, float] = {}  # answers per second, by requests under way (half octaves)
        self._trial: tuple[float, float] | None = None  # limit and latency before a cut that is being tried
        self._note("start")

    @property
    def limit(self) -> int:
        """Requests that may be under way at once, now."""
        return int(self._limit)

    def restart(self) -> None:
        """Forget who was under way: their event loop has ended."""
        self.under_way = self._reserved = 0
        self._queue.clear()
        self._arrivals.clear()
        self._alarm_is_set = False

    async def acquire(self) -> float:
        """Wait to be admitted; returns the time of it, which `release` wants back."""
        if self._queue or self.under_way >= self.limit or self._is_closed:
            place = asyncio.get_running_loop().create_future()
            self._queue.append(place)
            self._wake_later()
            try:
                await place  # whoever wakes us has counted us in
            except asyncio.CancelledError:
                if place.done() and not place.cancelled():
                    self.under_way -= 1
                    self._wake()
                raise
        else:
            self.under_way += 1
        return self._clock()

    def release(self, admitted: float, outcome: str = "answered", pause: float = 0.0) -> None:
        """Give the place back.

        Args:
            admitted: what `acquire` returned.
            outcome: "answered", "refused" (the endpoint has too much to do), "unanswered" (not in time) or "failed"
                (which says nothing of its load).
            pause: seconds the endpoint asked to be left alone, when it refused.
        """
        try:
            if self.adaptive:
                self._learn(admitted, outcome, pause)
        finally:  # `on_change` is not ours, and may raise
            self.under_way -= 1
            self._wake()

    async def reserve(self) -> None:
        """Wait until one more rollout can be started whose first request will be admitted at once.

        Everybody who reserved must call `unreserve` when that first request is made, or will not be.
        """
        if not self._arrivals and self._has_room:
            self._reserved += 1
            return
        place = asyncio.get_running_loop().create_future()
        self._arrivals.append(place)
        self._wake_later()
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.unreserve()
            raise

    def unreserve(self) -> None:
        """See `reserve`. Whoever makes the request right after this finds its room still there."""
        self._reserved = max(0, self._reserved - 1)  # `restart` may have forgotten it
        asyncio.get_running_loop().call_soon(self._wake)

    @property
    def _is_closed(self) -> bool:
        return self._open_at > 0 and self._clock() < self._open_at

    @property
    def _has_room(self) -> bool:
        return self.under_way + self._reserved < self.limit and not self._is_closed

    def _wake(self) -> None:
        """Admit who waits: requests of running rollouts before new rollouts."""
        while self._queue and self.under_way < self.limit and not self._is_closed:
            place = self._queue.popleft()
            if not place.done():
                self.under_way += 1
                place.set_result(None)
        while self._arrivals and not self._queue and self._has_room:
            place = self._arrivals.popleft()
            if not place.done():
                self._reserved += 1
                place.set_result(None)
        self._wake_later()

    def _wake_later(self) -> None:
        """During a pause nothing is released that would wake the queue."""
        if self._is_closed and (self._queue or self._arrivals) and not self._alarm_is_set:
            self._alarm_is_set = True
            asyncio.get_running_loop().call_later(self._open_at - self._clock(), self._alarm)

    def _alarm(self) -> None:
        self._alarm_is_set = False
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
            self._cut(REFUSED_CUT * min(self._limit, self.under_way), outcome)

    def _answered(self, admitted: float) -> None:
        self._refused_in_a_row = 0
        if self.under_way + self._reserved >= self.limit:
            self._held_back = True
            self._grow()
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
        rate = len(self._latencies) / max(1e-9, self._clock() - self._round_began)
        together = rate * statistics.fmean(self._latencies)  # Little's law: what was under way while they came about
        held_back, trial = self._held_back, self._trial
        self._start_round()
        self._rounds += 1
        if trial:
            self._trial = None
            if latency > SOONER * trial[1]:
                self._limit, self._quickest = trial[0], latency
                self._note("restored")
        elif held_back and self.limit > 1 and latency > SLOWER * self._quickest and not self._pays(rate, together):
            self._trial = (self._limit, latency)
            self._cut(SLOWER_CUT * min(self._limit, together), "slower")
        self._quickest = min(self._quickest, latency)
        size = _half_octave(together)
        self._rates[size] = (rate + self._rates.get(size, rate)) / 2

    def _pays(self, rate: float, together: float) -> bool:
        """Whether more gets done than with half as many requests under way."""
        smaller = [size for size in self._rates if size <= _half_octave(together) - 2]
        return not smaller or rate > GAIN * self._rates[max(smaller)]

    def _start_round(self) -> None:
        self._latencies.clear()
        self._round_size = max(MIN_ROUND, self.limit)
        self._round_began = self._clock()
        self._held_back = False

    def _cut(self, limit: float, reason: str) -> None:
        self._limit = max(1.0, limit)
        self._slow_start = False
        self._rounds = 0
        self._cut_at = self._clock()
        self._start_round()
        self._note(reason)

    def _note(self, reason: str) -> None:
        change = Change(round(self._clock() - self._began, 3), self.limit, reason)
        self.history.append(change)
        if self.on_change is not None:
            self.on_change(change)


def _half_octave(together: float) -> int:
    return round(2 * math.log2(max(1.0, together)))
