"""Rooms on several machines, some of which may be lost: which rollout goes where."""

from __future__ import annotations

import asyncio
import functools
import hmac
import secrets
import socket
import time
import warnings
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

from rove.core.errors import Error, WorkerError
from rove.core.state import State
from rove.remote.worker_pool import WorkerPool
from rove.workers import Worker
from rove.workers.worker import CallHandler

LOOK_SECONDS = 20.0
"""A machine that does not answer for so long is taken for lost."""
AGAIN_SECONDS = 1.0
CALL_SECONDS = 120.0
"""For a worker that is forked."""
TOKEN = 32
"""Bytes by which a worker shows who it is."""
KEPT_HOMES = 10_000
LOST = "its machine is lost"


class Node(Protocol):
    """A `rove.remote.node.Site` on some machine, as seen from here."""

    where: str
    """The machine's name."""

    async def call(self, name: str, /, *args: Any) -> Any:
        """What its method returns.

        Raises:
            WorkerError: it is gone, or the method raised.
        """
        ...

    async def lost(self) -> None:
        """Ends when it is gone, or may be."""
        ...

    def call_now(self, name: str, /, *args: Any) -> Any:
        """As `call`, for code that is not async."""
        ...

    def tell(self, name: str, /, *args: Any) -> None:
        """Call its method; nobody waits for it."""
        ...

    def end(self) -> None:
        """End it, if it is still there."""
        ...


