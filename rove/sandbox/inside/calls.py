"""One call of a process in a sandbox: a request, its output, an answer and a time limit."""

from __future__ import annotations

import math
import os
import resource
import select
import time
from collections.abc import Callable, Iterable
from typing import Any

from .frames import read_frame, write_frame
from .host_calls import ANSWER, FAILED, QUESTION, REQUEST

HOST_CALL_COST_S = 0.001
"""Seconds that each host call takes from the call's time limit, to bound the number of host calls. Its remaining time does not
count."""


class Clipped:
    """Keeps the start and the end of a stream of bytes."""

    def __init__(self, limit: int):
        self.head, self.tail = bytearray(), bytearray()
        self.limit, self.total = limit, 0

    def add(self, piece: bytes) -> None:
        """Add bytes."""
        self.total += len(piece)
        available = self.limit - self.limit // 2 - len(self.head)
        if available > 0:
            self.head += piece[:available]
            piece = piece[available:]
        self.tail += piece
        # Which bytes are the end is not known yet, and a process may print gigabytes: keep more than needed, cut now and then.
        if len(self.tail) > 2 * self.limit + 65536:
            del self.tail[: len(self.tail) - self.limit // 2]

    @property
    def truncated(self) -> bool:
        """Whether bytes were dropped."""
        return self.total > self.limit

    def text(self) -> str:
        """Return the kept bytes as text, with a note where bytes are missing; at most `limit` characters plus the note."""
        if not self.truncated:
            return (self.head + self.tail).decode(errors="replace")
        tail = self.tail[len(self.tail) - self.limit // 2 :]
        note = f"\n... [{self.total - self.limit} bytes left out] ...\n"
        return self.head.decode(errors="replace") + note + tail.decode(errors="replace")


class HostGoneError(Exception):
    """The host has closed its connection."""


class Child:
    """A process and the pipes to it: output always, requests and answers for Python."""

    def __init__(self, conversation: bool):
        self.pid = 0
        self.output, self.output_end = os.pipe()
        self.child_fds: tuple[int, ...] = ()
        self.own_fds: tuple[int, ...] = (self.output,)
        self.unread = bytearray()
        if conversation:
            (request_out, request_in), (answer_out, answer_in) = os.pipe(), os.pipe()
            self.child_fds = (request_out, answer_in)
            self.own_fds = (self.output, request_in, answer_out)
        for fd in self.own_fds:
            os.set_blocking(fd, False)

    def take_fds(self) -> None:
        """In the child: install its ends of the pipes as standard streams, and close all other file descriptors.

        None of the remaining descriptors leads to the host (docs/decisions/sandbox.md).
        """
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, source in ((0, null), (1, self.output_end), (2, self.output_end)):
            os.dup2(source, fd)
        first_to_close = 3
        for fd in sorted(self.child_fds):
            os.closerange(first_to_close, fd)
            first_to_close = fd + 1
        max_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        os.closerange(first_to_close, max_files)

    def close_child_fds(self) -> None:
        """In the supervisor: close the child's ends of the pipes."""
        for fd in (self.output_end, *self.child_fds):
            os.close(fd)

    def close(self) -> None:
        """Close the supervisor's ends of the pipes."""
        for fd in self.own_fds:
            os.close(fd)
        self.own_fds = ()


class Call:
    """One request to a child: write it, and read output until there is an answer, the child ends, or the time limit is reached.

    Args:
        request: The request; empty if no answer is expected.
    """

    def __init__(
        self, child: Child, request: bytes, number: int, limits: dict[str, Any], deadline: float, host: tuple[int, int]
    ):
        self.child, self.request, self.number = child, request, number
        self.deadline, self.host = deadline, host
        self.limit, self.max_message_bytes = limits["output_chars"], limits["message_bytes"]
        self.pending_call: str | None = None
        self.output = Clipped(self.limit)
        self.outcome = ""
        self.failed, self.text, self.cut = False, "", False

    @property
    def truncated(self) -> bool:
        """Whether output or the answer was shortened."""
        return self.output.truncated or self.cut

    def run(self, wake: int, has_ended: Callable[[], bool]) -> None:
        """Set `outcome`: "answered", "ended", "late", or "garbled" if the answer is malformed.

        Args:
            wake: A descriptor that becomes readable when a process of the session ends.
            has_ended: Returns whether the child has ended.
        """

        def read_wake() -> bool:
            _read(wake)
            return True

        # Each function reads what is there, and returns False at the end of its stream.
        reading = {self.child.output: self._read_output, wake: read_wake}
        if self.request:
            reading[self.child.own_fds[2]] = self._read_answer
        while not self.outcome:
            if has_ended():
                self._end()
                break
            if self.pending_call is not None:
                self._call_host(reading)
            remaining = self.deadline - time.monotonic()
            if remaining <= 0:
                self.outcome = self.outcome or "late"
                break
            writing = [self.child.own_fds[1]] if self.request else []
            ready = readable(list(reading), remaining, writing)
            for fd in ready & reading.keys():
                if not reading[fd]():
                    del reading[fd]
            if ready.intersection(writing):
                self._write()
        self._drain()

    def _end(self) -> None:
        """Read the answer of a child that has ended: it may have answered before its end, and the answer may still be
        in the pipe.
        """
        if self.number and len(self.child.own_fds) > 1:
            self._read_answer()
        self.outcome = self.outcome or "ended"

    def _call_host(self, reading: dict[int, Callable[[], bool]]) -> None:
        """Forward a host call, and return its reply to the child; the call's time limit is suspended until then."""
        began = time.monotonic()
        requests, answers = self.host
        write_frame(answers, {"host_call": self.pending_call, "left": max(0.0, self.deadline - began)})
        self.pending_call = None
        read_answer = reading.pop(self.child.own_fds[2])  # one host call at a time
        # Output is read during the call: a background process that fills its pipe would otherwise stop.
        ready = readable([requests, *reading])
        while requests not in ready:
            for fd in ready:
                if not reading[fd]():
                    del reading[fd]
            ready = readable([requests, *reading])
        reading[self.child.own_fds[2]] = read_answer
        message = read_frame(requests)
        if message is None:
            raise HostGoneError
        reply = message["reply"].encode(errors="replace")
        self.request += REQUEST.pack(self.number, -1, len(reply)) + reply
        self.deadline += max(0.0, time.monotonic() - began - HOST_CALL_COST_S)
        self._read_unread()

    def _write(self) -> None:
        try:
            written = os.write(self.child.own_fds[1], self.request)
            self.request = self.request[written:]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.request = b""

    def _read_output(self) -> bool:
        piece = _read(self.child.output)
        self.output.add(piece or b"")
        return piece != b""

    def _read_answer(self) -> bool:
        piece = _read(self.child.own_fds[2])
        self.child.unread += piece or b""
        self._read_unread()
        if piece == b"":
            self.outcome = self.outcome or "ended"
        return piece != b""

    def _read_unread(self) -> None:
        unread = self.child.unread
        while not self.outcome and self.pending_call is None and len(unread) >= ANSWER.size:
            number, kind, length = ANSWER.unpack_from(unread)
            # The code can write to this pipe: an invented length must not make the supervisor collect without end.
            max_length = self.max_message_bytes if kind == QUESTION else self.limit + 16
            if length > max_length:
                self.outcome = "garbled"
                return
            end = ANSWER.size + length
            if len(unread) < end:
                break
            text = unread[ANSWER.size : end].decode(errors="replace")
            del unread[:end]
            # Another number was written by the code itself, or is left over from a call that code has answered this way.
            if number != self.number:
                continue
            if kind == QUESTION:
                self.pending_call = text
            else:
                self.outcome, self.failed = "answered", kind == FAILED
                self.text, self.cut = text, length > self.limit

    def _drain(self) -> None:
        """Read output that is already in the pipe, up to 1 MiB: a background process may print forever."""
        remaining = 1 << 20
        while remaining > 0 and (piece := _read(self.child.output)):
            self.output.add(piece)
            remaining -= len(piece)


def _read(fd: int) -> bytes | None:
    """Return the available bytes; None = no bytes yet, b"" = the pipe is closed."""
    try:
        return os.read(fd, 1 << 16)
    except BlockingIOError:
        return None


def readable(reading: Iterable[int], seconds: float | None = None, writing: Iterable[int] = ()) -> set[int]:
    """Wait until a descriptor in `reading` is readable or a descriptor in `writing` is writable, or until its other end is
    closed.

    It uses poll(2), because select(2) fails for file descriptors above 1023.

    Returns:
        The file descriptors that are ready; an empty set after the time limit.
    """
    poller = select.poll()
    for fd in reading:
        poller.register(fd, select.POLLIN)
    for fd in writing:
        poller.register(fd, select.POLLOUT)
    milliseconds = None if seconds is None else math.ceil(seconds * 1000)
    return {fd for fd, _ in poller.poll(milliseconds)}
