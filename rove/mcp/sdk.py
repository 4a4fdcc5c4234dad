"""The `mcp` package, from 1.24 on and 2: all that differs between its majors, and all that knows its names.

What it returns is told on as plain data in the protocol's own spelling (`inputSchema`, `isError`), which both majors write.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from rove.core.errors import ConfigError
from rove.mcp.process import ServerProcess
from rove.mcp.settings import ServerSettings

CONNECTION_CLOSED = -32000
"""The code of the SDK's own error for a connection that has ended. Servers may use it too."""
PAGES = 1000
"""Of a list of tools; a server that has more has lost its way."""


class Session:
    """What a server is asked, whichever major the SDK is."""

    def __init__(self, client: Any, process: ServerProcess | None = None):
        self._client = client
        self._process = process

    async def tools(self) -> list[dict[str, Any]]:
        """All tools of the server: name, description, inputSchema, …"""
        tools: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(PAGES):
            page = _plain(await self._client.list_tools(**_page(cursor)))
            tools += page["tools"]
            cursor = page.get("nextCursor")
            if not cursor:
                break
        return tools

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What a tool returned: content, structuredContent, isError.

        Raises:
            Exception: the SDK's, see `said_of` and `is_lost`.
        """
        return _plain(await self._client.call_tool(tool, dict(arguments)))

    def is_lost(self, error: BaseException | None = None) -> bool:
        """Whether the server is gone, as this error of a call tells if there is one."""
        if self._process is not None:
            return self._process.silent
        told = getattr(error, "error", None)
        return getattr(told, "code", None) == CONNECTION_CLOSED or getattr(told, "message", "") == "Session terminated"


def said_of(error: BaseException) -> str:
    """What an error of the SDK says, the first of those it may be a group of."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    told = getattr(error, "error", None)
    return str(getattr(told, "message", "") or error) or repr(error)


def check_installed() -> None:
    """Whether the SDK is there.

    Raises:
        ConfigError: it is not.
    """
    _mcp()


async def start_process(settings: ServerSettings) -> ServerProcess:
    """Start a server that is a command."""
    mcp = _mcp()
    types = importlib.import_module("mcp.types")
    wrap = importlib.import_module("mcp.shared.message").SessionMessage
    if _is_second(mcp):
        adapter = types.jsonrpc_message_adapter
        decode: Callable[[bytes], Any] = lambda line: wrap(adapter.validate_json(line, by_name=False))  # noqa: E731
        unset = {"exclude_unset": True}
    else:
        decode = lambda line: wrap(types.JSONRPCMessage.model_validate_json(line))  # noqa: E731
        unset = {"exclude_none": True}
    env = importlib.import_module("mcp.client.stdio").get_default_environment()
    return await ServerProcess.start(
        settings, env, decode, lambda sent: sent.message.model_dump_json(by_alias=True, **unset).encode()
    )


@asynccontextmanager
async def connected(
    settings: ServerSettings, process: ServerProcess | None, read_seconds: float
) -> AsyncIterator[Session]:
    """A session with a server, to be left by the task that entered it.

    Args:
        process: of a server that is a command; leaving ends it.
        read_seconds: silence on an HTTP connection after which it is given up.
    """
    mcp = _mcp()
    async with AsyncExitStack() as stack:
        if process is not None:
            anyio = importlib.import_module("anyio")
            transport: Any = process.streams(lambda: anyio.create_memory_object_stream(0))
        elif settings.url:
            transport = await _over_http(settings, read_seconds, stack)
        else:
            transport = None
        if _is_second(mcp):
            target = settings.make_server() if transport is None else transport
            client = await stack.enter_async_context(mcp.Client(target, cache=None))
        elif transport is None:
            memory = importlib.import_module("mcp.shared.memory")
            made = memory.create_connected_server_and_client_session(settings.make_server())
            client = await stack.enter_async_context(made)
        else:
            incoming, outgoing, *_ = await stack.enter_async_context(transport)
            client = await stack.enter_async_context(mcp.ClientSession(incoming, outgoing))
            await client.initialize()
        yield Session(client, process)


async def _over_http(settings: ServerSettings, read_seconds: float, stack: AsyncExitStack) -> Any:
    httpx = importlib.import_module("httpx2" if _is_second(_mcp()) else "httpx")
    client = await stack.enter_async_context(
        httpx.AsyncClient(
            headers=settings.headers,
            timeout=httpx.Timeout(30.0, read=read_seconds, pool=None),
            # A call holds its connection until it is answered: a limit would be one of calls at once.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=50),
            follow_redirects=True,  # of 1.24; later ones follow within the origin themselves, and do not look
        )
    )
    http = importlib.import_module("mcp.client.streamable_http")
    return http.streamable_http_client(settings.url, http_client=client)


def _mcp() -> Any:
    try:
        return importlib.import_module("mcp")
    except ImportError as error:
        raise ConfigError(f"MCPEnv needs the mcp package ({error}): pip install 'rove[mcp]'") from error


def _is_second(mcp: Any) -> bool:
    return hasattr(mcp, "Client")


def _page(cursor: str | None) -> dict[str, Any]:
    if cursor is None:
        return {}
    if _is_second(_mcp()):
        return {"cursor": cursor}
    return {"params": importlib.import_module("mcp.types").PaginatedRequestParams(cursor=cursor)}


def _plain(result: Any) -> dict[str, Any]:
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)
