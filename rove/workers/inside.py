"""The program of a host of workers: it loads a module once and forks a process for every worker that is asked for.

It runs by path, on the standard library alone, so that any interpreter will do. Two kinds of socket lead out of it:

    the host's, lines of JSON   settings (first) · {"fork": n} with the worker's socket · {"kill": n}
                                ← {"ready": …} or {"broken": error} (first) · {"ended": n, "status": exit status}
    a worker's, frames of JSON  {"id", "call": name, "args": {…}}   ← {"id", "result"} or {"id", "error"}
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import os
import select
import signal
import socket
import struct
import sys
import traceback
from typing import Any

LENGTH = struct.Struct("<I")
KEPT = 8000
"""Characters of a traceback."""
SET_PDEATHSIG = 1
SET_CHILD_SUBREAPER = 36


def main(control: int) -> None:
    """Load the module, say so, then fork and kill as told until the other end is gone."""
    host = socket.socket(fileno=control)
    lines = Lines(host)
    [(settings, _)] = lines.receive() or [({}, None)]
    sys.path[:] = [*settings["paths"], *(path for path in sys.path if path not in settings["paths"])]
    try:
        module = _load(settings["module"])
        told = module.setup(**settings["args"]) if hasattr(module, "setup") else None
        ready = _encode({"ready": told})
    except BaseException as error:  # exit() too
        host.sendall(_encode({"broken": described(error)}) + b"\n")
        os._exit(1)
    inherit_orphans()
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page that all share
    host.sendall(ready + b"\n")
    _Host(host, lines, module, settings["memory"]).serve()
    os._exit(0)


class _Host:
    """Forks and kills workers."""

    def __init__(self, host: socket.socket, lines: Lines, module: Any, memory: int | None):
        self.host, self.lines, self.module, self.memory = host, lines, module, memory
        self.workers: dict[int, int] = {}
        """Process → number."""

    def serve(self) -> None:
        """Until the other end is gone."""
        wake, alarm = os.pipe()
        for end in (wake, alarm):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poller = select.poll()  # select.select knows no file number above 1023
        for file in (self.host.fileno(), wake):
            poller.register(file, select.POLLIN)
        while True:
            ready = {file for file, _ in poller.poll()}
            if wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
                self._reap()
            if self.host.fileno() in ready:
                told = self.lines.receive()
                if told is None:
                    break
                for message, connection in told:
                    if connection is not None:
                        self._fork(message["fork"], connection)
                    else:
                        self._kill(message["kill"])
        self._end()

    def _fork(self, number: int, connection: int) -> None:
        try:
            pid = os.fork()
        except OSError:  # its socket closes, which its owner sees
            os.close(connection)
            return
        if pid:
            with contextlib.suppress(OSError):  # so that there is a group, whoever is first
                os.setpgid(pid, pid)
            os.close(connection)
            self.workers[pid] = number
            return
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            with contextlib.suppress(OSError):
                os.setpgid(0, 0)
            die_with_parent()
            inherit_orphans()  # what it has started is its own while it lives, and the host's after it
            self.host.close()
            if self.memory:
                limit_memory(self.memory)
            serve = getattr(self.module, "serve", None) or converse
            serve(socket.socket(fileno=connection), self.module)
        except BaseException:
            traceback.print_exc()
        os._exit(0)

    def _kill(self, number: int) -> None:
        for pid in [pid for pid, known in self.workers.items() if known == number]:
            kill_group(pid)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                number = self.workers.pop(pid, None)
                if number is not None:
                    kill_group(pid)  # what it has started
                    self._kill_orphans()
                    said = {"ended": number, "status": os.waitstatus_to_exitcode(status)}
                    with contextlib.suppress(OSError):
                        self.host.sendall(_encode(said) + b"\n")

    def _end(self) -> None:
        """End every worker."""
        for pid in self.workers:
            kill_group(pid)
        for pid in self.workers:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self._kill_orphans()

    def _kill_orphans(self) -> None:
        """End the programs of dead workers that have groups of their own: the host has inherited them."""
        with contextlib.suppress(OSError):
            with open(f"/proc/self/task/{os.getpid()}/children") as children:
                inherited = set(map(int, children.read().split())) - self.workers.keys()
            for pid in inherited:
                kill_group(pid)


def converse(connection: socket.socket, module: Any) -> None:
    """Answer calls one after another, each with the function of that name of `module.Session()`, until the other end is gone."""
    session = module.Session()
    while (frame := read_frame(connection)) is not None:
        reply = {"id": frame["id"]}
        try:
            reply["result"] = getattr(session, frame["call"])(**frame["args"])
            body = _encode(reply)
        except BaseException as error:  # exit() too
            reply.pop("result", None)
            body = _encode({**reply, "error": described(error)})
        connection.sendall(LENGTH.pack(len(body)) + body)


def read_frame(connection: socket.socket) -> Any:
    """The next message; None when the other end is gone."""
    head = _read(connection, LENGTH.size)
    body = _read(connection, LENGTH.unpack(head)[0]) if head else None
    return json.loads(body) if body else None


def described(error: BaseException) -> dict[str, str]:
    """An exception as data."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return {"type": type(error).__name__, "message": str(error), "traceback": text[-KEPT:]}


def kill_group(pid: int) -> None:
    """End a process and whatever is in its group."""
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def die_with_parent() -> None:
    """End when the parent does, also by a signal, where the system can do that."""
    _control_process(SET_PDEATHSIG, signal.SIGKILL)


def inherit_orphans() -> None:
    """Become the parent of what dead children have started, where the system can do that."""
    _control_process(SET_CHILD_SUBREAPER, 1)


def _control_process(option: int, value: int) -> None:
    try:
        import ctypes

        ctypes.CDLL(None).prctl(option, value)
    except (ImportError, OSError, AttributeError):
        return


def limit_memory(more: int) -> None:
    """Let allocations fail beyond so many bytes more than there are now, where the system can do that."""
    try:
        import resource

        with open("/proc/self/statm") as sizes:
            used = int(sizes.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + more, used + more))
    except (ImportError, OSError, ValueError):
        return


def _load(file: str) -> Any:
    spec = importlib.util.spec_from_file_location("worker_module", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["worker_module"] = module
    spec.loader.exec_module(module)
    return module


class Lines:
    """Lines of JSON from a socket, each with the file that came with it."""

    def __init__(self, connection: socket.socket):
        self.connection = connection
        self.data = b""
        self.files: list[int] = []

    def receive(self) -> list[tuple[Any, int | None]] | None:
        """At least one; None when the other end is gone."""
        while b"\n" not in self.data:
            piece, files, _, _ = socket.recv_fds(self.connection, 1 << 16, 64)
            if not piece:
                return None
            self.data += piece
            self.files += files
        *whole, self.data = self.data.split(b"\n")
        messages = [json.loads(line) for line in whole]
        return [(message, self.files.pop(0) if "fork" in message else None) for message in messages]


def _encode(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False, default=_plain).encode()


def _plain(value: Any) -> Any:
    """Numbers and arrays of numpy as Python's own."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be told in JSON")


def _read(connection: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(min(count - len(data), 1 << 20))
        if not piece:
            return None
        data += piece
    return bytes(data)


if __name__ == "__main__":
    main(int(sys.argv[1]))
