"""The workers of an isolated environment: one that many rollouts share, and others for those that are played again."""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Any, Protocol

from rove.core.errors import Error, WorkerError
from rove.core.state import State
from rove.workers import Worker
from rove.workers.worker import CallHandler as Answers

TEARDOWN_SECONDS = 30.0
LOOK_SECONDS = 5.0
"""How often a worker is asked for a sign of life."""

AGAIN_SECONDS = 1.0
"""For the second sign of life: where this process was held up itself, the first may have come unseen."""


class Answerer(Protocol):
    """Answers what a worker asks about a rollout; see `rove.remote.requests.Questions`."""

    def answer(self, which: int, conversation: int, **question: Any) -> Awaitable[dict[str, Any]]: ...  # noqa: D102
    def give_up(self, which: int) -> Awaitable[None]: ...  # noqa: D102
    def opponent(self, view: str, legal: list[str], board: Any = None) -> Awaitable[str]: ...  # noqa: D102


ASKED = ("answer", "give_up", "opponent")


class Opens(Protocol):
    """Makes workers, on this machine or on another; `rove.workers.Workers` does."""

    async def open(self, handler: Answers | None = None) -> Worker: ...  # noqa: D102
    async def aclose(self) -> None: ...  # noqa: D102


class WorkerPools(Protocol):
    """Where rollouts are played: in one room, or in several on as many machines, which may be lost."""

    def place(self) -> AbstractAsyncContextManager[None]:
        """Held for as long as a rollout is played and scored; waits where there is no room for one more."""
        ...

    async def choose(self, state: State) -> WorkerPool:
        """The room for a rollout; siblings that are scored together share one as long as it is there.

        Raises:
            WorkerError: there is none left.
        """
        ...

    async def is_lost(self, room: WorkerPool) -> bool:
        """Whether a room's machine cannot be reached any more."""
        ...

    async def tear_down(self) -> None:
        """Run the environment's `@teardown` methods, then end all workers."""
        ...


class WorkerPool:
    """Workers with rollouts in them. One room is also all `Rooms` where there is no other machine.

    Args:
        workers: makes them.
        hang_seconds: a worker that gives no sign of life for so long is killed.
    """

    def __init__(self, workers: Opens, hang_seconds: float):
        self.workers, self.hang_seconds = workers, hang_seconds
        self._numbers = itertools.count()
        self._answerers: dict[int, Answerer] = {}
        self.members: weakref.WeakSet[Any] = weakref.WeakSet()
        """Rollouts that are in it, or about to be."""
        self._left: list[int] = []
        self._shared: asyncio.Task[Worker] | None = None
        self._lost = ""
        self._opened: dict[Worker, asyncio.Task[None]] = {}  # and who looks after each

    @property
    def load(self) -> int:
        """Rollouts that are in it."""
        return len(self.members)

    def place(self) -> AbstractAsyncContextManager[None]:
        """No limit of its own."""
        return nullcontext()

    async def choose(self, state: State) -> WorkerPool:
        """This one."""
        return self

    async def is_lost(self, room: WorkerPool) -> bool:
        """Never: it is where this process is."""
        return False

    async def shared(self) -> Worker:
        """The worker that many rollouts share; a new one where it has died."""
        loop, shared = asyncio.get_running_loop(), self._shared
        if shared is None or shared.get_loop() is not loop or _is_lost(shared):
            shared = self._shared = loop.create_task(self.another())
            self._left.clear()  # they were in the one before
        return await asyncio.shield(shared)

    async def another(self) -> Worker:
        """A worker of one's own."""
        worker = await self.workers.open(self._answer)
        if self._lost:
            worker.close(self._lost)
            raise WorkerError(self._lost)
        self._opened[worker] = asyncio.create_task(self._watch(worker))
        return worker

    def enter(self, answerer: Answerer) -> int:
        """The number of a rollout, about which `answerer` is asked."""
        number = next(self._numbers)
        self._answerers[number] = answerer
        return number

    def leave(self, number: int, worker: Worker) -> None:
        """Nobody will ask for this rollout any more; a worker that had it alone ends."""
        self._answerers.pop(number, None)
        shared = self._shared
        if shared is not None and shared.done() and not _is_lost(shared) and shared.result() is worker:
            self._left.append(number)
        else:
            self._close(worker)

    def forgotten(self) -> list[int]:
        """The rollouts that the shared worker need not keep any more; each is told once."""
        left, self._left = self._left, []
        return left

    async def tear_down(self) -> None:
        """Run the environment's `@teardown` methods in the shared worker, then end all of them."""
        shared, self._shared = self._shared, None
        if shared is not None and shared.get_loop() is asyncio.get_running_loop():
            with suppress(WorkerError):
                await (await shared).call("tear_down", TEARDOWN_SECONDS)
        self.close()
        await self.workers.aclose()

    def lose(self, reason: str) -> None:
        """As `close`, where the machine is lost; a worker that comes from there later is ended, too."""
        self._lost = reason
        self.close(reason)

    def close(self, reason: str = "") -> None:
        """End all workers; who waits for an answer is told the reason."""
        for worker in [one for one in self._opened if one.loop is asyncio.get_running_loop()]:
            self._close(worker, reason)
        self._opened.clear()
        self._answerers.clear()

    def _close(self, worker: Worker, reason: str = "") -> None:
        watch = self._opened.pop(worker, None)
        if watch is not None:
            watch.cancel()
        worker.close(reason)

    async def _answer(self, name: str, args: dict[str, Any]) -> Any:
        if name not in ASKED:
            raise Error(f"an environment may not ask for '{name}'")
        return await getattr(self._answerers[args.pop("number")], name)(**args)

    async def _watch(self, worker: Worker) -> None:
        with suppress(WorkerError):
            again = min(AGAIN_SECONDS, self.hang_seconds)
            while await _answers(worker, self.hang_seconds) or await _answers(worker, again):  # noqa: ASYNC110
                await asyncio.sleep(min(LOOK_SECONDS, self.hang_seconds / 4))
            worker.close(f"its process gave no sign of life for {self.hang_seconds:g} s and was killed")


async def _answers(worker: Worker, seconds: float) -> bool:
    """Whether a worker gives a sign of life within so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await worker.request("ping")
    except TimeoutError:
        return False
    return True


def _is_lost(opening: asyncio.Task[Worker]) -> bool:
    """Whether a worker could not be opened, or has died since."""
    return opening.done() and (opening.cancelled() or opening.exception() is not None or opening.result().is_closed)
