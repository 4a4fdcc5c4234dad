"""Run commands as processes; each has a process group that ends together with the command."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from rove.utils.systems import SIGKILL, shell_command, signal_group

GRACE_SECONDS = 1.0
"""Maximum time for a process to end after SIGTERM, and for its pipes to close after it has ended."""
KILLED_SECONDS = 5.0
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Options of the C library's `mallopt`."""

GC_THRESHOLDS = (100_000, 10, 10)
"""Thresholds of Python's cyclic garbage collector. The default of 700 new objects makes it scan all objects, including those
of the libraries, so often that it takes a fifth of the CPU time of sampling from a small model."""


class CommandResult(NamedTuple):
    """The result of a command."""

    output: str
    """The end of the command's stdout."""
    errors: str
    """The end of the command's stderr."""
    exit_code: int
    """Exit code; a negative value is the negated number of the signal that ended the process."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is a failed allocation: a MemoryError of Python, or a RuntimeError of PyTorch with a known text."""
    text = str(error).lower()
    is_refused = isinstance(error, RuntimeError) and ("allocate memory" in text or "out of memory" in text)
    return isinstance(error, MemoryError) or is_refused


def release_memory() -> None:
    """Return the memory of deleted objects to the system; the C library would keep most of the memory of a deleted model."""
    gc.collect()
    trim_heap()


def trim_heap() -> None:
    """Return the C library's unused memory to the system, if the C library supports this (GNU)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def keep_freed_memory() -> None:
    """Make the C library keep freed memory for reuse, if it supports this (GNU); `trim_heap` returns the memory.

    By default, the memory of every large tensor returns to the system as soon as the tensor is freed, and the system clears the
    pages of the next tensor. This took a third of the CPU time of training a model of 135 M parameters.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    # Older versions refuse large thresholds. With M_TRIM_THRESHOLD alone, even more memory would be returned.
    if set_option is None:
        return
    if set_option(M_MMAP_THRESHOLD, 2**31 - 1) or set_option(M_MMAP_THRESHOLD, 2**25):
        set_option(M_TRIM_THRESHOLD, 2**31 - 1)


