"""Settings of MCP servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rove.core.checks import Settings
from rove.core.config import convert
from rove.core.errors import ConfigError, nearest
from rove.core.plain import Identity, JsonMapping


class ServerSettings(Settings, frozen=True, kw_only=True):
    """Settings of one server: a `command` to start, a `url` to connect to, or a `server` object in this process.

    Raises:
        ConfigError: none or several of the three are set, or a setting is for another kind of server.

    Example:
        ServerSettings(name="time", command="uvx", args=["mcp-server-time"])
    """

    name: str
    """Name in error messages."""
    command: str = ""
    """Program to start; it communicates through stdin and stdout."""
    args: list[str] = []
    """Arguments of the command."""
    env: dict[str, str] = {}
    """Additional environment variables of the command; it inherits only PATH, HOME and a few similar variables."""
    cwd: str | None = None
    """Working directory of the command. Default: the working directory of this process."""
    url: str = ""
    """URL of a streamable HTTP server, such as http://localhost:8000/mcp."""
    headers: dict[str, str] = {}
    """Headers of every HTTP request."""
    server: Any = None
    """A server object of the SDK, or a function that creates one."""
    description: str = ""
    """Description for people; models see only the tools."""
    include: list[str] | None = None
    """Names of tools for the model. Default: all."""
    exclude: list[str] = []
    """Names of tools to omit."""
    prefix: str = ""
    """Prefix of tool names, for servers with tools of the same name."""

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds = [kind for kind in ("command", "url", "server") if getattr(self, kind)]
        if len(kinds) != 1:
            kinds_text = " and ".join(kinds) or "none of them"
            raise ConfigError(f"MCP server '{self.name}' has {kinds_text}; expected one of command, url and server")
        unused: list[str] = []
        if not self.command:
            unused += [key for key in ("args", "env", "cwd") if getattr(self, key)]
        if self.headers and not self.url:
            unused.append("headers")
        if unused:
            raise ConfigError(f"MCP server '{self.name}' has {', '.join(unused)}, which a {kinds[0]} does not take")

    @property
    def identity(self) -> Identity:
        """Settings that distinguish the server from other servers, without environment variables and headers, which may be
        secret.
        """
        keys = ("name", "command", "args", "cwd", "url", "include", "exclude", "prefix")
        return {key: getattr(self, key) for key in keys if getattr(self, key)}

    def make_server(self) -> Any:
        """Return the server object."""
        return self.server() if self.has_factory else self.server

    @property
    def has_factory(self) -> bool:
        """Whether `server` is a function that creates servers."""
        # The servers of the SDK have `run`, so they count as servers even if they are callable.
        return callable(self.server) and not hasattr(self.server, "run")

    def chosen(self, tools: Sequence[JsonMapping]) -> list[JsonMapping]:
        """Return the tools for the model.

        Raises:
            ConfigError: `include` or `exclude` has an unknown tool, or two tools have the same name.
        """
        names = [tool["name"] for tool in tools]
        for setting, listed_names in (("include", self.include or []), ("exclude", self.exclude)):
            for name in listed_names:
                if name not in names:
                    raise ConfigError(
                        f"MCP server '{self.name}' has no tool '{name}' to {setting}; {nearest(name, names)}"
                    )
        included = set(names if self.include is None else self.include) - set(self.exclude)
        chosen = [tool for tool in tools if tool["name"] in included]
        chosen_names: set[str] = set()
        for tool in chosen:  # only these: a tool that the server lists twice may be excluded
            if tool["name"] in chosen_names:
                raise ConfigError(
                    f"MCP server '{self.name}' lists the tool '{tool['name']}' twice; expected one tool of each name: correct "
                    f"the server, or exclude the tool (exclude=['{tool['name']}'])"
                )
            chosen_names.add(tool["name"])
        return chosen


def read_servers(servers: Iterable[object]) -> list[ServerSettings]:
    """Convert dicts to `ServerSettings`.

    Raises:
        ConfigError: invalid settings, a repeated name, or no servers.
    """
    if isinstance(servers, (str, Mapping)) or not isinstance(servers, Iterable):
        raise ConfigError(f'mcp_servers is {servers!r}; expected a list like [{{"name": "time", "command": "uvx", …}}]')
    settings = [_read(server) for server in servers]
    names = [server.name for server in settings]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"mcp_servers has two servers named '{name}'; expected unique names")
    if not settings:
        raise ConfigError("mcp_servers is empty; expected at least one server, or use ToolEnv")
    return settings


def _read(server: object) -> ServerSettings:
    if isinstance(server, ServerSettings):
        return server
    if not isinstance(server, Mapping):
        raise ConfigError(f"mcp_servers has {server!r}; expected a dict with a name, and a command, url or server")
    values = {key: value for key, value in server.items() if value is not None}
    try:
        return convert(ServerSettings, values)
    except ConfigError as error:
        name = server.get("name")
        subject = f"server {name!r}" if name else repr(server)
        raise ConfigError(f"mcp_servers, {subject}: {error}") from error
