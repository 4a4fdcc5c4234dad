"""Choose the server of each request, and detect servers that stop responding."""

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
"""Maximum number of responses whose server is remembered for the next turn."""


class Router:
    """Load balancing: the next turn of a rollout goes to the server of the previous turn, whose prefix cache has it. All other
    requests go to the least busy server.

    Args:
        servers: At least one; their `active_requests` and `is_failing` are used.
    """

    def __init__(self, servers: Sequence[Server]):
        self.servers = servers
        self._servers_by_prefix: OrderedDict[int, Server] = OrderedDict()

    def least_busy(self) -> Server:
        """Return the responding server with the fewest active requests."""
        return min(self.servers, key=lambda server: (server.is_failing, server.active_requests))

    def choose(self, ids: Sequence[int]) -> tuple[Server, int]:
        """Return the server for a prompt (the server that has computed its longest prefix, else the least busy server) and the
        prompt's key.
        """
        if len(self.servers) == 1:
            return self.servers[0], 0
        # The hash of a prefix is computed from that of the prefix before it, so one pass looks up all prefixes.
        key, server = 0, None
        for token in ids:
            key = hash((key, token))
            server = self._servers_by_prefix.get(key, server)
        if server is None or server.is_failing:
            server = self.least_busy()
        return server, key

    def remember(self, key: int, ids: Sequence[int], server: Server) -> None:
        """Record that a server generated `ids` after the prompt with this key."""
        for token in ids:
            key = hash((key, token))
        self._servers_by_prefix[key] = server
        if len(self._servers_by_prefix) > MAX_REMEMBERED:
            self._servers_by_prefix.popitem(last=False)


Answer = TypeVar("Answer")
CHECKS_PER_LIMIT = 8
"""Number of health checks within `hang_seconds`."""
MAX_CHECK_INTERVAL_S = 10.0
"""Maximum seconds between two health checks."""


class HealthMonitor:
    """Cancels the requests to a server if it hangs.

    Requests have no time limit, because long completions take a long time. While requests wait, the monitor polls a route that
    the engine itself answers between two steps; other routes respond even if the engine hangs.
    """

    def __init__(self, server: Server, is_busy: Callable[[], bool]):
        self.server = server
        self.is_busy = is_busy
        self._waiting: set[asyncio.Future[Any]] = set()
        self._cancelled: set[asyncio.Future[Any]] = set()
        self._monitor: asyncio.Task[None] | None = None

    async def run(self, session: aiohttp.ClientSession, request: Coroutine[object, object, Answer]) -> Answer:
        """Return the result of a request to the server."""
        task = asyncio.ensure_future(request)
        if not self._waiting or self._monitor is None or self._monitor.done():
            self._monitor = asyncio.ensure_future(self._check_until_hung(session))
        self._waiting.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if task not in self._cancelled:
                raise
            raise InfraError(
                f"it hangs: its engine has not responded for {self.server.config.hang_seconds:g} seconds (vllm.hang_seconds)"
            ) from None
        finally:
            self._waiting.discard(task)
            self._cancelled.discard(task)
            if not self._waiting and self._monitor is not None:
                self._monitor.cancel()

    async def _check_until_hung(self, session: aiohttp.ClientSession) -> None:
        """Poll the server until it hangs; then cancel the waiting requests."""
        limit = self.server.config.hang_seconds
        last_response = time.monotonic()
        while time.monotonic() - last_response < limit:
            await asyncio.sleep(min(MAX_CHECK_INTERVAL_S, limit / CHECKS_PER_LIMIT))
            remaining = last_response + limit - time.monotonic()
            if await self._responds(session, remaining) or self.is_busy():
                last_response = time.monotonic()
        self.server.is_hung = True
        self._cancelled |= self._waiting
        for task in self._waiting:
            task.cancel()

    async def _responds(self, session: aiohttp.ClientSession, seconds: float) -> bool:
        timeout = aiohttp.ClientTimeout(total=max(0.1, seconds))
        try:
            async with session.get(self.server.url + HEALTH_PATH, timeout=timeout) as answer:
                await answer.read()
        except (aiohttp.ClientError, OSError):  # includes TimeoutError
            return False
        return True
