"""Worker processes forked from a fork server that has loaded their code; see docs/decisions/workers.md."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from rove.core.errors import RemoteError, WorkerError
from rove.core.plain import JsonMapping, JsonObject, JsonValue
from rove.workers.spawner import Spawner
from rove.workers.worker import (
    EXIT_STATUS_TIMEOUT_S,
    MAX_LINE_CHARS,
    MAX_OUTPUT_LINES,
    CallHandler,
    Worker,
    describe_exit,
    exit_text,
    last_lines,
)

CAN_FORK = hasattr(os, "fork") and hasattr(socket, "send_fds")
"""Whether this system can fork. Windows cannot, so workers are new processes there."""

START_TIMEOUT_S = 60.0
MAX_STATUSES = 10_000
"""Maximum number of exit statuses that are stored."""
INHERITED_VARIABLES = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV"),
    *("SYSTEMROOT", "TEMP", "TMP", "USERPROFILE"),  # Windows
)
"""Environment variables that workers get by default: code that reads a model's output must not see API keys."""
PROGRAM = Path(__file__).with_name("fork_server_main.py")
BOOT = "import sys; del sys.path[0]; import runpy; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Variables that limit numerical libraries to one thread: a fork does not copy threads, so their thread pools would hang in
workers."""


class Workers:
    """Worker processes for one Python module, forked within milliseconds from a fork server that has loaded it.

    The module's `setup(**args)`, if there is one, runs once, before the first fork. A worker answers calls, one at a time,
    with the methods of the module's `Session()`; a module with `serve(connection, module)` implements the protocol itself.
    What workers print does not disturb the protocol. All processes end with this one, even if it is killed.

        workers = Workers(Path("scorer.py"), max_workers=4)
        async with workers.acquire() as worker:
            score = await worker.call("score", timeout=5.0, answer="42")

    Args:
        module: file of the module.
        args: arguments of `setup`; JSON must be able to represent them.
        python: interpreter. Default: the current interpreter, with its `sys.path`.
        paths: put first on the workers' `sys.path`.
        max_workers: maximum workers that `acquire` hands out at a time. Default: the number of cores, at most 8.
        env: environment variables. Default: `INHERITED_VARIABLES` of this process.
        memory_bytes: memory that a worker may allocate in addition to the memory of the loaded module. Default: no limit.
        start_seconds: maximum seconds for loading the module.
        name: name in error messages. Default: the module's name.
    """

    def __init__(
        self,
        module: Path,
        args: JsonMapping | None = None,
        *,
        python: str | None = None,
        paths: Sequence[str] | None = None,
        max_workers: int | None = None,
        env: Mapping[str, str] | None = None,
        memory_bytes: int | None = None,
        start_seconds: float = START_TIMEOUT_S,
        name: str = "",
    ):
        self.module, self.args = module, dict(args or {})
        self.python, self.memory_bytes = python, memory_bytes
        if paths is None:
            paths = [path for path in sys.path if path] if python is None else []
        self.paths = list(paths)
        inherited = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
        self.env = inherited if env is None else dict(env)
        self.max_workers = min(8, os.cpu_count() or 1) if max_workers is None else max_workers
        self.start_seconds = start_seconds
        self.name = name or module.stem
        self.setup_result: JsonValue = None
        """Return value of the module's `setup`."""
        self._start_lock = threading.Lock()
        self._server: _ForkServer | Spawner | None = None
        self._server_owner = 0
        """Id of the process that started the server."""
        self._numbers = itertools.count(1)
        self._servers: dict[int, _ForkServer | Spawner] = {}
        """Number of a worker → the server that started it."""
        # One semaphore per event loop: a semaphore belongs to the loop in which it was first awaited.
        self._slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._slots = weakref.WeakKeyDictionary()
        self._idle: list[Worker] = []

    def start(self) -> None:
        """Start the fork server and wait until it has loaded the module; `open` and `acquire` do so as well.

        Raises:
            WorkerError: the fork server ended, or took too long.
            RemoteError: the module raised.
        """
        with self._start_lock:
            if not self._is_running:
                if self._server is not None and self._server_owner != os.getpid():
                    self._server.leave_to_parent()
                if CAN_FORK:
                    server = _ForkServer(self)
                else:
                    server = Spawner(self._command, self._settings, self._process_env, self.name, self.start_seconds)
                try:
                    self.setup_result = server.wait_until_loaded(self.start_seconds)
                except BaseException:
                    server.close()
                    raise
                self._server_owner = os.getpid()
                self._server = server  # only now: other threads fork from it as soon as they see it

    @property
    def _is_running(self) -> bool:
        """Whether this process has a server. One that it inherited through a fork serves only the process that started it."""
        return self._server is not None and not self._server.is_closed and self._server_owner == os.getpid()

    @property
    def _command(self) -> list[str]:
        """The command line of the program, without its arguments."""
        return [self.python or sys.executable, "-X", "utf8", "-c", BOOT, str(PROGRAM)]

    @property
    def _process_env(self) -> dict[str, str]:
        # With a fixed hash seed sets have the same order in every worker, so a replay after a crash makes the same requests.
        # `rove audit` sets another seed, to see whether rewards depend on it.
        requested = self.env.get("PYTHONHASHSEED", "")
        hash_seed = requested if requested.isdecimal() else "0"
        return {**SINGLE_THREADED, **self.env, "PYTHONHASHSEED": hash_seed, "PYTHONUNBUFFERED": "1"}

    @property
    def _settings(self) -> JsonObject:
        """The settings of the program: what it loads."""
        return {
            "paths": self.paths,
            "module": str(self.module),
            "args": self.args,
            "memory_bytes": self.memory_bytes,
        }

    async def ensure_started(self) -> None:
        """Like `start`, without blocking the event loop."""
        if not self._is_running:
            await asyncio.to_thread(self.start)

    async def open(self, handler: CallHandler | None = None) -> Worker:
        """Fork a new worker; `max_workers` does not apply. `handler` handles calls that the worker makes.

        Raises:
            WorkerError, RemoteError: see `start`.
        """
        await self.ensure_started()
        server = self._server
        if isinstance(server, Spawner):
            number = self._next_number(server)
            ours = await asyncio.to_thread(server.connect, number)
        else:
            ours, theirs = socket.socketpair()
            number = self.fork(theirs)
        kill = functools.partial(self.kill, number)
        exit_report = functools.partial(self.exit_report, number)
        return Worker(ours, kill, exit_report, handler)

    def fork(self, connection: socket.socket) -> int:
        """Fork a worker that communicates over this connection, which is closed here; return the worker's number.

        The fork server must be running.

        Raises:
            WorkerError: this system cannot fork.
        """
        server = self._server
        assert server is not None
        if isinstance(server, Spawner):
            raise WorkerError(f"{self.name}: this system cannot fork processes; use Linux, macOS, or WSL")
        number = self._next_number(server)
        with connection:
            server.fork(number, connection)
        return number

    def _next_number(self, server: _ForkServer | Spawner) -> int:
        """Return the number of the next worker, which this server starts."""
        # A number of our own: the system may give the process id of a worker that ended to another process.
        number = next(self._numbers)
        self._servers[number] = server
        self._servers.pop(number - MAX_STATUSES, None)
        return number

    def kill(self, number: int) -> None:
        """Kill a worker and the processes that it has started."""
        if number in self._servers:
            self._servers[number].kill(number)

    async def exit_report(self, number: int) -> str:
        """Return how a worker ended and the last lines that were printed, for an error message."""
        return await self._servers[number].exit_report(number) if number in self._servers else ""

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Worker]:
        """Wait for one of at most `max_workers` workers and hold it. Afterward it is reused with its current state, unless it
        was closed.

        Raises:
            WorkerError, RemoteError: see `start`.
        """
        loop = asyncio.get_running_loop()
        async with self._slots.setdefault(loop, asyncio.Semaphore(self.max_workers)):
            worker = self._take_idle(loop) or await self.open()
            try:
                yield worker
            finally:
                if not worker.is_closed:
                    self._idle.append(worker)

    def _take_idle(self, loop: asyncio.AbstractEventLoop) -> Worker | None:
        """Return an idle worker of this event loop, if there is one. Close idle workers whose event loop has ended."""
        for worker in list(self._idle):
            if worker.loop.is_closed():
                self._idle.remove(worker)
                worker.close()
        for worker in self._idle:
            if worker.loop is loop and not worker.is_closed:
                self._idle.remove(worker)
                return worker
        return None

    def call_sync(self, name: str, /, timeout: float | None = None, **args: Any) -> JsonValue:
        """Make one call in a new worker from synchronous code; see `Worker.call`."""

        async def call() -> JsonValue:
            worker = await self.open()
            try:
                return await worker.call(name, timeout, **args)
            finally:
                worker.close()

        with ThreadPoolExecutor(1) as thread:  # this thread may already run an event loop
            return thread.submit(asyncio.run, call()).result()

    @property
    def recent_output(self) -> list[str]:
        """The last lines that the fork server and its workers have printed."""
        return list(self._server.recent_output) if self._server is not None else []

    async def aclose(self) -> None:
        """Like `close`, without blocking the event loop."""
        for worker in self._idle:
            if worker.loop is asyncio.get_running_loop():
                worker.close()
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """End the fork server and every worker. The next `open` starts it again."""
        self._idle.clear()  # each one notices the end of its process in its own event loop
        with self._start_lock:
            if self._server is not None:
                if self._server_owner == os.getpid():
                    self._server.close()
                else:
                    self._server.leave_to_parent()
                self._server = None


