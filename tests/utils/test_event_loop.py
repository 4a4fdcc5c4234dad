"""Coroutines from synchronous code: in a script, in a thread and in a notebook."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import pytest

from rove.utils.event_loop import outside_event_loop, run_async, run_in_background


async def thread_name() -> str:
    return threading.current_thread().name


def test_a_script_runs_in_its_own_thread() -> None:
    assert outside_event_loop(lambda: run_async(thread_name())) == threading.main_thread().name


async def test_a_notebook_runs_in_another_thread() -> None:
    assert outside_event_loop(lambda: run_async(thread_name())) == "rove-stage"


async def test_an_error_in_the_other_thread_is_raised_here() -> None:
    def fail() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        outside_event_loop(fail)


def test_an_error_or_an_interrupt_has_no_chain_of_errors_of_the_event_loop() -> None:
    async def fail() -> None:
        raise ValueError("wrong")

    async def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)

    for main in (fail, interrupt):
        with pytest.raises((ValueError, KeyboardInterrupt)) as raised:
            outside_event_loop(lambda main=main: run_async(main()))
        assert "".join(traceback.format_exception(raised.value)).count("Traceback") == 1


def test_an_interrupt_reaches_the_other_thread() -> None:
    ended = threading.Event()

    def work() -> None:
        try:
            time.sleep(0.2)  # until the main thread waits
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            while True:
                time.sleep(0.01)
        finally:
            ended.set()

    async def cell() -> None:
        outside_event_loop(work)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(cell())
    assert ended.is_set()


def test_threads_that_call_at_the_same_time_share_a_background_loop():
    barrier = threading.Barrier(8)

    async def loop_of() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def call() -> asyncio.AbstractEventLoop:
        barrier.wait()
        return run_in_background(loop_of())

    with ThreadPoolExecutor(8) as threads:
        loops = {future.result() for future in [threads.submit(call) for _ in range(8)]}
    assert len(loops) == 1
    with pytest.raises(ValueError, match="from the loop"):
        run_in_background(fails("from the loop"))


async def fails(text: str) -> None:
    raise ValueError(text)
