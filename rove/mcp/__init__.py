"""Servers of the Model Context Protocol (MCP).

`settings`: which server. `process`: the process of a command. `sdk`: adapter for both majors of the SDK. `servers`:
connections of an environment or rollout.
"""

from rove.mcp.servers import Servers
from rove.mcp.settings import ServerSettings, read_servers

__all__ = ["ServerSettings", "Servers", "read_servers"]
