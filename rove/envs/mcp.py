"""Environments that offer the tools of MCP servers."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rove.core.checks import check_values
from rove.core.errors import ConfigError, MCPServerError, ToolCallError, nearest, phase
from rove.core.messages import Messages
from rove.core.plain import Identity, JsonMapping, JsonObject
from rove.core.ranges import NonNegativeInt, PositiveInt, Seconds
from rove.core.state import State, bookkeeping
from rove.envs.environment import Turn, cleanup, teardown
from rove.envs.tool import ToolEnv
from rove.mcp import Servers, ServerSettings, read_servers
from rove.mcp.sdk import check_installed, content_of, text_of_result
from rove.tools.tool import Arguments, Tool

SCOPES = ("shared", "rollout")


class MCPEnv(ToolEnv):
    """A `ToolEnv` that offers the tools of MCP servers in addition to functions.

    The first rollout (or `connect`) starts the servers and adds their tools to `tool_defs`. When the run ends, the
    servers and all their processes are ended.

    Results are sent to the model, images as content parts. Errors of a tool, rejected calls and timeouts are reported
    to the model as a `ToolCallError` (see `stop_errors`). A server that cannot be started, or ends during a call,
    ends the rollout with an `MCPServerError`.

    Args:
        mcp_servers: dicts or `rove.mcp.ServerSettings` with a name and one of `command` (with args, env, cwd), `url`
            (with headers) and `server`; optionally include, exclude and prefix.
        scope: "shared": all rollouts share each server, as in verifiers v0; use this value for servers without state that
            rollouts could change. "rollout": every rollout gets its own servers.
        call_timeout: maximum seconds per call.
        start_timeout: maximum seconds until a server has listed its tools.
        max_restarts: maximum number of consecutive restarts of a shared server that has ended; the next call restarts it.
        max_servers: maximum number of concurrent rollouts with their own servers; other rollouts wait, within their time limit.
        max_chars: maximum characters of text per result; the rest is cut.
        **kwargs: see `ToolEnv`.

    Raises:
        ConfigError: invalid server or scope, or mcp is not installed. On start: two servers have a tool of the same
            name, or a tool to include or exclude does not exist.

    Example:
        servers = [{"name": "time", "command": "uvx", "args": ["mcp-server-time"]}]
        env = rove.MCPEnv(mcp_servers=servers, dataset=[{"question": "What time is it in Tokyo?"}], rubric=rubric)
    """

    def __init__(
        self,
        mcp_servers: Sequence[Mapping[str, object] | ServerSettings] = (),
        scope: str = "shared",
        call_timeout: float = 60.0,
        start_timeout: float = 60.0,
        max_restarts: int = 3,
        max_servers: int = 16,
        max_chars: int = 100_000,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.mcp_servers = read_servers(mcp_servers)
        if scope not in SCOPES:
            raise ConfigError(f"scope is {scope!r}; {nearest(str(scope), SCOPES)}")
        for server in self.mcp_servers:
            if scope == "rollout" and server.server is not None and not server.has_factory:
                raise ConfigError(
                    f"MCP server '{server.name}' is a single object, but scope 'rollout' needs one per rollout; pass a "
                    "function that creates it: server=make_server"
                )
        self.scope = scope
        self.call_timeout = call_timeout
        self.start_timeout = start_timeout
        self.max_restarts = max_restarts
        self.max_servers = max_servers
        self.max_chars = max_chars
        check_values(self, call_timeout=Seconds, start_timeout=Seconds)
        check_values(self, max_restarts=NonNegativeInt, max_servers=PositiveInt, max_chars=PositiveInt)
        check_installed()
        self._server_tool_names: set[str] = set()
        self._shared: Servers | None = None
        self._slots: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None
        self._initial_identity: JsonObject | None = None

    @property
    def identity(self) -> Identity:
        """Like `Environment.identity`, with the server settings but not the tools that the servers list."""
        if self._initial_identity is not None:
            return self._initial_identity
        return {
            **super().identity,
            "mcp_servers": [server.identity for server in self.mcp_servers],
            "scope": self.scope,
        }

    async def connect(self) -> None:
        """Start the servers and fill `tool_defs`, then end servers of scope "rollout".

        Raises:
            MCPServerError: a server cannot be started.
            ConfigError: see the class.
        """
        if self.scope == "shared":
            await self._start_shared()
            return
        servers = self._servers(0)
        try:
            self._add_server_tools(await servers.start())
        finally:
            await servers.close()

    async def run(self, state: State, turn: Turn) -> None:
        """Start the servers if needed, then run the rollout as `ToolEnv` does."""
        with phase("mcp servers"):
            if self.scope == "shared":
                await self._start_shared()
            else:
                slot = self._slot()
                await slot.acquire()
                servers = self._servers(0)
                bookkeeping(state).mcp_servers = (servers, slot)
                self._add_server_tools(await servers.start())
        await super().run(state, turn)

    @cleanup(priority=-100)
    async def close_rollout_servers(self, state: State) -> None:
        """End the rollout's own servers."""
        internals = bookkeeping(state)
        if internals.mcp_servers is not None:
            (servers, slot), internals.mcp_servers = internals.mcp_servers, None
            try:
                await servers.close()
            finally:
                slot.release()

    @teardown(priority=-100)
    async def close_servers(self) -> None:
        """End the shared servers; a later rollout starts them again."""
        shared, self._shared = self._shared, None
        if shared is not None and shared.loop is asyncio.get_running_loop():
            await shared.close()
        elif shared is not None:
            shared.kill()

    async def _start_shared(self) -> None:
        if self._shared is not None and self._shared.loop is not asyncio.get_running_loop():
            self._shared.kill()  # their event loop has ended
            self._shared = None
        if self._shared is None:
            self._shared = self._servers(self.max_restarts)
        self._add_server_tools(await self._shared.start())

    def _servers(self, max_restarts: int) -> Servers:
        return Servers(self.mcp_servers, self.start_timeout, self.call_timeout, max_restarts)

    def _slot(self) -> asyncio.Semaphore:
        """Return the semaphore of this event loop that limits rollouts with their own servers."""
        # A semaphore belongs to one event loop, and every `evaluate_sync` has its own.
        loop = asyncio.get_running_loop()
        if self._slots is None or self._slots[0] is not loop:
            self._slots = (loop, asyncio.Semaphore(self.max_servers))
        return self._slots[1]

    def _add_server_tools(self, tools_by_server: Mapping[str, Sequence[Mapping[str, object]]]) -> None:
        if self._initial_identity is not None:
            return
        tools: list[tuple[ServerSettings, Tool]] = []
        for server in self.mcp_servers:
            tools += [self._as_tool(server, listed) for listed in server.chosen(tools_by_server[server.name])]
        owners: dict[str, str] = {}
        for server, tool in tools:
            if tool.name in owners or tool.name in self._tools_by_name:
                whose = f"server '{owners[tool.name]}'" if tool.name in owners else "the environment"
                raise ConfigError(
                    f"MCP server '{server.name}' and {whose} both have a tool '{tool.name}'; give the server a prefix "
                    f"(prefix='{server.name}_'), or exclude the tool"
                )
            owners[tool.name] = server.name
        # Before the tools are added: what servers list may change without a change of the environment.
        identity = self.identity
        for _, tool in tools:
            self._add(tool)
            self._server_tool_names.add(tool.name)
        self._initial_identity = identity

    def _as_tool(self, server: ServerSettings, listed: JsonMapping) -> tuple[ServerSettings, Tool]:
        # The model APIs accept only such names (`rove.tools.tool.NAME`); MCP allows any.
        name = re.sub(r"[^a-zA-Z0-9_-]", "_", server.prefix + listed["name"])[:64]
        return server, Tool(
            name=name,
            description=listed.get("description") or listed.get("title") or "",
            parameters={"type": "object", "properties": {}, **listed["inputSchema"]},
            func=functools.partial(self._call_server, server.name, listed["name"]),
        )

    async def _prepared(self, tool: Tool, arguments: Arguments, messages: Messages, state: State) -> Arguments:
        arguments = await super()._prepared(tool, arguments, messages, state)
        if tool.name not in self._server_tool_names:
            return arguments
        servers = self._shared if self.scope == "shared" else bookkeeping(state).mcp_servers[0]
        return {"arguments": arguments, "servers": servers}

    async def _call_server(self, server: str, tool: str, *, arguments: Arguments, servers: Servers | None) -> object:
        if servers is None:
            raise MCPServerError(f"MCP server '{server}' has been closed")
        result = await servers.call(server, tool, arguments)
        if result.get("isError"):
            raise ToolCallError(text_of_result(result, self.max_chars) or f"{tool} failed without a message")
        return content_of(result, self.max_chars)
