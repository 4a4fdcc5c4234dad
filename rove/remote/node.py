"""What keeps environments on a machine for a run elsewhere: it loads them, and forks workers that talk to the run themselves."""

from __future__ import annotations

import asyncio
import functools
import importlib
import platform
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rove.core.digest import digest_files
from rove.core.errors import ConfigError, Error, RemoteError, traceback_text
from rove.remote.environment import IsolatedEnv
from rove.remote.loading import Isolation, open_environment

CONNECT_SECONDS = 30.0


class NodeActor:
    """Environments in worker processes on this machine, by names that the run gives them.

    Nothing about a rollout goes through here: a worker that is forked has a connection of its own to the run.
    """

    def __init__(self) -> None:
        self._envs: dict[str, IsolatedEnv] = {}

    async def about(self) -> dict[str, str]:
        """What must be the same everywhere, and where this is; see `about`."""
        return about()

    async def load(
        self,
        name: str,
        env_id: str,
        env_dir: str | None,
        env_args: Mapping[str, Any],
        isolation: Mapping[str, Any],
        prepare: str,
    ) -> dict[str, Any]:
        """Load an environment, after a call of the function `prepare` ("module:name").

        Returns:
            {"told": what there is to know of it}, or {"refused": why it could not be loaded}.
        """
        try:
            if prepare:
                module, _, function = prepare.partition(":")
                getattr(importlib.import_module(module), function)()
            env = await asyncio.to_thread(open_environment, env_id, env_dir, env_args, Isolation(on=True, **isolation))
            assert isinstance(env, IsolatedEnv)
        except Exception as error:
            theirs = error.__cause__.traceback if isinstance(error.__cause__, RemoteError) else ""
            text = theirs if isinstance(error, ConfigError) else traceback_text(error)
            return {"refused": f"{error}\n{text}".strip()}
        self._envs[name] = env
        return {"told": {**env.told, "env_id": env.env_id}}

    async def fork(self, name: str, address: str, port: int, token: bytes) -> int:
        """A worker that talks to whoever listens there and knows the token; its number."""
        workers = self._envs[name].workers
        await workers.ensure_started()
        return workers.fork(await asyncio.to_thread(_connected, address, port, token))

    async def kill(self, name: str, number: int) -> None:
        """End a worker and what it has started."""
        if name in self._envs:
            self._envs[name].workers.kill(number)

    async def last_words(self, name: str, number: int) -> str:
        """How a worker ended, and what was printed last."""
        return await self._envs[name].workers.exit_report(number) if name in self._envs else ""

    async def ask(self, name: str, what: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """A worker's answer to a call about the dataset: {"result": …} or {"failed": …}."""
        try:
            return {"result": await asyncio.to_thread(functools.partial(self._envs[name].ask_now, what, **args))}
        except Error as error:
            return {"failed": str(error)}

    async def end(self, name: str) -> None:
        """End an environment's workers; the next `fork` starts them anew."""
        if name in self._envs:
            await asyncio.to_thread(self._envs[name].close)

    async def forget(self, name: str) -> None:
        """End them for good."""
        await self.end(name)
        self._envs.pop(name, None)

    async def stay(self) -> None:
        """Never ends; who waits for it hears when this is gone."""
        await asyncio.Event().wait()


@functools.cache
def about() -> dict[str, str]:
    """Python's version, rove's version with a hash of its code, and where that is."""
    version = importlib.import_module("rove").__version__
    folder = Path(__file__).resolve().parents[1]
    code = digest_files(folder.rglob("*.py"))
    return {
        "python": platform.python_version(),
        "rove": f"{version} ({code})",
        "folder": str(folder),
        "where": socket.gethostname(),
    }


def check_same(ours: Mapping[str, str], theirs: Mapping[str, str]) -> None:
    """See that another machine has the Python and the rove of this one.

    Raises:
        ConfigError: it has another.
    """
    for name, shown in (("python", "Python"), ("rove", "rove")):
        here, there = ours[name], theirs[name]
        if name == "python":
            here, there = (version.rpartition(".")[0] for version in (here, there))
        if here != there:
            raise ConfigError(
                f"{theirs['where']} has {shown} {theirs[name]} in {theirs['folder']}, this process {ours[name]} in "
                f"{ours['folder']}: a run's machines need the same; install {shown} {ours[name]} there"
            )


def _connected(address: str, port: int, token: bytes) -> socket.socket:
    connection = socket.create_connection((address, port), CONNECT_SECONDS)
    try:
        connection.sendall(token)
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection
