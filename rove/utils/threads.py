"""Run blocking functions in threads, next to the event loop; docs/decisions/tools.md explains why rove does not use asyncio's
pool.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from rove.core.errors import InfraError

T = TypeVar("T")

IDLE_SECONDS = 2.0
"""Seconds after which an idle thread ends."""

_Outcome = tuple[Any, BaseException | None]

PendingCalls = set[asyncio.Future[_Outcome]]
"""Calls that wait for a thread or run in one, including abandoned ones."""


class _Job:
    """A call and the future of its caller."""

    __slots__ = ("abandoned", "call", "context", "finished", "future", "loop", "started")

    def __init__(self, call: Callable[[], object], loop: asyncio.AbstractEventLoop):
        self.call = call
        self.loop = loop
        self.future: asyncio.Future[_Outcome] = loop.create_future()
        self.context = contextvars.copy_context()
        self.started = self.finished = self.abandoned = False

    def outcome(self) -> _Outcome:
        """Run the call and return its value or its error."""
        try:
            return self.context.run(self.call), None
        except BaseException as error:  # exit() must not end the thread and leave its caller waiting
            return None, error

    def report(self, outcome: _Outcome) -> None:
        """Pass the outcome to the caller."""
        with suppress(RuntimeError):  # the caller's loop is closed
            self.loop.call_soon_threadsafe(self._set, outcome)

    def _set(self, outcome: _Outcome) -> None:
        if not self.future.done():
            self.future.set_result(outcome)


class Threads:
    """A pool of daemon threads that are reused, and end when idle.

    A call whose caller was cancelled continues, since a thread cannot be stopped, but its thread no longer counts towards the
    limit: calls that hang do not block others. Resources that such a call uses must stay alive until the call ends: `run` keeps
    the call in `pending` until then.

    Example:
        >>> threads = Threads(8)
        >>> text = await threads.run(lambda: path.read_text())
    """

    def __init__(self, max_threads: int):
        self.max_threads = max_threads
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._unfinished = 0

    async def run(self, call: Callable[[], T], pending: PendingCalls | None = None) -> T:
        """Run a function in a thread; return its value or raise its error.

        Args:
            pending: A set that contains the call until it ends, even if its caller is cancelled.
        """
        job = _Job(call, asyncio.get_running_loop())
        with self._lock:
            self._unfinished += 1
            try:
                self._grow()
            except InfraError:
                self._unfinished -= 1
                raise
            self._jobs.put(job)
        if pending is not None:
            pending.add(job.future)
            job.future.add_done_callback(pending.discard)
        try:
            value, error = await asyncio.shield(job.future)
        except asyncio.CancelledError:
            self._abandon(job)
            raise
        if error is not None:
            raise error
        return value

    def _grow(self) -> None:
        if self._threads >= min(self._unfinished, self.max_threads):
            return
        try:
            threading.Thread(target=self._work, name="rove-tool", daemon=True).start()
        except RuntimeError as error:
            if not self._threads:  # otherwise the call waits for a running thread
                raise InfraError(
                    f"no thread can be started for a tool ({error}); raise the limit of processes (ulimit -u), or pass "
                    "max_threads=0"
                ) from error
        else:
            self._threads += 1

    def _abandon(self, job: _Job) -> None:
        with self._lock:
            job.abandoned = True
            if not job.started:
                job.future.cancel()  # it will not be started
            elif not job.finished:
                self._unfinished -= 1
                self._threads -= 1
                try:
                    self._grow()
                except InfraError as error:
                    self._refuse(error)

    def _refuse(self, error: InfraError) -> None:
        """Make the waiting calls fail with an error, because no thread can be started."""
        while not self._jobs.empty():
            self._unfinished -= 1
            self._jobs.get_nowait().report((None, error))

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=IDLE_SECONDS)
            except Empty:
                with self._lock:
                    if not self._jobs.empty():
                        continue
                    self._threads -= 1
                    return
            with self._lock:
                job.started = not job.abandoned
            outcome = job.outcome() if job.started else (None, None)
            with self._lock:
                replaced = job.started and job.abandoned  # another thread replaces this one
                job.finished = True
                if not replaced:
                    self._unfinished -= 1  # before the report: its receiver may call again immediately
            job.report(outcome)
            if replaced:
                return
