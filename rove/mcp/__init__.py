"""Servers of the Model Context Protocol (MCP).

`settings`: settings of a server. `process`: the process of a server that is a command. `sdk`: adapter for both major versions of
the SDK. `servers`: connections of an environment or rollout.
"""

from rove.mcp.servers import Servers
from rove.mcp.settings import ServerSettings, read_servers

__all__ = ["ServerSettings", "Servers", "read_servers"]
