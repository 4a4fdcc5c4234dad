"""Worker processes for systems that cannot fork, such as Windows: each one is a new interpreter that loads the module itself.

Starting a worker takes as long as starting Python and loading the module. Memory limits are not enforced, and processes that a
worker has started may outlive it, because Windows has neither `setrlimit` nor process groups that can be killed.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import subprocess
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from rove.core.errors import RemoteError, WorkerError
from rove.core.plain import JsonObject, JsonValue
from rove.workers.fork_server_main import read_bytes, read_frame, send_frame
from rove.workers.worker import (
    EXIT_STATUS_TIMEOUT_S,
    MAX_LINE_CHARS,
    MAX_OUTPUT_LINES,
    describe_exit,
    exit_text,
    last_lines,
)

POLL_S = 0.05


class Spawner:
    """Starts worker processes of one module; has the same methods as `_ForkServer`.

    Args:
        settings: what the program loads; see `rove.workers.fork_server_main`.
        start_seconds: maximum seconds for starting a process and loading the module.
    """

    def __init__(
        self, command: Sequence[str], settings: JsonObject, env: dict[str, str], name: str, start_seconds: float
    ):
        self.name = name
        self.is_closed = False
        self.recent_output: deque[str] = deque(maxlen=MAX_OUTPUT_LINES)
        self._reader: threading.Thread | None = None
        """Reads the output of the process that was started last."""
        self._command = list(command)
        self._settings, self._env, self._start_seconds = settings, env, start_seconds
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._all: list[subprocess.Popen[bytes]] = []
        # Where `close` is never called.
        self._finalize = weakref.finalize(self, _end_all, self._all)
        self._first: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        """A worker that has loaded the module but has no number yet."""
        self._lock = threading.Lock()

    def wait_until_loaded(self, timeout_s: float) -> object:
        """Start the first worker and return the result of the module's `setup`."""
        process, connection, setup_result = self._start(timeout_s)
        self._first = process, connection
        return setup_result

    def connect(self, number: int) -> socket.socket:
        """Start the worker with this number, wait until it has loaded the module, and return the connection to it."""
        with self._lock:
            first, self._first = self._first, None
        if first is None:
            process, connection, _ = self._start(self._start_seconds)
        else:
            process, connection = first
        self._processes[number] = process
        return connection

    def kill(self, number: int) -> None:
        """Kill a worker."""
        if number in self._processes:
            self._processes[number].kill()

    async def exit_report(self, number: int) -> str:
        """Return how a worker ended and the last lines that were printed."""
        process = self._processes[number]
        deadline = time.monotonic() + EXIT_STATUS_TIMEOUT_S
        while process.poll() is None and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        return exit_text(process.poll(), self.recent_output)

    def leave_to_parent(self) -> None:
        """Forget the workers without ending them: the parent of this process, which was forked from it, still uses them."""
        self._finalize.detach()

    def close(self) -> None:
        """End every worker."""
        self.is_closed = True
        if self._first is not None:
            self._first[1].close()
        self._finalize()

    def _start(self, timeout_s: float) -> tuple[subprocess.Popen[bytes], socket.socket, object]:
        """Start a process; return it, the connection to it, and the result of `setup`."""
        token = secrets.token_hex(16)
        deadline = time.monotonic() + timeout_s
        with socket.create_server(("127.0.0.1", 0)) as listener:
            command = [*self._command, "connect", str(listener.getsockname()[1])]
            try:
                process = subprocess.Popen(
                    command,
                    env=self._env,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # Ctrl-C must not reach it
                )
            except OSError as error:
                raise WorkerError(f"{self.name}: cannot start {command[0]}: {error}") from error
            # The same list object, because the finalizer holds it.
            self._all[:] = [*(earlier for earlier in self._all if earlier.poll() is None), process]
            # Given the deque alone, so that the thread does not keep this object alive.
            output = process.stdout, self.recent_output
            self._reader = threading.Thread(target=_read_output, args=output, daemon=True)
            self._reader.start()
            try:
                # The token goes through stdin: other users can read a process's arguments.
                assert process.stdin is not None
                with process.stdin:
                    process.stdin.write(token.encode() + b"\n")
                connection = self._accept(listener, process, token, deadline)
            except BaseException:
                _end_all([process])
                raise
        try:
            return process, connection, self._load(connection, process, deadline)
        except BaseException:
            connection.close()
            _end_all([process])
            raise

    def _accept(
        self, listener: socket.socket, process: subprocess.Popen[bytes], token: str, deadline: float
    ) -> socket.socket:
        """Wait for the connection that begins with the token, because any program on this machine can connect to the port."""
        listener.settimeout(POLL_S)
        while time.monotonic() < deadline:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                if process.poll() is not None:
                    raise self._did_not_load(process) from None
                continue
            connection.settimeout(max(deadline - time.monotonic(), POLL_S))
            try:
                received = read_bytes(connection, len(token)) or b""
                if secrets.compare_digest(received, token.encode()):
                    return connection
            except OSError:
                pass
            connection.close()
        raise WorkerError(f"{self.name} did not start within {self._start_seconds:g} s (start_seconds)")

    def _load(self, connection: socket.socket, process: subprocess.Popen[bytes], deadline: float) -> JsonValue:
        """Send the settings and return the result of `setup`."""
        try:
            send_frame(connection, json.dumps(self._settings).encode())
            connection.settimeout(max(deadline - time.monotonic(), POLL_S))
            result = read_frame(connection)
        except TimeoutError:
            output = last_lines(self.recent_output)
            text = f"{self.name} did not load within {self._start_seconds:g} s (start_seconds){output}"
            raise WorkerError(text) from None
        except OSError:
            result = None
        if result is None:
            raise self._did_not_load(process)
        if "load_error" in result:
            raise RemoteError(**result["load_error"])
        connection.settimeout(None)
        return result["setup_result"]

    def _did_not_load(self, process: subprocess.Popen[bytes]) -> WorkerError:
        try:
            status = process.wait(EXIT_STATUS_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            status = None
        if self._reader is not None:
            self._reader.join(EXIT_STATUS_TIMEOUT_S)  # the last lines may arrive after the status
        output = last_lines(self.recent_output)
        return WorkerError(f"{self.name} did not load: its process {describe_exit(status)}{output}")


def _end_all(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()


def _read_output(output: IO[bytes], lines: deque[str]) -> None:
    """Store the last lines that a process prints, until it ends."""
    with output, suppress(OSError, ValueError):
        while line := output.readline(MAX_LINE_CHARS):
            text = line.decode(errors="replace").strip()
            if text:
                lines.append(text)
