"""Servers of the Model Context Protocol: what they are, their processes, the sessions with them.

`settings` says what a server is, `process` runs one that is a command, `sdk` is all that knows the SDK (both of its majors),
`connection` is one session and `servers` those of an environment or a rollout; `content` reads what a tool returned.
"""

from rove.mcp.servers import Servers
from rove.mcp.settings import ServerSettings, read_servers

__all__ = ["ServerSettings", "Servers", "read_servers"]
