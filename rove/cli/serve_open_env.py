"""`rove serve --openenv`: an environment as an OpenEnv server."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from typing import Any

import msgspec
from rich.console import Console

from rove.cli.common import hint
from rove.core.config import check_positive
from rove.envs.loading import load_environment


class OpenEnvConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of an OpenEnv server."""

    openenv: str
    """The environment."""
    env_args: dict[str, Any] = {}
    env_dir: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    """0 = any that is free."""
    max_sessions: int = 1024
    """Connections at a time; others are refused."""
    seed: int = 0
    """Of episodes whose reset gives none."""

    def __post_init__(self) -> None:
        check_positive(self, "max_sessions")


def run_open_env(config: OpenEnvConfig, console: Console) -> None:
    """Serve until told to stop."""
    from rove.integrations.open_env_server import OpenEnvServer
    from rove.server import base_url_of, is_loopback, listening

    env = load_environment(config.openenv, config.env_dir, **config.env_args)
    server = OpenEnvServer(env, env.env_id, config.max_sessions, config.seed)
    if not is_loopback(config.host):
        console.print(f"warning: anybody who can reach {config.host} can play", style="yellow", soft_wrap=True)

    async def go() -> None:
        stop = asyncio.Event()
        async with listening(server.app(), config.host, config.port) as runner:
            for number in (signal.SIGTERM, signal.SIGINT):
                with suppress(NotImplementedError):
                    asyncio.get_running_loop().add_signal_handler(number, stop.set)
            url = base_url_of(runner).removesuffix("/v1")
            console.print(f"serving {env.env_id} at {url} with OpenEnv's protocol (Ctrl-C stops it)", soft_wrap=True)
            hint(
                console,
                f"curl {url}/schema",
                f'GenericEnvClient(base_url="{url}") of the openenv package connects to it',
            )
            await stop.wait()

    asyncio.run(go())
    console.print("stopped")
