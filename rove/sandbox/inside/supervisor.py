"""The first process of a session: it runs one call after the other and can stop all other processes of the session.

It holds no secrets and shares no files with its children, so code can affect only its own session. Results are text
that is shortened while it is read, and everything that code leaves behind ends with the session
(docs/decisions/sandbox.md).
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import resource
import signal
import stat
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from . import kernel, repl, seccomp
from .calls import Call, Child, HostGoneError
from .frames import read_frame, write_frame
from .host_calls import REQUEST

START_FAILED = 70
"""Exit status of a child that could not start its task."""
KILL_WAIT_S = 0.5
"""Maximum seconds for killed processes to end."""


class Supervisor:
    """Serves one session.

    Args:
        folder: The session's folder; relative paths start there.
        alone: Whether this process may signal only processes of the session, so that it can kill every process that it may
            signal.
    """

    def __init__(self, requests: int, answers: int, limits: dict[str, Any], folder: str, alone: bool):
        self.requests, self.answers, self.limits = requests, answers, limits
        self.folder, self.alone = folder, alone
        self.python: Child | None = None
        self.calls = 0
        self.ended: dict[int, int] = {}
        """Process id of an ended child → the status that `waitpid` returned."""
        self.groups: set[int] = set()
        """Process groups of the children; each child leads its own."""
        self.starting = False
        self.wake, self._alarm = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def serve(self) -> None:
        """Answer requests until the host closes the connection."""
        signal.set_wakeup_fd(self._alarm, warn_on_full_buffer=False)  # wakes up a call that waits, when a process ends
        signal.signal(signal.SIGCHLD, self._handle_child_end)
        if os.getpid() != 1:  # no process namespace: nothing else kills the session's processes
            signal.signal(signal.SIGTERM, lambda *_: self._exit())
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
            except Exception as error:  # for example no such file or no more processes: only this call fails
                answer = {"error": f"{type(error).__name__}: {error}"}
            write_frame(self.answers, answer | {"seconds": time.monotonic() - began})
        self._exit()

    def _handle_child_end(self, *_: object) -> None:
        if not self.starting:
            self._reap()

    def _exit(self) -> NoReturn:
        self._stop_all()
        os._exit(0)

    def _python(self, request: dict[str, Any]) -> dict[str, Any]:
        python, restarted = self._ensure_python()
        self.calls += 1
        code = request["code"].encode(errors="replace")
        names = " ".join(request["functions"]).encode()
        payload = REQUEST.pack(self.calls, len(names), len(code)) + names + code
        call = self._run(python, request, payload)
        if call.outcome == "answered":
            return self._result(call, value=call.text, failed=call.failed, restarted=restarted)
        cause = "wrote a malformed answer"
        if call.outcome == "ended":
            cause = _cause(self._end_of(python))  # before `_stop_all`, which forgets the exit statuses
        self._stop_all()
        if call.outcome == "late":
            return self._timeout_result(call, request)
        return self._result(call, error=f"Python {cause}", restarted=True)

    def _ensure_python(self) -> tuple[Child, bool]:
        """Return the session's Python process, and whether it had died between calls and was restarted."""
        restarted = self.python is not None and self.python.pid in self.ended
        if restarted:
            self._stop_all()
        if self.python is None:
            self.python = self._start_python()
        return self.python, restarted

    def _end_of(self, child: Child) -> int | None:
        """Return the exit status of a process that closed its pipes; None if it still runs."""
        deadline = time.monotonic() + KILL_WAIT_S / 2
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
            return self._timeout_result(call, request)
        code = os.waitstatus_to_exitcode(status)
        return self._result(call, exit_code=code if code >= 0 else 128 - code)

    def _run(self, child: Child, request: dict[str, Any], payload: bytes = b"") -> Call:
        deadline = time.monotonic() + request["seconds"]
        call = Call(child, payload, self.calls, self.limits, deadline, (self.requests, self.answers))
        call.run(self.wake, lambda: child.pid in self.ended)
        return call

    def _result(self, call: Call, **fields: Any) -> dict[str, Any]:
        return {"output": call.output.text(), "truncated": call.truncated, **fields}

    def _timeout_result(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        return self._result(call, error=f"stopped after {request['seconds']:g} s", timed_out=True, restarted=True)

    def _put(self, request: dict[str, Any]) -> dict[str, Any]:
        path = os.path.join(self.folder, request["path"])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # Code may have put a link or a pipe there: no link is followed, and a pipe without a reader does not block.
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
            repl.serve(
                child.child_fds[0], child.child_fds[1], self.limits["output_chars"], self.limits["message_bytes"]
            )

        return self._start(body, conversation=True)

    def _start_bash(self, command: str) -> Child:
        def body(_: Child) -> None:
            restrict(self.limits)
            for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored by Python; bash would inherit this
                signal.signal(ignored, signal.SIG_DFL)
            os.execve("/bin/bash", ["bash", "-c", command], os.environ)

        return self._start(body, conversation=False)

    def _start(self, body: Callable[[Child], None], conversation: bool) -> Child:
        child = Child(conversation)
        self.starting = True  # otherwise `_reap` could lose the status of a child that ends before its pid is known
        try:
            pid = os.fork()
            if not pid:
                self._run_child(child, body)
            child.pid = pid
            # Without the groups that are gone: the kernel may use their ids for others.
            self.groups = {*filter(_group_exists, self.groups), pid}
        except OSError:
            child.close()
            raise
        finally:
            child.close_child_fds()
            self.starting = False
            self._reap()
        return child

    def _run_child(self, child: Child, body: Callable[[Child], None]) -> NoReturn:
        status = START_FAILED
        try:
            signal.set_wakeup_fd(-1)
            for handled in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(handled, signal.SIG_DFL)
            os.setsid()
            os.chdir(self.folder)
            os.environ.update(HOME=self.folder, TMPDIR=self.folder)
            child.take_fds()
            body(child)
            status = 0
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(status)

    def _stop_all(self) -> None:
        """Kill every other process of the session and wait until they have ended."""
        if self.alone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)  # one call: code cannot fork faster than it is killed
        for group in self.groups:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        deadline = time.monotonic() + KILL_WAIT_S
        while self._reap() and time.monotonic() < deadline:
            time.sleep(0.001)
        if self.python:
            self.python.close()
        self.python = None
        self.groups.clear()
        self.ended.clear()

    def _reap(self) -> bool:
        """Record ended processes; return whether any is left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return True
                if pid in self.groups:  # the status of grandchildren is not needed
                    self.ended[pid] = status
        except ChildProcessError:
            return False


def restrict(limits: dict[str, Any]) -> None:
    """Apply the resource limits to this process and its children."""
    pairs = {
        resource.RLIMIT_CORE: 1,  # with 0 the kernel would still start a core dump program; with 1 it does not
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
    for kind, soft in pairs.items():
        if soft < 0:
            continue
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            soft = min(soft, hard)
        new_hard = soft
        # CPU time: SIGXCPU first, which names the reason, SIGKILL a second later
        if kind == resource.RLIMIT_CPU and soft != hard:
            new_hard += 1
        resource.setrlimit(kind, (soft, new_hard))
    # Undumpable processes have a /proc/self that belongs to root, which programs cannot read.
    kernel.prctl(kernel.SET_DUMPABLE, 1)
    kernel.set_oom_score(500)


def _group_exists(group: int) -> bool:
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
    number = -code
    name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
    reason = f" ({reasons[number]})" if number in reasons else ""
    return f"was ended by signal {name}{reason}"


def main_of_container(limits: str) -> None:
    """Serve the host as the first process of a container; its standard streams are the connection to the host."""
    requests, answers, null = os.dup(0), os.dup(1), os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    try:
        kernel.prctl(kernel.SET_DUMPABLE, 0)
        kernel.prctl(kernel.SET_NO_NEW_PRIVS, 1)
        with contextlib.suppress(OSError):  # the container has a filter already; this one is stricter
            seccomp.install()
        # the container limits processes: RLIMIT_NPROC would count those of other containers with the same user
        settings = {**json.loads(limits), "processes": -1}
        Supervisor(requests, answers, settings, os.getcwd(), alone=os.getpid() == 1).serve()
    except BaseException:
        write_frame(answers, {"broken": traceback.format_exc()[-4000:]})
    os._exit(0)
