"""A conversation with one process: a question, what it prints meanwhile, an answer, and a time limit."""

from __future__ import annotations

import os
import resource
import select
import time
from collections.abc import Callable

from . import repl
from .clip import Clipped


class Child:
    """A process and the pipes to it: output always, questions and answers for Python."""

    def __init__(self, conversation: bool):
        self.pid = 0
        self.output, self.output_end = os.pipe()
        self.theirs: tuple[int, ...] = ()
        self.ours: tuple[int, ...] = (self.output,)
        self.unread = bytearray()
        if conversation:
            (asked, ask), (answer, answered) = os.pipe(), os.pipe()
            self.theirs = (asked, answered)
            self.ours = (self.output, ask, answer)
        for fd in self.ours:
            os.set_blocking(fd, False)

    def take_over(self) -> None:
        """In the process itself: take its ends as standard streams, and close whatever else is open."""
        nothing = os.open(os.devnull, os.O_RDONLY)
        for fd, source in ((0, nothing), (1, self.output_end), (2, self.output_end)):
            os.dup2(source, fd)
        low = 3
        for fd in sorted(self.theirs):
            os.closerange(low, fd)
            low = fd + 1
        os.closerange(low, resource.getrlimit(resource.RLIMIT_NOFILE)[0])

    def hand_over(self) -> None:
        """Close what only the process needs."""
        for fd in (self.output_end, *self.theirs):
            os.close(fd)

    def close(self) -> None:
        """Close the supervisor's ends."""
        for fd in self.ours:
            os.close(fd)
        self.ours = ()


class Call:
    """One question to a child: write it, read what is printed, until there is an answer, an end, or no time left."""

    def __init__(self, child: Child, question: bytes, number: int, limit: int, deadline: float):
        self.child, self.question, self.number, self.limit, self.deadline = child, question, number, limit, deadline
        self.output = Clipped(limit)
        self.outcome = ""
        self.failed, self.text, self.cut = False, "", False

    @property
    def truncated(self) -> bool:
        """Whether something was left out."""
        return self.output.truncated or self.cut

    def run(self, wake: int, over: Callable[[], bool]) -> None:
        """Sets `outcome`: "answered", "ended", "late", or "garbled" where what came is no answer.

        Args:
            wake: becomes readable when a process ended.
            over: whether the child has ended.
        """
        reading = {self.child.output: self._read_output, wake: lambda: bool(_read(wake)) or True}
        if self.question:
            reading[self.child.ours[2]] = self._read_answer
        while not self.outcome:
            left = self.deadline - time.monotonic()
            ended = over()
            if left <= 0 or ended:
                if ended and self.number and len(self.child.ours) > 1:
                    self._read_answer()
                self.outcome = self.outcome or ("ended" if ended else "late")
                break
            ready, writable, _ = select.select(list(reading), [self.child.ours[1]] if self.question else [], [], left)
            for fd in ready:
                if not reading[fd]():
                    del reading[fd]
            if writable:
                self._write()
        self._drain()

    def _write(self) -> None:
        try:
            self.question = self.question[os.write(self.child.ours[1], self.question) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.question = b""

    def _read_output(self) -> bool:
        piece = _read(self.child.output)
        self.output.add(piece or b"")
        return piece != b""

    def _read_answer(self) -> bool:
        piece = _read(self.child.ours[2])
        self.child.unread += piece or b""
        while not self.outcome and len(self.child.unread) >= repl.ANSWER.size:
            number, failed, length = repl.ANSWER.unpack_from(self.child.unread)
            if length > self.limit + 16:
                self.outcome = "garbled"
            if len(self.child.unread) < repl.ANSWER.size + length:
                break
            said = self.child.unread[repl.ANSWER.size : repl.ANSWER.size + length]
            del self.child.unread[: repl.ANSWER.size + length]
            if (
                number == self.number
            ):  # others are what code wrote itself into the pipe, or answers to calls that it answered so
                self.outcome, self.failed = "answered", bool(failed)
                self.text, self.cut = said.decode(errors="replace"), length > self.limit
        if piece == b"":
            self.outcome = self.outcome or "ended"
        return piece != b""

    def _drain(self) -> None:
        """What was printed before the answer is in the pipe already; what a background process prints on is not waited for."""
        left = 1 << 20
        while left > 0 and (piece := _read(self.child.output)):
            self.output.add(piece)
            left -= len(piece)


def _read(fd: int) -> bytes | None:
    """What there is to read; None = nothing yet, b"" = nothing ever."""
    try:
        return os.read(fd, 1 << 16)
    except BlockingIOError:
        return None
