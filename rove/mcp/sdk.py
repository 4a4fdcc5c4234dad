"""Adapter for the `mcp` package (1.24 and later, and 2); only this module uses its names (docs/decisions/dependencies.md).

Results are plain data with the protocol's names (`inputSchema`, `isError`), the same for both major versions.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec

from rove.core.errors import ConfigError, MCPServerError
from rove.core.plain import JsonMapping, JsonObject
from rove.mcp.process import ServerProcess
from rove.mcp.settings import ServerSettings
from rove.utils.processes import safe_environment

Part = JsonObject


def text_part(text: str) -> Part:
    """Return a text as a content part."""
    return {"type": "text", "text": text}


def content_of(result: JsonMapping, max_chars: int) -> str | list[Part]:
    """Return the result of a tool as text, or as content parts if it is not only text.

    Structured content is added as JSON if the result has no text. All texts together are cut after `max_chars` characters.
    """
    parts = [_part(block) for block in result.get("content", ())]
    structured = result.get("structuredContent")
    if structured is not None and not any(part["type"] == "text" for part in parts):
        parts.append(text_part(msgspec.json.encode(structured).decode()))
    if all(part["type"] == "text" for part in parts):
        return cut("\n".join(part["text"] for part in parts), max_chars)
    available = max_chars
    for part in parts:
        if part["type"] == "text":
            text = part["text"]
            part["text"] = cut(text, available)
            available = max(0, available - len(text))
    return parts


def text_of_result(result: JsonMapping, max_chars: int) -> str:
    """Return only the texts of a result."""
    content = content_of(result, max_chars)
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part["type"] == "text")


def cut(text: str, max_chars: int) -> str:
    """Return a text of at most `max_chars` characters; if it is cut, a note says how much is missing."""
    missing = len(text) - max_chars
    return text if missing <= 0 else f"{text[:max_chars]}\n… {missing} more characters"


def _part(block: JsonMapping) -> Part:
    kind = block.get("type")
    if kind == "text":
        return text_part(block["text"])
    if kind == "image":
        return _image(block["mimeType"], block["data"])
    if kind == "audio":
        audio = {"data": block["data"], "format": _audio_format(block["mimeType"])}
        return {"type": "input_audio", "input_audio": audio}
    if kind == "resource_link":
        words = [str(block[key]) for key in ("name", "uri", "description") if block.get(key)]
        return text_part(" ".join(words))
    if kind == "resource":
        resource = block["resource"]
        mime = resource.get("mimeType") or ""
        if "text" in resource:
            return text_part(resource["text"])
        if mime.startswith("image/"):
            return _image(mime, resource["blob"])
        return text_part(f"{resource['uri']} ({mime or 'binary'}, not shown)")
    return text_part(msgspec.json.encode(block).decode())  # a kind of a later version of the protocol


def _image(mime: str, data: str) -> Part:
    return {"type": "image_url", "image_url": {"url": f"data:{mime};base64,{data}"}}


def _audio_format(mime: str) -> str:
    """Return the name of an audio MIME type in OpenAI's API."""
    subtype = mime.partition("/")[2].removeprefix("x-")
    return {"mpeg": "mp3", "wave": "wav"}.get(subtype, subtype)


CONNECTION_CLOSED = -32000
"""The SDK's error code for a closed connection. Servers may use this code, too."""
MAX_TOOL_PAGES = 1000
"""Maximum number of pages of a tool list that are read."""
MAX_TOOLS = 2000
"""Maximum number of tools of a server. Every tool becomes part of each prompt, and APIs accept a few hundred at most."""


class Session:
    """A session with a server, for either major version of the SDK."""

    def __init__(self, client: Any, name: str, process: ServerProcess | None = None):
        self._client = client
        self._name = name
        self._process = process

    async def tools(self) -> list[JsonObject]:
        """Return all tools of the server: name, description, inputSchema, …

        The list ends with a page that names no next page, or with an empty page that names a page that was already read.
        """
        tools: list[JsonObject] = []
        cursors: set[str] = set()
        cursor: str | None = None
        for _ in range(MAX_TOOL_PAGES):
            page = await self._tool_page(cursor)
            if len(tools) + len(page["tools"]) > MAX_TOOLS:
                raise MCPServerError(
                    f"MCP server '{self._name}' lists more than {MAX_TOOLS:,} tools; expected at most {MAX_TOOLS:,}: start it "
                    "with fewer tools, or put a server before it that offers a part of them"
                )
            tools += page["tools"]
            cursor = page.get("nextCursor")
            if not cursor or (cursor in cursors and not page["tools"]):
                return tools
            if cursor in cursors:
                raise MCPServerError(
                    f"MCP server '{self._name}' names the page {cursor!r} of its tools again; expected another nextCursor for "
                    "each page, and none after the last: correct its tools/list"
                )
            cursors.add(cursor)
        raise MCPServerError(
            f"MCP server '{self._name}' has more than {MAX_TOOL_PAGES} pages of tools; expected a page without nextCursor: "
            "correct its tools/list"
        )

    async def _tool_page(self, cursor: str | None) -> JsonObject:
        try:
            return _plain(await self._client.list_tools(**_page(cursor)))
        except ValueError as error:  # pydantic's, from the SDK
            raise MCPServerError(
                f"MCP server '{self._name}' lists its tools in another form than the protocol's: {_invalid_fields(error)}; "
                'expected a name and an inputSchema {"type": "object", …} for every tool: correct its tools/list'
            ) from error

    async def call(self, tool: str, arguments: JsonMapping) -> JsonObject:
        """Call a tool and return content, structuredContent and isError."""
        return _plain(await self._client.call_tool(tool, dict(arguments)))

    def is_lost(self, error: BaseException | None = None) -> bool:
        """Return whether the server has ended, as far as the `error` that a call raised shows it."""
        if self._process is not None:
            return self._process.silent
        # Over HTTP, only the code or the message of the error shows it.
        data = getattr(error, "error", None)
        is_closed = getattr(data, "code", None) == CONNECTION_CLOSED
        return is_closed or getattr(data, "message", "") == "Session terminated"


