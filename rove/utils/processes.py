"""Commands as processes, each the leader of a group that ends with it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

GRACE_SECONDS = 1.0
"""How long a process may take to end once it is asked to, and its pipes to close once it has ended."""
KILLED_SECONDS = 5.0


class Ended(NamedTuple):
    """What a command came to."""

    output: str
    """The end of what it wrote to stdout."""
    errors: str
    """The end of what it wrote to stderr."""
    exit_code: int
    """Below 0: the number of the signal that ended it."""


def signal_group(group: int, number: signal.Signals) -> None:
    """Send a signal to a process group, if there still is one."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


async def start_group(*words: str, **options: Any) -> asyncio.subprocess.Process:
    """Start a program as the leader of a session and group of its own, with pipes for its stdin, stdout and stderr.

    Args:
        words: the program and its arguments.
        options: of `asyncio.create_subprocess_exec`.

    Raises:
        OSError: there is no such program or folder.
    """
    pipe = asyncio.subprocess.PIPE
    starting = asyncio.create_task(
        asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, **options)
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:  # asyncio itself, cancelled in the middle of it, may wait for ever
        starting.add_done_callback(_put_down)
        await asyncio.wait((starting,))
        if starting.exception() is None:
            await has_ended(starting.result(), KILLED_SECONDS)
        raise


def _put_down(started: asyncio.Task[asyncio.subprocess.Process]) -> None:
    if not started.cancelled() and started.exception() is None:
        process = started.result()
        signal_group(process.pid, signal.SIGKILL)
        process._transport.close()  # pyright: ignore[reportAttributeAccessIssue]


async def has_ended(process: asyncio.subprocess.Process, seconds: float = float("inf")) -> bool:
    """Whether a process ends in so many seconds."""
    # Not process.wait(), which also waits for pipes that others may hold open.
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
) -> Ended:
    """Run a command to its end, in a session and process group of its own.

    Nothing of the group is left when this returns, or is cancelled: what still runs is asked to end, then killed.

    Args:
        command: a line for the shell, or a program and its arguments.
        env: its environment.
        cwd: its folder. Default: the current one.
        stdin: what it reads.
        max_chars: of its stdout and of its stderr that are kept; of more, the end.

    Raises:
        OSError: there is no such program or folder.
    """
    words = ["/bin/sh", "-c", command] if isinstance(command, str) else command
    process = await start_group(*words, env=dict(env), cwd=cwd)
    # For those who leave without waiting: a loop that is closed in the middle.
    last_resort = weakref.finalize(process, signal_group, process.pid, signal.SIGKILL)
    said = [_Tail(max_chars), _Tail(max_chars)]
    readers = [
        asyncio.create_task(tail.fill(stream))
        for tail, stream in zip(said, (process.stdout, process.stderr), strict=True)
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
            signal_group(process.pid, signal.SIGKILL)
            if await has_ended(process, KILLED_SECONDS):
                last_resort.detach()
            for task in (*readers, writer):
                task.cancel()
            # A process that has left the group may hold the pipes open.
            process._transport.close()  # pyright: ignore[reportAttributeAccessIssue]
            await asyncio.gather(*readers, writer, return_exceptions=True)
    assert process.returncode is not None
    return Ended(said[0].text, said[1].text, process.returncode)


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
        self._most = max_chars
        self._is_cut = False

    async def fill(self, stream: asyncio.StreamReader) -> None:
        """Read until the stream ends."""
        while chunk := await stream.read(1 << 16):
            self._bytes += chunk
            if len(self._bytes) > 8 * self._most:  # now and then: a character has four bytes at most
                self._bytes, self._is_cut = self._bytes[-4 * self._most :], True

    @property
    def text(self) -> str:
        """What there is of it, marked where it is cut."""
        text = self._bytes.decode(errors="replace")
        return "…" + text[-self._most :] if self._is_cut or len(text) > self._most else text
