"""The first process of a session: takes one call after the other, and can stop everything else there is in the session.

It holds no secrets and shares no file with what it starts, so that code can only ever speak for itself: what comes back
from it is text, clipped here while it is read, and whatever it leaves behind dies with the session.
"""

from __future__ import annotations

import base64
import contextlib
import os
import resource
import signal
import stat
import time
from collections.abc import Callable
from typing import Any, NoReturn

from . import kernel, repl
from .calls import Call, Child, HostGoneError
from .frames import read_frame, write_frame
from .host_calls import REQUEST

FAILED = 70
"""Exit status of a process that could not do what it was started for."""
GRACE = 0.5
"""Seconds that killed processes get to be gone."""


class Supervisor:
    """Serves one session.

    Args:
        requests, answers: where the host writes and reads.
        limits: fields of `rove.sandbox.SandboxLimits`.
        folder: the session's own, which relative paths start from.
        alone: whether every other process that this one may signal belongs to the session.
    """

    def __init__(self, requests: int, answers: int, limits: dict[str, Any], folder: str, alone: bool):
        self.requests, self.answers, self.limits, self.folder, self.alone = requests, answers, limits, folder, alone
        self.python: Child | None = None
        self.calls = 0
        self.ended: dict[int, int] = {}
        self.groups: set[int] = set()
        self.starting = False
        self.wake, self._alarm = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def serve(self) -> None:
        """Answer until the host is gone."""
        signal.set_wakeup_fd(self._alarm, warn_on_full_buffer=False)  # a call that waits notices who ended
        signal.signal(signal.SIGCHLD, lambda *_: self.starting or self._reap())
        if os.getpid() != 1:  # without a namespace that ends with this process it ends the others by itself
            signal.signal(signal.SIGTERM, lambda *_: self._leave())
        kinds: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "python": self._python,
            "bash": self._bash,
            "put": self._put,
            "get": self._get,
        }
        self.python = self._start_python()
        write_frame(self.answers, {"ready": True})
        while request := read_frame(self.requests):
            began = time.monotonic()
            try:
                answer = kinds[request["kind"]](request)
            except HostGoneError:
                break
            except (
                Exception
            ) as error:  # no file of that name, no process to be had: said of this call, the session goes on
                answer = {"error": f"{type(error).__name__}: {error}"}
            write_frame(self.answers, answer | {"seconds": time.monotonic() - began})
        self._leave()

    def _leave(self) -> NoReturn:
        self._stop_all()
        os._exit(0)

    def _python(self, request: dict[str, Any]) -> dict[str, Any]:
        python, restarted = self._living_python()
        self.calls += 1
        code = request["code"].encode(errors="replace")
        names = " ".join(request["functions"]).encode()
        question = REQUEST.pack(self.calls, len(names), len(code)) + names + code
        call = self._run(python, request, question)
        if call.outcome == "answered":
            return self._told(call, value=call.text, failed=call.failed, restarted=restarted)
        cause = "wrote what is no answer" if call.outcome == "garbled" else ""
        if call.outcome == "ended":
            cause = _cause(self._end_of(python))
        self._stop_all()
        if call.outcome == "late":
            return self._late(call, request)
        return self._told(call, error=f"Python {cause}", restarted=True)

    def _living_python(self) -> tuple[Child, bool]:
        """The Python of the session, and whether it is a new one because the old one ended where nobody saw it."""
        unseen = self.python is not None and self.python.pid in self.ended
        if unseen:
            self._stop_all()
        if self.python is None:
            self.python = self._start_python()
        return self.python, unseen

    def _end_of(self, child: Child) -> int | None:
        """Exit status of a process whose pipes are closed; None where it lives on without them."""
        deadline = time.monotonic() + GRACE / 2
        while child.pid not in self.ended and time.monotonic() < deadline:
            time.sleep(0.001)
        return self.ended.get(child.pid)

    def _bash(self, request: dict[str, Any]) -> dict[str, Any]:
        child = self._start_bash(request["command"])
        call = self._run(child, request)
        status = self.ended.pop(child.pid, 0)
        child.close()
        if call.outcome == "late":
            self._stop_all()
            return self._late(call, request)
        code = os.waitstatus_to_exitcode(status)
        return self._told(call, exit_code=code if code >= 0 else 128 - code)

    def _run(self, child: Child, request: dict[str, Any], question: bytes = b"") -> Call:
        deadline = time.monotonic() + request["seconds"]
        call = Call(child, question, self.calls, self.limits, deadline, (self.requests, self.answers))
        call.run(self.wake, lambda: child.pid in self.ended)
        return call

    def _told(self, call: Call, **more: Any) -> dict[str, Any]:
        return {"output": call.output.text(), "truncated": call.truncated, **more}

    def _late(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        return self._told(call, error=f"stopped after {request['seconds']:g} s", timed_out=True, restarted=True)

    def _put(self, request: dict[str, Any]) -> dict[str, Any]:
        path = os.path.join(self.folder, request["path"])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(path, flags, 0o644), "wb") as file:
            file.write(base64.b64decode(request["data"]))
        return {}

    def _get(self, request: dict[str, Any]) -> dict[str, Any]:
        path = os.path.join(self.folder, request["path"])
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(f"{request['path']} is not a regular file")
            data = file.read(self.limits["file_bytes"] + 1)
        if len(data) > self.limits["file_bytes"]:
            raise OSError(f"{request['path']} has more than {self.limits['file_bytes']} bytes (file_bytes)")
        return {"data": base64.b64encode(data).decode()}

    def _start_python(self) -> Child:
        def body(child: Child) -> None:
            restrict(self.limits)
            repl.open_streams()
            repl.serve(child.theirs[0], child.theirs[1], self.limits["output_chars"], self.limits["message_bytes"])

        return self._start(body, conversation=True)

    def _start_bash(self, command: str) -> Child:
        def body(_: Child) -> None:
            restrict(self.limits)
            for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, and what is executed would inherit it
                signal.signal(ignored, signal.SIG_DFL)
            os.execve("/bin/bash", ["bash", "-c", command], os.environ)

        return self._start(body, conversation=False)

    def _start(self, body: Callable[[Child], None], conversation: bool) -> Child:
        child = Child(conversation)
        self.starting = True  # one that ends before it is known would be taken for a grandchild, and waited for in vain
        try:
            pid = os.fork()
            if not pid:
                self._become(child, body)
            child.pid = pid
            self.groups = {group for group in self.groups if _lives(group)} | {pid}
        except OSError:
            child.close()
            raise
        finally:
            child.hand_over()
            self.starting = False
            self._reap()
        return child

    def _become(self, child: Child, body: Callable[[Child], None]) -> NoReturn:
        status = FAILED
        try:
            signal.set_wakeup_fd(-1)
            for handled in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(handled, signal.SIG_DFL)
            os.setsid()
            os.chdir(self.folder)
            os.environ.update(HOME=self.folder, TMPDIR=self.folder)
            child.take_over()
            body(child)
            status = 0
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(status)

    def _stop_all(self) -> None:
        """Kill every process of the session but this one, and wait until they are gone."""
        if self.alone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        for group in self.groups:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        deadline = time.monotonic() + GRACE
        while self._reap() and time.monotonic() < deadline:
            time.sleep(0.001)
        if self.python:
            self.python.close()
        self.python = None
        self.groups.clear()
        self.ended.clear()

    def _reap(self) -> bool:
        """Take note of who ended. Whether anybody is left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return True
                if pid in self.groups:  # nobody asks how grandchildren ended
                    self.ended[pid] = status
        except ChildProcessError:
            return False


def restrict(limits: dict[str, Any]) -> None:
    """The limits of one process and its children; and files that the code makes are its own."""
    pairs = {
        resource.RLIMIT_CORE: 1,  # 0 would still start a machine's program for core dumps, if it has one; 1 does not
        resource.RLIMIT_AS: limits["memory_bytes"],
        resource.RLIMIT_CPU: limits["cpu_seconds"],
        resource.RLIMIT_FSIZE: limits["file_bytes"],
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_NPROC: limits["processes"],
        resource.RLIMIT_STACK: 8 << 20,
        resource.RLIMIT_MEMLOCK: 64 << 10,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 256,
    }
    for kind, most in pairs.items():
        if most < 0:
            continue
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        # of CPU time first a signal that says why, a second later the end
        more = 1 if kind == resource.RLIMIT_CPU and most != hard else 0
        resource.setrlimit(kind, (most, most + more))
    kernel.prctl(kernel.SET_DUMPABLE, 1)
    kernel.set_oom_score(500)


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _cause(status: int | None) -> str:
    if status is None:
        return "closed its pipes"
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"ended with exit status {code}"
    reasons: dict[int, str] = {
        signal.SIGKILL: "killed: out of memory, out of CPU time, or by itself",
        signal.SIGXCPU: "out of CPU time",
        signal.SIGSEGV: "a segmentation fault",
    }
    name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
    return f"was ended by signal {name}" + (f" ({reasons[-code]})" if -code in reasons else "")
