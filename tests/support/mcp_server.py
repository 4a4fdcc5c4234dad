"""An MCP server for either major version of the SDK: `python mcp_server.py [stdio | http PORT | stubborn | mute]`.

tests/compat_recorded contains the docstrings of the tools, which are their descriptions.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any

import mcp
from mcp import types

IS_SDK_2 = hasattr(mcp, "Client")
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def pixel_image() -> Any:
    """Return an image as content of the SDK."""
    return types.ImageContent(type="image", data=PIXEL, **{"mime_type" if IS_SDK_2 else "mimeType": "image/png"})


def make_server(name: str = "test") -> Any:  # noqa: C901  one tool after the other
    """Return a server with tools that respond, fail, wait, count calls and end the server."""
    if IS_SDK_2:
        from mcp.server import MCPServer as Server
        from mcp.server.mcpserver.exceptions import ToolError
    else:
        from mcp.server.fastmcp import FastMCP as Server
        from mcp.server.fastmcp.exceptions import ToolError
    server = Server(name)
    counted = {"calls": 0}

    @server.tool()
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool()
    async def count() -> str:
        """How often this server has been asked."""
        counted["calls"] += 1
        return f"{counted['calls']} {os.getpid()}"

    @server.tool()
    async def fail() -> str:
        """Fail."""
        raise ToolError("the shop is closed")

    @server.tool()
    async def wait(seconds: float) -> str:
        """Wait."""
        await asyncio.sleep(seconds)
        return "waited"

    @server.tool()
    async def show() -> list[Any]:
        """Show a pixel."""
        return [types.TextContent(type="text", text="a pixel"), pixel_image()]

    @server.tool()
    async def long(chars: int) -> str:
        """Say much."""
        return "x" * chars

    @server.tool()
    async def spawn() -> str:
        """Start a process that outlives the server."""
        nothing = subprocess.DEVNULL
        child = subprocess.Popen(["sleep", "600"], stdin=nothing, stdout=nothing)  # noqa: ASYNC220  a quick one
        return str(child.pid)

    @server.tool()
    async def die(code: int = 3) -> str:
        """End the server."""
        print("something terrible happened", file=sys.stderr, flush=True)
        os._exit(code)

    @server.tool()
    async def see(name: str) -> str:
        """A variable of the server's environment."""
        return os.environ.get(name, "not set")

    return server


def main() -> None:
    """Run the server."""
    mode, *arguments = sys.argv[1:]
    if mode == "http":
        import uvicorn

        app = make_server().streamable_http_app()
        uvicorn.run(app, host="127.0.0.1", port=int(arguments[0]), log_level="error")
    elif mode == "stubborn":  # ignores a closed stdin and SIGTERM
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            make_server().run("stdio")
        finally:
            while True:
                signal.pause()
    elif mode == "mute":
        print("waiting for a database", file=sys.stderr, flush=True)
        sys.stdin.read()
    else:
        make_server().run("stdio")


if __name__ == "__main__":
    main()
