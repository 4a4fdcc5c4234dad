"""One process per backend that has imported what sessions need and forks them, in milliseconds.

It is the first process of a namespace that holds all sessions: when it ends, whatever the reason, the kernel ends them.
It speaks with the host over a socket of packets, each a JSON object:

    host → zygote   settings (first) · {"open": id, "uid", "limits"} with the session's socket and files of control groups
                    · {"kill": id, "hard": whether at once}
    zygote → host   {"missing": {feature: reason}} (first) · {"failed": id, "error"} · {"ended": id}
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from typing import Any, NoReturn

from . import kernel
from .frames import write_frame
from .namespaces import FOLDER, Room
from .polling import readable
from .supervisor import Supervisor

PRELOADED = [
    *("asyncio", "collections", "contextlib", "copy", "csv", "dataclasses", "datetime", "decimal", "enum", "fractions"),
    *("functools", "glob", "hashlib", "heapq", "io", "itertools", "json", "math", "operator", "pathlib", "pickle"),
    *("random", "re", "shutil", "sqlite3", "statistics", "string", "subprocess", "textwrap", "threading", "time"),
    *("typing", "uuid"),
]
"""Imported before the first fork, so that sessions share them."""


def main(control: int) -> None:
    """Serve the host at the other end of a socket until it is gone."""
    host = socket.socket(fileno=control)
    settings = json.loads(host.recv(1 << 20))
    room = Room(settings["paths"], settings["without"])
    try:
        room.enter_namespaces()
        pid = os.fork()
        if pid:
            host.close()
            os.waitpid(pid, 0)
            os._exit(0)
        kernel.prctl(kernel.SET_PDEATHSIG, signal.SIGKILL)
        room.move_in(settings["uid"])
        sys.path[:] = [*sys.path[1:], *settings["python_path"]]  # the first one is where these modules are
        os.environ.clear()
        os.environ.update(settings["environment"])
        for name in (*PRELOADED, *settings["preload"]):
            importlib.import_module(name)
    except BaseException:
        host.send(json.dumps({"broken": traceback.format_exc()[-8000:]}).encode())
        os._exit(1)
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page that all share
    host.send(json.dumps({"missing": room.missing}).encode())
    Zygote(host, room).serve()
    os._exit(0)


class Zygote:
    """Forks and kills sessions."""

    def __init__(self, host: socket.socket, room: Room):
        self.host, self.room = host, room
        self.sessions: dict[int, tuple[int, int | None, str]] = {}
        """Process → session, its user, its folder."""

    def serve(self) -> None:
        """Until the host is gone."""
        wake, alarm = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        kernel.prctl(kernel.SET_CHILD_SUBREAPER, 1)
        while True:
            ready = readable([self.host.fileno(), wake])
            if wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
                self._reap()
            if self.host.fileno() in ready:
                data, fds, _, _ = socket.recv_fds(self.host, 1 << 16, 8)
                if not data:
                    break
                message = json.loads(data)
                if "open" in message:
                    self._open(message, fds)
                else:
                    self._kill(message["kill"], message["hard"])
        for session in [session for session, _, _ in self.sessions.values()]:
            self._kill(session)

    def _open(self, message: dict[str, Any], fds: list[int]) -> None:
        session, uid = message["open"], message["uid"] if self.room.has("own user") else None
        folder = FOLDER
        try:
            if not self.room.has("files"):
                folder = tempfile.mkdtemp(prefix="rove-sandbox-")
                os.chown(folder, *((uid, uid) if uid is not None else self.room.user))
            pid = kernel.clone(self.room.spaces)
        except OSError as error:
            self._tell({"failed": session, "error": str(error)})
        else:
            if not pid:
                self._session(message["limits"], uid, fds, folder)
            self.sessions[pid] = (session, uid, folder)
        for fd in fds:
            os.close(fd)

    def _session(self, limits: dict[str, Any], uid: int | None, fds: list[int], folder: str) -> NoReturn:
        """In the first process of a session."""
        connection, *groups = fds
        try:
            signal.set_wakeup_fd(-1)
            self.host.close()
            for group in groups:  # who writes 0 joins, and so do its children
                os.write(group, b"0")
                os.close(group)
            os.setsid()
            kernel.prctl(kernel.SET_CHILD_SUBREAPER, 1)
            kernel.set_oom_score(0)  # as root also the least that this process and its children can set
            self.room.furnish(limits, uid)
            self.room.lock(uid)
            alone = os.getpid() == 1 or (uid is not None and os.getuid() == uid != 0)
            Supervisor(connection, connection, limits, folder, alone).serve()
        except BaseException:
            write_frame(connection, {"broken": traceback.format_exc()[-4000:]})
        os._exit(0)

    def _kill(self, session: int, hard: bool = False) -> None:
        for pid, (number, uid, _) in self.sessions.items():
            if number == session:
                if not self.room.has("processes") and uid is not None:
                    _kill_user(uid)
                hard = hard or self.room.has("processes") or uid is not None
                with contextlib.suppress(ProcessLookupError):  # a supervisor that is asked ends the others itself
                    os.kill(pid, signal.SIGKILL if hard else signal.SIGTERM)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, _ = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid in self.sessions:
                    session, uid, folder = self.sessions.pop(pid)
                    if not self.room.has("processes") and uid is not None:
                        _kill_user(uid)
                    if folder != FOLDER:
                        shutil.rmtree(folder, ignore_errors=True)
                    self._tell({"ended": session})

    def _tell(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the host is gone: the next read says so
            self.host.send(json.dumps(message).encode())


def _kill_user(uid: int) -> None:
    """Kill whatever runs under a user that only one session has."""
    pid = os.fork()
    if not pid:
        try:
            os.setresuid(uid, uid, uid)
            if os.getuid() == uid != 0:
                os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