def _invalid_fields(error: ValueError) -> str:
    """Return the fields that a validation error names, each with the reason."""
    details = getattr(error, "errors", None)
    if details is None:
        return str(error)
    lines: list[str] = []
    for detail in details():
        path = ".".join(map(str, detail["loc"]))
        lines.append(f"{path}: {detail['msg']}")
    return "; ".join(lines)


def first_error(error: BaseException) -> BaseException:
    """Return the first error in an exception group (the SDK raises its tasks' errors in groups); any other error unchanged."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def message_of(error: BaseException) -> str:
    """Return the message of an SDK error, or of the first error in a group."""
    error = first_error(error)
    data = getattr(error, "error", None)
    return str(getattr(data, "message", "") or error) or repr(error)


def check_installed() -> None:
    """Raise ConfigError if the SDK is not installed."""
    _mcp()


async def start_process(settings: ServerSettings) -> ServerProcess:
    """Start a server that is a command."""
    mcp = _mcp()
    types = importlib.import_module("mcp.types")
    wrap = importlib.import_module("mcp.shared.message").SessionMessage
    if _is_major_2(mcp):
        adapter = types.jsonrpc_message_adapter
        decode: Callable[[bytes], Any] = lambda line: wrap(adapter.validate_json(line, by_name=False))  # noqa: E731
        unset = {"exclude_unset": True}
    else:
        decode = lambda line: wrap(types.JSONRPCMessage.model_validate_json(line))  # noqa: E731
        unset = {"exclude_none": True}
    return await ServerProcess.start(
        settings, safe_environment(), decode, lambda sent: sent.message.model_dump_json(by_alias=True, **unset).encode()
    )


@asynccontextmanager
async def connected(
    settings: ServerSettings, process: ServerProcess | None, read_seconds: float
) -> AsyncIterator[Session]:
    """Open a session with a server; the task that enters must also exit."""
    mcp = _mcp()
    async with AsyncExitStack() as stack:
        if process is not None:
            anyio = importlib.import_module("anyio")
            transport: Any = process.streams(lambda: anyio.create_memory_object_stream(0))
        elif settings.url:
            transport = await _over_http(settings, read_seconds, stack)
        else:
            transport = None
        if _is_major_2(mcp):
            target = settings.make_server() if transport is None else transport
            client = await stack.enter_async_context(mcp.Client(target, cache=None))
        elif transport is None:
            memory = importlib.import_module("mcp.shared.memory")
            session = memory.create_connected_server_and_client_session(settings.make_server())
            client = await stack.enter_async_context(session)
        else:
            incoming, outgoing, *_ = await stack.enter_async_context(transport)
            client = await stack.enter_async_context(mcp.ClientSession(incoming, outgoing))
            await client.initialize()
        yield Session(client, settings.name, process)


async def _over_http(settings: ServerSettings, read_seconds: float, stack: AsyncExitStack) -> Any:
    httpx = importlib.import_module("httpx2" if _is_major_2(_mcp()) else "httpx")
    client = await stack.enter_async_context(
        httpx.AsyncClient(
            headers=settings.headers,
            timeout=httpx.Timeout(30.0, read=read_seconds, pool=None),
            # A call holds its connection until it returns, so a limit here would limit concurrent calls.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=50),
            follow_redirects=True,  # needed for 1.24; later versions ignore it
        )
    )
    http = importlib.import_module("mcp.client.streamable_http")
    return http.streamable_http_client(settings.url, http_client=client)


def _mcp() -> Any:
    try:
        return importlib.import_module("mcp")
    except ImportError as error:
        raise ConfigError(f"MCPEnv needs the mcp package ({error}): pip install 'rove[mcp]'") from error


def _is_major_2(mcp: object) -> bool:
    return hasattr(mcp, "Client")


def _page(cursor: str | None) -> JsonObject:
    if cursor is None:
        return {}
    if _is_major_2(_mcp()):
        return {"cursor": cursor}
    return {"params": importlib.import_module("mcp.types").PaginatedRequestParams(cursor=cursor)}


def _plain(result: Any) -> JsonObject:
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)
