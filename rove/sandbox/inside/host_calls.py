"""Functions of the host that code can call. A question goes out where answers go; what is said to it comes in where code does."""

from __future__ import annotations

import json
import os
import struct
import threading
from collections.abc import Callable
from typing import Any

from .frames import read_all, write_all

REQUEST = struct.Struct("<QhI")
"""Number of the call, bytes of the names of functions (-1: it is a reply to a question), bytes of code."""
ANSWER = struct.Struct("<QBI")
"""Number of the call, what it is, bytes of text."""
RAN, FAILED, ASKED = 0, 1, 2
"""What an answer is: of code that ran to its end, of code that failed, or a question of code that waits."""


class Asking:
    """Asks one question at a time, whichever thread it comes from.

    Args:
        requests, answers: where the supervisor writes and reads.
        most: bytes of a question.
    """

    def __init__(self, requests: int, answers: int, most: int):
        self.requests, self.answers, self.most = requests, answers, most
        self.owner = os.getpid()
        self.number = 0
        """Of the call that runs; 0 between calls."""
        self._asked = 0
        self._lock = threading.Lock()

    def functions(self, names: str) -> dict[str, Callable[..., Any]]:
        """The functions of these names, separated by spaces."""
        return {name: self._function(name) for name in names.split()}

    def end(self) -> None:
        """The call is over, as soon as no thread waits for an answer any more."""
        with self._lock:
            self.number = 0

    def _function(self, name: str) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            return self._ask(name, args, kwargs)

        function.__name__ = function.__qualname__ = name
        return function

    def _ask(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if os.getpid() != self.owner:
            raise RuntimeError(f"{name}() cannot be called by a process that was forked")
        with self._lock:
            if not self.number:
                raise RuntimeError(f"{name}() was called by a thread that outlived its call")
            self._asked += 1  # what a question that was interrupted is told later is nothing to the next one
            question = {"id": self._asked, "name": name, "args": args, "kwargs": kwargs}
            body = json.dumps(question, ensure_ascii=False).encode(errors="replace")
            if len(body) > self.most:
                raise ValueError(f"{name}() was given {len(body)} bytes; expected at most {self.most} in one call")
            write_all(self.answers, ANSWER.pack(self.number, ASKED, len(body)) + body)
            reply: dict[str, Any] = {}
            while reply.get("id") != self._asked:
                head = read_all(self.requests, REQUEST.size) or os._exit(0)  # nobody is there any more
                reply = json.loads(read_all(self.requests, REQUEST.unpack(head)[2]) or b"{}")
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply["value"]
