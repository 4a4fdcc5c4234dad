"""Which of several servers is asked."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import aiohttp

from rove.core.errors import InfraError
from rove.vllm.server import HEALTH_PATH, Server

MAX_REMEMBERED = 100_000
"""Answers whose server is remembered, for the turn that comes after."""


class Router:
    """Requests over servers: a rollout's next turn goes where the last one was answered, everything else to the least busy.

    Args:
        servers: one or more. `under_way` and `is_failing` of each say what is to be had of it.
    """

    def __init__(self, servers: Sequence[Server]):
        self.servers = servers
        self._servers_by_prefix: OrderedDict[int, Server] = OrderedDict()

    def least_busy(self) -> Server:
        """One that answers, with least to do."""
        return min(self.servers, key=lambda server: (server.is_failing, server.active_requests))

    def choose(self, ids: Sequence[int]) -> tuple[Server, int]:
        """The server for a prompt, that which has answered the longest beginning of it or else the best; and the prompt's key."""
        if len(self.servers) == 1:
            return self.servers[0], 0
        key, home = 0, None
        for token in ids:
            key = hash((key, token))
            home = self._servers_by_prefix.get(key, home)
        return self.least_busy() if home is None or home.is_failing else home, key

    def remember(self, key: int, ids: Sequence[int], server: Server) -> None:
        """What a server has answered to the prompt with a key."""
        for token in ids:
            key = hash((key, token))
        self._servers_by_prefix[key] = server
        if len(self._servers_by_prefix) > MAX_REMEMBERED:
            self._servers_by_prefix.popitem(last=False)


Answer = TypeVar("Answer")
CHECKS_PER_LIMIT = 8
"""How often a server is asked in the time after which it is taken for hung."""
MAX_CHECK_INTERVAL_S = 10.0
"""Between two times at most."""


class HealthMonitor:
    """Gives up the requests that wait for a server which hangs.

    No request has a limit, since an answer takes as long as it takes. But as long as any waits, the server is asked again and
    again for something that its engine answers between two steps; what its HTTP process alone says would not tell.

    Args:
        server: to be watched.
        is_excused: whether it may be silent now, because it takes new weights.
    """

    def __init__(self, server: Server, is_excused: Callable[[], bool]):
        self.server = server
        self.is_busy = is_excused
        self._waiting: set[asyncio.Future[Any]] = set()
        self._given_up: set[asyncio.Future[Any]] = set()
        self._monitor: asyncio.Task[None] | None = None

    async def run(self, session: aiohttp.ClientSession, request: Coroutine[Any, Any, Answer]) -> Answer:
        """The result of a request to the server.

        Raises:
            InfraError: it hangs.
        """
        task = asyncio.ensure_future(request)
        if not self._waiting or self._monitor is None or self._monitor.done():
            self._monitor = asyncio.ensure_future(self._check_until_hung(session))
        self._waiting.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if task not in self._given_up:
                raise
            raise InfraError(
                f"it hangs: its engine has said nothing for {self.server.config.hang_seconds:g} seconds (vllm.hang_seconds)"
            ) from None
        finally:
            self._waiting.discard(task)
            self._given_up.discard(task)
            if not self._waiting and self._monitor is not None:
                self._monitor.cancel()

    async def _check_until_hung(self, session: aiohttp.ClientSession) -> None:
        """Until the server hangs."""
        limit = self.server.config.hang_seconds
        heard = time.monotonic()
        while time.monotonic() - heard < limit:
            await asyncio.sleep(min(MAX_CHECK_INTERVAL_S, limit / CHECKS_PER_LIMIT))
            if await self._responds(session, heard + limit - time.monotonic()) or self.is_busy():
                heard = time.monotonic()
        self.server.is_hung = True
        self._given_up |= self._waiting
        for task in self._waiting:
            task.cancel()

    async def _responds(self, session: aiohttp.ClientSession, seconds: float) -> bool:
        timeout = aiohttp.ClientTimeout(total=max(0.1, seconds))
        try:
            async with session.get(self.server.url + HEALTH_PATH, timeout=timeout) as answer:
                await answer.read()
        except (aiohttp.ClientError, OSError):  # TimeoutError is one of these
            return False
        return True
