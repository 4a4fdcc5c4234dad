"""What an MCP server is, and which of its tools a model is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from rove.core.config import convert
from rove.core.errors import ConfigError, nearest


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One server: a `command` to start, a `url` to call, or a `server` object in this process.

    Raises:
        ConfigError: it is none of these or several, or has settings of another kind of server.
    """

    name: str
    """What errors call it."""
    command: str = ""
    """Program to start; it speaks on its stdin and stdout."""
    args: list[str] = []
    """Of the command."""
    env: dict[str, str] = {}
    """Variables of the command, besides PATH, HOME and the like: it sees no others of this process."""
    cwd: str | None = None
    """Folder the command runs in. Default: this process's."""
    url: str = ""
    """Of a server that speaks streamable HTTP, such as http://localhost:8000/mcp."""
    headers: dict[str, str] = {}
    """Sent with every HTTP request."""
    server: Any = None
    """A server object of the SDK, or a function without arguments that makes one."""
    description: str = ""
    """For people; models are told of the tools alone."""
    include: list[str] | None = None
    """Its tools that the model is given, by their names there. Default: all."""
    exclude: list[str] = []
    """Its tools that the model is not given."""
    prefix: str = ""
    """Put before the names of its tools, so that two servers may have tools of one name."""

    def __post_init__(self) -> None:
        ways = [way for way in ("command", "url", "server") if getattr(self, way)]
        if len(ways) != 1:
            given = " and ".join(ways) or "none of them"
            raise ConfigError(f"MCP server '{self.name}' has {given}; expected one of command, url and server")
        wrong = [key for key in ("args", "env", "cwd") if getattr(self, key) and not self.command]
        wrong += ["headers"] if self.headers and not self.url else []
        if wrong:
            raise ConfigError(f"MCP server '{self.name}' has {', '.join(wrong)}, which a {ways[0]} does not take")

    @property
    def identity(self) -> dict[str, Any]:
        """What tells it from others; values of variables and headers are secrets, and left out."""
        kept = ("name", "command", "args", "cwd", "url", "include", "exclude", "prefix")
        return {key: getattr(self, key) for key in kept if getattr(self, key)}

    def make_server(self) -> Any:
        """The server object."""
        return self.server() if self.has_factory else self.server

    @property
    def has_factory(self) -> bool:
        """Whether `server` makes servers."""
        return callable(self.server) and not hasattr(self.server, "run")

    def chosen(self, tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Those of the server's tools that the model is given.

        Raises:
            ConfigError: `include` or `exclude` names a tool that the server does not have.
        """
        names = [tool["name"] for tool in tools]
        for setting, wanted in (("include", self.include or []), ("exclude", self.exclude)):
            for name in wanted:
                if name not in names:
                    raise ConfigError(
                        f"MCP server '{self.name}' has no tool '{name}' to {setting}; {nearest(name, names)}"
                    )
        left = set(names if self.include is None else self.include) - set(self.exclude)
        return [tool for tool in tools if tool["name"] in left]


def read_servers(given: Iterable[Any]) -> list[ServerSettings]:
    """Servers from dicts, or `ServerSettings` as they are.

    Raises:
        ConfigError: one is wrong, two have one name, or there is none.
    """
    if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable):
        raise ConfigError(f'mcp_servers is {given!r}; expected a list like [{{"name": "time", "command": "uvx", …}}]')
    servers = [_read(one) for one in given]
    names = [server.name for server in servers]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"mcp_servers has two servers named '{twice}'; expected names of their own")
    if not servers:
        raise ConfigError("mcp_servers is empty; expected at least one server, or use ToolEnv")
    return servers


def _read(given: Any) -> ServerSettings:
    if isinstance(given, ServerSettings):
        return given
    if not isinstance(given, Mapping):
        raise ConfigError(f"mcp_servers has {given!r}; expected a dict with a name, and a command, url or server")
    known = {key: value for key, value in given.items() if value is not None}
    try:
        return convert(ServerSettings, known)
    except ConfigError as error:
        name = given.get("name")
        raise ConfigError(f"mcp_servers, {f'server {name!r}' if name else repr(given)}: {error}") from error
