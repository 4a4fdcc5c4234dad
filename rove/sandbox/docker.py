"""Sandboxes in containers: Docker's or Podman's command line, the supervisor of the local ones as first process."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import os
import secrets
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from rove.core.config import check_positive
from rove.core.errors import ConfigError
from rove.sandbox.backend import Description, SandboxLimits
from rove.sandbox.session import Streams, SupervisedSession

BOOT = """
import base64, os, sys
path = os.path.join(os.getcwd(), ".rove.zip")
with open(path, "wb") as file: file.write(base64.b64decode(sys.argv[1]))
sys.path.insert(0, path)
from inside.container import main
os.remove(path)
sys.path.remove(path)
main(sys.argv[2])
"""
ENVIRONMENT = {
    "HOME": "/session",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
}
END_SECONDS = 20.0


class DockerBackend:
    """Sessions in containers of their own.

    Args:
        image: has Python 3.11 or later as `python3`, bash, and what sessions may import. It is not pulled: `docker pull` it
            before.
        limits: of a session that is opened without its own.
        environment: further environment variables of sessions, which the code can read.
        binary: the command; None = docker, or podman where there is none.
        max_sessions: most sessions at once; further ones wait.

    Raises:
        ConfigError: there is no such command, or `max_sessions` is not above 0.
    """

    def __init__(
        self,
        image: str = "python:3.11-slim",
        limits: SandboxLimits | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        binary: str | None = None,
        max_sessions: int = 64,
    ):
        self.image, self.limits, self.max_sessions = image, limits or SandboxLimits(), max_sessions
        self.environment = ENVIRONMENT | dict(environment or {})
        check_positive(self, "max_sessions")
        wanted = [binary] if binary else ["docker", "podman"]
        found = [path for path in map(shutil.which, wanted) if path]
        if not found:
            raise ConfigError(f"no {' or '.join(wanted)} on PATH; install it, or use LocalBackend on Linux")
        self.binary = found[0]
        self.room = asyncio.Semaphore(max_sessions)
        self._sessions: set[SupervisedSession] = set()

    async def open(self, limits: SandboxLimits | None = None) -> DockerSession:
        """See `Backend.open`."""
        session = DockerSession(self, limits or self.limits)
        await session.start()
        self._sessions.add(session)
        return session

    async def describe(self) -> Description:
        """See `Backend.describe`; what the container engine promises, not what was found out."""
        return Description(
            enforced=[
                "a call is stopped after its wall time, with every process of its session",
                "a container per session: no network, read-only files of the image, a folder of disk_bytes, no capabilities and"
                " no new privileges, memory_bytes and processes of all its processes together",
                "limits of each process: memory, CPU time, size of a file, open files, no core dumps",
                "output is clipped while it is read; what comes back is text, never an object",
            ],
            missing=[
                "own user: all containers of a machine share the user 65534 unless the engine maps users",
                "number of files: Podman has no option for it; they take of disk_bytes and of the memory",
                "host: who may talk to the container engine may do anything; rove may",
            ],
        )

    async def close(self) -> None:
        """See `Backend.close`."""
        await asyncio.gather(*(session.close() for session in list(self._sessions)))
        self.room = asyncio.Semaphore(self.max_sessions)  # one that was waited for belongs to its event loop

    def forget(self, session: SupervisedSession) -> None:
        """A session is closed."""
        self._sessions.discard(session)

    async def __aenter__(self) -> DockerBackend:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class DockerSession(SupervisedSession):
    """A session in a container."""

    def __init__(self, backend: DockerBackend, limits: SandboxLimits):
        super().__init__(limits, backend.forget)
        self._backend, self._room = backend, backend.room
        self._name = ""
        self._process: asyncio.subprocess.Process | None = None

    async def _connect(self) -> Streams:
        await self._room.acquire()
        self._name = f"rove-{secrets.token_hex(8)}"
        command = command_of(self._name, self._backend.image, self.limits, self._backend.environment)
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                self._backend.binary, *command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
            )
        except BaseException:
            self._room.release()
            raise
        self._process = process
        assert process.stdout is not None
        assert process.stdin is not None
        return process.stdout, process.stdin

    async def _disconnect(self) -> str:
        process, self._process = self._process, None
        return "" if process is None else await asyncio.shield(self._remove(process))

    async def _remove(self, process: asyncio.subprocess.Process) -> str:
        """Remove the container, then end the command that held its streams. What that said."""
        nothing = asyncio.subprocess.DEVNULL
        try:
            words = [self._backend.binary, "rm", "--force", self._name]
            remover = await asyncio.create_subprocess_exec(*words, stdin=nothing, stdout=nothing, stderr=nothing)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await remover.wait()
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            assert process.stderr is not None
            said = await process.stderr.read(4000)
            await process.wait()
            return said.decode(errors="replace").strip()
        finally:
            self._room.release()


def command_of(name: str, image: str, limits: SandboxLimits, environment: Mapping[str, str]) -> list[str]:
    """Words that start a session's container."""
    folder = f"/session:rw,nosuid,nodev,size={limits.disk_bytes},mode=1777"
    memory = limits.memory_bytes + limits.disk_bytes
    words = f"""
        run --rm --interactive --name {name} --label rove --pull never --network none --ipc private
        --read-only --tmpfs {folder} --workdir /session --user 65534:65534 --cap-drop ALL --security-opt no-new-privileges
        --memory {memory} --memory-swap {memory} --pids-limit {limits.processes}
    """
    variables = [word for key, value in environment.items() for word in ("--env", f"{key}={value}")]
    python = ["--entrypoint", "python3", image, "-B", "-X", "utf8", "-c", BOOT]
    return [
        *words.split(),
        *variables,
        *python,
        base64.b64encode(packed()).decode(),
        msgspec.json.encode(limits).decode(),
    ]


def packed() -> bytes:
    """What runs inside, as a zip file."""
    folder = Path(__file__).parent / "inside"
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(os.listdir(folder)):
            if file.endswith(".py"):
                archive.write(folder / file, f"inside/{file}")
    return data.getvalue()
