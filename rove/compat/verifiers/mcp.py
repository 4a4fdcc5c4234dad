"""v0's `MCPEnv`: tools of servers that are started once, in the constructor, and shared by all rollouts."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from rove.compat.verifiers.decorators import teardown
from rove.compat.verifiers.messages import ToolMessage
from rove.compat.verifiers.tools import ToolEnv
from rove.compat.verifiers.types import Tool
from rove.mcp.content import text_of_result
from rove.mcp.servers import Servers
from rove.mcp.settings import read_servers

T = TypeVar("T")

START_SECONDS, CALL_SECONDS, MAX_RESTARTS = 60.0, 300.0, 3
MAX_CHARS = 1_000_000


@dataclass
class MCPServerConfig:
    """A server: the command that starts it."""

    name: str
    command: str
    args: list[str] | None = None
    env: dict[str, str] | None = None
    description: str = ""


def _formatted(error: Exception) -> str:
    return f"Error: {error}"


class _Home:
    """The servers of one process, and the event loop in a thread that they are on."""

    def __init__(self, configs: Sequence[MCPServerConfig]):
        self.pid, self._configs = os.getpid(), configs
        self._servers: Servers | None = None
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="rove-mcp", daemon=True).start()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def start(self) -> dict[str, list[dict[str, Any]]]:
        """Start the servers that do not run yet; what they offer."""
        if self._servers is None:
            settings = read_servers([asdict(one) for one in self._configs])
            self._servers = Servers(settings, START_SECONDS, CALL_SECONDS, MAX_RESTARTS)
        return await self._servers.start()

    async def call(self, server: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """What a tool says. Servers that are not there, or that an earlier run has ended, are started."""
        await self.start()
        assert self._servers is not None
        return await self._servers.call(server, tool, arguments)

    async def close(self) -> None:
        """End the servers; a later call starts them again."""
        servers, self._servers = self._servers, None
        if servers is not None:
            await servers.close()


class MCPEnv(ToolEnv):
    """A `ToolEnv` with the tools of MCP servers.

    Args:
        mcp_servers: `MCPServerConfig`s, or dicts with their fields.
        Everything else: see `ToolEnv`.
    """

    def __init__(
        self,
        mcp_servers: Sequence[MCPServerConfig | dict[str, Any]] = (),
        max_turns: int = 10,
        error_formatter: Callable[[Exception], str] = _formatted,
        **kwargs: Any,
    ):
        self.mcp_servers = [one if isinstance(one, MCPServerConfig) else MCPServerConfig(**one) for one in mcp_servers]
        super().__init__(tools=[], max_turns=max_turns, error_formatter=error_formatter, **kwargs)
        self._homes = [_Home(self.mcp_servers)]
        """The last one is this process's; those before are of processes that it was forked from."""
        if self.mcp_servers:
            home = self._homes[-1]
            self._offer(home.begin(home.start()).result())

    def _offer(self, offered: dict[str, list[dict[str, Any]]]) -> None:
        """Give the model the servers' tools; as in v0 no metric counts them one by one."""
        for server, tools in offered.items():
            for told in tools:
                name = told["name"]
                schema = told.get("inputSchema") or {"type": "object", "properties": {}}
                definition = Tool(name=name, description=told.get("description") or "", parameters=schema)
                self.tool_defs = [*(self.tool_defs or []), definition]
                self.tool_map[name] = _caller(self, server, name)
                self.tools.append(self.tool_map[name])

    async def call_tool(self, tool_name: str, tool_args: dict[str, Any], tool_call_id: str, **kwargs: Any) -> Any:
        """Call a server; what goes wrong is told to the model."""
        if tool_name not in self.tool_map:
            said = f"Error: Tool '{tool_name}' not found"
        else:
            try:
                said = str(await self.tool_map[tool_name](**tool_args))
            except Exception as error:
                said = self.error_formatter(error)
        return ToolMessage(role="tool", content=said, tool_call_id=tool_call_id)

    async def ask(self, server: str, tool: str, arguments: dict[str, Any]) -> str:
        """The text that a tool returned, an error's too."""
        home = self._home()
        result = await asyncio.wrap_future(home.begin(home.call(server, tool, arguments)))
        return text_of_result(result, MAX_CHARS) if result.get("content") else "No result returned from tool"

    @teardown
    async def teardown_mcp_servers(self) -> None:
        """End the servers of this process; a later call starts them again."""
        home = self._home()
        await asyncio.wrap_future(home.begin(home.close()))

    def _home(self) -> _Home:
        """Where the servers of this process are.

        A fork of the process that has made this (a worker's) has its memory, but no thread that runs its loop, and shares its
        servers' pipes: it starts its own. What it was forked with is kept, since freeing it would end the other's servers.
        """
        if self._homes[-1].pid != os.getpid():
            self._homes.append(_Home(self.mcp_servers))
        return self._homes[-1]


def _caller(env: MCPEnv, server: str, name: str) -> Callable[..., Any]:
    async def call(**arguments: Any) -> str:
        return await env.ask(server, name, arguments)

    call.__name__ = name
    return call
