"""A node of the cluster: it loads environments for a run and forks workers that connect to the run directly."""

from __future__ import annotations

import asyncio
import functools
import importlib
import platform
import socket
from collections.abc import Mapping
from pathlib import Path

from rove.core.digest import digest_files
from rove.core.errors import ConfigError, Error, RemoteError, traceback_text
from rove.core.plain import JsonMapping, JsonObject
from rove.remote.environment import IsolatedEnv
from rove.remote.isolation import Isolation, open_on_this_machine

CONNECT_TIMEOUT_S = 30.0


class NodeActor:
    """The environments of a node, by the names that the run gives them.

    Rollouts bypass this actor: each forked worker has its own connection to the run.
    """

    def __init__(self) -> None:
        self._envs: dict[str, IsolatedEnv] = {}

    async def about(self) -> dict[str, str]:
        """Return the versions that all nodes must share, and the location of this node; see `about`."""
        return about()

    async def load(
        self, name: str, env_id: str, env_dir: str | None, env_args: JsonMapping, isolation: JsonMapping, prepare: str
    ) -> JsonObject:
        """Call the function `prepare` ("module:name"), and load an environment.

        Returns:
            {"description": …} or {"error": …}.
        """
        try:
            if prepare:
                module, _, function = prepare.partition(":")
                getattr(importlib.import_module(module), function)()
            env = await asyncio.to_thread(
                open_on_this_machine, env_id, env_dir, env_args, Isolation(on=True, **isolation)
            )
            assert isinstance(env, IsolatedEnv)
        except Exception as error:
            # As data: the run never unpickles data of an environment (docs/decisions/workers.md).
            text = traceback_text(error)
            if isinstance(error, ConfigError):  # of these, only a traceback in the package itself helps
                text = error.__cause__.traceback if isinstance(error.__cause__, RemoteError) else ""
            return {"error": f"{error}\n{text}".strip()}
        self._envs[name] = env
        return {"description": {**env.description, "env_id": env.env_id}}

    async def fork(self, name: str, address: str, port: int, token: bytes) -> int:
        """Fork a worker that connects to the run and sends the token; return its number."""
        workers = self._envs[name].workers
        await workers.ensure_started()
        return workers.fork(await asyncio.to_thread(_connect, address, port, token))

    async def kill(self, name: str, number: int) -> None:
        """Kill a worker and its child processes."""
        if name in self._envs:
            self._envs[name].workers.kill(number)

    async def exit_report(self, name: str, number: int) -> str:
        """Return a text about how a worker ended, with its last output."""
        if name not in self._envs:
            return ""
        return await self._envs[name].workers.exit_report(number)

    async def call_worker(self, name: str, function: str, args: JsonMapping) -> JsonObject:
        """Call a worker about the dataset: {"result": …} or {"failed": …}."""
        try:
            return {"result": await asyncio.to_thread(self._envs[name].call_sync, function, **args)}
        except Error as error:
            return {"failed": str(error)}

    async def end(self, name: str) -> None:
        """End an environment's workers; the next `fork` starts them again."""
        if name in self._envs:
            await asyncio.to_thread(self._envs[name].close)

    async def unload(self, name: str) -> None:
        """End an environment's workers and drop it."""
        await self.end(name)
        self._envs.pop(name, None)

    async def wait_forever(self) -> None:
        """Never return: the call fails when the actor ends, which shows that the node is lost."""
        await asyncio.Event().wait()


@functools.cache
def about() -> dict[str, str]:
    """Return the versions of Python and rove (with a hash of rove's code), rove's folder, and the name of the machine."""
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
    """Check that a node has the same versions of Python and rove as this machine."""
    for name, title in (("python", "Python"), ("rove", "rove")):
        our_version, their_version = ours[name], theirs[name]
        if name == "python":  # the patch version may differ
            our_version, their_version = our_version.rpartition(".")[0], their_version.rpartition(".")[0]
        if our_version != their_version:
            raise ConfigError(
                f"{theirs['where']} has {title} {theirs[name]} in {theirs['folder']}, this process {ours[name]} in "
                f"{ours['folder']}: a run's machines need the same; install {title} {ours[name]} there"
            )


def _connect(address: str, port: int, token: bytes) -> socket.socket:
    connection = socket.create_connection((address, port), CONNECT_TIMEOUT_S)
    try:
        connection.sendall(token)
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection
