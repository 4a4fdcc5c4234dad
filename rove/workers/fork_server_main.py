"""The fork server's program: it loads a module once and forks a process for every worker.

The file is run by its path and imports only the standard library, so that any interpreter can run it; docs/decisions/workers.md
explains why workers are forked and exchange JSON. Its sockets:

    control socket, JSON lines    settings (first) · {"fork": n} with the worker's socket · {"kill": n}
                                  ← {"setup_result": …} or {"load_error": error} (first) · {"exited": n, "status": exit status}
    worker's socket, JSON frames  {"id", "call": name, "args": {…}}   ← {"id", "result"} or {"id", "error"}

With the arguments `connect PORT`, the program is a single worker instead, for systems that cannot fork. It loads the module
itself and connects to the parent, which has sent a token on stdin. Frames on its socket:

    ← the token, without a frame · settings (first) · ← {"setup_result": …} or {"load_error": error} · then calls, as above
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
MAX_TRACEBACK_CHARS = 8000
SET_PDEATHSIG = 1
SET_CHILD_SUBREAPER = 36


def main(control_fd: int) -> None:
    """Load the module, report the result, then fork and kill workers until the control socket is closed."""
    control = socket.socket(fileno=control_fd)
    messages = MessageReader(control)
    received = messages.receive()
    if received is None:  # the parent has ended
        os._exit(0)
    [(settings, _)] = received
    try:
        module, loaded = _load(settings)
    except BaseException as error:  # SystemExit, too
        control.sendall(_encode({"load_error": error_to_dict(error)}) + b"\n")
        os._exit(1)
    inherit_orphans()
    gc.collect()
    gc.freeze()  # garbage collection in a fork would copy every shared page
    control.sendall(loaded + b"\n")
    _ForkServer(control, messages, module, settings["memory_bytes"]).serve()
    os._exit(0)


def run_single_worker(port: int) -> None:
    """Connect to the parent, load the module, report the result, then serve calls until the connection is closed."""
    token = sys.stdin.readline().strip()
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(token.encode())
    settings = read_frame(connection)
    try:
        module, loaded = _load(settings)
    except BaseException as error:  # SystemExit, too
        send_frame(connection, _encode({"load_error": error_to_dict(error)}))
        os._exit(1)
    send_frame(connection, loaded)
    if settings["memory_bytes"]:
        limit_memory(settings["memory_bytes"])
    serve = getattr(module, "serve", None) or serve_session
    serve(connection, module)
    os._exit(0)


class _ForkServer:
    """Forks and kills workers."""

    def __init__(self, control: socket.socket, messages: MessageReader, module: object, memory_bytes: int | None):
        self.control, self.messages, self.module, self.memory_bytes = control, messages, module, memory_bytes
        self.workers: dict[int, int] = {}
        """Process id → number of the worker."""
        self.setup_children = child_processes()
        """Process ids of the children that `setup` has started, which the workers use."""

    def serve(self) -> None:
        """Handle messages and exits of workers until the control socket is closed."""
        wake, wake_writer = os.pipe()
        for end in (wake, wake_writer):
            os.set_blocking(end, False)
        # SIGCHLD makes `wake` readable. A handler that reaped would interrupt `_fork` before the worker's number is stored.
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poller = select.poll()  # select.select is limited to file descriptors below 1024
        for fd in (self.control.fileno(), wake):
            poller.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll()}
            if wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
                self._reap()
            if self.control.fileno() in ready:
                received = self.messages.receive()
                if received is None:
                    break
                for message, connection in received:
                    if connection is not None:
                        self._fork(message["fork"], connection)
                    else:
                        self._kill(message["kill"])
        self._end()

    def _fork(self, number: int, connection: int) -> None:
        try:
            pid = os.fork()
        except OSError:  # the parent notices that the socket is closed
            os.close(connection)
            return
        if pid:
            with contextlib.suppress(OSError):  # parent and child both set it: the group exists whichever runs first
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
            inherit_orphans()  # then the fork server inherits them when the worker ends
            self.control.close()
            if self.memory_bytes:
                limit_memory(self.memory_bytes)
            serve = getattr(self.module, "serve", None) or serve_session
            serve(socket.socket(fileno=connection), self.module)
        except BaseException:
            traceback.print_exc()
        os._exit(0)

    def _kill(self, number: int) -> None:
        for pid, worker_number in self.workers.items():
            if worker_number == number:
                kill_group(pid)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                number = self.workers.pop(pid, None)
                if number is not None:
                    kill_group(pid)  # the processes that it has started
                    self._kill_orphans()
                    message = {"exited": number, "status": os.waitstatus_to_exitcode(status)}
                    with contextlib.suppress(OSError):
                        self.control.sendall(_encode(message) + b"\n")

    def _end(self) -> None:
        for pid in self.workers:
            kill_group(pid)
        for pid in self.workers:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self.setup_children = set()
        self._kill_orphans()

    def _kill_orphans(self) -> None:
        """Kill processes in other process groups that ended workers left behind: the fork server has inherited them."""
        for pid in child_processes() - self.workers.keys() - self.setup_children:
            kill_group(pid)


def serve_session(connection: socket.socket, module: Any) -> None:
    """Answer calls, one after another, with the methods of `module.Session()` until the connection is closed."""
    session = module.Session()
    while (frame := read_frame(connection)) is not None:
        reply = {"id": frame["id"]}
        try:
            reply["result"] = getattr(session, frame["call"])(**frame["args"])
            body = _encode(reply)
        except BaseException as error:  # SystemExit, too
            reply.pop("result", None)
            body = _encode({**reply, "error": error_to_dict(error)})
        send_frame(connection, body)


def send_frame(connection: socket.socket, body: bytes) -> None:
    """Send a message."""
    connection.sendall(LENGTH.pack(len(body)) + body)


def read_frame(connection: socket.socket) -> Any:
    """Return the next message; None if the connection is closed."""
    head = read_bytes(connection, LENGTH.size)
    body = read_bytes(connection, LENGTH.unpack(head)[0]) if head else None
    return json.loads(body) if body else None


def read_bytes(connection: socket.socket, count: int) -> bytes | None:
    """Return this many bytes; None if the connection is closed earlier."""
    data = bytearray()
    while len(data) < count:
        chunk = connection.recv(min(count - len(data), 1 << 20))
        if not chunk:
            return None
        data += chunk
    return bytes(data)


def error_to_dict(error: BaseException) -> dict[str, str]:
    """Return an exception in the form in which it is sent."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return {"type": type(error).__name__, "message": str(error), "traceback": text[-MAX_TRACEBACK_CHARS:]}


