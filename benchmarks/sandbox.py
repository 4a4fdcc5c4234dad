"""Compare calls per second of sandboxed Python with unsandboxed `python -c` and with bare processes and pipes.

    python benchmarks/sandbox.py [--sessions 1000] [--calls 4] [--concurrency 64] [--rounds 3] [--peers 200]

Each session is opened, runs `--calls` calls and is closed; `--concurrency` sessions run concurrently. The code uses only the
standard library; the last call uses a variable of the first one. "python -c" starts a new process for every call, without state
or isolation. "fork and pipe" is the upper bound for a design with one process per session: it forks a process, writes and reads
one line through pipes for every call, and waits for the end of the process. The script prints medians over the rounds, and
leaked resources.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from rove.sandbox import LocalBackend, SandboxLimits

CODE = ["import math\ntotal = 0", "for i in range(1000):\n    total += math.sqrt(i)", "print(total)", "round(total)"]


async def run_concurrently(count: int, concurrency: int, task: Callable[[], Awaitable[None]]) -> float:
    """Run `task` `count` times, `concurrency` at a time, and return the wall seconds."""
    numbers = iter(range(count))

    async def worker() -> None:
        for _ in numbers:
            await task()

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return time.perf_counter() - started


async def run_rove(sessions: int, calls: int, concurrency: int, open_times: list[float]) -> tuple[float, float, float]:
    """Run sessions of rove's sandbox; append the seconds to open each session to `open_times`.

    Return the total seconds, the seconds until the first session was open, and the longest block of the event loop in seconds.
    """
    blocks = [0.0]

    async def monitor_event_loop() -> None:
        while True:
            started = time.perf_counter()
            await asyncio.sleep(0.005)
            blocks.append(time.perf_counter() - started - 0.005)

    async with LocalBackend(SandboxLimits(seconds=60), max_sessions=concurrency) as backend:
        started = time.perf_counter()
        await (await backend.open()).close()
        first = time.perf_counter() - started
        monitor = asyncio.create_task(monitor_event_loop())

        async def run_session() -> None:
            started = time.perf_counter()
            session = await backend.open()
            open_times.append(time.perf_counter() - started)
            result = None
            for number in range(calls):
                result = await session.run_python(CODE[number % len(CODE)])
                assert result.ok, result
            assert calls % len(CODE) or (result and result.value == "21066"), result
            await session.close()

        elapsed = await run_concurrently(sessions, concurrency, run_session)
        monitor.cancel()
    return elapsed, first, max(blocks)


async def run_python_c(calls: int, concurrency: int) -> float:
    """Start a new `python -c` per call and return the wall seconds."""

    async def call() -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-c", "\n".join([*CODE[:3]]), stdout=asyncio.subprocess.PIPE
        )
        await process.communicate()

    return await run_concurrently(calls, concurrency, call)


def run_fork_and_pipe(sessions: int, calls: int) -> float:
    """Run forked processes with pipes, one after the other, and return the wall seconds."""
    started = time.perf_counter()
    for _ in range(sessions):
        (request_out, request_in), (reply_out, reply_in) = os.pipe(), os.pipe()
        pid = os.fork()
        if not pid:
            for _ in range(calls):
                os.write(reply_in, os.read(request_out, 64))
            os._exit(0)
        for _ in range(calls):
            os.write(request_in, b"x" * 64)
            os.read(reply_out, 64)
        os.waitpid(pid, 0)
        for fd in (request_out, request_in, reply_out, reply_in):
            os.close(fd)
    return time.perf_counter() - started


def resource_counts() -> tuple[int, int, int, int]:
    """Return the number of open files, threads, child processes and control groups of this process."""
    children = sum(len((task / "children").read_text().split()) for task in Path(f"/proc/{os.getpid()}/task").iterdir())
    groups = len(list(Path("/sys/fs/cgroup").glob(f"**/rove-{os.getpid()}-*")))
    return len(os.listdir("/proc/self/fd")), threading.active_count(), children, groups


def main() -> None:
    """Measure all three; print the medians and the leaked resources."""
    parser = argparse.ArgumentParser()
    for name, value in (("sessions", 1000), ("calls", 4), ("concurrency", 64), ("rounds", 3), ("peers", 200)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    initial_counts = resource_counts()
    open_times: list[float] = []
    totals, firsts, blocks, peers, bounds = [], [], [], [], []
    for _ in range(args.rounds):
        total, first, block = asyncio.run(run_rove(args.sessions, args.calls, args.concurrency, open_times))
        totals.append(total)
        firsts.append(first)
        blocks.append(block)
        peers.append(asyncio.run(run_python_c(args.peers, args.concurrency)) / args.peers)
        bounds.append(run_fork_and_pipe(args.sessions, args.calls))
    calls, median = args.sessions * args.calls, statistics.median
    print(f"{args.sessions} sessions of {args.calls} calls, {args.concurrency} concurrent, {os.cpu_count()} cores")
    print(f"rove            {calls / median(totals):8.0f} calls/s   {args.sessions / median(totals):6.0f} sessions/s")
    print(f"python -c       {1 / median(peers):8.0f} calls/s")
    print(f"fork and pipe   {calls / median(bounds):8.0f} calls/s")
    print(
        f"first session open after {median(firsts):.2f} s; median time to open a session {1000 * median(open_times):.0f} ms "
        f"({args.concurrency} concurrent)"
    )
    print(f"event loop blocked for at most {1000 * max(blocks):.0f} ms")
    names = ("files", "threads", "children", "control groups")
    leaked = ", ".join(f"{b - a:+} {n}" for n, a, b in zip(names, initial_counts, resource_counts()) if a != b)
    print(f"left behind: {leaked or 'nothing'}")


if __name__ == "__main__":
    main()
