"""Memory and resuming of large runs: nothing may grow with the number of rollouts but the file.

    python benchmarks/scale.py [--small 10000] [--large 100000]

Each run is a process of its own: single turn, a JSONL dataset, the mock server, scored and kept in a run folder. Printed are
the peak memory of a small and a large run; then the last ten lines of the large run are cut off, and the same call resumes it:
how long until the first missing rollout is there, and its peak memory. The bare loop of `evaluation.py` does the same without
keeping anything, as the floor.
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
from rove.core.records import RolloutRecord


def correct(completion: list[dict[str, str]], answer: str) -> float:
    """1 when the answer is right."""
    return float(completion[-1]["content"] == answer)


async def evaluate(url: str, data: str, folder: str) -> None:
    """One evaluation; prints what it cost."""
    began, cpu = time.perf_counter(), time.process_time()
    first_new = 0.0

    def watch(record: object) -> None:
        nonlocal first_new
        if not first_new and isinstance(record, RolloutRecord):
            first_new = time.perf_counter() - began

    env = rove.SingleTurnEnv(dataset=data, rubric=rove.Rubric([correct]))
    client = rove.OpenAIClient(url, max_concurrent=256)
    summary = await rove.evaluate(env, client, "mock", run=folder, on_record=watch)
    await client.close()
    told = {"scored": summary["scored"], "first_new": first_new, "wall": time.perf_counter() - began}
    told["cpu"] = time.process_time() - cpu
    told["rss"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(told))


def child(*words: str) -> dict[str, float]:
    """Run this file in a process of its own."""
    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


def cut(file: Path, lines: int) -> None:
    """Take the last lines away."""
    with file.open("rb+") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - (1 << 20)))
        tail = stream.read().splitlines(keepends=True)[-lines:]
        stream.truncate(size - sum(map(len, tail)))


def main() -> None:
    """Small, large, and the large one resumed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", type=int, default=10_000)
    parser.add_argument("--large", type=int, default=100_000)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--raw", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        asyncio.run(evaluate(*given.child))
        return
    if given.raw:
        asyncio.run(evaluation.raw(given.raw[0], int(given.raw[1]), 256, 1, ""))
        print(json.dumps({"rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
        return
    with tempfile.TemporaryDirectory() as place, mock_server() as url:
        peaks = {}
        for name, count in (("small", given.small), ("large", given.large)):
            data = Path(place, f"{name}.jsonl")
            with data.open("w") as file:
                for i in range(count):
                    file.write(json.dumps({"question": f"{i} {evaluation.PROMPT}", "answer": REPLY}) + "\n")
            told = child("--child", url, str(data), f"{place}/{name}")
            floor = child("--raw", url, str(count))
            assert told["scored"] == count, told
            peaks[name] = told["rss"]
            print(f"{count:7} rollouts: peak {told['rss']:.0f} MiB (raw loop {floor['rss']:.0f}), ", end="")
            print(f"{told['cpu'] / count * 1000:.3f} CPU-s per 1,000, {count / told['wall']:.0f} rollouts/s")
        print(f"growth {peaks['large'] - peaks['small']:.0f} MiB")
        cut(Path(place, "large", "rollouts.jsonl"), 10)
        told = child("--child", url, f"{place}/large.jsonl", f"{place}/large")
        assert told["scored"] == given.large, told
        size = Path(place, "large", "rollouts.jsonl").stat().st_size >> 20
        print(
            f"resumed with {given.large - 10} of {given.large} there ({size} MiB): first missing rollout after "
            f"{told['first_new']:.2f} s ({told['cpu']:.2f} CPU-s in all), peak {told['rss']:.0f} MiB"
        )


if __name__ == "__main__":
    main()
