"""A conversation with one process: a question, what it prints meanwhile, an answer, and a time limit."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from typing import Any

from .clip import Clipped
from .frames import read_frame, write_frame
from .host_calls import ANSWER, ASKED, FAILED, REQUEST
from .polling import readable

ASKING_SECONDS = 0.001
"""What a question to the host takes of the time of a call at least; how long the host takes beyond that does not count."""


class HostGoneError(Exception):
    """Nobody is there any more to ask."""


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
    """One question to a child: write it, read what is printed, until there is an answer, an end, or no time left.

    Args:
        child: whom to ask.
        question: what; empty where no answer is expected.
        number: of the call.
        limits: fields of `rove.sandbox.SandboxLimits`.
        deadline: when its time is over.
        host: where the host writes and reads: what the child asks meanwhile is asked there.
    """

    def __init__(
        self, child: Child, question: bytes, number: int, limits: dict[str, Any], deadline: float, host: tuple[int, int]
    ):
        self.child, self.question, self.number, self.deadline, self.host = child, question, number, deadline, host
        self.limit, self.most = limits["output_chars"], limits["message_bytes"]
        self.asked: str | None = None
        self.output = Clipped(self.limit)
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

        Raises:
            HostGoneError: the child asks the host, and the host is gone.
        """
        reading = {self.child.output: self._read_output, wake: lambda: bool(_read(wake)) or True}
        if self.question:
            reading[self.child.ours[2]] = self._read_answer
        while not self.outcome:
            ended = over()
            if self.asked is not None and not ended:
                self._ask_host(reading)
            left = self.deadline - time.monotonic()
            if left <= 0 or ended:
                if ended and self.number and len(self.child.ours) > 1:
                    self._read_answer()
                self.outcome = self.outcome or ("ended" if ended else "late")
                break
            writing = [self.child.ours[1]] if self.question else []
            ready = readable(list(reading), left, writing)
            for fd in ready & reading.keys():
                if not reading[fd]():
                    del reading[fd]
            if ready.intersection(writing):
                self._write()
        self._drain()

    def _ask_host(self, reading: dict[int, Callable[[], bool]]) -> None:
        """Pass a question on and what is said to it back; meanwhile the call's time stands still."""
        began = time.monotonic()
        requests, answers = self.host
        write_frame(answers, {"asked": self.asked, "left": max(0.0, self.deadline - began)})
        self.asked = None
        read_answer = reading.pop(self.child.ours[2])  # one question at a time
        while requests not in (ready := readable([requests, *reading])):
            for fd in ready:
                if not reading[fd]():
                    del reading[fd]
        reading[self.child.ours[2]] = read_answer
        told = read_frame(requests)
        if told is None:
            raise HostGoneError
        reply = told["reply"].encode(errors="replace")
        self.question += REQUEST.pack(self.number, -1, len(reply)) + reply
        self.deadline += max(0.0, time.monotonic() - began - ASKING_SECONDS)
        self._read_unread()

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
        self._read_unread()
        if piece == b"":
            self.outcome = self.outcome or "ended"
        return piece != b""

    def _read_unread(self) -> None:
        unread = self.child.unread
        while not self.outcome and self.asked is None and len(unread) >= ANSWER.size:
            number, kind, length = ANSWER.unpack_from(unread)
            if length > (self.most if kind == ASKED else self.limit + 16):
                self.outcome = "garbled"
            if len(unread) < ANSWER.size + length:
                break
            said = unread[ANSWER.size : ANSWER.size + length].decode(errors="replace")
            del unread[: ANSWER.size + length]
            if number != self.number:  # code wrote it into the pipe itself, or it is of a call that code answered so
                continue
            if kind == ASKED:
                self.asked = said
            else:
                self.outcome, self.failed = "answered", kind == FAILED
                self.text, self.cut = said, length > self.limit

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
