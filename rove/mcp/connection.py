"""One session with one server, held by a task of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from rove.core.errors import Error, MCPServerError, ToolCallError
from rove.mcp import sdk
from rove.mcp.process import ServerProcess
from rove.mcp.settings import ServerSettings


class Connection:
    """A server that has been started or called up, and the session with it; any number of calls at once.

    The SDK's contexts must be left by the task that entered them, and rollouts come and go: so a task of its own enters,
    waits until the connection is closed or breaks, and leaves.

    Args:
        start_seconds: until the server has told its tools.
        call_seconds: of one call.
    """

    def __init__(self, settings: ServerSettings, start_seconds: float, call_seconds: float):
        self.settings = settings
        self.start_seconds = start_seconds
        self.call_seconds = call_seconds
        self.tools: list[dict[str, Any]] = []
        """What the server offers, in the protocol's spelling."""
        self._session: sdk.Session | None = None
        self._broken = False
        self._process: ServerProcess | None = None
        self._closing = asyncio.Event()
        self._ready = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start the server, and ask for its tools.

        Raises:
            MCPServerError: it cannot be started, ends, or takes too long.
        """
        self._owner = asyncio.create_task(self._own(), name=f"mcp {self.settings.name}")
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait({self._owner, ready}, timeout=self.start_seconds, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._abandon()
            raise
        finally:
            ready.cancel()
        if self._ready.is_set():
            return
        if not self._owner.done():
            slow = self._error(f"has not told its tools within {self.start_seconds:g} s")
            await self._abandon()
            raise slow
        raise await self._loss("could not be started")

    @property
    def lost(self) -> bool:
        """Whether the server is gone."""
        if self._broken or self._session is None or self._owner is None:
            return True
        return self._owner.done() or self._session.is_lost()

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What a tool returned, in the protocol's spelling.

        Raises:
            ToolCallError: the server refused the call, or took too long.
            MCPServerError: the server is gone.
        """
        if self.lost:
            raise await self._loss("is gone")
        assert self._session is not None
        assert self._owner is not None
        call = asyncio.create_task(self._session.call(tool, arguments))
        try:
            await asyncio.wait({call, self._owner}, timeout=self.call_seconds, return_when=asyncio.FIRST_COMPLETED)
            if call.done() and not call.cancelled():
                return await self._outcome(call)
        finally:
            if not call.done():
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
        if self.lost:
            raise await self._loss("ended during the call")
        raise ToolCallError(f"{tool} has not answered within {self.call_seconds:g} s")

    async def _outcome(self, call: asyncio.Task[dict[str, Any]]) -> dict[str, Any]:
        error = call.exception()
        if error is None:
            return call.result()
        assert self._session is not None
        self._broken = self._broken or self._session.is_lost(error)
        if self.lost:
            raise await self._loss("ended during the call", error) from error
        raise ToolCallError(sdk.said_of(error)) from error

    async def close(self) -> None:
        """End the session, and the server if it is a command. What goes wrong in the course of it is of no interest."""
        self._closing.set()
        if self._owner is None:
            return
        try:
            await asyncio.gather(self._owner, return_exceptions=True)
        except asyncio.CancelledError:
            await self._abandon()
            raise

    def kill(self) -> None:
        """End the server's process without waiting, from whatever loop or none."""
        if self._process is not None:
            self._process.kill()

    async def _own(self) -> None:
        if self.settings.command:
            self._process = await sdk.start_process(self.settings)
        try:
            async with sdk.connected(self.settings, self._process, self.call_seconds + 10.0) as session:
                self.tools = await session.tools()
                self._session = session
                self._ready.set()
                await self._closing.wait()
        finally:
            self.kill()  # where it came to no session that would have ended it

    async def _abandon(self) -> None:
        if self._owner is not None:
            self._owner.cancel()
            await asyncio.gather(self._owner, return_exceptions=True)

    async def _loss(self, what: str, error: BaseException | None = None) -> Error:
        """The error that a connection which broke, or never came about, is told with."""
        if self._process is not None:
            await self._process.settle()
        owner = self._owner
        if error is None and owner is not None and owner.done() and not owner.cancelled():
            error = owner.exception()
        if isinstance(error, Error):  # says what it is about
            return error
        told = self._error(f"{what} ({sdk.said_of(error)})" if error is not None else what)
        told.__cause__ = error
        return told

    def _error(self, what: str) -> MCPServerError:
        words = self._process.last_words if self._process is not None else ""
        return MCPServerError(f"MCP server '{self.settings.name}' {what}{f'; {words}' if words else ''}")
