"""Measure the tool calls per second of PythonEnv rollouts, and check for resource leaks.

    python benchmarks/python_env.py [--rollouts 1000] [--calls 4] [--concurrency 64] [--rounds 3]

A scripted policy calls the tool `python` `--calls` times per rollout and then answers; every rollout is scored. The code uses
only the standard library; the last of four calls uses variables of the others. The rollouts of "no calls" answer immediately
and open no sandbox. The script prints medians over the rounds. The time is that of `evaluate`, including the start of the first
sandbox and the end of the backend.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from typing import Any

from sandbox import CODE, resource_counts

import rove as vf


def correct(completion: vf.Messages, answer: str) -> float:
    """Return 1 if the last message is the result of the calls, else 0."""
    return float(completion[-1].content == answer)


def scripted_policy(calls: int) -> Any:
    """Return a policy that makes `calls` tool calls and then answers with the result of the last one."""

    def respond(messages: vf.Messages, state: vf.State, rng: Any) -> Any:
        turn = len(state["trajectory"])
        if turn == calls:
            return messages[-1].content if calls else "21066"
        function = {"name": "python", "arguments": json.dumps({"code": CODE[turn % len(CODE)]})}
        return vf.AssistantMessage(None, tool_calls=[{"id": f"call_{turn}", "type": "function", "function": function}])

    return respond


def seconds(rollouts: int, calls: int, concurrency: int) -> float:
    """Run one evaluation and return its wall seconds."""
    env = vf.PythonEnv(
        dataset=[{"question": str(i), "answer": "21066"} for i in range(rollouts)],
        rubric=vf.Rubric([correct]),
        max_turns=calls + 1,
        max_sandboxes=concurrency,
    )
    started = time.perf_counter()
    summary = env.evaluate_sync(vf.ScriptedClient(scripted_policy(calls)), max_concurrent=concurrency)
    elapsed = time.perf_counter() - started
    assert summary.scored == rollouts, summary
    assert calls % len(CODE) or summary.reward.mean == 1.0, summary
    return elapsed


def main() -> None:
    """Measure with and without calls; print the medians and the leaked resources."""
    parser = argparse.ArgumentParser()
    for name, value in (("rollouts", 1000), ("calls", 4), ("concurrency", 64), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    seconds(2, 1, 2)  # warm-up: imports and caches
    initial_counts = resource_counts()
    load = os.getloadavg()[0]
    with_calls, without = [], []
    for _ in range(args.rounds):
        with_calls.append(seconds(args.rollouts, args.calls, args.concurrency))
        without.append(seconds(args.rollouts, 0, args.concurrency))
    busy, idle = statistics.median(with_calls), statistics.median(without)
    print(f"{args.rollouts} rollouts of {args.calls} calls, {args.concurrency} concurrent, {os.cpu_count()} cores")
    print(f"PythonEnv       {args.rollouts * args.calls / busy:8.0f} calls/s   {args.rollouts / busy:6.0f} rollouts/s")
    print(f"no calls                           {args.rollouts / idle:6.0f} rollouts/s")
    print(f"load {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    names = ("files", "threads", "children", "control groups")
    leaked = ", ".join(f"{b - a:+} {n}" for n, a, b in zip(names, initial_counts, resource_counts()) if a != b)
    print(f"left behind: {leaked or 'nothing'}")


if __name__ == "__main__":
    main()
