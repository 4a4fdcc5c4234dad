"""The process of a server that is a command, and the messages on its pipes."""

from __future__ import annotations

import asyncio
import secrets
import signal
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from rove.core.errors import MCPServerError
from rove.mcp.settings import ServerSettings
from rove.utils.processes import has_ended, kill_marked, start_group
from rove.utils.systems import SIGKILL, signal_group

CLOSE_TIMEOUT_S = 2.0
"""Maximum seconds to wait for a server to end after its stdin is closed, and the same time again after SIGTERM."""
KILL_TIMEOUT_S = 5.0
EXIT_CODE_TIMEOUT_S = 0.5
"""Maximum seconds to wait for a server to end after its stdout has ended, so that its exit code can be reported."""
MARK_VARIABLE = "ROVE_MCP_SERVER"
"""Environment variable that identifies the child processes of a server."""
MAX_MESSAGE_BYTES = 64 << 20
MAX_STDERR_LINES, MAX_LINE_CHARS = 20, 400
"""Maximum number of stderr lines that are kept (the last ones), and maximum characters per line."""


class ServerProcess:
    """The process of a server. It leads its own process group, which ends together with the process.

    Child processes that have left the group (daemons) end with it too, on Linux; see `kill_marked`.

    Args:
        mark: value of the environment variable `MARK_VARIABLE` in the process and its child processes.
        decode: converts a line of stdout to an SDK message; raises ValueError for any other line.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        mark: str,
        decode: Callable[[bytes], Any],
        encode: Callable[[Any], bytes],
    ):
        self._process = process
        self._mark = mark
        self._decode = decode
        self._encode = encode
        self._stderr_lines: deque[str] = deque(maxlen=MAX_STDERR_LINES)
        self.silent = False
        """Whether the stdout of the process has ended."""
        # If the process is never closed: exit() in a rollout, or a closed event loop.
        self._finalizer = weakref.finalize(self, _kill_all, process.pid, mark)

    @classmethod
    async def start(
        cls,
        settings: ServerSettings,
        env: Mapping[str, str],
        decode: Callable[[bytes], Any],
        encode: Callable[[Any], bytes],
    ) -> ServerProcess:
        """Start the process in its own session."""
        mark = secrets.token_hex(16)
        variables = {**env, **settings.env, MARK_VARIABLE: mark}
        try:
            process = await start_group(settings.command, *settings.args, env=variables, cwd=settings.cwd)
        except (OSError, ValueError) as error:
            raise MCPServerError(f"MCP server '{settings.name}' cannot be started: {error}") from error
        return cls(process, mark, decode, encode)

    @property
    def last_output(self) -> str:
        """Exit code (if the process has ended) and the last lines of stderr."""
        parts: list[str] = []
        code = self._process.returncode
        if code is not None:
            end = f"exit code {code}"
            if code < 0:
                # Python names only the first and the last real-time signal.
                end = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            parts.append(f"it ended with {end}")
        if self._stderr_lines:
            lines = "\n".join(f"  {line}" for line in self._stderr_lines)
            parts.append(f"its last lines:\n{lines}")
        return "; ".join(parts)

    @asynccontextmanager
    async def streams(self, make_stream: Callable[[], Any]) -> AsyncIterator[tuple[Any, Any]]:
        """Open the streams (from the server, to the server) for the SDK; on exit, end the process group."""
        arrived, incoming = make_stream()
        outgoing, leaving = make_stream()
        coroutines = [self._read(arrived), self._write(leaving), self._listen()]
        tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
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
        """Close stdin, then send SIGTERM, then kill the process group."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            if not await has_ended(self._process, CLOSE_TIMEOUT_S):
                signal_group(self._process.pid, signal.SIGTERM)
                await has_ended(self._process, CLOSE_TIMEOUT_S)
        finally:  # also after a cancellation, and for child processes that outlive the server
            signal_group(self._process.pid, SIGKILL)
            await asyncio.to_thread(kill_marked, MARK_VARIABLE, self._mark)
            if await has_ended(self._process, KILL_TIMEOUT_S):
                self._finalizer.detach()
            # A process that has left the group may hold the pipes open.
            self._process._transport.close()  # pyright: ignore[reportAttributeAccessIssue]

    async def settle(self) -> None:
        """Wait briefly for the exit code of a process whose stdout has ended."""
        if self.silent:
            await has_ended(self._process, EXIT_CODE_TIMEOUT_S)
            await asyncio.sleep(0)  # `_listen` may have a last line to store

    def kill(self) -> None:
        """Kill the process group without waiting."""
        if self._finalizer.alive:
            _kill_all(self._process.pid, self._mark)

    async def _read(self, arrived: Any) -> None:
        assert self._process.stdout is not None
        try:  # a ValueError of `lines_of` ends the connection, one of `_decode` only loses a line
            async for line in lines_of(self._process.stdout):
                try:
                    message = self._decode(line)
                except ValueError:  # a server that prints other text to stdout
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
        with suppress(OSError, RuntimeError):  # it has ended; `_read` reports that
            async for message in leaving:
                self._process.stdin.write(self._encode(message) + b"\n")
                await self._process.stdin.drain()

    async def _listen(self) -> None:
        assert self._process.stderr is not None
        with suppress(ValueError):
            async for line in lines_of(self._process.stderr):
                self._note(line)
        while await self._process.stderr.read(1 << 16):  # after an endless line: a full pipe would stop the server
            pass

    def _note(self, line: bytes) -> None:
        text = line[:MAX_LINE_CHARS].decode(errors="replace").strip()
        if text:
            self._stderr_lines.append(text)


def _kill_all(group: int, mark: str) -> None:
    signal_group(group, SIGKILL)
    kill_marked(MARK_VARIABLE, mark)


async def lines_of(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the lines of a stream without their line ends; an incomplete last line is left out."""
    parts: list[bytes] = []
    size = 0
    while chunk := await stream.read(1 << 16):
        *line_ends, beginning = chunk.split(b"\n")
        for line_end in line_ends:
            yield b"".join((*parts, line_end))
            parts, size = [], 0
        parts.append(beginning)  # parts, not one growing text: a line of many chunks would be copied for each of them
        size += len(beginning)
        if size > MAX_MESSAGE_BYTES:
            raise ValueError(f"a line of more than {MAX_MESSAGE_BYTES >> 20} MiB")
