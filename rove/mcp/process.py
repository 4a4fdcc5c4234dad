"""A server that is a command: its process, with all that it starts, and the messages on its pipes."""

from __future__ import annotations

import asyncio
import signal
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from rove.core.errors import MCPServerError
from rove.mcp.settings import ServerSettings
from rove.utils.processes import has_ended, signal_group, start_group

CLOSED_SECONDS = 2.0
"""How long a server may take to end once its stdin is closed, and again once it is asked to."""
KILLED_SECONDS = 5.0
SETTLED_SECONDS = 0.5
"""How long a server whose stdout has ended may take to end itself, for its exit code to be told."""
MESSAGE_BYTES = 64 << 20
"""The longest message that is read."""
KEPT_LINES, KEPT_CHARS = 20, 400
"""What is kept of its stderr: so many last lines, so much of each."""


class ServerProcess:
    """The process of a server, the leader of a group of its own that ends with it.

    Args:
        decode: a line of the server's stdout as what the SDK takes; raises ValueError where it is no message.
        encode: what the SDK sends as one line, without its end.
    """

    def __init__(
        self, process: asyncio.subprocess.Process, decode: Callable[[bytes], Any], encode: Callable[[Any], bytes]
    ):
        self._process = process
        self._decode = decode
        self._encode = encode
        self._said: deque[str] = deque(maxlen=KEPT_LINES)
        self.silent = False
        """Whether its stdout has ended: nothing more will come."""
        # For those who leave without closing: an exit() in the middle, a loop that is closed.
        self._last_resort = weakref.finalize(self, signal_group, process.pid, signal.SIGKILL)

    @classmethod
    async def start(
        cls,
        settings: ServerSettings,
        env: Mapping[str, str],
        decode: Callable[[bytes], Any],
        encode: Callable[[Any], bytes],
    ) -> ServerProcess:
        """Start it, in a session of its own.

        Raises:
            MCPServerError: there is no such program or folder.
        """
        try:
            process = await start_group(settings.command, *settings.args, env={**env, **settings.env}, cwd=settings.cwd)
        except (OSError, ValueError) as error:
            raise MCPServerError(f"MCP server '{settings.name}' cannot be started: {error}") from error
        return cls(process, decode, encode)

    @property
    def last_words(self) -> str:
        """How it ended, if it has, and the last lines of its stderr."""
        code = self._process.returncode
        ended = (
            "" if code is None else f"it ended with {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"
        )
        lines = "\n".join(f"  {line}" for line in self._said)
        return "; ".join(part for part in (ended, f"its last lines:\n{lines}" if lines else "") if part)

    @asynccontextmanager
    async def streams(self, make_stream: Callable[[], Any]) -> AsyncIterator[tuple[Any, Any]]:
        """The streams (messages from it, messages to it) that the SDK wants; leaving ends the process and its group.

        Args:
            make_stream: a stream in memory, as (where to send, where to receive).
        """
        (arrived, incoming), (outgoing, leaving) = make_stream(), make_stream()
        work = [self._read(arrived), self._write(leaving), self._listen()]
        tasks = [asyncio.create_task(one) for one in work]
        try:
            yield incoming, outgoing
        finally:
            try:
                await self.end()
            finally:
                for task in tasks:
                    task.cancel()
                for stream in (arrived, incoming, outgoing, leaving):
                    stream.close()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def end(self) -> None:
        """Close its stdin, then ask it to end, then kill it and whatever it has started."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            if not await self._has_ended(CLOSED_SECONDS):
                self._signal(signal.SIGTERM)
                await self._has_ended(CLOSED_SECONDS)
        finally:  # a cancellation cuts the waiting short, and what the server started may outlive it
            self._signal(signal.SIGKILL)
            if await self._has_ended(KILLED_SECONDS):
                self._last_resort.detach()
            # A process that has left the group may hold the pipes open.
            self._process._transport.close()  # pyright: ignore[reportAttributeAccessIssue]

    async def settle(self) -> None:
        """Wait a moment for the end of a process that has fallen silent, so that `last_words` has it."""
        if self.silent:
            await self._has_ended(SETTLED_SECONDS)
            await asyncio.sleep(0)

    def kill(self) -> None:
        """Kill it and whatever it has started, without waiting."""
        if self._last_resort.alive:
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        signal_group(self._process.pid, number)

    async def _has_ended(self, seconds: float) -> bool:
        return await has_ended(self._process, seconds)

    async def _read(self, arrived: Any) -> None:
        assert self._process.stdout is not None
        try:
            async for line in lines_of(self._process.stdout):
                try:
                    message = self._decode(line)
                except ValueError:  # a server that prints to stdout, which is not for people
                    self._note(line)
                    continue
                await arrived.send(message)
        except ValueError as error:
            self._note(str(error).encode())
        finally:
            self.silent = True
            arrived.close()

    async def _write(self, leaving: Any) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, RuntimeError):  # it has ended: who waits for an answer hears of it by `_read`
            async for message in leaving:
                self._process.stdin.write(self._encode(message) + b"\n")
                await self._process.stdin.drain()

    async def _listen(self) -> None:
        assert self._process.stderr is not None
        with suppress(ValueError):
            async for line in lines_of(self._process.stderr):
                self._note(line)
        while await self._process.stderr.read(1 << 16):
            pass

    def _note(self, line: bytes) -> None:
        text = line[:KEPT_CHARS].decode(errors="replace").strip()
        if text:
            self._said.append(text)


async def lines_of(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The lines of a stream, without their ends; not the last one if it has none.

    Raises:
        ValueError: one is longer than `MESSAGE_BYTES`.
    """
    parts: list[bytes] = []
    size = 0
    while chunk := await stream.read(1 << 16):
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            yield b"".join((*parts, line))
            parts, size = [], 0
        parts.append(rest)
        size += len(rest)
        if size > MESSAGE_BYTES:
            raise ValueError(f"a line of more than {MESSAGE_BYTES >> 20} MiB")
