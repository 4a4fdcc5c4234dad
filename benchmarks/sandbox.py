"""Calls per second of sandboxed Python, against what people do without a sandbox, and the physical limit.

    python benchmarks/sandbox.py [--sessions 1000] [--calls 4] [--concurrency 64] [--rounds 3] [--peers 200]

A session is opened, asked `--calls` times (standard library only; the last call needs what the first one set), and closed;
`--concurrency` of them at once. The peer starts `python -c` for every call, which keeps no state and contains nothing. The
limit is what no design with a process per session can beat: fork one, write it a line and read one back for every call, wait
for its end. Printed are medians over the rounds, and what was left behind.
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


async def each(count: int, concurrency: int, one: Callable[[], Awaitable[None]]) -> float:
    """Seconds for `count` runs of `one`, so many at once."""
    numbers = iter(range(count))

    async def worker() -> None:
        for _ in numbers:
            await one()

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return time.perf_counter() - began


async def rove(sessions: int, calls: int, concurrency: int, laps: list[float]) -> tuple[float, float, float]:
    """Seconds in all, seconds until the first session was there, longest time the event loop stood still."""
    stalls = [0.0]

    async def watch() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.005)
            stalls.append(time.perf_counter() - began - 0.005)

    async with LocalBackend(SandboxLimits(seconds=60), max_sessions=concurrency) as backend:
        began = time.perf_counter()
        await (await backend.open()).close()
        cold = time.perf_counter() - began
        watching = asyncio.create_task(watch())

        async def one() -> None:
            began = time.perf_counter()
            session = await backend.open()
            laps.append(time.perf_counter() - began)
            result = None
            for number in range(calls):
                result = await session.run_python(CODE[number % len(CODE)])
                assert result.ok, result
            assert calls % len(CODE) or (result and result.value == "21066"), result
            await session.close()

        spent = await each(sessions, concurrency, one)
        watching.cancel()
    return spent, cold, max(stalls)


async def peer(calls: int, concurrency: int) -> float:
    """Seconds for a new Python per call."""

    async def one() -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-c", "\n".join([*CODE[:3]]), stdout=asyncio.subprocess.PIPE
        )
        await process.communicate()

    return await each(calls, concurrency, one)


def limit(sessions: int, calls: int) -> float:
    """Seconds for bare processes and pipes, one after the other."""
    began = time.perf_counter()
    for _ in range(sessions):
        (asked, ask), (told, tell) = os.pipe(), os.pipe()
        pid = os.fork()
        if not pid:
            for _ in range(calls):
                os.write(tell, os.read(asked, 64))
            os._exit(0)
        for _ in range(calls):
            os.write(ask, b"x" * 64)
            os.read(told, 64)
        os.waitpid(pid, 0)
        for fd in (asked, ask, told, tell):
            os.close(fd)
    return time.perf_counter() - began


def held() -> tuple[int, int, int, int]:
    """What this process has: open files, threads, children, control groups."""
    children = sum(len((task / "children").read_text().split()) for task in Path(f"/proc/{os.getpid()}/task").iterdir())
    groups = len(list(Path("/sys/fs/cgroup").glob(f"**/rove-{os.getpid()}-*")))
    return len(os.listdir("/proc/self/fd")), threading.active_count(), children, groups


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    for name, value in (("sessions", 1000), ("calls", 4), ("concurrency", 64), ("rounds", 3), ("peers", 200)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    before = held()
    laps: list[float] = []
    spent, colds, stalls, peers, limits = [], [], [], [], []
    for _ in range(args.rounds):
        seconds, cold, stall = asyncio.run(rove(args.sessions, args.calls, args.concurrency, laps))
        spent.append(seconds)
        colds.append(cold)
        stalls.append(stall)
        peers.append(asyncio.run(peer(args.peers, args.concurrency)) / args.peers)
        limits.append(limit(args.sessions, args.calls))
    calls, middle = args.sessions * args.calls, statistics.median
    print(f"{args.sessions} sessions of {args.calls} calls, {args.concurrency} at once, {os.cpu_count()} cores")
    print(f"rove            {calls / middle(spent):8.0f} calls/s   {args.sessions / middle(spent):6.0f} sessions/s")
    print(f"python -c       {1 / middle(peers):8.0f} calls/s")
    print(f"fork and pipe   {calls / middle(limits):8.0f} calls/s")
    print(
        f"first session after {middle(colds):.2f} s, opened in {1000 * middle(laps):.0f} ms ({args.concurrency} at once)"
    )
    print(f"event loop stood still for {1000 * max(stalls):.0f} ms at most")
    names = ("files", "threads", "children", "control groups")
    print(
        "left behind: " + (", ".join(f"{b - a:+} {n}" for n, a, b in zip(names, before, held()) if a != b) or "nothing")
    )


if __name__ == "__main__":
    main()
