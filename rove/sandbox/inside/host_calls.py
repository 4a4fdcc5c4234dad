"""Host functions for sandboxed code. Requests leave through the pipe of answers; replies arrive through the pipe of code."""

from __future__ import annotations

import json
import os
import struct
import threading
from collections.abc import Callable
from typing import Any

from .frames import read_all, write_all

REQUEST = struct.Struct("<QhI")
"""Number of the call, bytes of function names (-1: this is a reply to a host call), bytes of code."""
ANSWER = struct.Struct("<QBI")
"""Number of the call, kind, bytes of text."""
FAILED, QUESTION = 1, 2
"""Kinds of answers: the code failed, or it calls the host. 0: it succeeded."""


class HostCaller:
    """Calls the host, one call at a time for all threads."""

    def __init__(self, requests: int, answers: int, max_bytes: int):
        self.requests, self.answers, self.max_bytes = requests, answers, max_bytes
        self.owner = os.getpid()
        self.number = 0
        """Number of the running call; 0 between calls."""
        self._last_id = 0
        self._lock = threading.Lock()

    def functions(self, names: str) -> dict[str, Callable[..., Any]]:
        """Return the functions with these names, which are separated by spaces."""
        return {name: self._function(name) for name in names.split()}

    def end(self) -> None:
        """Wait until no thread waits for a reply, and end the call."""
        with self._lock:
            self.number = 0

    def _function(self, name: str) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            return self._call(name, args, kwargs)

        function.__name__ = function.__qualname__ = name
        return function

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if os.getpid() != self.owner:
            raise RuntimeError(f"{name}() cannot be called by a forked process")
        with self._lock:
            if not self.number:
                raise RuntimeError(f"{name}() was called by a thread that outlived its call")
            self._last_id += 1  # a late reply to an interrupted call has another id and is skipped below
            request = {"id": self._last_id, "name": name, "args": args, "kwargs": kwargs}
            body = json.dumps(request, ensure_ascii=False).encode(errors="replace")
            if len(body) > self.max_bytes:
                raise ValueError(f"{name}() was given {len(body)} bytes; expected at most {self.max_bytes} in one call")
            write_all(self.answers, ANSWER.pack(self.number, QUESTION, len(body)) + body)
            reply: dict[str, Any] = {}
            while reply.get("id") != self._last_id:
                head = read_all(self.requests, REQUEST.size)
                if head is None:  # the supervisor is gone
                    os._exit(0)
                _, _, reply_length = REQUEST.unpack(head)
                reply = json.loads(read_all(self.requests, reply_length) or b"{}")
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply["value"]
