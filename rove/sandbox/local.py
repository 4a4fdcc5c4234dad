"""Sandboxes on this machine: processes forked from a prepared parent and isolated by features of the Linux kernel.

docs/decisions/sandbox.md explains why rove has its own sandbox, and why it refuses to run code in a weaker sandbox.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import os
import sys
import warnings
from collections.abc import Mapping, Sequence

from rove.core.errors import ConfigError, SandboxError, nearest
from rove.core.plain import JsonMapping
from rove.sandbox.backend import Description, SandboxLimits
from rove.sandbox.containment import ESSENTIAL, FEATURES, LIMITING, describe
from rove.sandbox.parent import Parent, python_folders
from rove.sandbox.session import Streams, SupervisedBackend, SupervisedSession

ENVIRONMENT = {
    "HOME": "/session",
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "OMP_NUM_THREADS": "1",  # threads of the parent would not survive the fork
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",  # otherwise each thread may reserve 64 MB, which count towards memory_bytes
}


class LocalBackend(SupervisedBackend):
    """Sessions on this machine (Linux).

    Args:
        limits: Default limits of a session.
        packages: Installed packages that sessions may import, by distribution or module name; they are imported once,
            before the first session. Without packages, sessions have only the standard library.
        paths: Additional files and folders that sessions may read, under the same path. They must not contain secrets. If a
            path is below /tmp, /tmp is read-only.
        environment: Additional environment variables of sessions, which code can read.
        unsafe: Open sessions even if this machine lacks required features; see `describe`.
        max_sessions: Maximum number of open sessions; `open` waits while they are in use.
        without: Features to disable, by their names in `rove.sandbox.containment`, to see their effect.

    Raises:
        ConfigError: A package is not installed, a path is invalid, a feature is unknown, or `max_sessions` is not positive.

    Example:
        >>> async with LocalBackend() as backend:  # doctest: +SKIP
        ...     session = await backend.open()
        ...     result = await session.run_python("1 + 1")
    """

    def __init__(
        self,
        limits: SandboxLimits | None = None,
        *,
        packages: Sequence[str] = (),
        paths: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        unsafe: bool = False,
        max_sessions: int = 128,
        without: Sequence[str] = (),
    ):
        super().__init__(limits, max_sessions)
        self.unsafe = unsafe
        self._settings = settings(packages, paths, environment or {}, without)
        self._parent: Parent | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = asyncio.Lock()

    def _new_session(self, limits: SandboxLimits) -> LocalSession:
        return LocalSession(self, limits)

    async def describe(self) -> Description:
        """See `Backend.describe`."""
        if not sys.platform.startswith("linux"):
            return describe(dict.fromkeys(FEATURES, f"this is {sys.platform}"))
        return describe(self._missing(await self._ensure_parent()))

    async def parent(self) -> Parent:
        """Return the process from which sessions are forked; start it if necessary.

        Raises:
            ConfigError: This machine lacks a required feature, and `unsafe` is not set.
            SandboxError: The process cannot be started.
        """
        parent = await self._ensure_parent()
        missing = self._missing(parent)
        lacking = {name: missing[name] for name in ESSENTIAL if name in missing}
        if lacking and not self.unsafe:
            reasons = "\n".join(f"- {line}" for line in describe(lacking).missing)
            raise ConfigError(f"this machine lacks features that the sandbox requires:\n{reasons}\n{REMEDY}")
        unlimited = {name: missing[name] for name in LIMITING if name in missing}
        if unlimited:
            warnings.warn(f"{unlimited_warning(unlimited)}; {CONTROL_GROUPS}", stacklevel=2)
        return parent

    async def close(self) -> None:
        """See `Backend.close`."""
        for session in list(self._sessions):
            await session.close()
        parent, self._parent = self._parent, None
        if parent is not None:
            await self._end(parent)

    async def _ensure_parent(self) -> Parent:
        if not sys.platform.startswith("linux"):
            raise ConfigError(f"the local sandbox needs Linux, this is {sys.platform}: {ELSEWHERE}")
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # a parent, its sessions and locks belong to one event loop
            old_parent, self._parent = self._parent, None
            self._loop, self._starting = loop, asyncio.Lock()
            self._sessions.clear()
            if old_parent is not None:
                await self._end(old_parent)
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


def unlimited_warning(missing: Mapping[str, str]) -> str:
    """Return a warning that there are no limits for sessions as a whole."""
    return f"sandboxes run without control groups on this machine: {'; '.join(describe(missing).missing)}"


CONTROL_GROUPS = "run as root, or in a control group (version 2) that is delegated to this user, to have these limits"
REMEDY = "run as root, where user namespaces are allowed, or pass unsafe=True and trust the code"
ELSEWHERE = (
    "other systems have no namespaces and no filter of system calls, so that code could read your files, reach the network"
    " and outlive its session; use DockerBackend there"
)


class LocalSession(SupervisedSession):
    """A session whose processes were forked on this machine."""

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
            # the parent died while this session waited for a slot: there is a new one now
            parent = await self._backend.parent()
            number, connection = await parent.fork(self.limits)
        self._parent, self._number = parent, number
        return await asyncio.open_unix_connection(sock=connection)

    async def _disconnect(self) -> str:
        parent, self._parent = self._parent, None
        if parent is None:
            return ""
        # Several callers may wait for the same future; a canceled one must not cancel it.
        return await asyncio.shield(parent.kill(self._number))


def settings(
    packages: Sequence[str], paths: Sequence[str], environment: Mapping[str, str], without: Sequence[str]
) -> JsonMapping:
    """Return the settings of a zygote."""
    for path in paths:
        is_reserved = os.path.realpath(path) in ("/", "/dev", "/proc", "/session")
        if is_reserved or not os.path.isabs(path) or not os.path.exists(path):
            raise ConfigError(
                f"paths has '{path}'; expected existing absolute paths other than /, /dev, /proc and /session"
            )
    for name in without:
        if name not in FEATURES:
            raise ConfigError(f"without has '{name}'; {nearest(name, FEATURES)}")
    folders = python_folders(packages)
    home = os.path.dirname(os.path.realpath(sys.executable))
    readable = [sys.base_prefix, *folders, *paths]
    variables = ENVIRONMENT | {"PATH": f"{home}:{ENVIRONMENT['PATH']}"}
    if folders:  # for Python that code starts from bash
        variables["PYTHONPATH"] = ":".join(folders)
    return {
        # Links and their targets: a virtual environment's Python is a link.
        "paths": [*readable, *map(os.path.realpath, readable)],
        "python_path": folders,
        "preload": [module_of(package) for package in packages],
        "environment": variables | dict(environment),
        "without": list(without),
    }


def module_of(package: str) -> str:
    """Return the module name of an installed package."""
    name = package.replace("-", "_")
    if importlib.util.find_spec(name) is not None:
        return name
    for module, distributions in importlib.metadata.packages_distributions().items():
        if package.lower() in (distribution.lower() for distribution in distributions):
            return module
    raise ConfigError(f"packages has '{package}', which is not installed; pip install {package}")
