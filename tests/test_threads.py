"""Blocking functions beside the loop: what they return or raise, how many at once, and what becomes of those that hang."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from rove import threads
from rove.threads import Threads


async def test_results_and_errors_come_back():
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


async def test_no_more_run_at_once_than_allowed_and_all_get_their_turn():
    pool, lock = Threads(3), threading.Lock()
    under_way = most = 0
    meet = threading.Barrier(3)

    def work(i: int) -> int:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        meet.wait(10)  # three at a time, or nobody gets on
        with lock:
            under_way -= 1
        return i

    assert await asyncio.gather(*(pool.run(lambda i=i: work(i)) for i in range(12))) == list(range(12))
    assert most == 3


async def test_one_caller_after_the_other_needs_one_thread():
    pool = Threads(8)
    names = {await pool.run(lambda: threading.current_thread().ident) for _ in range(50)}
    assert len(names) == 1


async def test_a_call_that_hangs_keeps_nobody_waiting_once_it_is_given_up():
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


async def test_threads_without_work_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "IDLE_SECONDS", 0.01)
    pool = Threads(4)
    [thread] = {await pool.run(threading.current_thread)}
    thread.join(10)
    assert not thread.is_alive()
    assert await pool.run(lambda: "again") == "again"


def test_a_loop_that_is_gone_is_not_told():
    pool, release, at_work = Threads(1), threading.Event(), []

    def hang():
        at_work.append(threading.current_thread())
        release.wait()

    async def leave():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await pool.run(hang)

    asyncio.run(leave())
    [thread] = at_work
    release.set()
    thread.join(10)
    assert not thread.is_alive()