class _ForkServer:
    """Connection to the process that loads the module and forks workers."""

    def __init__(self, workers: Workers):
        self.name = workers.name
        self.control, theirs = socket.socketpair()
        command = [*workers._command, str(theirs.fileno())]
        try:
            self.process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                env=workers._process_env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C must not reach it
            )
        except OSError as error:
            self.control.close()
            raise WorkerError(f"{workers.name}: cannot start {command[0]}: {error}") from error
        finally:
            theirs.close()
        self.is_closed = False
        self.recent_output: deque[str] = deque(maxlen=MAX_OUTPUT_LINES)
        self._send_lock = threading.Lock()
        self._statuses: dict[int, int] = {}
        self._load_result: JsonObject | None = None
        self._load_finished = threading.Event()
        # Where `close` is never called: the process ends when the control socket is closed.
        self._finalize = weakref.finalize(self, _end, self.control, self.process)
        # A proxy, so that the thread does not keep this object alive.
        args = (weakref.proxy(self), self.control, self.process.stdout)
        threading.Thread(target=_ForkServer._listen, args=args, daemon=True).start()
        with suppress(OSError):  # it ended at once: `wait_until_loaded` reports it
            self.control.sendall(msgspec.json.encode(workers._settings) + b"\n")

    def wait_until_loaded(self, timeout_s: float) -> object:
        """Return the result of `setup`."""
        if not self._load_finished.wait(timeout_s):
            output = last_lines(self.recent_output)
            raise WorkerError(f"{self.name} did not load within {timeout_s:g} s (start_seconds){output}")
        if self._load_result is None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(EXIT_STATUS_TIMEOUT_S)
            status = describe_exit(self.process.poll())
            raise WorkerError(f"{self.name} did not load: its process {status}{last_lines(self.recent_output)}")
        if "load_error" in self._load_result:
            raise RemoteError(**self._load_result["load_error"])
        return self._load_result["setup_result"]

    def fork(self, number: int, connection: socket.socket) -> None:
        """Fork a worker with this connection."""
        message = json.dumps({"fork": number}).encode() + b"\n"
        with self._send_lock, suppress(OSError):  # the process has ended, and the worker's connection with it
            socket.send_fds(self.control, [message], [connection.fileno()])

    def kill(self, number: int) -> None:
        """Kill a worker and the processes that it has started."""
        with self._send_lock, suppress(OSError):
            self.control.sendall(json.dumps({"kill": number}).encode() + b"\n")

    async def exit_report(self, number: int) -> str:
        """Return how a worker ended and the last lines that were printed."""
        deadline = time.monotonic() + EXIT_STATUS_TIMEOUT_S
        while number not in self._statuses and not self.is_closed and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        return exit_text(self._statuses.get(number), self.recent_output)

    def close(self) -> None:
        """End the process and every worker."""
        self.is_closed = True
        self._finalize()

    def leave_to_parent(self) -> None:
        """Forget the process without ending it: the parent of this process, which was forked from it, still uses it."""
        self._finalize.detach()

    def _listen(self, control: socket.socket, output: IO[bytes]) -> None:
        """Read messages and output until the process ends. Output is read before the messages that followed it."""
        control_fd, output_fd = control.fileno(), output.fileno()
        if control_fd < 0:  # closed already
            return
        os.set_blocking(output_fd, False)
        poller = select.poll()
        for fd in (control_fd, output_fd):
            poller.register(fd, select.POLLIN)
        buffer, line = b"", b""
        with suppress(OSError, ValueError, ReferenceError), output:
            while ready := {fd for fd, _ in poller.poll()}:
                line, at_end = self._read_output(output_fd, line)
                if at_end and output_fd in ready:
                    poller.unregister(output_fd)
                if control_fd in ready:  # if `control` has been closed, `recv` raises an OSError, which ends this loop
                    chunk = control.recv(1 << 16)
                    if not chunk:
                        break
                    *lines, buffer = (buffer + chunk).split(b"\n")
                    for message in map(json.loads, lines):
                        self._receive(message)
        with suppress(ReferenceError):
            self.is_closed = True
            self._load_finished.set()

    def _read_output(self, output_fd: int, line: bytes) -> tuple[bytes, bool]:
        """Store what has been printed; return the incomplete last line, and whether the output has ended."""
        while True:
            try:
                chunk = os.read(output_fd, 1 << 16)
            except BlockingIOError:
                return line, False
            at_end = not chunk
            *complete_lines, line = (line + chunk).split(b"\n")
            line = line[:MAX_LINE_CHARS]
            if at_end:
                complete_lines.append(line)
            for complete_line in complete_lines:
                text = complete_line[:MAX_LINE_CHARS].decode(errors="replace").strip()
                if text:
                    self.recent_output.append(text)
            if at_end:
                return b"", True

    def _receive(self, message: JsonObject) -> None:
        if "exited" in message:
            self._statuses[message["exited"]] = message["status"]
            self._statuses.pop(message["exited"] - MAX_STATUSES, None)
        else:
            self._load_result = message
            self._load_finished.set()


def _end(control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        control.shutdown(socket.SHUT_RDWR)  # also wakes the listening thread
    control.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(0.5)  # time to end its workers
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
