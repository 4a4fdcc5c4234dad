"""Sandboxes on this machine: processes forked from a prepared parent, locked in by what the Linux kernel offers."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from rove.core.config import check_positive
from rove.core.errors import ConfigError, SandboxError, nearest
from rove.sandbox.backend import Description, SandboxLimits
from rove.sandbox.containment import ESSENTIAL, FEATURES, LIMITING, describe
from rove.sandbox.parent import Parent, python_folders
from rove.sandbox.session import Streams, SupervisedSession

ENVIRONMENT = {
    "HOME": "/session",
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "OMP_NUM_THREADS": "1",  # a thread pool in the parent could not be forked
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",  # else each thread may reserve 64 MB, which count as memory_bytes
}


class LocalBackend:
    """Sessions on this machine (Linux).

    Args:
        limits: of a session that is opened without its own.
        packages: installed packages that sessions may import, by their name in an index or in Python; imported once, before
            the first session. Without any, sessions have the standard library.
        paths: further files and folders that sessions may read, under the same path. They must not hold secrets.
            Where one is below /tmp, /tmp is read-only.
        environment: further environment variables of sessions, which the code can read.
        unsafe: open sessions even where this machine cannot enforce what it takes; see `describe`.
        max_sessions: most sessions at once; further ones wait.
        without: features to leave off, by their names in `rove.sandbox.containment` (to see what they are good for).

    Raises:
        ConfigError: a package is not installed, a path not absolute, a feature unknown, or `max_sessions` not above 0.
    """

    def __init__(
        self,
        limits: SandboxLimits | None = None,
        *,
        packages: Sequence[str] = (),
        paths: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        unsafe: bool = False,
        max_sessions: int = 64,
        without: Sequence[str] = (),
    ):
        self.limits, self.unsafe, self.max_sessions = limits or SandboxLimits(), unsafe, max_sessions
        check_positive(self, "max_sessions")
        self._settings = settings(packages, paths, environment or {}, without)
        self._parent: Parent | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = asyncio.Lock()
        self._sessions: set[SupervisedSession] = set()

    async def open(self, limits: SandboxLimits | None = None) -> LocalSession:
        """See `Backend.open`."""
        session = LocalSession(self, limits or self.limits)
        await session.start()
        self._sessions.add(session)
        return session

    def forget(self, session: SupervisedSession) -> None:
        """A session is closed."""
        self._sessions.discard(session)

    async def describe(self) -> Description:
        """See `Backend.describe`."""
        if not sys.platform.startswith("linux"):
            return Description(
                enforced=[], missing=describe(dict.fromkeys(FEATURES, f"this is {sys.platform}")).missing
            )
        return describe(self._missing(await self._started()))

    async def parent(self) -> Parent:
        """The process that sessions are forked from, started if there is none.

        Raises:
            ConfigError: this machine cannot enforce what it takes, and `unsafe` is not set.
            SandboxError: it does not start.
        """
        parent = await self._started()
        missing = self._missing(parent)
        lacking = [name for name in ESSENTIAL if name in missing]
        if lacking and not self.unsafe:
            words = "\n".join(f"- {line}" for line in describe({name: missing[name] for name in lacking}).missing)
            raise ConfigError(f"this machine cannot contain code as it should:\n{words}\n{REMEDY}")
        unlimited = {name: missing[name] for name in LIMITING if name in missing}
        if unlimited:
            warnings.warn(f"{unlimited_words(unlimited)}; {CONTROL_GROUPS}", stacklevel=2)
        return parent

    async def close(self) -> None:
        """See `Backend.close`."""
        for session in list(self._sessions):
            await session.close()
        parent, self._parent = self._parent, None
        if parent is not None:
            await self._end(parent)

    async def __aenter__(self) -> LocalBackend:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _started(self) -> Parent:
        if not sys.platform.startswith("linux"):
            raise ConfigError(f"the local sandbox needs Linux, this is {sys.platform}: {ELSEWHERE}")
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # a parent, its sessions and locks belong to the loop they were made in
            old, self._parent, self._loop, self._starting = self._parent, None, loop, asyncio.Lock()
            self._sessions.clear()
            if old is not None:
                await self._end(old)
        async with self._starting:
            if self._parent is None or self._parent.is_gone:
                if self._parent is not None:
                    await self._parent.close()
                self._parent = await Parent.start(self._settings, self.max_sessions)
        return self._parent

    async def _end(self, parent: Parent) -> None:
        if parent.loop is asyncio.get_running_loop():
            await parent.close()
        else:
            parent.abandon()

    def _missing(self, parent: Parent) -> dict[str, str]:
        groups = {f"{name} group": reason for name, reason in parent.groups.missing.items()}
        return parent.missing | groups


def unlimited_words(missing: Mapping[str, str]) -> str:
    """Say that sessions have no limits as a whole, from those features of `LIMITING` that are missing, with the reasons."""
    return f"sandboxes run without control groups on this machine: {'; '.join(describe(missing).missing)}"


CONTROL_GROUPS = "run as root, or in a control group (version 2) that is delegated to this user, to have these limits"
REMEDY = "run as root, where user namespaces are allowed, or pass unsafe=True and trust the code"
ELSEWHERE = (
    "other systems have no namespaces and no filter of system calls, so that code could read your files, reach the network"
    " and outlive its session; use DockerBackend there"
)


class LocalSession(SupervisedSession):
    """A session whose processes were forked here."""

    def __init__(self, backend: LocalBackend, limits: SandboxLimits):
        super().__init__(limits, backend.forget)
        self._backend = backend
        self._parent: Parent | None = None
        self._number = 0

    async def _connect(self) -> Streams:
        parent = await self._backend.parent()
        try:
            number, connection = await parent.fork(self.limits)
        except SandboxError:
            if not parent.is_gone:
                raise
            # it died while this session waited for its turn: there is a new one now
            parent = await self._backend.parent()
            number, connection = await parent.fork(self.limits)
        self._parent, self._number = parent, number
        return await asyncio.open_unix_connection(sock=connection)

    async def _disconnect(self) -> str:
        parent, self._parent = self._parent, None
        return "" if parent is None else await asyncio.shield(parent.kill(self._number))


def settings(
    packages: Sequence[str], paths: Sequence[str], environment: Mapping[str, str], without: Sequence[str]
) -> Mapping[str, Any]:
    """What a zygote is told.

    Raises:
        ConfigError: a package is not installed, a path not absolute, or a feature unknown.
    """
    for path in paths:
        if (
            not os.path.isabs(path)
            or not os.path.exists(path)
            or os.path.realpath(path) in ("/", "/dev", "/proc", "/session")
        ):
            raise ConfigError(f"paths has '{path}'; expected absolute paths that exist, and none of /, /dev and /proc")
    for name in without:
        if name not in FEATURES:
            raise ConfigError(f"without has '{name}'; {nearest(name, FEATURES)}")
    folders = python_folders(packages)
    home = os.path.dirname(os.path.realpath(sys.executable))
    shown = [sys.base_prefix, *folders, *paths]
    return {
        "paths": [*shown, *map(os.path.realpath, shown)],
        "python_path": folders,
        "preload": [module_of(package) for package in packages],
        "environment": ENVIRONMENT
        | {"PATH": f"{home}:{ENVIRONMENT['PATH']}"}
        | ({"PYTHONPATH": ":".join(folders)} if folders else {})
        | dict(environment),
        "without": list(without),
    }


def module_of(package: str) -> str:
    """What an installed package is imported as.

    Raises:
        ConfigError: it is not installed.
    """
    name = package.replace("-", "_")
    if importlib.util.find_spec(name) is not None:
        return name
    for module, packages in importlib.metadata.packages_distributions().items():
        if package.lower() in (known.lower() for known in packages):
            return module
    raise ConfigError(f"packages has '{package}', which is not installed here; pip install {package}")
