"""Sub-calls per second: what code in a sandbox asks of the host, alone and in whole RLMEnv rollouts.

    python benchmarks/recursion.py [--calls 5000] [--rollouts 100] [--batch 50] [--concurrency 32] [--rounds 3]

The functions and the sub-model answer at once, so that what is measured is the way there and back: one question after the
other from one session, from as many sessions as run at once, questions of 100 kB, and rollouts of two turns whose code asks
`llm_batch` for `--batch` answers. Printed are medians over the rounds, and what was left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from typing import Any

from sandbox import held

import rove as vf
from rove.sandbox import LocalBackend, SandboxLimits


async def echo(text: str) -> str:
    """What code asks."""
    return text


async def questions(count: int, sessions: int, size: int) -> float:
    """Questions per second, all sessions together."""
    code = f"text = 'x' * {size}\nfor _ in range({count // sessions}): echo(text)"
    async with LocalBackend(SandboxLimits(seconds=60), max_sessions=sessions) as backend:
        opened = await asyncio.gather(*(backend.open() for _ in range(sessions)))
        began = time.perf_counter()
        results = await asyncio.gather(*(one.run_python(code, functions={"echo": echo}) for one in opened))
        spent = time.perf_counter() - began
        assert all(result.ok for result in results), results
    return count // sessions * sessions / spent


def player(messages: vf.Messages, state: vf.State, rng: Any) -> Any:
    """Asks for every piece, then answers; as a sub-model it says a word."""
    if messages[0].role != "system":
        return "word"
    code = "answer['content'] = len(llm_batch(context))" if len(messages) == 2 else "answer['ready'] = True"
    function = {"name": "python", "arguments": json.dumps({"code": code})}
    return vf.AssistantMessage(None, tool_calls=[{"id": "call_1", "type": "function", "function": function}])


def rollouts(count: int, batch: int, concurrency: int) -> float:
    """Sub-calls per second of whole rollouts, start and end of the backend included."""
    env = vf.RLMEnv(
        dataset=[{"question": str(i), "info": {"context": ["piece"] * batch}} for i in range(count)],
        max_sub_calls=batch,
        max_sandboxes=concurrency,
    )
    began = time.perf_counter()
    summary = env.evaluate_sync(vf.ScriptedClient(player), max_concurrent=concurrency)
    spent = time.perf_counter() - began
    assert summary["functions"]["sub_calls"]["mean"] == batch, summary
    return count * batch / spent


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    for name, value in (("calls", 5000), ("rollouts", 100), ("batch", 50), ("concurrency", 32), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    rollouts(2, 1, 2)  # what a process loads once
    before, load = held(), os.getloadavg()[0]
    measured: dict[str, list[float]] = {}
    for _ in range(args.rounds):
        for name, rate in (
            ("one session", asyncio.run(questions(args.calls, 1, 1))),
            (f"{args.concurrency} sessions", asyncio.run(questions(args.calls, args.concurrency, 1))),
            ("one session, 100 kB", asyncio.run(questions(args.calls // 10, 1, 100_000))),
            (f"RLMEnv, batches of {args.batch}", rollouts(args.rollouts, args.batch, args.concurrency)),
        ):
            measured.setdefault(name, []).append(rate)
    for name, rates in measured.items():
        print(f"{name:<28}{statistics.median(rates):8.0f} sub-calls/s")
    print(f"load {load:.1f} before, {os.getloadavg()[0]:.1f} after, {os.cpu_count()} cores")
    names = ("files", "threads", "children", "control groups")
    print(
        "left behind: " + (", ".join(f"{b - a:+} {n}" for n, a, b in zip(names, before, held()) if a != b) or "nothing")
    )


if __name__ == "__main__":
    main()
