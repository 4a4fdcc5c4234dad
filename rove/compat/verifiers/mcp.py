"""v0's `MCPEnv`: tools of servers that are started once, in the constructor, and shared by all rollouts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rove.compat.verifiers.decorators import teardown
from rove.compat.verifiers.messages import ToolMessage
from rove.compat.verifiers.tools import ToolEnv
from rove.compat.verifiers.types import Tool
from rove.mcp.content import text_of_result
from rove.mcp.servers import Servers
from rove.mcp.settings import read_servers

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
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="rove-mcp", daemon=True).start()
        self._servers: Servers | None = None
        if self.mcp_servers:
            self._offer(asyncio.run_coroutine_threadsafe(self._start(), self._loop).result())

    async def _start(self) -> dict[str, list[dict[str, Any]]]:
        """Start the servers that do not run yet, on their loop; what they offer."""
        if self._servers is None:
            settings = read_servers([asdict(one) for one in self.mcp_servers])
            self._servers = Servers(settings, START_SECONDS, CALL_SECONDS, MAX_RESTARTS)
        return await self._servers.start()

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

    async def on_servers(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What a coroutine returns that runs where the servers are."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def ask(self, server: str, tool: str, arguments: dict[str, Any]) -> str:
        """The text that a tool returned, an error's too."""
        if self._servers is None:  # an earlier run has ended them
            await self.on_servers(self._start())
        assert self._servers is not None
        result = await self.on_servers(self._servers.call(server, tool, arguments))
        return text_of_result(result, MAX_CHARS) if result.get("content") else "No result returned from tool"

    @teardown
    async def teardown_mcp_servers(self) -> None:
        """End the servers; a later call starts them again."""
        servers, self._servers = self._servers, None
        if servers is not None:
            await self.on_servers(servers.close())


def _caller(env: MCPEnv, server: str, name: str) -> Callable[..., Any]:
    async def call(**arguments: Any) -> str:
        return await env.ask(server, name, arguments)

    call.__name__ = name
    return call
