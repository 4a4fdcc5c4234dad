"""One worker process: RPC calls in both directions over a socket."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from rove.core.errors import Error, RemoteError, WorkerError, as_json
from rove.core.plain import UNREADABLE, JsonObject, JsonValue
from rove.workers.fork_server_main import LENGTH

EXIT_STATUS_TIMEOUT_S = 2.0
"""Maximum seconds to wait for the exit status of a worker whose connection is closed."""
MAX_OUTPUT_LINES, MAX_LINE_CHARS = 20, 400
"""Limits of the workers' output that is stored for error messages: the number of last lines, and the characters per line."""
MALFORMED = (KeyError, TypeError)
"""Exceptions of a frame that has other fields than those of `fork_server_main`."""
MAX_QUOTED_CHARS = 100
"""Maximum characters of a call that an error message quotes."""

CallHandler = Callable[[str, JsonObject], Awaitable[JsonValue]]
"""Handles a call that the worker makes: (name, arguments) → a value that JSON can represent."""


class Worker:
    """A worker process at the other end of a socket, created by `Workers`. It belongs to the event loop in which it was created.

    Args:
        connection: our end of the socket.
        kill: function that kills the process; it is called when a call times out or is canceled, and when the worker is closed.
        exit_report: function that describes how the process ended and what it printed last; called after the process has ended.
        handler: function that handles calls that the worker makes. Default: such calls are refused.
    """

    def __init__(
        self,
        connection: socket.socket,
        kill: Callable[[], None],
        exit_report: Callable[[], Awaitable[str]],
        handler: CallHandler | None = None,
    ):
        self.loop = asyncio.get_running_loop()
        self.is_closed = False
        self._connection, self._handler = connection, handler
        self._kill, self._exit_report = kill, exit_report
        self._last_id, self._close_reason = 0, ""
        self._pending: dict[int, asyncio.Future[JsonValue]] = {}
        self._handler_tasks: set[asyncio.Task[None]] = set()
        self._opening: asyncio.Task[tuple[asyncio.StreamReader, asyncio.StreamWriter]] | None = None
        self._reading: asyncio.Task[None] | None = None

    async def call(self, name: str, /, timeout: float | None = None, **args: Any) -> JsonValue:  # noqa: ASYNC109
        """Call the worker's function `name` and return its result.

        A call that exceeds `timeout` seconds or is canceled kills the process, since its state is unknown afterward.

        Raises:
            WorkerError: the process ended, or did not answer in time.
            RemoteError: the function raised.
        """
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                return await self.request(name, **args)
        except (RemoteError, WorkerError):
            raise
        except BaseException as error:
            if isinstance(error, TimeoutError) and limit.expired():
                reason = f"{_quote(name, args)} did not end within {timeout:g} s; its process was killed"
                self.close(reason)
                raise WorkerError(reason) from error
            self.close()
            raise

    async def request(self, name: str, /, **args: Any) -> JsonValue:
        """Like `call`, for workers that answer calls concurrently: canceling a call leaves the process running."""
        self._last_id += 1
        call_id, result = self._last_id, self.loop.create_future()
        self._pending[call_id] = result
        try:
            await self._send({"id": call_id, "call": name, "args": args})
            return await result
        except _ConnectionClosedError:
            reason = self._close_reason or f"its process ended{await self._exit_report()}"
            raise WorkerError(f"{_quote(name, args)}: {reason}") from None
        finally:
            del self._pending[call_id]
            is_cancelled = result.cancelled() or result.cancel()
            if not is_cancelled:
                # If sending failed first, no one awaits the result: asyncio would log an exception that is never retrieved.
                result.exception()

    def close(self, reason: str = "") -> None:
        """Kill the process. Pending calls raise a `WorkerError` with this reason."""
        self._close_reason = self._close_reason or reason
        self._disconnect()
        self._kill()

    async def _send(self, frame: JsonObject) -> None:
        # json, because msgspec refuses halves of characters, which models write, and replaces NaN by null.
        body = json.dumps(frame, default=msgspec.to_builtins).encode()
        if self.is_closed:
            raise _ConnectionClosedError
        if self._opening is None:
            self._opening = self.loop.create_task(asyncio.open_connection(sock=self._connection))
        # Shielded: other calls wait for the same connection, so canceling one call must not cancel it.
        reader, writer = await asyncio.shield(self._opening)
        if self.is_closed:  # meanwhile
            raise _ConnectionClosedError
        if self._reading is None:
            self._reading = self.loop.create_task(self._read(reader))
        try:
            writer.write(LENGTH.pack(len(body)) + body)
            await writer.drain()
        except OSError:
            self._disconnect()
            raise _ConnectionClosedError from None

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                head = await reader.readexactly(LENGTH.size)
                body = await reader.readexactly(LENGTH.unpack(head)[0])
                self._receive(json.loads(body))
        except (OSError, EOFError, *UNREADABLE, *MALFORMED):
            self._disconnect()

    def _receive(self, frame: JsonObject) -> None:
        if "call" in frame:
            task = self.loop.create_task(self._handle(frame["id"], frame["call"], frame["args"]))
            self._handler_tasks.add(task)
            task.add_done_callback(self._handler_tasks.discard)
            return
        result = self._pending.get(frame["id"])
        if result is None or result.done():  # the call has been canceled
            return
        if "error" in frame:
            result.set_exception(RemoteError(**frame["error"]))
        else:
            result.set_result(frame["result"])

    async def _handle(self, call_id: int, name: str, args: JsonObject) -> None:
        reply: JsonObject = {"id": call_id}
        try:
            if self._handler is None:
                raise Error(f"this worker has no handler for its call of '{name}'; pass one to Workers.open")
            reply["result"] = await self._handler(name, args)
        except Exception as error:
            reply["error"] = {"type": type(error).__name__, "message": str(error), "traceback": ""}
        try:
            try:
                await self._send(reply)
            except (TypeError, ValueError, OverflowError) as error:  # not JSON, such as a text with half of a character
                text = f"the reply to '{name}' cannot be sent: {error}"
                await self._send({"id": call_id, "error": {"type": "ModelError", "message": text, "traceback": ""}})
        except _ConnectionClosedError:
            return

    def _disconnect(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        for result in self._pending.values():
            if not result.done():
                result.set_exception(_ConnectionClosedError())
        if self._opening is None or self.loop.is_closed():
            self._connection.close()
        elif self._opening.done():
            self._abort(self._opening)
        else:
            # The event loop still watches the socket. If it was closed here, a new socket could get its number.
            self._opening.add_done_callback(self._abort)

    def _abort(self, opening: asyncio.Task[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
        if opening.cancelled() or opening.exception() is not None:
            self._connection.close()
        else:
            _, writer = opening.result()
            writer.transport.abort()  # `close` would first wait until a dead process has read what is buffered


class _ConnectionClosedError(Exception):
    """The connection to the process is closed."""


def describe_exit(status: int | None) -> str:
    """Return how a process ended, as a phrase for an error message."""
    if status is None:
        return "does not answer"
    if status < 0:
        number = -status
        # Real-time signals have numbers, but most of them no name in Python.
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return f"was ended by {name}"
    return f"ended with exit code {status}"


def exit_text(status: int | None, recent_output: Iterable[str]) -> str:
    """Return how a process ended, if its exit status is known, and the last lines that it printed, for an error message."""
    status_text = "" if status is None else f" ({describe_exit(status)})"
    return status_text + last_lines(recent_output)


def last_lines(recent_output: Iterable[str]) -> str:
    """Return the last lines that a process printed, for an error message."""
    lines = "\n".join(f"  {line}" for line in recent_output)
    return f"; its last lines:\n{lines}" if lines else ""


def _quote(name: str, args: JsonObject) -> str:
    text = as_json(args)
    if len(text) > MAX_QUOTED_CHARS:
        text = text[:MAX_QUOTED_CHARS] + "…"
    return f"{name}({text})"
