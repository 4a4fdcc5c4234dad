"""Run coroutines from synchronous code: in a script, in a command, in a thread, and in a notebook."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import inspect
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_background_lock = threading.Lock()


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine like `asyncio.run`, but react to Ctrl-C immediately.

    asyncio alone cancels `main` only at its next await, and until then a batch of sampled tokens or a training step may run for
    long. Here, Ctrl-C also interrupts the running Python code. `main` then cleans up; a second Ctrl-C interrupts the cleanup.
    Only the main thread receives signals, so in any other thread this function is the same as `asyncio.run`.
    """
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(main)
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        task = loop.create_task(main)
        interrupted = False

        def ignore_errors() -> None:
            loop.set_exception_handler(lambda *_: None)  # errors of cancelled tasks are not reported

        def interrupt(*_: object) -> None:
            nonlocal interrupted
            interrupted = True
            ignore_errors()
            current = asyncio.current_task(loop)
            # `main` cancels the tasks that it waits for. Those that have not started would begin their work during the cleanup.
            for waiting in asyncio.all_tasks(loop) - {current}:
                if waiting is task or not _has_started(waiting):
                    waiting.cancel()
            if current is not None:
                raise KeyboardInterrupt
            loop.call_soon_threadsafe(lambda: None)  # wakes the loop

        previous_handler = signal.signal(signal.SIGINT, interrupt)
        try:
            return loop.run_until_complete(task)
        except (KeyboardInterrupt, asyncio.CancelledError):
            ignore_errors()
            if not interrupted:
                raise
            if not task.done():
                loop.run_until_complete(asyncio.wait([task]))
            raise KeyboardInterrupt from None  # how the loop was stopped explains nothing to the user
        finally:
            signal.signal(signal.SIGINT, previous_handler)


def _has_started(task: asyncio.Task[Any]) -> bool:
    coroutine = task.get_coro()
    return not inspect.iscoroutine(coroutine) or inspect.getcoroutinestate(coroutine) != inspect.CORO_CREATED


def in_event_loop() -> bool:
    """Return whether an event loop runs in this thread, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def outside_event_loop(call: Callable[[], T]) -> T:
    """Call a function that runs its own event loops; in a new thread if this one already runs an event loop, as in a notebook."""
    if not in_event_loop():
        return call()
    results: list[T] = []
    errors: list[BaseException] = []
    done = threading.Event()  # an interrupted `Thread.join` takes the thread for dead

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=run, name="rove-stage")
    thread.start()
    is_main = threading.current_thread() is threading.main_thread()
    # A running loop may handle Ctrl-C by cancelling its task, which waits here.
    previous_handler = signal.signal(signal.SIGINT, signal.default_int_handler) if is_main else None
    try:
        done.wait()
    except KeyboardInterrupt:
        # Signals reach only the main thread, so the interrupt is passed on to the thread that does the work.
        identity, error = ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, error)
        done.wait()
        raise
    finally:
        if is_main:
            signal.signal(signal.SIGINT, previous_handler)
    if errors:
        raise errors[0]
    return results[0]


def run_in_background(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in an event loop that all callers of this process share, and wait for its result.

    The loop runs in a separate thread, so that tasks continue between the calls of a library that calls without `await`.
    """
    with _background_lock:  # threads that called at the same time would get different loops
        loop = _background_loop()
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result()


@functools.cache
def _background_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop that runs in a thread for as long as the process."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="rove-background", daemon=True).start()
    return loop