SAFE_VARIABLES = (
    *("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"),
    *("APPDATA", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATHEXT", "PROCESSOR_ARCHITECTURE"),
    *("SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "USERNAME", "USERPROFILE"),
)
"""Environment variables that untrusted programs inherit: variables that programs need to run, and no keys."""
HIDDEN_EXEC = Path(__file__).with_name("hidden_exec.py")


def safe_environment() -> dict[str, str]:
    """Return the environment for a program that must not see this process's keys; see `SAFE_VARIABLES`."""
    return {name: os.environ[name] for name in SAFE_VARIABLES if name in os.environ}


def hidden_command(words: Sequence[str]) -> list[str]:
    """Return the command that runs `words` without access to the memory and environment of other processes, on Linux."""
    if sys.platform != "linux":
        return list(words)
    return [sys.executable, "-I", "-S", str(HIDDEN_EXEC), *words]


KILL_ROUNDS = 20
"""Maximum number of searches for marked processes: a process may start another process during a search."""


def kill_marked(variable: str, value: str) -> int:
    """Kill all processes that were started with an environment variable of this value; return their number (Linux only).

    A process that leaves its group and session (a daemon) still has the environment of the process that started it. A program
    that also clears its environment is not found; only a container holds such a program.
    """
    mark = f"{variable}={value}".encode()
    killed: set[int] = set()
    for _ in range(KILL_ROUNDS):
        marked = {pid for pid in _process_ids() if mark in _environment_of(pid)}
        newly_marked = marked - killed  # a killed process stays visible until its parent has reaped it
        if not newly_marked:
            break
        for pid in newly_marked:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, SIGKILL)
        killed |= newly_marked
    return len(killed)


def _process_ids() -> list[int]:
    """Return the ids of all processes except this one; empty on systems without /proc."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    pids = [int(name) for name in names if name.isdecimal()]
    return [pid for pid in pids if pid != os.getpid()]


def _environment_of(pid: int) -> list[bytes]:
    """Return the variables that a process was started with; empty if it has ended or belongs to another user."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


async def start_group(*words: str, **options: Any) -> asyncio.subprocess.Process:
    """Start a program in a new session and process group, with pipes for stdin, stdout and stderr."""
    pipe = asyncio.subprocess.PIPE
    starting = asyncio.create_task(
        asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, **options)
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:  # asyncio may wait forever if it is cancelled while it starts a process
        starting.add_done_callback(_kill)
        await asyncio.wait((starting,))
        if starting.exception() is None:
            await has_ended(starting.result(), KILLED_SECONDS)
        raise


def _kill(started: asyncio.Task[asyncio.subprocess.Process]) -> None:
    if not started.cancelled() and started.exception() is None:
        process = started.result()
        signal_group(process.pid, SIGKILL)
        process._transport.close()  # pyright: ignore[reportAttributeAccessIssue]


async def has_ended(process: asyncio.subprocess.Process, seconds: float = float("inf")) -> bool:
    """Return whether a process ends within this time; wait until then."""
    # process.wait() would also wait for pipes that other processes may hold open.
    until = time.monotonic() + seconds
    while process.returncode is None and time.monotonic() < until:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return process.returncode is not None


async def run_command(
    command: str | list[str],
    *,
    env: Mapping[str, str],
    cwd: str | None = None,
    stdin: str = "",
    max_chars: int = 100_000,
) -> CommandResult:
    """Run a command in a new session and process group, and wait until it ends.

    When this call returns or is cancelled, the whole group has ended: remaining processes get SIGTERM, then SIGKILL.

    Example:
        >>> (await run_command("echo hello", env={})).output
        'hello\\n'

    Args:
        command: A line for the shell, or a program and its arguments.
        cwd: Working folder. Default: the current folder.
        max_chars: Maximum characters returned of stdout and of stderr; longer output is cut at the start.
    """
    words = shell_command(command) if isinstance(command, str) else command
    process = await start_group(*words, env=dict(env), cwd=cwd)
    # Kills the group even if the event loop is closed while the command runs.
    last_resort = weakref.finalize(process, signal_group, process.pid, SIGKILL)
    tails = [_Tail(max_chars), _Tail(max_chars)]
    readers = [
        asyncio.create_task(tail.fill(stream))
        for tail, stream in zip(tails, (process.stdout, process.stderr), strict=True)
        if stream is not None
    ]
    writer = asyncio.create_task(_write(process, stdin.encode()))
    try:
        await has_ended(process)
        signal_group(process.pid, signal.SIGTERM)  # what it leaves behind may hold its pipes open
        await asyncio.wait(readers, timeout=GRACE_SECONDS)
    finally:
        signal_group(process.pid, signal.SIGTERM)
        try:
            await has_ended(process, GRACE_SECONDS)
        finally:  # a cancellation cuts the waiting short
            signal_group(process.pid, SIGKILL)
            if await has_ended(process, KILLED_SECONDS):
                last_resort.detach()
            for task in (*readers, writer):
                task.cancel()
            # A process that has left the group may hold the pipes open.
            process._transport.close()  # pyright: ignore[reportAttributeAccessIssue]
            await asyncio.gather(*readers, writer, return_exceptions=True)
    assert process.returncode is not None
    return CommandResult(tails[0].text, tails[1].text, process.returncode)


async def _write(process: asyncio.subprocess.Process, text: bytes) -> None:
    assert process.stdin is not None
    with suppress(OSError):  # it has ended, or does not read
        process.stdin.write(text)
        await process.stdin.drain()
    process.stdin.close()


class _Tail:
    """The end of a stream."""

    def __init__(self, max_chars: int):
        self._bytes = b""
        self._max_chars = max_chars
        self._is_cut = False

    async def fill(self, stream: asyncio.StreamReader) -> None:
        """Read until the stream ends."""
        while chunk := await stream.read(1 << 16):
            self._bytes += chunk
            if len(self._bytes) > 8 * self._max_chars:  # cut rarely; a character has at most four bytes
                self._bytes, self._is_cut = self._bytes[-4 * self._max_chars :], True

    @property
    def text(self) -> str:
        """The end of the stream as text, with "…" if the start is cut."""
        text = self._bytes.decode(errors="replace")
        if self._is_cut or len(text) > self._max_chars:
            return "…" + text[-self._max_chars :]
        return text
