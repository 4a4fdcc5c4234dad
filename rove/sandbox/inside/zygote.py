"""A process per backend that imports the modules of sessions once, then forks sessions within milliseconds.

It is the first process of a process namespace that contains all sessions: when it ends, the kernel kills them.
docs/decisions/sandbox.md gives the reasons for forking sessions. It exchanges JSON packets with the host over a socket:

    host → zygote   settings (first) · {"open": id, "uid", "limits"} with the session's socket and files of control groups
                    · {"kill": id, "hard": without asking the supervisor}
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
from .calls import readable
from .frames import write_frame
from .namespaces import FOLDER, Jail
from .supervisor import Supervisor

PRELOADED = [
    *("asyncio", "collections", "contextlib", "copy", "csv", "dataclasses", "datetime", "decimal", "enum", "fractions"),
    *("functools", "glob", "hashlib", "heapq", "io", "itertools", "json", "math", "operator", "pathlib", "pickle"),
    *("random", "re", "shutil", "sqlite3", "statistics", "string", "subprocess", "textwrap", "threading", "time"),
    *("typing", "uuid"),
]
"""Modules imported before the first fork, so that sessions share their memory."""


def main(control: int) -> None:
    """Serve the host at the other end of a socket until it closes."""
    host = socket.socket(fileno=control)
    settings = json.loads(host.recv(1 << 20))
    jail = Jail(settings["paths"], settings["without"])
    try:
        jail.enter_namespaces()
        pid = os.fork()
        if pid:
            host.close()
            os.waitpid(pid, 0)
            os._exit(0)
        kernel.prctl(kernel.SET_PDEATHSIG, signal.SIGKILL)
        jail.enter_jail(settings["uid"])
        sys.path[:] = [*sys.path[1:], *settings["python_path"]]  # drop the folder of these modules
        os.environ.clear()
        os.environ.update(settings["environment"])
        for name in (*PRELOADED, *settings["preload"]):
            importlib.import_module(name)
    except BaseException:
        host.send(json.dumps({"broken": traceback.format_exc()[-8000:]}).encode())
        os._exit(1)
    gc.collect()
    gc.freeze()  # otherwise a collection in a child would copy all shared pages
    host.send(json.dumps({"missing": jail.missing}).encode())
    Zygote(host, jail).serve()
    os._exit(0)


class Zygote:
    """Forks and kills sessions."""

    def __init__(self, host: socket.socket, jail: Jail):
        self.host, self.jail = host, jail
        self.sessions: dict[int, tuple[int, int | None, str]] = {}
        """Process → session, its user, its folder."""

    def serve(self) -> None:
        """Serve until the host closes the socket."""
        # A signal may arrive between two reads: the wakeup pipe makes SIGCHLD readable, so that none is missed.
        wake, alarm = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Processes whose session has died become children of this process, which reaps them.
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
        for session, _, _ in self.sessions.values():
            self._kill(session)

    def _open(self, message: dict[str, Any], fds: list[int]) -> None:
        session = message["open"]
        uid = message["uid"] if self.jail.has("own user") else None
        folder = FOLDER
        try:
            if not self.jail.has("files"):
                folder = tempfile.mkdtemp(prefix="rove-sandbox-")
                owner, group = self.jail.user if uid is None else (uid, uid)
                os.chown(folder, owner, group)
            pid = kernel.clone(self.jail.namespace_flags)
        except OSError as error:
            self._send({"failed": session, "error": str(error)})
        else:
            if not pid:
                self._session(message["limits"], uid, fds, folder)
            self.sessions[pid] = (session, uid, folder)
        for fd in fds:
            os.close(fd)

    def _session(self, limits: dict[str, Any], uid: int | None, fds: list[int], folder: str) -> NoReturn:
        """Run the first process of a session."""
        connection, *groups = fds
        try:
            # The child must not answer in place of the zygote: it gives up the wakeup pipe and the host's socket first.
            signal.set_wakeup_fd(-1)
            self.host.close()
            for group in groups:  # writing 0 moves this process, and its later children, into the group
                os.write(group, b"0")
                os.close(group)
            os.setsid()
            kernel.prctl(kernel.SET_CHILD_SUBREAPER, 1)
            kernel.set_oom_score(0)  # as root this is also the minimum that the session can set later
            self.jail.mount_session(limits, uid)
            self.jail.drop_privileges(uid)
            alone = os.getpid() == 1 or (uid is not None and os.getuid() == uid != 0)
            Supervisor(connection, connection, limits, folder, alone).serve()
        except BaseException:  # not only Exception: after a fork, SystemExit would run the parent's exit handlers
            write_frame(connection, {"broken": traceback.format_exc()[-4000:]})
        os._exit(0)

    def _kill(self, session: int, hard: bool = False) -> None:
        for pid, (number, uid, _) in self.sessions.items():
            if number == session:
                if not self.jail.has("processes") and uid is not None:
                    _kill_user(uid)
                hard = hard or self.jail.has("processes") or uid is not None
                with contextlib.suppress(ProcessLookupError):  # on SIGTERM a supervisor ends its processes itself
                    os.kill(pid, signal.SIGKILL if hard else signal.SIGTERM)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, _ = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid in self.sessions:
                    session, uid, folder = self.sessions.pop(pid)
                    if not self.jail.has("processes") and uid is not None:
                        _kill_user(uid)
                    if folder != FOLDER:
                        shutil.rmtree(folder, ignore_errors=True)
                    self._send({"ended": session})

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the host is gone; the next read notices
            self.host.send(json.dumps(message).encode())


def _kill_user(uid: int) -> None:
    """Kill all processes of a session's user id: a child with this user id sends a signal to every process to which it may."""
    pid = os.fork()
    if not pid:
        try:
            os.setresuid(uid, uid, uid)
            # If the change of user failed silently, kill(-1) would reach every process of the machine.
            if os.getuid() == uid != 0:
                os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
