"""An MCP server with one tool; other MCP clients can use it too: `python server.py`."""

from __future__ import annotations

import hashlib
from typing import Any

import mcp.server

if hasattr(mcp.server, "MCPServer"):
    from mcp.server import MCPServer
else:  # mcp 1.x
    from mcp.server.fastmcp import FastMCP as MCPServer  # pyright: ignore

ROOMS = ["attic", "barn", "cellar", "garden", "hall", "kitchen", "loft", "study"]


def room_of(name: str) -> str:
    """Return a person's room, which the model cannot guess."""
    return ROOMS[hashlib.sha256(name.encode()).digest()[0] % len(ROOMS)]


def make_server() -> Any:
    """Return the server."""
    server = MCPServer("house")

    @server.tool()
    async def find(name: str) -> str:
        """Return the room in which the person with this name is."""
        return room_of(name)

    return server


if __name__ == "__main__":
    make_server().run("stdio")
