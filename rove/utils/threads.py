"""Blocking functions beside the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from rove.core.errors import InfraError

IDLE_SECONDS = 2.0
"""A thread without work ends after so long."""

_Outcome = tuple[Any, BaseException | None]

UnderWay = set[asyncio.Future[_Outcome]]
"""Calls that wait for a thread or are in one, given up or not."""


class _Job:
    """A call, and who waits for it."""

    __slots__ = ("abandoned", "call", "context", "finished", "future", "loop", "started")

    def __init__(self, call: Callable[[], Any], loop: asyncio.AbstractEventLoop):
        self.call = call
        self.loop = loop
        self.future: asyncio.Future[_Outcome] = loop.create_future()
        self.context = contextvars.copy_context()
        self.started = self.finished = self.abandoned = False

    def outcome(self) -> _Outcome:
        """What came of the call."""
        try:
            return self.context.run(self.call), None
        except BaseException as error:  # exit() must not end the thread and leave its caller waiting
            return None, error

    def tell(self, outcome: _Outcome) -> None:
        """Wake who waits."""
        with suppress(RuntimeError):  # the loop is closed: nobody does any more
            self.loop.call_soon_threadsafe(self._set, outcome)

    def _set(self, outcome: _Outcome) -> None:
        if not self.future.done():
            self.future.set_result(outcome)


class Threads:
    """Runs functions in threads that are kept for the next call, and end by themselves when there is none.

    They are daemons: a function that never returns keeps no program from ending. A call whose caller has been cancelled
    goes on (nothing can stop a thread), but its thread no longer counts, so that those that hang do not keep others waiting.
    What such a call uses must stay until it has ended: `run` keeps it in `under_way` until then.

    Args:
        most: functions that run at once; more wait their turn.
    """

    def __init__(self, most: int):
        self.most = most
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._unfinished = 0

    async def run(self, call: Callable[[], Any], under_way: UnderWay | None = None) -> Any:
        """What `call` returns; what it raises is raised here.

        Args:
            call: takes nothing.
            under_way: holds the call for as long as it may be at work, also when its caller has been cancelled.

        Raises:
            InfraError: there is no thread, and none can be started.
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
        if under_way is not None:
            under_way.add(job.future)
            job.future.add_done_callback(under_way.discard)
        try:
            value, error = await asyncio.shield(job.future)
        except asyncio.CancelledError:
            self._abandon(job)
            raise
        if error is not None:
            raise error
        return value

    def _grow(self) -> None:
        if self._threads >= min(self._unfinished, self.most):
            return
        try:
            threading.Thread(target=self._work, name="rove-tool", daemon=True).start()
        except RuntimeError as error:
            if not self._threads:  # else the call waits for one of them
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
                job.future.cancel()  # it never will
            elif not job.finished:
                self._unfinished -= 1
                self._threads -= 1
                try:
                    self._grow()
                except InfraError as error:
                    self._refuse(error)

    def _refuse(self, error: InfraError) -> None:
        """Fail the calls that wait for a thread: there will be none."""
        while not self._jobs.empty():
            self._unfinished -= 1
            self._jobs.get_nowait().tell((None, error))

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
                replaced = job.started and job.abandoned  # another thread has its place
                job.finished = True
                if not replaced:
                    self._unfinished -= 1  # before it is told: whoever hears it may call again at once
            job.tell(outcome)
            if replaced:
                return
