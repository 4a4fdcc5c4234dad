"""Measure memory and resume time of large runs: only the run's file may grow with the number of rollouts.

    python benchmarks/scale.py [--small 10000] [--large 100000]

Each run is a single-turn evaluation in a separate process, with a JSONL dataset, the mock server, scores and a run folder. The
script prints the peak memory of a small and of a large run. It then removes the last ten lines of the large run, resumes it, and
prints the time until the first missing rollout and the peak memory. The minimal loop of `evaluation.py`, which saves no rollouts,
is the lower bound.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import evaluation
from mock_server import REPLY, mock_server

import rove
from rove import RolloutRecord


def correct(completion: list[dict[str, str]], answer: str) -> float:
    """Return 1 if the response is correct, else 0."""
    return float(completion[-1]["content"] == answer)


async def evaluate(url: str, data: str, folder: str) -> None:
    """Evaluate once; print the number of scored rollouts, seconds, CPU seconds and peak memory (MiB) as JSON."""
    started, cpu = time.perf_counter(), time.process_time()
    first_new = 0.0

    def on_record(record: object) -> None:
        nonlocal first_new
        if not first_new and isinstance(record, RolloutRecord):
            first_new = time.perf_counter() - started

    env = rove.SingleTurnEnv(dataset=data, rubric=rove.Rubric([correct]))
    client = rove.OpenAIClient(url, max_concurrent=256)
    summary = await rove.evaluate(env, client, "mock", run=folder, on_record=on_record)
    await client.close()
    costs = {"scored": summary.scored, "first_new": first_new, "wall": time.perf_counter() - started}
    costs["cpu"] = time.process_time() - cpu
    costs["rss"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(costs))


def run_child(*arguments: str) -> dict[str, float]:
    """Run this file in a separate process and return the JSON on the last line of its output."""
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


def remove_last_lines(file: Path, lines: int) -> None:
    """Remove the last `lines` lines of a file."""
    with file.open("rb+") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - (1 << 20)))
        tail = stream.read().splitlines(keepends=True)[-lines:]
        stream.truncate(size - sum(map(len, tail)))


def main() -> None:
    """Measure a small run, a large run and the resumed large run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", type=int, default=10_000)
    parser.add_argument("--large", type=int, default=100_000)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--raw", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        asyncio.run(evaluate(*args.child))
        return
    if args.raw:
        asyncio.run(evaluation.raw(args.raw[0], int(args.raw[1]), 256, 1, ""))
        print(json.dumps({"rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
        return
    with tempfile.TemporaryDirectory() as folder, mock_server() as url:
        peaks = {}
        for name, count in (("small", args.small), ("large", args.large)):
            data = Path(folder, f"{name}.jsonl")
            with data.open("w") as file:
                for i in range(count):
                    file.write(json.dumps({"question": f"{i} {evaluation.PROMPT}", "answer": REPLY}) + "\n")
            costs = run_child("--child", url, str(data), f"{folder}/{name}")
            floor = run_child("--raw", url, str(count))
            assert costs["scored"] == count, costs
            peaks[name] = costs["rss"]
            print(f"{count:7} rollouts: peak {costs['rss']:.0f} MiB (raw loop {floor['rss']:.0f}), ", end="")
            print(f"{costs['cpu'] / count * 1000:.3f} CPU-s per 1,000, {count / costs['wall']:.0f} rollouts/s")
        print(f"growth {peaks['large'] - peaks['small']:.0f} MiB")
        remove_last_lines(Path(folder, "large", "rollouts.jsonl"), 10)
        costs = run_child("--child", url, f"{folder}/large.jsonl", f"{folder}/large")
        assert costs["scored"] == args.large, costs
        size = Path(folder, "large", "rollouts.jsonl").stat().st_size >> 20
        print(
            f"resumed with {args.large - 10} of {args.large} rollouts ({size} MiB): first missing rollout after "
            f"{costs['first_new']:.2f} s ({costs['cpu']:.2f} CPU-s in total), peak {costs['rss']:.0f} MiB"
        )


if __name__ == "__main__":
    main()
