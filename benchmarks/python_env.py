"""Calls per second of whole PythonEnv rollouts, and what they leave behind.

    python benchmarks/python_env.py [--rollouts 1000] [--calls 4] [--concurrency 64] [--rounds 3]

A scripted client calls the tool `python` `--calls` times in each rollout (standard library only; the last of four needs what
the others left) and then answers; every rollout is scored. "no calls" are rollouts that answer at once: they have no sandbox
and pay for none. Printed are medians over the rounds, seconds from `evaluate` to its summary, the first sandbox's start and
the end of the backend included.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from typing import Any

from sandbox import CODE, held

import rove as vf


def answered(completion: vf.Messages, answer: str) -> float:
    """1 when the last message is what the calls come to."""
    return float(completion[-1].content == answer)


def player(calls: int) -> Any:
    """Says the code piece by piece, then what came of the last one."""

    def say(messages: vf.Messages, state: vf.State, rng: Any) -> Any:
        turn = len(state["trajectory"])
        if turn == calls:
            return messages[-1].content if calls else "21066"
        function = {"name": "python", "arguments": json.dumps({"code": CODE[turn % len(CODE)]})}
        return vf.AssistantMessage(None, tool_calls=[{"id": f"call_{turn}", "type": "function", "function": function}])

    return say


def seconds(rollouts: int, calls: int, concurrency: int) -> float:
    """Seconds of one evaluation."""
    env = vf.PythonEnv(
        dataset=[{"question": str(i), "answer": "21066"} for i in range(rollouts)],
        rubric=vf.Rubric([answered]),
        max_turns=calls + 1,
        max_sandboxes=concurrency,
    )
    began = time.perf_counter()
    summary = env.evaluate_sync(vf.ScriptedClient(player(calls)), max_concurrent=concurrency)
    spent = time.perf_counter() - began
    assert summary["scored"] == rollouts, summary
    assert calls % len(CODE) or summary["reward"]["mean"] == 1.0, summary
    return spent


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    for name, value in (("rollouts", 1000), ("calls", 4), ("concurrency", 64), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    seconds(2, 1, 2)  # what a process loads once
    before = held()
    load = os.getloadavg()[0]
    with_calls, without = [], []
    for _ in range(args.rounds):
        with_calls.append(seconds(args.rollouts, args.calls, args.concurrency))
        without.append(seconds(args.rollouts, 0, args.concurrency))
    spent, idle = statistics.median(with_calls), statistics.median(without)
    print(f"{args.rollouts} rollouts of {args.calls} calls, {args.concurrency} at once, {os.cpu_count()} cores")
    print(
        f"PythonEnv       {args.rollouts * args.calls / spent:8.0f} calls/s   {args.rollouts / spent:6.0f} rollouts/s"
    )
    print(f"no calls                           {args.rollouts / idle:6.0f} rollouts/s")
    print(f"load {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    names = ("files", "threads", "children", "control groups")
    print(
        "left behind: " + (", ".join(f"{b - a:+} {n}" for n, a, b in zip(names, before, held()) if a != b) or "nothing")
    )


if __name__ == "__main__":
    main()