class NodeWorkers:
    """The workers of an environment at a site; each has a connection of its own to this process.

    Args:
        site: forks them.
        name: of the environment there.
        address: of this machine, where workers find it.
    """

    def __init__(self, site: Node, name: str, address: str):
        self.site, self.name, self.address = site, name, address

    async def open(self, handler: CallHandler | None = None) -> Worker:
        """A new worker.

        Raises:
            WorkerError: it did not come to be.
        """
        token = secrets.token_bytes(TOKEN)
        with socket.create_server((self.address, 0), family=_family(self.address)) as listener:
            listener.setblocking(False)
            port = listener.getsockname()[1]
            try:
                async with asyncio.timeout(CALL_SECONDS):
                    number = await self.site.call("fork", self.name, self.address, port, token)
                    connection = await _accepted(listener, token)
            except TimeoutError as error:
                said = f"no worker of {self.site.where} came to {self.address}:{port} within {CALL_SECONDS:g} s"
                raise WorkerError(said) from error
        kill = functools.partial(self.site.tell, "kill", self.name, number)
        return Worker(connection, kill, functools.partial(self._last_words, number), handler)

    async def aclose(self) -> None:
        """End them all."""
        with suppress(WorkerError, TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await self.site.call("end", self.name)

    async def _last_words(self, number: int) -> str:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return await self.site.call("last_words", self.name, number)
        except (WorkerError, TimeoutError):
            return f" ({LOST}: {self.site.where})"


class NodePool:
    """A room at each site. A rollout goes where the fewest are; siblings that are scored together stay together.

    Args:
        sites: one for each room; None for one that is not there yet.
        opened: a new site with the environment loaded, in place of one that is lost; waited for as long as it takes.
        name, address: see `SiteWorkers`.
        together: whether siblings are scored together.
        most: rollouts in a room at a time; siblings that are scored together may be more.
        hang_seconds: see `Room`.
        wait_seconds: how long to wait for a site when there is none.
    """

    def __init__(
        self,
        sites: Sequence[Node | None],
        opened: Callable[[int], Awaitable[Node]],
        name: str,
        address: str,
        *,
        together: bool,
        most: int,
        hang_seconds: float = 120.0,
        wait_seconds: float = 60.0,
    ):
        self.sites = list(sites)
        self.name, self.address, self.together, self.most = name, address, together, most
        self.hang_seconds, self.wait_seconds = hang_seconds, wait_seconds
        self.lost = 0
        """Sites that were lost."""
        self._opened = opened
        self._rooms: dict[int, WorkerPool] = {}
        self._homes: dict[int, WorkerPool] = {}
        self._keepers: dict[int, asyncio.Task[None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._places = _Places()
        self._since = 0.0
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Held for as long as a rollout is played and scored; waits where there is no room for one more."""
        self._begin()
        await self._places.take()
        try:
            yield
        finally:
            self._places.give_back()

    async def choose(self, state: State) -> WorkerPool:
        """The room with the fewest rollouts, or that of siblings that are scored together.

        Raises:
            WorkerError: no site is left, and none has come for `wait_seconds`.
        """
        self._begin()
        while not self._rooms:
            left = self._since + self.wait_seconds - time.monotonic()
            try:
                async with asyncio.timeout(max(0.0, left)):
                    await self._changed.wait()
            except TimeoutError as error:
                raise WorkerError(
                    f"no machine is left to play on, and none came for {self.wait_seconds:g} s"
                ) from error
        home = self._homes.get(state["env_seed"]) if self.together else None
        if home is not None and home in self._rooms.values():
            return home
        room = min(self._rooms.values(), key=lambda one: one.load)
        if self.together:
            self._homes[state["env_seed"]] = room
            while len(self._homes) > KEPT_HOMES:
                del self._homes[next(iter(self._homes))]
        return room

    async def is_lost(self, room: WorkerPool) -> bool:
        """Whether a room's site is gone, or does not answer."""
        number = next((number for number, one in self._rooms.items() if one is room), None)
        if number is None:
            return True
        site = self.sites[number]
        assert site is not None
        if await _answers(site):
            return False
        if self._rooms.get(number) is room:  # else it was noticed meanwhile
            self._lose(number)
            self._keepers.pop(number).cancel()
            self._keep(number)
        return True

    async def tear_down(self) -> None:
        """Run the environment's `@teardown` methods at every site, then end all workers."""
        if self._loop is not asyncio.get_running_loop():
            return
        rooms = list(self._rooms.values())
        self._forget()
        await asyncio.gather(*(room.tear_down() for room in rooms))

    def _begin(self) -> None:
        """Open the rooms, once in every event loop."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        self._forget()
        self._loop, self._changed, self._places = loop, asyncio.Event(), _Places()
        self._since = time.monotonic()
        for number, site in enumerate(self.sites):
            if site is not None:
                self._furnish(number, site)
            self._keep(number)

    def _forget(self) -> None:
        for keeper in self._keepers.values():
            if not keeper.get_loop().is_closed():
                keeper.cancel()
        self._loop = None
        for kept in (self._keepers, self._rooms, self._homes):
            kept.clear()

    def _keep(self, number: int) -> None:
        assert self._loop is not None
        self._keepers[number] = self._loop.create_task(self._kept(number))

    async def _kept(self, number: int) -> None:
        """Look after a site, and after those that come in its place."""
        while True:
            site = self.sites[number]
            if site is None:
                try:
                    site = self.sites[number] = await self._opened(number)
                except Error as error:  # the same would come of the next one
                    warnings.warn(f"a machine of the cluster is not played on: {error}", stacklevel=2)
                    return
                self._furnish(number, site)
            await site.lost()
            if await _answers(site):  # cut off for a moment
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                self._lose(number)

    def _furnish(self, number: int, site: Node) -> None:
        self._rooms[number] = WorkerPool(NodeWorkers(site, self.name, self.address), self.hang_seconds)
        self._count()

    def _lose(self, number: int) -> None:
        room, site = self._rooms.pop(number), self.sites[number]
        self.sites[number] = None
        self.lost += 1
        self._since = time.monotonic()
        self._count()
        room.lose(LOST)
        if site is not None:
            site.end()

    def _count(self) -> None:
        """What there is now."""
        self._places.allow(max(1, len(self._rooms) * self.most))  # one at least, who says that there is no room
        if self._rooms:
            self._changed.set()
        else:
            self._changed.clear()


class _Places:
    """So many at a time; how many may change."""

    def __init__(self) -> None:
        self.most = self.taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def allow(self, most: int) -> None:
        """From now on."""
        self.most = most
        for _ in range(most - self.taken):
            self._wake()

    async def take(self) -> None:
        """Wait for a place."""
        while self.taken >= self.most:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake()  # it was told of a place that somebody else can have
                raise
        self.taken += 1

    def give_back(self) -> None:
        """A place is free again."""
        self.taken -= 1
        if self.taken < self.most:
            self._wake()

    def _wake(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return


async def _answers(site: Node) -> bool:
    """Whether it does, at the second try at the latest: at the first it may be this process that was busy."""
    for _ in range(2):
        with suppress(WorkerError, TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await site.call("about")
            return True
    return False


async def _accepted(listener: socket.socket, token: bytes) -> socket.socket:
    """The connection of whoever knows the token."""
    loop = asyncio.get_running_loop()
    while True:
        connection, _ = await loop.sock_accept(listener)
        told = b""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                while len(told) < len(token) and (piece := await loop.sock_recv(connection, len(token) - len(told))):
                    told += piece
        if hmac.compare_digest(told, token):
            return connection
        connection.close()


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
