"""Worker processes that compare mathematics. Each does it in a child, which a time limit kills and which is replaced."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from rove.errors import Error, InfraError

START_SECONDS = 60.0
"""A worker that has not loaded math-verify by then never will."""
GRACE = 5.0
"""Seconds that a worker may take beyond the limit to tell that it was met."""
SHOWN = 80
"""Characters of an expression that an error quotes."""
_PROGRAM = Path(__file__).with_name("math_worker.py")
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "SYSTEMROOT", "TMPDIR")
"""Of the environment; a process that reads a model's words needs no API keys."""


class MathPool:
    """At most `max_workers` processes, each started when it is needed; usable from one event loop after another.

    Args:
        max_workers: comparisons at a time.
        timeout_seconds: wall time of one comparison, waiting for a worker and its start not included.
    """

    def __init__(self, max_workers: int, timeout_seconds: float):
        self.max_workers = max_workers
        self.timeout_seconds = timeout_seconds
        self._threads: ThreadPoolExecutor | None = None  # each waits for one worker
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()

    async def equal(self, answer: str, response: str) -> bool:
        """Whether a response says the same as the right answer.

        Raises:
            InfraError: the comparison did not end in time, or killed its worker.
            Error: the answer is no mathematics, or math-verify failed.
        """
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.max_workers, thread_name_prefix="rove-math")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._compare, answer, response)

    def close(self) -> None:
        """End every worker, also in the middle of a comparison. The pool starts new ones if it is used again."""
        for worker in list(self._all):
            worker.stop()
        threads, self._threads = self._threads, None
        if threads is not None:  # whoever waits for a worker sees that it has ended
            threads.shutdown(cancel_futures=True)
        for worker in self._all:
            worker.kill()
        self._all.clear()
        self._idle.clear()

    def _compare(self, answer: str, response: str) -> bool:
        try:
            worker = self._idle.pop()
        except IndexError:
            worker = self._started()
        between = f"comparing {_short(response)} with {_short(answer)}"
        try:
            worker.send([self.timeout_seconds, answer, response])
            said = worker.read(self.timeout_seconds + GRACE)
        except (OSError, TimeoutError, EOFError) as error:
            raise InfraError(f"{between} took its worker away (exit status {self._lose(worker)})") from error
        except BaseException:  # what it would say next is not known
            self._lose(worker)
            raise
        self._idle.append(worker)
        if said.get("timeout"):
            raise InfraError(f"{between} did not end within {self.timeout_seconds:g} s")
        if "died" in said:
            raise InfraError(f"{between} killed its process (exit status {said['died']})")
        if said.get("unreadable"):
            raise Error(f"the right answer {_short(answer)} is no mathematics that math-verify can read")
        if "failed" in said:
            raise Error(f"{between}: {said['failed']}")
        return said["correct"]

    def _started(self) -> _Worker:
        worker = _Worker()
        self._all.add(worker)
        try:
            said = worker.read(START_SECONDS)
        except (TimeoutError, EOFError) as error:
            said = {"failed": f"it did not load ({type(error).__name__})"}
        except BaseException:
            self._lose(worker)
            raise
        if "failed" in said:
            self._lose(worker)
            raise InfraError(f"math-verify cannot be used: {said['failed']}; try pip install 'rove[math]'")
        return worker

    def _lose(self, worker: _Worker) -> int:
        """End a worker that cannot be used again; returns its exit status."""
        self._all.discard(worker)
        return worker.kill()


class _Worker:
    """One process."""

    def __init__(self) -> None:
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        paths = os.pathsep.join(path for path in sys.path if path)
        # -P: its folder, with a math.py in it, must not come before the standard library.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**environment, "PYTHONPATH": paths, "PYTHONUTF8": "1"},
            start_new_session=True,  # Ctrl-C is not for it, and its child can be ended with it
        )
        self._read = b""

    def send(self, value: Any) -> None:
        """One line in."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value).encode() + b"\n")
        self._process.stdin.flush()

    def read(self, seconds: float) -> dict[str, Any]:
        """One line out.

        Raises:
            TimeoutError: there was none in time.
            EOFError: the process has ended.
        """
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        poller = select.poll()  # select.select knows no file number above 1023
        poller.register(pipe, select.POLLIN)
        deadline = time.monotonic() + seconds
        while b"\n" not in self._read:
            if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError
            part = os.read(pipe, 65536)
            if not part:
                raise EOFError
            self._read += part
        line, _, self._read = self._read.partition(b"\n")
        return json.loads(line)

    def stop(self) -> None:
        """End it, whatever it does."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> int:
        """End it and free what it held; returns its exit status."""
        self.stop()
        status = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):  # what was never sent cannot be sent any more
                pipe.close()
        return status


def _short(text: str) -> str:
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "…")
