"""The servers of an environment, or of one rollout."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from rove.core.errors import MCPServerError
from rove.mcp.connection import Connection
from rove.mcp.settings import ServerSettings


class Servers:
    """Connections to several servers, made together; one that breaks is made anew for the next call.

    Args:
        max_restarts: how often in a row a server is started again, or called up again, without a call going well in between.
    """

    def __init__(
        self, settings: Sequence[ServerSettings], start_seconds: float, call_seconds: float, max_restarts: int = 0
    ):
        self.settings = {one.name: one for one in settings}
        self.max_restarts = max_restarts
        self.loop = asyncio.get_running_loop()
        self._seconds = (start_seconds, call_seconds)
        self._connections: dict[str, Connection] = {}
        self._restarts = dict.fromkeys(self.settings, 0)
        self._locks = {name: asyncio.Lock() for name in self.settings}
        self._starts = 0
        self._start = asyncio.Lock()
        self._failed: MCPServerError | None = None

    async def start(self) -> dict[str, list[dict[str, Any]]]:
        """Start those that do not run yet, and tell the tools of all, by server.

        Raises:
            MCPServerError: one cannot be started; the others are ended.
        """
        async with self._start:
            if not self._connections:
                await self._start_all()
        return {name: connection.tools for name, connection in self._connections.items()}

    async def call(self, server: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """See `Connection.call`; a call during which the server ends is not made again."""
        connection = await self._alive(server)
        result = await connection.call(tool, arguments)
        self._restarts[server] = 0
        return result

    async def close(self) -> None:
        """End all of them."""
        connections, self._connections = self._connections, {}
        await asyncio.gather(*(connection.close() for connection in connections.values()))

    def kill(self) -> None:
        """End their processes without waiting, when their loop is gone."""
        for connection in self._connections.values():
            connection.kill()
        self._connections = {}

    async def _start_all(self) -> None:
        if self._failed is not None and self._starts > self.max_restarts:
            raise MCPServerError(f"{self._failed} (tried {self._starts} times)") from self._failed
        self._starts += 1
        connections = {name: Connection(one, *self._seconds) for name, one in self.settings.items()}
        tasks = [asyncio.create_task(connection.open()) for connection in connections.values()]
        try:
            await asyncio.gather(*tasks)
        except BaseException as error:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(connection.close() for connection in connections.values()))
            if isinstance(error, MCPServerError):
                self._failed = error
            raise
        self._connections = connections

    async def _alive(self, server: str) -> Connection:
        connection = self._connections.get(server)
        if connection is None:
            raise MCPServerError(f"MCP server '{server}' has been closed")
        if not connection.lost:
            return connection
        async with self._locks[server]:
            connection = self._connections.get(server, connection)
            if not connection.lost or not self.max_restarts:
                return connection  # a call through a lost one says how it ended
            if self._restarts[server] >= self.max_restarts:
                raise MCPServerError(
                    f"MCP server '{server}' has ended, and is not started again: {self.max_restarts} restarts in a row "
                    "did not help (max_restarts)"
                )
            self._restarts[server] += 1
            await connection.close()
            renewed = Connection(self.settings[server], *self._seconds)
            await renewed.open()
            self._connections[server] = renewed
            return renewed
