"""Measure sub-calls per second from sandboxed code to functions of the host, alone and in RLMEnv rollouts.

    python benchmarks/recursion.py [--calls 5000] [--rollouts 100] [--batch 50] [--concurrency 32] [--rounds 3]

The functions and the sub-model respond immediately, so the script measures only the round trip. It measures sequential calls
from one session, from `--concurrency` sessions, calls of 100 kB, and rollouts of two turns whose code makes one call of
`llm_batch` with `--batch` prompts. It prints medians over the rounds, and leaked resources.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from typing import Any

from sandbox import resource_counts

import rove as vf
from rove.sandbox import LocalBackend, SandboxLimits


async def echo(text: str) -> str:
    """Return the argument; the host function that sandboxed code calls."""
    return text


async def calls_per_second(count: int, sessions: int, size: int) -> float:
    """Make `count` calls with `size` characters from `sessions` sessions; return the total calls per second."""
    code = f"text = 'x' * {size}\nfor _ in range({count // sessions}): echo(text)"
    async with LocalBackend(SandboxLimits(seconds=60), max_sessions=sessions) as backend:
        opened = await asyncio.gather(*(backend.open() for _ in range(sessions)))
        started = time.perf_counter()
        results = await asyncio.gather(*(session.run_python(code, functions={"echo": echo}) for session in opened))
        elapsed = time.perf_counter() - started
        assert all(result.ok for result in results), results
    return count // sessions * sessions / elapsed


def policy(messages: vf.Messages, state: vf.State, rng: Any) -> Any:
    """Call `llm_batch` with every piece, then answer; as the sub-model, return a word."""
    if messages[0].role != "system":
        return "word"
    code = "answer['content'] = len(llm_batch(context))" if len(messages) == 2 else "answer['ready'] = True"
    function = {"name": "python", "arguments": json.dumps({"code": code})}
    return vf.AssistantMessage(None, tool_calls=[{"id": "call_1", "type": "function", "function": function}])


def rollouts(count: int, batch: int, concurrency: int) -> float:
    """Run rollouts and return their sub-calls per second, including the start and the end of the backend."""
    env = vf.RLMEnv(
        dataset=[{"question": str(i), "info": {"context": ["piece"] * batch}} for i in range(count)],
        max_sub_calls=batch,
        max_sandboxes=concurrency,
    )
    started = time.perf_counter()
    summary = env.evaluate_sync(vf.ScriptedClient(policy), max_concurrent=concurrency)
    elapsed = time.perf_counter() - started
    assert summary.functions["sub_calls"].mean == batch, summary
    return count * batch / elapsed


def main() -> None:
    """Measure all cases; print the medians and the leaked resources."""
    parser = argparse.ArgumentParser()
    for name, value in (("calls", 5000), ("rollouts", 100), ("batch", 50), ("concurrency", 32), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    rollouts(2, 1, 2)  # warm-up: imports and caches
    initial_counts, load = resource_counts(), os.getloadavg()[0]
    measured: dict[str, list[float]] = {}
    for _ in range(args.rounds):
        for name, rate in (
            ("one session", asyncio.run(calls_per_second(args.calls, 1, 1))),
            (f"{args.concurrency} sessions", asyncio.run(calls_per_second(args.calls, args.concurrency, 1))),
            ("one session, 100 kB", asyncio.run(calls_per_second(args.calls // 10, 1, 100_000))),
            (f"RLMEnv, batches of {args.batch}", rollouts(args.rollouts, args.batch, args.concurrency)),
        ):
            measured.setdefault(name, []).append(rate)
    for name, rates in measured.items():
        print(f"{name:<28}{statistics.median(rates):8.0f} sub-calls/s")
    print(f"load {load:.1f} before, {os.getloadavg()[0]:.1f} after, {os.cpu_count()} cores")
    names = ("files", "threads", "children", "control groups")
    leaked = ", ".join(f"{b - a:+} {n}" for n, a, b in zip(names, initial_counts, resource_counts()) if a != b)
    print(f"left behind: {leaked or 'nothing'}")


if __name__ == "__main__":
    main()
