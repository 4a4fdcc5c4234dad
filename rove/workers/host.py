"""Our end of a host of workers: starts it, asks it for workers, knows how they ended."""

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
from typing import Any

import msgspec

from rove.core.errors import RemoteError, WorkerError
from rove.workers.worker import CallHandler, Worker

START_SECONDS = 60.0
ENDED_SECONDS = 2.0
"""How long to wait for word of how a worker ended."""
KEPT_STATUSES = 10_000
KEPT_LINES, KEPT_CHARS = 20, 400
"""What is kept of what workers print: so many last lines, so much of each."""
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "SYSTEMROOT", "TMPDIR", "VIRTUAL_ENV")
"""Of the environment variables: code that reads a model's words needs no API keys."""
PROGRAM = Path(__file__).with_name("inside.py")
BOOT = "import sys; del sys.path[0]; import runpy; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""A process with threads forks badly."""


class Workers:
    """Processes forked from one that has loaded a module: each in milliseconds, ended by itself, with memory in common.

    The module is a file of Python. Its `setup(**args)`, if it has one, runs once, before the first fork. A worker answers
    calls with the methods of the module's `Session()`, one at a time; or the module's `serve(connection, module)` does
    otherwise. What workers print is kept off the conversation. They end with this process, whatever becomes of it.

    Args:
        module: the file.
        args: for `setup`; what JSON can hold.
        python: interpreter. Default: this one, with its `sys.path`.
        paths: put first on its `sys.path`.
        most: workers at a time; more wait their turn. Default: 8, or as many as there are cores if fewer.
        env: environment variables. Default: `PASSED_ON` of ours.
        memory: bytes that a worker may take beyond what the loaded module has. Default: no limit.
        start_seconds: for loading the module.
        name: what errors call it. Default: the name of the module.
    """

    def __init__(
        self,
        module: Path,
        args: Mapping[str, Any] | None = None,
        *,
        python: str | None = None,
        paths: Sequence[str] | None = None,
        max_workers: int | None = None,
        env: Mapping[str, str] | None = None,
        memory_bytes: int | None = None,
        start_seconds: float = START_SECONDS,
        name: str = "",
    ):
        self.module, self.args, self.python, self.memory_bytes = module, dict(args or {}), python, memory_bytes
        if paths is None:
            paths = [path for path in sys.path if path] if python is None else []
        self.paths = list(paths)
        self.env = {name: os.environ[name] for name in PASSED_ON if name in os.environ} if env is None else dict(env)
        self.max_workers = min(8, os.cpu_count() or 1) if max_workers is None else max_workers
        self.start_seconds = start_seconds
        self.name = name or module.stem
        self.setup_result: Any = None
        """What `setup` returned."""
        self._starting = threading.Lock()
        self._host: _Host | None = None
        self._numbers = itertools.count(1)
        self._forked: dict[int, _Host] = {}
        self._rooms: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._rooms = weakref.WeakKeyDictionary()
        self._idle: list[Worker] = []

    def start(self) -> None:
        """Start the host and wait until it has loaded the module. `open` does that, too.

        Raises:
            WorkerError: it ended, or took too long.
            RemoteError: the module raised.
        """
        with self._starting:
            if self._host is None or self._host.is_gone:
                host = _Host(self)
                try:
                    self.setup_result = host.ready(self.start_seconds)
                except BaseException:
                    host.close()
                    raise
                self._host = host  # not before: who finds it there asks it for workers

    async def ensure_started(self) -> None:
        """As `start`, beside the event loop."""
        if self._host is None or self._host.is_gone:
            await asyncio.to_thread(self.start)

    async def open(self, handler: CallHandler | None = None) -> Worker:
        """A new worker, whatever `most` says.

        Raises:
            WorkerError, RemoteError: as `start`.
        """
        await self.ensure_started()
        connection, theirs = socket.socketpair()
        number = self.fork(theirs)
        kill, last_words = functools.partial(self.kill, number), functools.partial(self.exit_report, number)
        return Worker(connection, kill, last_words, handler)

    def fork(self, connection: socket.socket) -> int:
        """A new worker that talks over this connection, which is closed here: its number, for `kill` and `last_words`.

        The host has been started.
        """
        host = self._host
        assert host is not None
        number = next(self._numbers)
        self._forked[number] = host
        self._forked.pop(number - KEPT_STATUSES, None)
        with connection:
            host.fork(number, connection)
        return number

    def kill(self, number: int) -> None:
        """End a worker and what it has started."""
        if number in self._forked:
            self._forked[number].kill(number)

    async def exit_report(self, number: int) -> str:
        """How a worker ended, and what was printed last."""
        return await self._forked[number].last_words(number) if number in self._forked else ""

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Worker]:
        """A worker for a while, one of at most `most`; the next to borrow it finds it as it was left, unless it is closed.

        Raises:
            WorkerError, RemoteError: as `start`.
        """
        loop = asyncio.get_running_loop()
        room = self._rooms.setdefault(loop, asyncio.Semaphore(self.max_workers))
        async with room:
            for left in [idle for idle in self._idle if idle.loop.is_closed()]:
                self._idle.remove(left)
                left.close()
            worker = next((idle for idle in self._idle if idle.loop is loop and not idle.is_closed), None)
            if worker is None:
                worker = await self.open()
            else:
                self._idle.remove(worker)
            try:
                yield worker
            finally:
                if not worker.is_closed:
                    self._idle.append(worker)

    def call_sync(self, name: str, /, timeout: float | None = None, **args: Any) -> Any:
        """A call of a worker of its own, for code that is not async; see `Worker.call`."""

        async def once() -> Any:
            worker = await self.open()
            try:
                return await worker.call(name, timeout, **args)
            finally:
                worker.close()

        with ThreadPoolExecutor(1) as thread:  # there may be an event loop in this one
            return thread.submit(asyncio.run, once()).result()

    @property
    def recent_output(self) -> list[str]:
        """The last lines that the host and its workers have printed."""
        return list(self._host.printed) if self._host is not None else []

    async def aclose(self) -> None:
        """As `close`, beside the event loop."""
        for worker in self._idle:
            if worker.loop is asyncio.get_running_loop():
                worker.close()
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """End the host and every worker. It starts again when it is asked for another."""
        self._idle.clear()  # each hears of its process's end in its own loop
        with self._starting:
            if self._host is not None:
                self._host.close()
                self._host = None


