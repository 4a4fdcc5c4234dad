"""The workers of an isolated environment: a shared worker for many rollouts, and separate workers for replays."""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Any, Protocol

from rove.core.errors import Error, WorkerError
from rove.core.plain import JsonObject
from rove.core.state import State
from rove.workers import Worker
from rove.workers.worker import CallHandler

TEARDOWN_TIMEOUT_S = 30.0
HEARTBEAT_INTERVAL_S = 5.0
"""Seconds between heartbeats of a worker."""

SECOND_HEARTBEAT_S = 1.0
"""Timeout of the second heartbeat in seconds: if this process itself was blocked, it may have missed the reply to the first
heartbeat."""


class RequestHandler(Protocol):
    """Handles the calls of a worker about one rollout; see `rove.remote.rollout.ModelRequests`."""

    def respond(self, call_id: int, conversation: int, **request: Any) -> Awaitable[JsonObject]: ...  # noqa: D102
    def cancel(self, call_id: int) -> Awaitable[None]: ...  # noqa: D102
    def opponent_move(self, view: str, legal: list[str], rendering: Any = None) -> Awaitable[str]: ...  # noqa: D102


WORKER_CALLS = ("respond", "cancel", "opponent_move")
"""Methods of `RequestHandler` that a worker may call."""


class WorkerFactory(Protocol):
    """Starts workers on this machine or on another machine; `rove.workers.Workers` implements it."""

    async def open(self, handler: CallHandler | None = None) -> Worker: ...  # noqa: D102
    async def aclose(self) -> None: ...  # noqa: D102


class WorkerPools(Protocol):
    """The worker pools of an environment: a single pool, or one pool per node."""

    def slot(self) -> AbstractAsyncContextManager[None]:
        """Wait until a slot is free, and hold it while a rollout runs and is scored."""
        ...

    async def choose(self, state: State) -> WorkerPool:
        """Return the pool for a rollout. Members of a group that is scored as a whole share a pool while it exists."""
        ...

    async def is_lost(self, pool: WorkerPool) -> bool:
        """Return whether the node of a pool is unreachable."""
        ...

    async def tear_down(self) -> None:
        """Run the environment's `@teardown` methods, then end all workers."""
        ...


class WorkerPool:
    """The workers of one node, with their rollouts. On a single machine it also implements `WorkerPools`."""

    def __init__(self, workers: WorkerFactory, hang_seconds: float):
        self.workers, self.hang_seconds = workers, hang_seconds
        self._numbers = itertools.count()
        self._handlers: dict[int, RequestHandler] = {}
        self.members: weakref.WeakSet[Any] = weakref.WeakSet()
        """Rollouts that use the pool."""
        self._finished: list[int] = []
        self._shared: asyncio.Task[Worker] | None = None
        self._lost = ""
        self._opened: dict[Worker, asyncio.Task[None]] = {}  # with the task that monitors it

    @property
    def load(self) -> int:
        """Number of rollouts that use the pool."""
        return len(self.members)

    def slot(self) -> AbstractAsyncContextManager[None]:
        """Return a context manager that does nothing: there is no limit."""
        return nullcontext()

    async def choose(self, state: State) -> WorkerPool:
        """Return this pool."""
        return self

    async def is_lost(self, pool: WorkerPool) -> bool:
        """Return False: the pool is on this machine."""
        return False

    async def shared_worker(self) -> Worker:
        """Return the shared worker; start a new one if it has died."""
        loop, opening = asyncio.get_running_loop(), self._shared
        if opening is None or opening.get_loop() is not loop or _has_failed(opening):
            opening = self._shared = loop.create_task(self.open_worker())
            self._finished.clear()  # these rollouts were in the previous worker
        return await asyncio.shield(opening)  # shared: canceling one rollout must not end it for the others

    async def open_worker(self) -> Worker:
        """Start a worker and monitor it."""
        worker = await self.workers.open(self._dispatch)
        if self._lost:  # the node was lost while the worker started
            worker.close(self._lost)
            raise WorkerError(self._lost)
        self._opened[worker] = asyncio.create_task(self._monitor(worker))
        return worker

    def register(self, handler: RequestHandler) -> int:
        """Return a number for a rollout; `handler` handles the worker's calls about it."""
        number = next(self._numbers)
        self._handlers[number] = handler
        return number

    def unregister(self, number: int, worker: Worker) -> None:
        """Remove a rollout; close its worker unless it is the shared worker."""
        self._handlers.pop(number, None)
        if self._is_shared(worker):
            self._finished.append(number)
        else:
            self._close(worker)

    def _is_shared(self, worker: Worker) -> bool:
        opening = self._shared
        return opening is not None and opening.done() and not _has_failed(opening) and opening.result() is worker

    def take_finished(self, worker: Worker) -> list[int]:
        """Return the removed rollouts that `worker` can drop; each rollout is returned once."""
        if not self._is_shared(worker):
            return []
        finished, self._finished = self._finished, []
        return finished

    async def tear_down(self) -> None:
        """Run the environment's `@teardown` methods in the shared worker, then end all workers."""
        opening, self._shared = self._shared, None
        try:
            if opening is not None and opening.get_loop() is asyncio.get_running_loop():
                with suppress(WorkerError):
                    worker = await opening
                    await worker.call("tear_down", TEARDOWN_TIMEOUT_S)
        finally:  # even if `@teardown` failed
            self.close()
            await self.workers.aclose()

    def close_lost(self, reason: str) -> None:
        """Close the pool of a lost node; a worker that is still opening is closed as well."""
        self._lost = reason
        self.close(reason)

    def close(self, reason: str = "") -> None:
        """End all workers; their pending calls fail with `reason`."""
        for worker in list(self._opened):
            if worker.loop is asyncio.get_running_loop():  # those of another loop ended with it
                self._close(worker, reason)
        self._opened.clear()
        self._handlers.clear()

    def _close(self, worker: Worker, reason: str = "") -> None:
        monitor = self._opened.pop(worker, None)
        if monitor is not None:
            monitor.cancel()
        worker.close(reason)

    async def _dispatch(self, name: str, args: JsonObject) -> object:
        if name not in WORKER_CALLS:
            raise Error(f"a worker called '{name}'; expected one of {', '.join(WORKER_CALLS)}")
        handler = self._handlers[args.pop("number")]
        return await getattr(handler, name)(**args)

    async def _monitor(self, worker: Worker) -> None:
        with suppress(WorkerError):
            retry = min(SECOND_HEARTBEAT_S, self.hang_seconds)
            while await _responds(worker, self.hang_seconds) or await _responds(worker, retry):  # noqa: ASYNC110
                await asyncio.sleep(min(HEARTBEAT_INTERVAL_S, self.hang_seconds / 4))
            # Its rollouts are then replayed, each alone, which shows the one that hangs.
            worker.close(f"its process was unresponsive for {self.hang_seconds:g} s and was killed")


async def _responds(worker: Worker, seconds: float) -> bool:
    """Return whether a worker replies to a heartbeat within `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await worker.request("ping")
    except TimeoutError:
        return False
    return True


def _has_failed(opening: asyncio.Task[Worker]) -> bool:
    """Return whether a worker failed to open, or has died since."""
    return opening.done() and (opening.cancelled() or opening.exception() is not None or opening.result().is_closed)
