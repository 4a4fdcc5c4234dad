"""Calls per second of whole MCPEnv rollouts beside the same calls by the SDK's own client, and what they leave behind.

    python benchmarks/mcp_tools.py [--rollouts 200] [--calls 5] [--rounds 3]

One server that adds two numbers, as a command over stdio and over HTTP, shared by all rollouts, which run at once. The SDK's
client makes the same calls on one connection from as many tasks, with no rollout around them: what it needs is the limit.
Rove and the SDK take turns; printed are medians over the rounds of the seconds and of this process's own CPU time, the start
and the end of the server included.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import mcp
from mcp.client.stdio import StdioServerParameters
from mcp.server import MCPServer
from sandbox import held

import rove as vf

ARGUMENTS = {"a": 1, "b": 2}
COMMAND = [__file__, "--serve", "0"]


def serve(port: int) -> None:
    """Be the server, on stdio (port 0) or HTTP."""
    server = MCPServer("numbers", log_level="ERROR")

    @server.tool()
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    server.run("streamable-http", port=port) if port else server.run("stdio")


@contextmanager
def over_http() -> Iterator[str]:
    """The address of a server that runs meanwhile."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, __file__, "--serve", str(port)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
        process.terminate()


def rollouts(server: dict[str, Any], count: int, calls: int) -> None:
    """Rollouts of a scripted client, each with so many calls."""

    def player(messages: vf.Messages, state: vf.State, rng: Any) -> Any:
        if len(state["trajectory"]) == calls:
            return messages[-1].content
        function = {"name": "add", "arguments": json.dumps(ARGUMENTS)}
        return vf.AssistantMessage(None, tool_calls=[{"id": "call", "type": "function", "function": function}])

    rows = [{"question": str(i), "answer": "3"} for i in range(count)]
    env = vf.MCPEnv(mcp_servers=[{"name": "numbers", **server}], dataset=rows, max_turns=calls + 1)
    records = asyncio.run(vf.generate(env, vf.ScriptedClient(player), max_concurrent=count))
    assert [record.completion[-1]["content"] for record in records] == ["3"] * count


async def bare(target: Any, count: int, calls: int) -> None:
    """The same calls by the SDK alone."""
    async with mcp.Client(target) as client:

        async def some() -> None:
            for _ in range(calls):
                result = await client.call_tool("add", ARGUMENTS)
                assert result.content[0].text == "3"  # pyright: ignore[reportAttributeAccessIssue]

        await asyncio.gather(*(some() for _ in range(count)))


def measured(work: Callable[[], Coroutine[Any, Any, None] | None]) -> tuple[float, float]:
    """Seconds, and CPU seconds of this process."""
    began, cpu = time.perf_counter(), time.process_time()
    waiting = work()
    if waiting is not None:
        asyncio.run(waiting)
    return time.perf_counter() - began, time.process_time() - cpu


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    for name, value in (("rollouts", 200), ("calls", 5), ("rounds", 3), ("serve", None)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    if args.serve is not None:
        serve(args.serve)
        return
    shape = (args.rollouts, args.calls)
    command = {"command": sys.executable, "args": COMMAND}
    alike = StdioServerParameters(command=sys.executable, args=COMMAND)
    with over_http() as url:
        contests = {
            "stdio": (lambda: rollouts(command, *shape), lambda: bare(mcp.stdio_client(alike), *shape)),
            "HTTP": (lambda: rollouts({"url": url}, *shape), lambda: bare(url, *shape)),
        }
        rollouts(command, 2, 1)  # what a process loads once
        print(f"{shape[0]} rollouts of {shape[1]} calls, all at once, {os.cpu_count()} cores, mcp SDK's client = 1")
        for name, (ours, theirs) in contests.items():
            before = held()
            rounds = [[measured(ours), measured(theirs)] for _ in range(args.rounds)]
            (wall, cpu), (their_wall, their_cpu) = (
                [statistics.median(one[who][what] for one in rounds) for what in (0, 1)] for who in (0, 1)
            )
            left = [after - was for was, after in zip(before, held(), strict=True)]
            total = args.rollouts * args.calls
            print(
                f"{name:6} rove {total / wall:6.0f} calls/s {cpu / total * 1e3:5.2f} ms CPU   "
                f"SDK {total / their_wall:6.0f} calls/s {their_cpu / total * 1e3:5.2f} ms CPU   "
                f"{wall / their_wall:.2f}x the time, {cpu / their_cpu:.2f}x the CPU   "
                f"left behind: {left if any(left) else 'nothing'}"
            )


if __name__ == "__main__":
    main()
