"""One worker: a conversation of calls and answers, in both directions, with a process."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from rove.core.errors import Error, RemoteError, WorkerError, in_json

LENGTH = struct.Struct("<I")
SHOWN = 100
"""Characters of a call that an error quotes."""

CallHandler = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Answers a worker's own calls: (name, arguments) → a value that JSON can hold."""


class Worker:
    """A process at the other end of a socket. Made by `Workers`; it belongs to the event loop it was made in.

    Args:
        connection: our end of the socket.
        kill: ends the process; called when a call takes too long, is cancelled, or the worker is closed.
        last_words: how it ended and what it wrote last, once it has ended.
        answer: answers what the worker asks. Default: it may not ask anything.
    """

    def __init__(
        self,
        connection: socket.socket,
        kill: Callable[[], None],
        exit_report: Callable[[], Awaitable[str]],
        handler: CallHandler | None = None,
    ):
        self.loop = asyncio.get_running_loop()
        self._connection, self._kill, self._last_words, self._answer = connection, kill, exit_report, handler
        self._count, self._reason = 0, ""
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._asked: set[asyncio.Task[None]] = set()
        self._opening: asyncio.Task[tuple[asyncio.StreamReader, asyncio.StreamWriter]] | None = None
        self._reading: asyncio.Task[None] | None = None
        self.is_closed = False

    async def call(self, name: str, /, timeout: float | None = None, **args: Any) -> Any:  # noqa: ASYNC109
        """What the worker's function `name` returns.

        A call that takes longer than `timeout` seconds, or is cancelled, ends the process: what it would do next is not
        known.

        Raises:
            WorkerError: the process ended, or did not answer in time.
            RemoteError: the function raised.
        """
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                return await self.request(name, **args)
        except BaseException as error:
            if isinstance(error, (RemoteError, WorkerError)):
                raise
            if isinstance(error, TimeoutError) and limit.expired():
                said = f"{_short(name, args)} did not end within {timeout:g} s; its process was killed"
                self.close(said)
                raise WorkerError(said) from error
            self.close()
            raise

    async def request(self, name: str, /, **args: Any) -> Any:
        """As `call`, for workers that answer several calls at once: one that is cancelled is simply not waited for."""
        self._count += 1
        number, answer = self._count, self.loop.create_future()
        self._waiting[number] = answer
        try:
            await self._send({"id": number, "call": name, "args": args})
            return await answer
        except _GoneError:
            why = self._reason or f"its process ended{await self._last_words()}"
            raise WorkerError(f"{_short(name, args)}: {why}") from None
        finally:
            del self._waiting[number]
            if not (answer.cancelled() or answer.cancel()):
                answer.exception()  # seen, also where sending failed first

    def close(self, reason: str = "") -> None:
        """End the process, whatever it does; who waits for an answer is told the reason."""
        self._reason = self._reason or reason
        self._lose()
        self._kill()

    async def _send(self, frame: dict[str, Any]) -> None:
        body = msgspec.json.encode(frame)
        if self.is_closed:
            raise _GoneError
        if self._opening is None:
            self._opening = self.loop.create_task(asyncio.open_connection(sock=self._connection))
        reader, writer = await asyncio.shield(self._opening)
        if self._reading is None:
            self._reading = self.loop.create_task(self._read(reader))
        try:
            writer.write(LENGTH.pack(len(body)) + body)
            await writer.drain()
        except OSError:
            self._lose()
            raise _GoneError from None

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                [size] = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                self._take(msgspec.json.decode(await reader.readexactly(size)))
        except (OSError, EOFError, msgspec.MsgspecError):
            self._lose()

    def _take(self, frame: dict[str, Any]) -> None:
        if "call" in frame:
            task = self.loop.create_task(self._reply(frame["id"], frame["call"], frame["args"]))
            self._asked.add(task)
            task.add_done_callback(self._asked.discard)
            return
        answer = self._waiting.get(frame["id"])
        if answer is None or answer.done():  # nobody waits for it any more
            return
        if "error" in frame:
            answer.set_exception(RemoteError(**frame["error"]))
        else:
            answer.set_result(frame["result"])

    async def _reply(self, number: int, name: str, args: dict[str, Any]) -> None:
        reply: dict[str, Any] = {"id": number}
        try:
            if self._answer is None:
                raise Error(f"this worker may not ask for '{name}'")
            reply["result"] = await self._answer(name, args)
        except Exception as error:
            reply["error"] = {"type": type(error).__name__, "message": str(error), "traceback": ""}
        try:
            await self._send(reply)
        except _GoneError:
            return

    def _lose(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(_GoneError())
        if self._opening is None or not self._opening.done() or self.loop.is_closed():
            self._connection.close()
        else:
            self._opening.result()[1].transport.abort()


class _GoneError(Exception):
    """The process is not there any more."""


def _short(name: str, args: dict[str, Any]) -> str:
    text = in_json(args)
    return f"{name}({text if len(text) <= SHOWN else text[:SHOWN] + '…'})"
