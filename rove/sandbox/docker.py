"""Sandboxes in containers of Docker or Podman; the first process is the supervisor of local sandboxes."""

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

from rove.core.errors import ConfigError
from rove.sandbox.backend import Description, SandboxLimits
from rove.sandbox.session import Streams, SupervisedBackend, SupervisedSession

# The code of `inside` comes as an argument, so that every image with Python works and none has to be built. It is removed
# before the first call: the session's folder belongs to the code.
BOOT = """
import base64, os, sys
path = os.path.join(os.getcwd(), ".rove.zip")
with open(path, "wb") as file: file.write(base64.b64decode(sys.argv[1]))
sys.path.insert(0, path)
from inside.supervisor import main_of_container
os.remove(path)
sys.path.remove(path)
main_of_container(sys.argv[2])
"""
ENVIRONMENT = {
    "HOME": "/session",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
}
REMOVE_TIMEOUT_S = 20.0


class DockerBackend(SupervisedBackend):
    """Sessions that each run in their own container.

    Args:
        image: Image with Python 3.11 or later as `python3`, bash, and the packages of sessions. rove does not pull it: run
            `docker pull` first.
        limits: Default limits of a session.
        environment: Additional environment variables of sessions, which code can read.
        binary: Command of the container engine; None = docker, or podman if docker is not installed.
        max_sessions: Maximum number of open sessions; `open` waits while they are in use.

    Raises:
        ConfigError: The command does not exist, or `max_sessions` is not positive.

    Example:
        >>> async with DockerBackend("python:3.11-slim") as backend:  # doctest: +SKIP
        ...     session = await backend.open()
        ...     result = await session.bash("ls")
    """

    def __init__(
        self,
        image: str = "python:3.11-slim",
        limits: SandboxLimits | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        binary: str | None = None,
        max_sessions: int = 128,
    ):
        super().__init__(limits, max_sessions)
        self.image = image
        self.environment = ENVIRONMENT | dict(environment or {})
        names = [binary] if binary else ["docker", "podman"]
        installed = [path for path in map(shutil.which, names) if path]
        if not installed:
            raise ConfigError(f"{' or '.join(names)} is not on PATH; install it, or use LocalBackend on Linux")
        self.binary = installed[0]
        self.slots = asyncio.Semaphore(max_sessions)

    def _new_session(self, limits: SandboxLimits) -> DockerSession:
        return DockerSession(self, limits)

    async def describe(self) -> Description:
        """See `Backend.describe`; the sentences state the engine's promises, which rove does not test."""
        return Description(
            missing=[
                "own user: all containers of a machine share the user 65534 unless the engine maps users",
                "number of files: Podman has no option for it; files count towards disk_bytes and memory",
                "host: access to the container engine gives full control of the machine; rove has it",
            ],
        )

    async def close(self) -> None:
        """See `Backend.close`."""
        await asyncio.gather(*(session.close() for session in list(self._sessions)))
        self.slots = asyncio.Semaphore(self.max_sessions)  # a used semaphore is bound to its event loop


class DockerSession(SupervisedSession):
    """A session in a container."""

    def __init__(self, backend: DockerBackend, limits: SandboxLimits):
        super().__init__(limits, backend.forget)
        self._backend, self._slots = backend, backend.slots
        self._name = ""
        self._process: asyncio.subprocess.Process | None = None

    async def _connect(self) -> Streams:
        await self._slots.acquire()
        self._name = f"rove-{secrets.token_hex(8)}"
        command = command_of(self._name, self._backend.image, self.limits, self._backend.environment)
        pipe = asyncio.subprocess.PIPE
        try:
            # Its own session: Ctrl-C would end the engine's command before the container is removed.
            process = await asyncio.create_subprocess_exec(
                self._backend.binary, *command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
            )
        except BaseException:
            self._slots.release()
            raise
        self._process = process
        assert process.stdout is not None
        assert process.stdin is not None
        return process.stdout, process.stdin

    async def _disconnect(self) -> str:
        process, self._process = self._process, None
        if process is None:
            return ""
        # A canceled rollout must not leave its container behind.
        return await asyncio.shield(self._remove(process))

    async def _remove(self, process: asyncio.subprocess.Process) -> str:
        """Remove the container, then end the command that held its streams; return the command's message."""
        null = asyncio.subprocess.DEVNULL
        try:
            words = [self._backend.binary, "rm", "--force", self._name]
            remover = await asyncio.create_subprocess_exec(*words, stdin=null, stdout=null, stderr=null)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REMOVE_TIMEOUT_S):
                    await remover.wait()
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            assert process.stderr is not None
            message = await process.stderr.read(4000)
            await process.wait()
            return message.decode(errors="replace").strip()
        finally:
            self._slots.release()


def command_of(name: str, image: str, limits: SandboxLimits, environment: Mapping[str, str]) -> list[str]:
    """Return the arguments that start a session's container."""
    folder = f"/session:rw,nosuid,nodev,size={limits.disk_bytes},mode=1777"
    memory = limits.memory_bytes + limits.disk_bytes  # the session's folder is in memory, too
    words = f"""
        run --rm --interactive --name {name} --label rove --pull never --network none --ipc private
        --read-only --tmpfs {folder} --workdir /session --user 65534:65534 --cap-drop ALL --security-opt no-new-privileges
        --memory {memory} --memory-swap {memory} --pids-limit {limits.processes}
    """
    variables: list[str] = []
    for key, value in environment.items():
        variables += ["--env", f"{key}={value}"]
    python = ["--entrypoint", "python3", image, "-B", "-X", "utf8", "-c", BOOT]
    arguments = [base64.b64encode(packed_modules()).decode(), msgspec.json.encode(limits).decode()]
    return [*words.split(), *variables, *python, *arguments]


def packed_modules() -> bytes:
    """Return the modules of `inside` as a zip file."""
    folder = Path(__file__).parent / "inside"
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(os.listdir(folder)):
            if file.endswith(".py"):
                archive.write(folder / file, f"inside/{file}")
    return data.getvalue()
