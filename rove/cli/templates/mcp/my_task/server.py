"""A server of the Model Context Protocol; any other program that speaks it can use it, too: `python server.py`."""

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
    """Where somebody is; nobody could guess it."""
    return ROOMS[hashlib.sha256(name.encode()).digest()[0] % len(ROOMS)]


def make_server() -> Any:
    """The server, with one tool."""
    server = MCPServer("house")

    @server.tool()
    async def find(name: str) -> str:
        """In which room somebody is."""
        return room_of(name)

    return server


if __name__ == "__main__":
    make_server().run("stdio")
