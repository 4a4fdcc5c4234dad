"""Connections to the MCP servers of an environment or a rollout."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rove.core.errors import Error, MCPServerError, ToolCallError
from rove.core.plain import JsonMapping, JsonObject
from rove.mcp import sdk
from rove.mcp.process import ServerProcess
from rove.mcp.settings import ServerSettings


class Connection:
    """A session with one server; calls may be concurrent.

    A separate task holds the session, because the SDK's contexts must be exited by the task that entered them.
    """

    def __init__(self, settings: ServerSettings, start_seconds: float, call_seconds: float):
        self.settings = settings
        self.start_seconds = start_seconds
        self.call_seconds = call_seconds
        self.tools: list[JsonObject] = []
        """Tool definitions with the protocol's names."""
        self._session: sdk.Session | None = None
        self._broken = False
        self._process: ServerProcess | None = None
        self._closing = asyncio.Event()
        self._ready = asyncio.Event()
        self._holder: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start the server and list its tools."""
        self._holder = asyncio.create_task(self._hold_session(), name=f"mcp {self.settings.name}")
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait({self._holder, ready}, timeout=self.start_seconds, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._abandon()
            raise
        finally:
            ready.cancel()
        if self._ready.is_set():
            return
        if not self._holder.done():
            timeout = self._error(f"has not listed its tools within {self.start_seconds:g} s")
            await self._abandon()
            raise timeout
        raise await self._connection_error("could not be started")

    @property
    def lost(self) -> bool:
        """Whether the connection has ended."""
        if self._broken or self._session is None or self._holder is None:
            return True
        return self._holder.done() or self._session.is_lost()

    async def call(self, tool: str, arguments: JsonMapping) -> JsonObject:
        """Call a tool and return its result with the protocol's names."""
        if self.lost:
            raise await self._connection_error("has ended")
        assert self._session is not None
        assert self._holder is not None
        call = asyncio.create_task(self._session.call(tool, arguments))
        try:
            await asyncio.wait({call, self._holder}, timeout=self.call_seconds, return_when=asyncio.FIRST_COMPLETED)
            if call.done() and not call.cancelled():
                return await self._outcome(call)
        finally:
            if not call.done():
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
        if self.lost:
            raise await self._connection_error("ended during the call")
        raise ToolCallError(f"{tool} has not returned within {self.call_seconds:g} s")

    async def _outcome(self, call: asyncio.Task[JsonObject]) -> JsonObject:
        error = call.exception()
        if error is None:
            return call.result()
        assert self._session is not None
        self._broken = self._broken or self._session.is_lost(error)
        if self.lost:
            raise await self._connection_error("ended during the call", error) from error
        raise ToolCallError(sdk.message_of(error)) from error

    async def close(self) -> None:
        """End the session, and the process if the server is a command. Errors while they end are ignored."""
        self._closing.set()
        if self._holder is None:
            return
        try:
            await asyncio.gather(self._holder, return_exceptions=True)
        except asyncio.CancelledError:
            await self._abandon()
            raise

    def kill(self) -> None:
        """Kill the process without waiting; works in any event loop, and without one."""
        if self._process is not None:
            self._process.kill()

    async def _hold_session(self) -> None:
        if self.settings.command:
            self._process = await sdk.start_process(self.settings)
        try:
            async with sdk.connected(self.settings, self._process, self.call_seconds + 10.0) as session:
                self.tools = await session.tools()
                self._session = session
                self._ready.set()
                await self._closing.wait()
        finally:
            self.kill()  # if no session was opened that would have ended it

    async def _abandon(self) -> None:
        if self._holder is not None:
            self._holder.cancel()
            await asyncio.gather(self._holder, return_exceptions=True)

    async def _connection_error(self, event: str, error: BaseException | None = None) -> Error:
        """Return the error for a connection that broke or could not be opened."""
        if self._process is not None:
            await self._process.settle()
        holder = self._holder
        if error is None and holder is not None and holder.done() and not holder.cancelled():
            error = holder.exception()
        if error is None:
            return self._error(event)
        first = sdk.first_error(error)
        if isinstance(first, Error):  # has a complete message
            return first
        failure = self._error(f"{event} ({sdk.message_of(error)})")
        failure.__cause__ = error
        return failure

    def _error(self, event: str) -> MCPServerError:
        message = f"MCP server '{self.settings.name}' {event}"
        if self._process is not None and self._process.last_output:
            message += f"; {self._process.last_output}"
        return MCPServerError(message)


class Servers:
    """Connections to several servers, opened together; a broken connection is reopened for the next call.

    Args:
        settings: the servers.
        start_seconds, call_seconds: time limits in seconds.
        max_restarts: consecutive restarts of a server without a successful call in between.
    """

    def __init__(
        self, settings: Sequence[ServerSettings], start_seconds: float, call_seconds: float, max_restarts: int = 0
    ):
        self.settings = {server.name: server for server in settings}
        self.max_restarts = max_restarts
        self.loop = asyncio.get_running_loop()
        self._seconds = (start_seconds, call_seconds)
        self._connections: dict[str, Connection] = {}
        self._restarts = dict.fromkeys(self.settings, 0)
        self._locks = {name: asyncio.Lock() for name in self.settings}
        self._starts = 0
        self._start = asyncio.Lock()
        self._failed: MCPServerError | None = None

    async def start(self) -> dict[str, list[JsonObject]]:
        """Start all servers if needed, and return their tools by server.

        Raises:
            MCPServerError: a server cannot be started; the other servers are then ended.
        """
        async with self._start:
            if not self._connections:
                await self._start_all()
        return {name: connection.tools for name, connection in self._connections.items()}

    async def call(self, server: str, tool: str, arguments: JsonMapping) -> JsonObject:
        """Call a tool; see `Connection.call`. If the server ends during a call, the call is not repeated."""
        connection = await self._alive(server)
        result = await connection.call(tool, arguments)
        self._restarts[server] = 0
        return result

    async def close(self) -> None:
        """End all servers."""
        connections, self._connections = self._connections, {}
        await asyncio.gather(*(connection.close() for connection in connections.values()))

    def kill(self) -> None:
        """Kill all processes without waiting, after their event loop has ended."""
        for connection in self._connections.values():
            connection.kill()
        self._connections = {}

    async def _start_all(self) -> None:
        if self._failed is not None and self._starts > self.max_restarts:
            raise MCPServerError(f"{self._failed} (tried {self._starts} times)") from self._failed
        self._starts += 1
        connections = {name: Connection(settings, *self._seconds) for name, settings in self.settings.items()}
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
        connection = self._opened(server)
        if not connection.lost:
            return connection
        async with self._locks[server]:  # concurrent calls of a lost server restart it once
            connection = self._opened(server)
            if not connection.lost or not self.max_restarts:
                return connection  # a call through a lost connection reports how it ended
            if self._restarts[server] >= self.max_restarts:
                raise MCPServerError(
                    f"MCP server '{server}' has ended and is not restarted: {self.max_restarts} consecutive restarts "
                    "failed (max_restarts)"
                )
            self._restarts[server] += 1
            await connection.close()
            renewed = Connection(self.settings[server], *self._seconds)
            await renewed.open()
            if server not in self._connections:  # closed during the restart: nothing else would end the new process
                await renewed.close()
                raise MCPServerError(f"MCP server '{server}' has been closed")
            self._connections[server] = renewed
            return renewed

    def _opened(self, server: str) -> Connection:
        connection = self._connections.get(server)
        if connection is None:
            raise MCPServerError(f"MCP server '{server}' has been closed")
        return connection
