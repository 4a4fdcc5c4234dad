"""v0's `MCPEnv`: tools of MCP servers that the constructor starts and all rollouts share."""

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
from rove.mcp.sdk import text_of_result
from rove.mcp.servers import Servers
from rove.mcp.settings import read_servers

T = TypeVar("T")

START_TIMEOUT_S, CALL_TIMEOUT_S, MAX_RESTARTS = 60.0, 300.0, 3
MAX_CHARS = 1_000_000


@dataclass
class MCPServerConfig:
    """An MCP server: the command that starts it."""

    name: str
    command: str
    args: list[str] | None = None
    env: dict[str, str] | None = None
    description: str = ""


class _ServerThread:
    """The MCP servers of one process, and the thread with their event loop."""

    def __init__(self, configs: Sequence[MCPServerConfig]):
        self.pid, self._configs = os.getpid(), configs
        self._servers: Servers | None = None
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="rove-mcp", daemon=True).start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def start(self) -> dict[str, list[dict[str, Any]]]:
        """Start servers that are not running; return their tools by server."""
        if self._servers is None:
            settings = read_servers([asdict(config) for config in self._configs])
            self._servers = Servers(settings, START_TIMEOUT_S, CALL_TIMEOUT_S, MAX_RESTARTS)
        return await self._servers.start()

    async def call(self, server: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool. Servers that are not running, or have been closed by an earlier run, are started."""
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
        error_formatter: Callable[[Exception], str] = "Error: {}".format,
        **kwargs: Any,
    ):
        self.mcp_servers: list[MCPServerConfig] = []
        for server in mcp_servers:
            self.mcp_servers.append(server if isinstance(server, MCPServerConfig) else MCPServerConfig(**server))
        super().__init__(tools=[], max_turns=max_turns, error_formatter=error_formatter, **kwargs)
        self._server_threads = [_ServerThread(self.mcp_servers)]
        """The last entry belongs to this process, earlier entries to the processes from which it was forked."""
        # As in v0 they start in the constructor, because `env.tool_defs` must have their tools. They run in another thread,
        # since an event loop may be running in this one.
        if self.mcp_servers:
            thread = self._server_threads[-1]
            self._register_tools(thread.submit(thread.start()).result())

    def _register_tools(self, tools_of: dict[str, list[dict[str, Any]]]) -> None:
        """Add the servers' tools; as in v0 there are no metrics per tool."""
        definitions = list(self.tool_defs or [])
        for server, tools in tools_of.items():
            for tool in tools:
                name = tool["name"]
                schema = tool.get("inputSchema") or {"type": "object", "properties": {}}
                definitions.append(Tool(name=name, description=tool.get("description") or "", parameters=schema))
                self.tool_map[name] = _caller(self, server, name)
                self.tools.append(self.tool_map[name])
        self.tool_defs = definitions

    async def call_tool(self, tool_name: str, tool_args: dict[str, Any], tool_call_id: str, **kwargs: Any) -> Any:
        """Call a tool; errors are returned to the model."""
        if tool_name not in self.tool_map:
            content = f"Error: Tool '{tool_name}' not found"  # v0's text
        else:
            try:
                content = str(await self.tool_map[tool_name](**tool_args))
            except Exception as error:
                content = self.error_formatter(error)
        return ToolMessage(role="tool", content=content, tool_call_id=tool_call_id)

    async def call_server(self, server: str, tool: str, arguments: dict[str, Any]) -> str:
        """Call a tool and return the text of its result or error."""
        servers = self._current_servers()
        result = await asyncio.wrap_future(servers.submit(servers.call(server, tool, arguments)))
        return text_of_result(result, MAX_CHARS) if result.get("content") else "No result returned from tool"

    @teardown
    async def teardown_mcp_servers(self) -> None:
        """End the servers of this process; a later call starts them again."""
        servers = self._current_servers()
        await asyncio.wrap_future(servers.submit(servers.close()))

    def _current_servers(self) -> _ServerThread:
        """Return the servers of this process.

        After a fork, as in worker processes, the parent's event loop does not run, and its servers' pipes are shared: the child
        starts its own servers. The inherited object stays referenced, since freeing it would end the parent's servers.
        """
        if self._server_threads[-1].pid != os.getpid():
            self._server_threads.append(_ServerThread(self.mcp_servers))
        return self._server_threads[-1]


def _caller(env: MCPEnv, server: str, name: str) -> Callable[..., Any]:
    async def call(**arguments: Any) -> str:
        return await env.call_server(server, name, arguments)

    call.__name__ = name
    return call
