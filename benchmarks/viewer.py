"""Measure the CPU time of `rove view` on a large run: per request, for the first load of a page, and for the index.

    python benchmarks/viewer.py [--rollouts 100000] [--repeats 40]

The run contains Tic-Tac-Toe games from docs/example_runs in groups of 8, with random rewards. The server runs in a separate
process; its CPU time is read from /proc. A first server builds the index. "First paint" consists of the requests that the page of
rollouts sends before it shows rows, to a new server that loads the existing index. Each "first" request uses a new server: right
after its start, or after the overview of the run, which reads columns in the background. All other figures are medians and 95th
percentiles; since results are cached, each request has a new filter, except for "again". The environment variable PYTHONPATH
selects the tree to measure.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from rove import Run, Scores
from rove.runs.serialization import decode_record

ROOT = Path(__file__).resolve().parents[1]
SERVER = [sys.executable, "-c", "from rove.cli.main import main; main()", "view"]
QUERIES = {
    "page": "rollouts?run=large&limit=50",
    "page sorted by reward": "rollouts?run=large&limit=50&sort=reward&order=down",
    "page, filtered": "rollouts?run=large&limit=50&is.score.win=0.5",
    "page sorted by reward, in the middle": "rollouts?run=large&limit=50&sort=reward&offset={half}",
    "page, filtered and sorted": "rollouts?run=large&limit=50&is.score.win=0.5&from.reward=0.2&sort=seconds",
    "facet": "facet?run=large&name=stop",
    "histogram, continuous": "histogram?run=large&name=reward",
    "histogram, few values": "histogram?run=large&name=score.win",
    "histogram, filtered": "histogram?run=large&name=reward&is.score.win=0.5",
    "why did these fail": "reasons?run=large",
    "overview": "overview?run=large",
    "a rollout with its group": "rollout?run=large&line={half}",
    "rewards by training step": "metrics?run=large",
}
FIRST_PAINT = ["run?run=large", "rollouts?run=large&limit=50", "bad?run=large"]
FACETS_AND_HISTOGRAMS = [
    *(f"facet?run=large&name={name}" for name in ("env", "stop", "error", "truncated")),
    "facet?run=large&name=superseded&is.superseded=0&is.superseded=1",
    *(f"histogram?run=large&name={name}" for name in ("reward", "turns", "completion_tokens", "seconds")),
    *(f"histogram?run=large&name=score.{name}" for name in ("win", "format", "invalid_move", "won")),
]


def write_run(folder: Path, count: int) -> int:
    """Write a run with `count` rollouts and return its size in bytes."""
    games = [decode_record(line) for line in (ROOT / "docs/example_runs/rl/rollouts.jsonl").read_bytes().splitlines()]
    rng = random.Random(0)
    with Run(folder) as run:
        run.start("rl", {"env": "tictactoe", "model": "made"}, {})
        for i in range(count):
            win = rng.choice([0.0, 0.5, 1.0])
            scores = Scores(
                win + rng.random(),
                {"win": win, "format": rng.random(), "invalid_move": 0.0},
                {"win": 1.0, "format": 0.2, "invalid_move": -0.1},
                {"won": float(win == 1.0)},
            )
            position = {
                "example_key": f"key{i // 8}",
                "example_id": i // 8,
                "rollout_index": i % 8,
                "step": i // 256 + 1,
            }
            run.append_rollout(msgspec.structs.replace(games[i % len(games)], scores=scores, **position))
        run.append_metrics({"step": 1, "reward/mean": 0.5})
    return (folder / "rollouts.jsonl").stat().st_size


@contextmanager
def server(runs: Path) -> Iterator[tuple[str, int]]:
    """Start a new server and yield its URL and process id."""
    with subprocess.Popen([*SERVER, str(runs), "--port", "0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield re.findall(r"http://\S+/", process.stdout.readline())[0], process.pid
        finally:
            process.terminate()


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of all threads of a process so far (resolution: nanoseconds)."""
    return sum(int(file.read_text().split()[0]) for file in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def wait_until_idle(pid: int) -> None:
    """Wait until a process uses at most 5 ms of CPU in 0.5 s."""
    previous = -1.0
    while (current := cpu_seconds(pid)) - previous > 0.005:
        previous = current
        time.sleep(0.5)


def get(url: str, query: str) -> dict[str, object]:
    """Send a request to the API and return its response."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}api/{query}") as response:
        return msgspec.json.decode(response.read())


def cpu_per_query(url: str, pid: int, queries: list[str]) -> tuple[float, float]:
    """Send the queries and return the CPU milliseconds of the server per query: median and 95th percentile."""
    times = []
    for query in queries:
        start_cpu = cpu_seconds(pid)
        get(url, query)
        times.append((cpu_seconds(pid) - start_cpu) * 1e3)
    times.sort()
    return times[len(times) // 2], times[min(len(times) - 1, math.ceil(0.95 * len(times)) - 1)]


def main() -> None:
    """Write the run, measure all requests and print the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=40)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder) / "runs"
        size = write_run(runs / "large", args.rollouts)
        print(f"{args.rollouts:,} rollouts, {size / 1e6:,.0f} MB")
        with server(runs) as (url, pid):
            start_cpu, started = cpu_seconds(pid), time.perf_counter()
            while not get(url, "rollouts?run=large&limit=1")["progress"]["done"]:  # type: ignore[index]
                pass
            print(f"index built: {cpu_seconds(pid) - start_cpu:.2f} CPU-s, {time.perf_counter() - started:.2f} s")
        with server(runs) as (url, pid):
            for name, queries in {
                "first paint": FIRST_PAINT,
                "all facets and histograms": FACETS_AND_HISTOGRAMS,
            }.items():
                start_cpu, started = cpu_seconds(pid), time.perf_counter()
                for query in queries:
                    get(url, query)
                print(f"{name}: {cpu_seconds(pid) - start_cpu:.2f} CPU-s, {time.perf_counter() - started:.2f} s")
            limits = itertools.count(args.rollouts)
            for name, query in QUERIES.items():
                query = query.format(half=args.rollouts // 2)
                filterable = query.startswith(("facet", "histogram", "reasons", "rollouts"))
                filters = [f"&to.line={next(limits)}" if filterable else "" for _ in range(args.repeats)]
                median, high = cpu_per_query(url, pid, [query + suffix for suffix in filters])
                print(f"{name}: {median:.1f} ms, 95th percentile {high:.1f}")
            same = f"&to.line={next(limits)}"
            get(url, QUERIES["facet"] + same)
            histogram = cpu_per_query(url, pid, [FACETS_AND_HISTOGRAMS[5] + same])[0]
            print(f"a histogram with the filter of a previous facet: {histogram:.1f} ms")
            repeated_queries = [QUERIES["facet"], QUERIES["histogram, continuous"]] * args.repeats
            print(f"a facet or histogram again: {cpu_per_query(url, pid, repeated_queries)[0]:.1f} ms")
        for event in ("the start", "the overview"):
            for name in ("facet", "histogram, continuous", "why did these fail"):
                with server(runs) as (url, pid):
                    get(url, FIRST_PAINT[1])
                    if event == "the overview":
                        get(url, "overview?run=large")
                        wait_until_idle(pid)
                    print(f"first {name} after {event}: {cpu_per_query(url, pid, [QUERIES[name]])[0]:.1f} ms")


if __name__ == "__main__":
    main()
