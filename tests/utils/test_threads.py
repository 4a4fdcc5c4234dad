"""Blocking functions in threads: results, errors, limited concurrency and calls that hang."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from rove.core.errors import InfraError
from rove.utils import threads
from rove.utils.threads import PendingCalls, Threads


async def test_results_and_errors_are_returned():
    pool = Threads(2)
    assert await pool.run(lambda: 7) == 7

    def fail():
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        await pool.run(fail)
    assert await pool.run(lambda: threading.current_thread().daemon)


async def test_context_variables_are_those_of_the_caller():
    name = contextvars.ContextVar("name")
    name.set("a")
    assert await Threads(1).run(name.get) == "a"


async def test_concurrency_is_limited_and_all_calls_run():
    pool, lock = Threads(3), threading.Lock()
    under_way = most = 0
    meet = threading.Barrier(3)

    def work(i: int) -> int:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        meet.wait(10)  # Blocks unless three calls run at once.
        with lock:
            under_way -= 1
        return i

    assert await asyncio.gather(*(pool.run(lambda i=i: work(i)) for i in range(12))) == list(range(12))
    assert most == 3


async def test_sequential_calls_use_one_thread():
    pool = Threads(8)
    thread_ids = {await pool.run(lambda: threading.current_thread().ident) for _ in range(50)}
    assert len(thread_ids) == 1


async def test_a_cancelled_hanging_call_does_not_block_the_next_one():
    pool, release = Threads(1), threading.Event()
    hanging = asyncio.ensure_future(pool.run(release.wait))
    await asyncio.sleep(0.05)
    queued = asyncio.ensure_future(pool.run(lambda: "never"))
    await asyncio.sleep(0)
    for task in (hanging, queued):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await pool.run(lambda: "next") == "next"
    release.set()
    assert await pool.run(lambda: "and on") == "and on"


async def test_idle_threads_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "IDLE_SECONDS", 0.01)
    pool = Threads(4)
    [thread] = {await pool.run(threading.current_thread)}
    thread.join(10)
    assert not thread.is_alive()
    assert await pool.run(lambda: "again") == "again"


def test_a_call_may_end_after_its_event_loop_is_closed():
    pool, release, running = Threads(1), threading.Event(), []

    def hang():
        running.append(threading.current_thread())
        release.wait()

    async def time_out():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await pool.run(hang)

    asyncio.run(time_out())
    [thread] = running
    release.set()
    thread.join(10)
    assert not thread.is_alive()


async def test_a_call_is_pending_until_it_ends_or_is_cancelled_before_it_starts():
    pool, release, pending = Threads(1), threading.Event(), PendingCalls()
    started = threading.Event()

    def hang() -> None:
        started.set()
        release.wait()

    hanging, queued = (asyncio.ensure_future(pool.run(hang, pending)) for _ in range(2))
    assert await asyncio.to_thread(started.wait, 60)
    assert len(pending) == 2
    for task in (queued, hanging):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(pending) == 1
    release.set()
    await asyncio.wait(pending)
    assert not pending
    assert await pool.run(lambda: len(pending), pending) == 1
    assert not pending


class ThreadLimit:
    """A machine that can start only `left` more threads."""

    def __init__(self, patch: pytest.MonkeyPatch, remaining_starts: int):
        self.remaining_starts = remaining_starts
        start = threading.Thread.start

        def start_if_any(thread: threading.Thread) -> None:
            if thread.name.startswith("rove-tool"):
                if self.remaining_starts == 0:
                    raise RuntimeError("can't start new thread")
                self.remaining_starts -= 1
            start(thread)

        patch.setattr(threading.Thread, "start", start_if_any)


async def test_calls_fail_while_no_thread_can_start_and_later_ones_succeed(monkeypatch: pytest.MonkeyPatch):
    machine, pool, ran = ThreadLimit(monkeypatch, 0), Threads(2), []
    for _ in range(3):
        with pytest.raises(InfraError, match=r"no thread can be started .*max_threads=0"):
            await pool.run(lambda: ran.append(0))
    machine.remaining_starts = 2
    assert await asyncio.wait_for(pool.run(lambda: ran), 10) == []


async def test_calls_share_the_available_threads(monkeypatch: pytest.MonkeyPatch):
    ThreadLimit(monkeypatch, 1)
    pool = Threads(4)
    calls = asyncio.gather(*(pool.run(lambda i=i: i) for i in range(6)))
    assert await asyncio.wait_for(calls, 10) == list(range(6))


async def test_queued_calls_fail_if_no_thread_can_start_for_them(monkeypatch: pytest.MonkeyPatch):
    machine, pool, release = ThreadLimit(monkeypatch, 1), Threads(1), threading.Event()
    hanging = asyncio.ensure_future(pool.run(release.wait))
    await asyncio.sleep(0.05)
    queued = asyncio.ensure_future(pool.run(lambda: "never"))
    await asyncio.sleep(0)
    hanging.cancel()
    with pytest.raises(InfraError):
        await asyncio.wait_for(queued, 10)
    machine.remaining_starts = 1
    assert await asyncio.wait_for(pool.run(lambda: "next"), 10) == "next"
    release.set()
