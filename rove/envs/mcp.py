"""Environments whose tools are those of MCP servers."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rove.core.config import check_positive
from rove.core.errors import ConfigError, MCPServerError, ToolCallError, nearest, phase
from rove.core.messages import Messages
from rove.core.state import State
from rove.envs.environment import Turn, cleanup, teardown
from rove.envs.tool import ToolEnv
from rove.mcp import Servers, ServerSettings, read_servers
from rove.mcp.content import content_of, text_of_result
from rove.mcp.sdk import check_installed
from rove.tools.tool import Arguments, Tool

SCOPES = ("shared", "rollout")
STATE_KEY = "mcp_servers"
"""Where a rollout's servers are in its state."""


class MCPEnv(ToolEnv):
    """A `ToolEnv` with the tools of MCP servers, besides functions of its own.

    Servers are started or called up when the first rollout needs them (or by `connect`), and from then on their tools are
    in `tool_defs`. They are ended with the run, with all processes they have started.

    What a tool returns is told to the model, images as content parts. What it says is an error, a call the server refuses and
    one that takes too long are told, too, as a `ToolCallError` (see `stop_errors`). A server that cannot be started, or
    ends during a call, ends the rollout with an `MCPServerError`.

    Args:
        mcp_servers: dicts, or `rove.mcp.ServerSettings`, with a name and one of `command` (with args, env, cwd), `url` (with
            headers) and `server`; optionally include, exclude and prefix.
        scope: "shared": one of each server for all rollouts, as in verifiers v0, for servers that keep nothing that one
            rollout could spoil for another. "rollout": servers of its own for every rollout.
        call_timeout: seconds that a call may take.
        start_timeout: seconds until a server has told its tools.
        max_restarts: how often in a row a shared server that has ended is started again, with the next call.
        max_servers: rollouts that have servers of their own at a time; others wait (which counts as their time).
        max_chars: of texts in one result that the model is told; the rest is cut.
        Everything else: see `ToolEnv`.

    Raises:
        ConfigError: a server or scope is wrong, or mcp is not installed. When the servers are asked: tools of two have one
            name, or one to include or exclude does not exist.
    """

    def __init__(
        self,
        mcp_servers: Sequence[Mapping[str, Any] | ServerSettings] = (),
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
                    f"MCP server '{server.name}' is one object, but scope 'rollout' needs one for every rollout; give a "
                    "function that makes it: server=make_server"
                )
        self.scope = scope
        self.call_timeout = call_timeout
        self.start_timeout = start_timeout
        self.max_restarts = max_restarts
        self.max_servers = max_servers
        self.max_chars = max_chars
        check_positive(self, "call_timeout", "start_timeout", "max_servers", "max_chars")
        check_installed()
        self._remote: set[str] = set()
        self._shared: Servers | None = None
        self._places: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None
        self._before: dict[str, Any] | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """See `Environment.identity`; servers count as they are given, not with the tools they turn out to have."""
        if self._before is not None:
            return self._before
        return {**super().identity, "mcp_servers": [one.identity for one in self.mcp_servers], "scope": self.scope}

    async def connect(self) -> None:
        """Start the servers, as the first rollout would, and fill `tool_defs`. Those of scope "rollout" are ended again.

        Raises:
            MCPServerError: one cannot be started.
            ConfigError: see the class.
        """
        if self.scope == "shared":
            await self._start_shared()
            return
        servers = self._servers(0)
        try:
            self._offer(await servers.start())
        finally:
            await servers.close()

    async def run(self, state: State, turn: Turn) -> None:
        """Start the servers if there is need, then as `ToolEnv`."""
        with phase("mcp servers"):
            if self.scope == "shared":
                await self._start_shared()
            else:
                place = self._place()
                await place.acquire()
                servers = self._servers(0)
                state[STATE_KEY] = (servers, place)
                self._offer(await servers.start())
        await super().run(state, turn)

    @cleanup(priority=-100)
    async def close_rollout_servers(self, state: State) -> None:
        """End the rollout's own servers."""
        servers, place = state.pop(STATE_KEY, (None, None))
        if servers is not None:
            try:
                await servers.close()
            finally:
                place.release()

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
            self._shared.kill()  # the loop they were started on is over
            self._shared = None
        if self._shared is None:
            self._shared = self._servers(self.max_restarts)
        self._offer(await self._shared.start())

    def _servers(self, max_restarts: int) -> Servers:
        return Servers(self.mcp_servers, self.start_timeout, self.call_timeout, max_restarts)

    def _place(self) -> asyncio.Semaphore:
        """What limits the rollouts that have servers, on this loop."""
        loop = asyncio.get_running_loop()
        if self._places is None or self._places[0] is not loop:
            self._places = (loop, asyncio.Semaphore(self.max_servers))
        return self._places[1]

    def _offer(self, offered: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Give the model the servers' tools, the first time that they are known."""
        if self._before is not None:
            return
        tools = [
            self._as_tool(server, told) for server in self.mcp_servers for told in server.chosen(offered[server.name])
        ]
        names = [tool.name for _, tool in tools]
        for server, tool in tools:
            others = [other.name for other, same in tools if same.name == tool.name and same is not tool]
            if others or tool.name in self._known or names.count(tool.name) > 1:
                whose = f"server '{others[0]}'" if others else "the environment"
                raise ConfigError(
                    f"MCP server '{server.name}' and {whose} both have a tool '{tool.name}'; give the server a prefix "
                    f"(prefix='{server.name}_'), or exclude the tool"
                )
        before = self.identity
        for _, tool in tools:
            self._add(tool)
            self._remote.add(tool.name)
        self._before = before

    def _as_tool(self, server: ServerSettings, told: Mapping[str, Any]) -> tuple[ServerSettings, Tool]:
        name = re.sub(r"[^a-zA-Z0-9_-]", "_", server.prefix + told["name"])[:64]
        return server, Tool(
            name=name,
            description=told.get("description") or told.get("title") or "",
            parameters={"type": "object", "properties": {}, **told["inputSchema"]},
            func=functools.partial(self._call_server, server.name, told["name"]),
        )

    async def _prepared(self, tool: Tool, arguments: Arguments, messages: Messages, state: State) -> Arguments:
        arguments = await super()._prepared(tool, arguments, messages, state)
        if tool.name not in self._remote:
            return arguments
        servers = state[STATE_KEY][0] if self.scope == "rollout" else self._shared
        return {"arguments": arguments, "servers": servers}

    async def _call_server(self, server: str, tool: str, *, arguments: Arguments, servers: Servers | None) -> Any:
        if servers is None:
            raise MCPServerError(f"MCP server '{server}' has been closed")
        result = await servers.call(server, tool, arguments)
        if result.get("isError"):
            raise ToolCallError(text_of_result(result, self.max_chars) or f"{tool} failed, and does not say why")
        return content_of(result, self.max_chars)