class _Host:
    """The process that loads the module and forks."""

    def __init__(self, owner: Workers):
        self.name = owner.name
        self.control, theirs = socket.socketpair()
        command = [owner.python or sys.executable, "-X", "utf8", "-c", BOOT, str(PROGRAM), str(theirs.fileno())]
        try:
            self.process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                env={**SINGLE_THREADED, **owner.env, "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is not for it
            )
        except OSError as error:
            self.control.close()
            raise WorkerError(f"{owner.name}: cannot start {command[0]}: {error}") from error
        finally:
            theirs.close()
        self.is_gone = False
        self._sending = threading.Lock()
        self._statuses: dict[int, int] = {}
        self.printed: deque[str] = deque(maxlen=KEPT_LINES)
        self._first: dict[str, Any] | None = None
        self._spoke = threading.Event()
        # For those who leave without closing: the host ends when this socket does.
        self._last_resort = weakref.finalize(self, _end, self.control, self.process)
        settings = {"paths": owner.paths, "module": str(owner.module), "args": owner.args, "memory": owner.memory_bytes}
        listening = (weakref.proxy(self), self.control, self.process.stdout)
        threading.Thread(target=_Host._listen, args=listening, daemon=True).start()
        with suppress(OSError):  # it ended at once: `ready` says so
            self.control.sendall(msgspec.json.encode(settings) + b"\n")

    def ready(self, seconds: float) -> Any:
        """What `setup` returned.

        Raises:
            WorkerError: it ended, or took too long.
            RemoteError: the module raised.
        """
        if not self._spoke.wait(seconds):
            raise WorkerError(f"{self.name} did not load within {seconds:g} s (start_seconds){self._last_lines()}")
        if self._first is None:
            _settle(lambda: self.process.poll() is not None)
            raise WorkerError(f"{self.name} did not load: its process {how(self.process.poll())}{self._last_lines()}")
        if "broken" in self._first:
            raise RemoteError(**self._first["broken"])
        return self._first["ready"]

    def fork(self, number: int, connection: socket.socket) -> None:
        """A new worker at the end of a connection."""
        with self._sending, suppress(OSError):  # it is gone: so is the worker
            socket.send_fds(self.control, [json.dumps({"fork": number}).encode() + b"\n"], [connection.fileno()])

    def kill(self, number: int) -> None:
        """End a worker and what it has started."""
        with self._sending, suppress(OSError):
            self.control.sendall(json.dumps({"kill": number}).encode() + b"\n")

    async def last_words(self, number: int) -> str:
        """How a worker ended, and what was printed last."""
        until = time.monotonic() + ENDED_SECONDS
        while number not in self._statuses and not self.is_gone and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        status = self._statuses.get(number)
        return (f" ({how(status)})" if status is not None else "") + self._last_lines()

    def close(self) -> None:
        """End it and every worker."""
        self.is_gone = True
        self._last_resort()

    def _last_lines(self) -> str:
        lines = "\n".join(f"  {line}" for line in self.printed)
        return f"; its last lines:\n{lines}" if lines else ""

    def _listen(self, control: socket.socket, output: Any) -> None:
        """Note what is told and printed until the end. What was printed before a word of the host is read before it."""
        spoken, printed = control.fileno(), output.fileno()
        if spoken < 0:  # closed already
            return
        os.set_blocking(printed, False)
        poller = select.poll()
        for file in (spoken, printed):
            poller.register(file, select.POLLIN)
        told, line = b"", b""
        with suppress(OSError, ValueError, ReferenceError), output:
            while ready := {file for file, _ in poller.poll()}:
                line, has_ended = self._note(printed, line)
                if has_ended and printed in ready:
                    poller.unregister(printed)
                if spoken in ready:  # closed meanwhile: that raises
                    piece = control.recv(1 << 16)
                    if not piece:
                        break
                    *whole, told = (told + piece).split(b"\n")
                    for message in map(json.loads, whole):
                        self._take(message)
        with suppress(ReferenceError):
            self.is_gone = True
            self._spoke.set()

    def _note(self, printed: int, line: bytes) -> tuple[bytes, bool]:
        """Keep what has been printed; the beginning of a line that has not ended yet, and whether nothing more will come."""
        while True:
            try:
                piece = os.read(printed, 1 << 16)
            except BlockingIOError:
                return line, False
            *whole, line = (line + piece).split(b"\n")
            line = line[:KEPT_CHARS]
            for one in [*whole, b"" if piece else line]:
                if text := one[:KEPT_CHARS].decode(errors="replace").strip():
                    self.printed.append(text)
            if not piece:
                return b"", True

    def _take(self, message: dict[str, Any]) -> None:
        if "ended" in message:
            self._statuses[message["ended"]] = message["status"]
            self._statuses.pop(message["ended"] - KEPT_STATUSES, None)
        else:
            self._first = message
            self._spoke.set()


def how(status: int | None) -> str:
    """How a process ended, in words."""
    if status is None:
        return "does not answer"
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"


def _settle(over: Any, seconds: float = ENDED_SECONDS) -> None:
    until = time.monotonic() + seconds
    while not over() and time.monotonic() < until:
        time.sleep(0.005)


def _end(control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        control.shutdown(socket.SHUT_RDWR)  # wakes the thread that listens, too
    control.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(0.5)  # a moment to end its workers
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
