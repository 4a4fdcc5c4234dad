"""Compare the tool calls per second of MCPEnv rollouts with those of the MCP SDK's client, and check for resource leaks.

    python benchmarks/mcp_tools.py [--rollouts 200] [--calls 5] [--rounds 3]

All rollouts run concurrently and share one server, which adds two numbers, over stdio and over HTTP. The SDK's client makes the
same calls on one connection from as many tasks, without rollouts; its costs are the lower bound. Each round measures rove and
then the SDK. The script prints medians over the rounds of the wall time and of this process's CPU time, including the start and
the end of a stdio server.
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
from sandbox import resource_counts

import rove as vf

ARGUMENTS = {"a": 1, "b": 2}
COMMAND = [__file__, "--serve", "0"]


def serve(port: int) -> None:
    """Run the MCP server on stdio (port 0) or HTTP."""
    server = MCPServer("numbers", log_level="ERROR")

    @server.tool()
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    server.run("streamable-http", port=port) if port else server.run("stdio")


@contextmanager
def http_server() -> Iterator[str]:
    """Run the server over HTTP in a separate process and yield its URL."""
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
    """Run `count` rollouts of a scripted policy, each with `calls` tool calls, and check the results."""

    def policy(messages: vf.Messages, state: vf.State, rng: Any) -> Any:
        if len(state["trajectory"]) == calls:
            return messages[-1].content
        function = {"name": "add", "arguments": json.dumps(ARGUMENTS)}
        return vf.AssistantMessage(None, tool_calls=[{"id": "call", "type": "function", "function": function}])

    rows = [{"question": str(i), "answer": "3"} for i in range(count)]
    env = vf.MCPEnv(mcp_servers=[{"name": "numbers", **server}], dataset=rows, max_turns=calls + 1)
    records = asyncio.run(vf.generate(env, vf.ScriptedClient(policy), max_concurrent=count))
    assert [record.completion[-1]["content"] for record in records] == ["3"] * count


async def sdk_calls(target: Any, count: int, calls: int) -> None:
    """Make the same calls with the client of the SDK: `count` concurrent tasks with `calls` calls each."""
    async with mcp.Client(target) as client:

        async def worker() -> None:
            for _ in range(calls):
                result = await client.call_tool("add", ARGUMENTS)
                assert result.content[0].text == "3"  # pyright: ignore[reportAttributeAccessIssue]

        await asyncio.gather(*(worker() for _ in range(count)))


def measure(work: Callable[[], Coroutine[Any, Any, None] | None]) -> tuple[float, float]:
    """Run `work` and return the wall seconds and the CPU seconds of this process."""
    started, cpu = time.perf_counter(), time.process_time()
    coroutine = work()
    if coroutine is not None:
        asyncio.run(coroutine)
    return time.perf_counter() - started, time.process_time() - cpu


def main() -> None:
    """Measure both clients and print the medians and the leaked resources."""
    parser = argparse.ArgumentParser()
    for name, value in (("rollouts", 200), ("calls", 5), ("rounds", 3), ("serve", None)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    if args.serve is not None:
        serve(args.serve)
        return
    shape = (args.rollouts, args.calls)
    command = {"command": sys.executable, "args": COMMAND}
    stdio_server = StdioServerParameters(command=sys.executable, args=COMMAND)
    with http_server() as url:
        comparisons = {
            "stdio": (lambda: rollouts(command, *shape), lambda: sdk_calls(mcp.stdio_client(stdio_server), *shape)),
            "HTTP": (lambda: rollouts({"url": url}, *shape), lambda: sdk_calls(url, *shape)),
        }
        rollouts(command, 2, 1)  # warm-up: imports and caches
        print(f"{shape[0]} rollouts of {shape[1]} calls, all concurrent, {os.cpu_count()} cores, MCP SDK's client = 1")
        for name, (run_rove, run_sdk) in comparisons.items():
            initial_counts = resource_counts()
            rounds = [[measure(run_rove), measure(run_sdk)] for _ in range(args.rounds)]
            (wall, cpu), (sdk_wall, sdk_cpu) = (
                [statistics.median(measured[client][column] for measured in rounds) for column in (0, 1)]
                for client in (0, 1)
            )
            leaked = [final - initial for initial, final in zip(initial_counts, resource_counts(), strict=True)]
            total = args.rollouts * args.calls
            print(
                f"{name:6} rove {total / wall:6.0f} calls/s {cpu / total * 1e3:5.2f} ms CPU   "
                f"SDK {total / sdk_wall:6.0f} calls/s {sdk_cpu / total * 1e3:5.2f} ms CPU   "
                f"{wall / sdk_wall:.2f}x the time, {cpu / sdk_cpu:.2f}x the CPU   "
                f"left behind: {leaked if any(leaked) else 'nothing'}"
            )


if __name__ == "__main__":
    main()
