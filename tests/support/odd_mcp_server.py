"""An MCP server over stdio without the SDK; the first argument names an oddity of its list of tools."""

from __future__ import annotations

import json
import sys
from typing import Any

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "string"}}}
REFERENCES = {"type": "object", "$defs": {"X": {"type": "string"}}, "properties": {"x": {"$ref": "#/$defs/X"}}}


def tool(name: str, schema: dict[str, Any] = SCHEMA) -> dict[str, Any]:
    """Return the definition of a tool."""
    return {"name": name, "inputSchema": schema}


def list_tools(oddity: str, cursor: str | None) -> dict[str, Any]:
    """Return one page of tools."""
    if oddity == "pages":
        page = int(cursor or 0)
        following = {"nextCursor": str(page + 1)} if page < 2 else {}
        return {"tools": [tool(f"t{page}")], **following}
    if oddity == "page that names itself":
        return {"tools": [tool("t0")], "nextCursor": "again"}
    if oddity == "empty page that names itself":
        return {"tools": [] if cursor else [tool("t0")], "nextCursor": "again"}
    by_oddity = {
        "same name twice": [tool("t0"), tool("t0")],
        "no type": [tool("t0", {})],
        "definitions": [tool("t0", REFERENCES)],
        "odd names": [tool("a.b"), tool("c d")],
    }
    return {"tools": by_oddity.get(oddity, [tool("t0")])}


def result_of(oddity: str, request: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a request."""
    params = request.get("params") or {}
    if request["method"] == "initialize":
        server = {"name": "odd", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": server}
    if request["method"] == "tools/list":
        return list_tools(oddity, params.get("cursor"))
    if request["method"] == "tools/call":
        return {"content": [{"type": "text", "text": "done"}]}
    return {}


def main() -> None:
    """Respond to requests until stdin ends."""
    oddity = sys.argv[1]
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        if oddity == "text on stdout":
            print("a line for people", flush=True)
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result_of(oddity, request)}), flush=True)


if __name__ == "__main__":
    main()