def child_processes() -> set[int]:
    """Return the ids of this process's children (Linux only)."""
    with contextlib.suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children") as children:
        return set(map(int, children.read().split()))
    return set()


def kill_group(pid: int) -> None:
    """Kill all processes of a process group."""
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def die_with_parent() -> None:
    """Have this process killed when its parent ends (Linux only)."""
    _control_process(SET_PDEATHSIG, signal.SIGKILL)


def inherit_orphans() -> None:
    """Become the parent of processes that ended children have started (Linux only)."""
    _control_process(SET_CHILD_SUBREAPER, 1)


def _control_process(option: int, value: int) -> None:
    try:
        import ctypes  # some builds of Python lack it

        ctypes.CDLL(None).prctl(option, value)
    except (ImportError, OSError, AttributeError):
        return


def limit_memory(additional_bytes: int) -> None:
    """Limit the memory of this process to `additional_bytes` more than it uses now (Linux only)."""
    try:
        import resource

        with open("/proc/self/statm") as sizes:
            num_pages = int(sizes.read().split()[0])
        limit = num_pages * resource.getpagesize() + additional_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    except (ImportError, OSError, ValueError):
        return


def _load(settings: dict[str, Any]) -> tuple[Any, bytes]:
    """Load the module and run its `setup`; return the module and the message with the result."""
    paths = settings["paths"]
    sys.path[:] = [*paths, *(path for path in sys.path if path not in paths)]
    spec = importlib.util.spec_from_file_location("worker_module", settings["module"])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["worker_module"] = module  # before it is executed: dataclasses look their module up there
    spec.loader.exec_module(module)
    setup_result = module.setup(**settings["args"]) if hasattr(module, "setup") else None
    return module, _encode({"setup_result": setup_result})


class MessageReader:
    """Reads JSON lines and the file descriptors sent with them from a socket."""

    def __init__(self, connection: socket.socket):
        self.connection = connection
        self.data = b""
        self.descriptors: list[int] = []

    def receive(self) -> list[tuple[Any, int | None]] | None:
        """Wait for messages; return None when the connection is closed."""
        while b"\n" not in self.data:
            chunk, descriptors, _, _ = socket.recv_fds(self.connection, 1 << 16, 64)
            if not chunk:
                return None
            self.data += chunk
            self.descriptors += descriptors
        *lines, self.data = self.data.split(b"\n")
        messages: list[tuple[Any, int | None]] = []
        for line in lines:
            message = json.loads(line)
            # A descriptor arrives with the first byte of its message, so it is here once the line is complete.
            messages.append((message, self.descriptors.pop(0) if "fork" in message else None))
        return messages


def _encode(value: object) -> bytes:
    # NaN is not JSON. It is refused here, where the error names the call.
    return json.dumps(value, allow_nan=False, default=_convert_numpy).encode()


def _convert_numpy(value: object) -> object:
    to_list = getattr(value, "tolist", None)
    if to_list is not None:
        return to_list()
    raise TypeError(f"a {type(value).__name__} cannot be sent as JSON")


if __name__ == "__main__":
    if sys.argv[1] == "connect":
        run_single_worker(int(sys.argv[2]))
    else:
        main(int(sys.argv[1]))
