"""Sandboxes on this machine: processes forked from a prepared parent, locked in by what the Linux kernel offers."""

from __future__ import annotations

import asyncio
import base64
import importlib.metadata
import importlib.util
import os
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rove.config import check_positive
from rove.errors import ConfigError, SandboxError, SandboxFileError
from rove.sandbox.backend import Description, Result, SandboxLimits
from rove.sandbox.containment import ESSENTIAL, describe
from rove.sandbox.parent import Parent, python_folders

START_SECONDS = 30.0
"""For one session to say that it is ready."""
GUARD_SECONDS = 2.0
"""A call is over so long after its time at the latest, should the supervisor itself not answer."""
LENGTH = struct.Struct("<I")
ENVIRONMENT = {
    "HOME": "/session",
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "OMP_NUM_THREADS": "1",  # a thread pool in the parent could not be forked
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


class LocalBackend:
    """Sessions on this machine (Linux).

    Args:
        limits: of a session that is opened without its own.
        packages: installed packages that sessions may import, by their name in an index or in Python; imported once, before
            the first session. Without any, sessions have the standard library.
        paths: further files and folders that sessions may read, under the same path. They must not hold secrets.
        unsafe: open sessions even where this machine cannot enforce what it takes; see `describe`.
        max_sessions: most sessions at once; further ones wait.
        without: features to leave off, by their names in `rove.sandbox.containment` (to see what they are good for).

    Raises:
        ConfigError: a package is not installed, or `max_sessions` is not above 0.
    """

    def __init__(
        self,
        limits: SandboxLimits | None = None,
        *,
        packages: Sequence[str] = (),
        paths: Sequence[str] = (),
        unsafe: bool = False,
        max_sessions: int = 64,
        without: Sequence[str] = (),
    ):
        self.limits, self.unsafe, self.max_sessions, self.without = (
            limits or SandboxLimits(),
            unsafe,
            max_sessions,
            without,
        )
        check_positive(self, "max_sessions")
        self._settings = settings(packages, paths, without)
        self._parent: Parent | None = None
        self._starting: asyncio.Lock | None = None
        self._sessions: set[LocalSession] = set()

    async def open(self, limits: SandboxLimits | None = None) -> LocalSession:
        """See `Backend.open`."""
        session = LocalSession(self, limits or self.limits)
        await session.start()
        self._sessions.add(session)
        return session

    def forget(self, session: LocalSession) -> None:
        """A session is closed."""
        self._sessions.discard(session)

    async def describe(self) -> Description:
        """See `Backend.describe`."""
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
        if self._parent is not None and self._parent.loop is not loop:
            old, self._parent, self._starting = self._parent, None, None
            self._sessions.clear()
            await self._end(old)
        self._starting = self._starting or asyncio.Lock()
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


REMEDY = "run as root, where user namespaces are allowed, or pass unsafe=True and trust the code"
ELSEWHERE = (
    "other systems have no namespaces and no filter of system calls, so that code could read your files, reach the network"
    " and outlive its session; use DockerBackend there"
)


class LocalSession:
    """See `Session`. A session that died is made anew by the next call, and its result says that files are gone."""

    def __init__(self, backend: LocalBackend, limits: SandboxLimits):
        self.backend, self.limits = backend, limits
        self._lock = asyncio.Lock()
        self._parent: Parent | None = None
        self._number = 0
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._closed = False

    async def start(self) -> None:
        """Fork the session's processes and wait until they are ready.

        Raises:
            ConfigError, SandboxError: see `Backend.open`.
        """
        parent = self._parent = await self.backend.parent()
        self._number, connection = await parent.fork(self.limits)
        try:
            self._streams = await asyncio.open_unix_connection(sock=connection)
            async with asyncio.timeout(START_SECONDS):
                hello = await self._read()
        except BaseException as error:
            reason = await self._end()
            if isinstance(error, (TimeoutError, OSError, EOFError)):
                raise SandboxError(f"a sandbox did not start: {reason or error or 'no answer'}") from error
            raise
        if "broken" in hello:
            await self._end()
            raise SandboxError(f"a sandbox did not start:\n{hello['broken']}")

    async def run_python(self, code: str, seconds: float | None = None) -> Result:
        """See `Session.run_python`."""
        return await self._run({"kind": "python", "code": code}, seconds)

    async def bash(self, command: str, seconds: float | None = None) -> Result:
        """See `Session.bash`."""
        return await self._run({"kind": "bash", "command": command}, seconds)

    async def put(self, path: str, data: bytes) -> None:
        """See `Session.put`."""
        if len(data) > self.limits.file_bytes:
            raise SandboxFileError(
                f"{path} has {len(data)} bytes; expected at most {self.limits.file_bytes} (file_bytes)"
            )
        await self._file({"kind": "put", "path": path, "data": base64.b64encode(data).decode()})

    async def get(self, path: str) -> bytes:
        """See `Session.get`."""
        return base64.b64decode((await self._file({"kind": "get", "path": path}))["data"])

    async def close(self) -> None:
        """See `Session.close`."""
        self._closed = True
        self.backend.forget(self)
        await self._end()

    async def __aenter__(self) -> LocalSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, request: dict[str, Any], seconds: float | None) -> Result:
        seconds = self.limits.seconds if seconds is None else seconds
        answer = await self._call({**request, "seconds": seconds}, seconds)
        if "lost" in answer:
            error = f"the sandbox died: {answer['lost']}"
            return Result(error=error, restarted=True, files_lost=True, timed_out=answer.get("timed_out", False))
        failed = answer.pop("failed", False)
        if failed:
            answer["error"] = answer.pop("value")
        return msgspec.convert(answer, Result)

    async def _file(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = await self._call(request, self.limits.seconds)
        if "lost" in answer:
            raise SandboxError(f"the sandbox died: {answer['lost']}")
        if "error" in answer:
            raise SandboxFileError(answer["error"])
        return answer

    async def _call(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """One question to the supervisor; {"lost": why} where it did not answer, and the session is dead."""
        async with self._lock:
            if self._closed:
                raise SandboxError("this session is closed")
            if self._streams is None:
                await self.start()
            assert self._streams is not None
            try:
                async with asyncio.timeout(seconds + GUARD_SECONDS):
                    body = msgspec.json.encode(request)
                    self._streams[1].write(LENGTH.pack(len(body)) + body)
                    await self._streams[1].drain()
                    return await self._read()
            except TimeoutError:
                await self._end()
                return {"lost": f"no answer after {seconds + GUARD_SECONDS:g} s", "timed_out": True}
            except (OSError, EOFError, msgspec.DecodeError) as error:
                await self._end()
                return {"lost": f"{type(error).__name__}"}
            except (
                BaseException
            ):  # a call that was cut off leaves its answer in the stream: what follows would be out of step
                await self._end()
                raise

    async def _read(self) -> dict[str, Any]:
        assert self._streams is not None
        reader = self._streams[0]
        length = LENGTH.unpack(await reader.readexactly(LENGTH.size))[0]
        if length > 2 * self.limits.file_bytes + 16 * self.limits.output_chars + 65536:
            raise EOFError(f"an answer of {length} bytes")
        return msgspec.json.decode(await reader.readexactly(length))

    async def _end(self) -> str:
        """Kill the session, if it lives, and wait until it is gone. Why it never lived, if that is so."""
        streams, self._streams = self._streams, None
        parent, self._parent = self._parent, None
        end = parent.kill(self._number) if parent is not None else None
        if streams is not None:
            streams[1].close()
        return await asyncio.shield(end) if end is not None else ""


def settings(packages: Sequence[str], paths: Sequence[str], without: Sequence[str]) -> Mapping[str, Any]:
    """What a zygote is told.

    Raises:
        ConfigError: a package is not installed, or a path not absolute.
    """
    for path in paths:
        if not os.path.isabs(path) or not os.path.exists(path):
            raise ConfigError(f"paths has '{path}'; expected absolute paths that exist")
    folders = python_folders(packages)
    home = os.path.dirname(os.path.realpath(sys.executable))
    return {
        "paths": [sys.base_prefix, *folders, *paths],
        "python_path": folders,
        "preload": [module_of(package) for package in packages],
        "environment": ENVIRONMENT
        | {"PATH": f"{home}:{ENVIRONMENT['PATH']}"}
        | ({"PYTHONPATH": ":".join(folders)} if folders else {}),
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
