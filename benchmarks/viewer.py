"""What `rove view` costs on a large run: CPU of the server per question, of a first look at a page, and of the index.

    python benchmarks/viewer.py [--rollouts 100000] [--repeats 20]

The run is of Tic-Tac-Toe games like those of docs/example_runs, in groups of 8, with random rewards. The server is a process
of its own; its CPU time is read from /proc. "First paint" is what the page of rollouts requests before it shows rows, from a
server that has just started and finds the index; another server has built the index before. "First" requests go to a fresh
server each: right after its start, and after the overview of the run, which reads columns in the background. All other
figures are medians and 95th percentiles with a filter that no request had before, since results are cached; "again" is the same
filter. The environment variable PYTHONPATH selects the tree to measure.
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

from rove.core.records import Scores
from rove.runs.run import Run
from rove.runs.serialization import decode_record

ROOT = Path(__file__).resolve().parents[1]
SERVER = [sys.executable, "-c", "from rove.cli.main import main; main()", "view"]
QUESTIONS = {
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
PAINT = ["run?run=large", "rollouts?run=large&limit=50", "bad?run=large"]
REST = [
    *(f"facet?run=large&name={name}" for name in ("env", "stop", "error", "truncated")),
    "facet?run=large&name=superseded&is.superseded=0&is.superseded=1",
    *(f"histogram?run=large&name={name}" for name in ("reward", "turns", "completion_tokens", "seconds")),
    *(f"histogram?run=large&name=score.{name}" for name in ("win", "format", "invalid_move", "won")),
]


def write(folder: Path, count: int) -> int:
    """Make the run; returns its bytes."""
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
            place = {"example_key": f"key{i // 8}", "example_id": i // 8, "rollout_index": i % 8, "step": i // 256 + 1}
            run.append_rollout(msgspec.structs.replace(games[i % len(games)], scores=scores, **place))
        run.append_metrics({"step": 1, "reward/mean": 0.5})
    return (folder / "rollouts.jsonl").stat().st_size


@contextmanager
def server(runs: Path) -> Iterator[tuple[str, int]]:
    """A fresh server: its address and its process id."""
    with subprocess.Popen([*SERVER, str(runs), "--port", "0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield re.findall(r"http://\S+/", process.stdout.readline())[0], process.pid
        finally:
            process.terminate()


def cpu(pid: int) -> float:
    """CPU-seconds of a process so far: of all its threads, in nanoseconds."""
    return sum(int(one.read_text().split()[0]) for one in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def wait_until_idle(pid: int) -> None:
    """Wait until a process has taken no CPU for a while."""
    before = -1.0
    while (now := cpu(pid)) - before > 0.005:
        before = now
        time.sleep(0.5)


def ask(url: str, question: str) -> dict[str, object]:
    """An answer of the API."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}api/{question}") as answer:
        return msgspec.json.decode(answer.read())


def per_question(url: str, pid: int, questions: list[str]) -> tuple[float, float]:
    """CPU-milliseconds of the server for each of these: median and 95th percentile."""
    taken = []
    for question in questions:
        before = cpu(pid)
        ask(url, question)
        taken.append((cpu(pid) - before) * 1e3)
    taken.sort()
    return taken[len(taken) // 2], taken[min(len(taken) - 1, math.ceil(0.95 * len(taken)) - 1)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=40)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder) / "runs"
        size = write(runs / "large", given.rollouts)
        print(f"{given.rollouts:,} rollouts, {size / 1e6:,.0f} MB")
        with server(runs) as (url, pid):
            before, began = cpu(pid), time.perf_counter()
            while not ask(url, "rollouts?run=large&limit=1")["progress"]["done"]:  # type: ignore[index]
                pass
            print(f"index made anew: {cpu(pid) - before:.2f} CPU-s, {time.perf_counter() - began:.2f} s")
        with server(runs) as (url, pid):
            for name, questions in {"first paint": PAINT, "all facets and histograms": REST}.items():
                before, began = cpu(pid), time.perf_counter()
                for question in questions:
                    ask(url, question)
                print(f"{name}: {cpu(pid) - before:.2f} CPU-s, {time.perf_counter() - began:.2f} s")
            choices = itertools.count(given.rollouts)
            for name, question in QUESTIONS.items():
                question = question.format(half=given.rollouts // 2)
                counted = question.startswith(("facet", "histogram", "reasons", "rollouts"))
                new = [f"&to.line={next(choices)}" if counted else "" for _ in range(given.repeats)]
                median, high = per_question(url, pid, [question + one for one in new])
                print(f"{name}: {median:.1f} ms, 95th percentile {high:.1f}")
            same = f"&to.line={next(choices)}"
            ask(url, QUESTIONS["facet"] + same)
            print(f"a histogram of rollouts with a facet: {per_question(url, pid, [REST[5] + same])[0]:.1f} ms")
            again = [QUESTIONS["facet"], QUESTIONS["histogram, continuous"]] * given.repeats
            print(f"a facet or histogram again: {per_question(url, pid, again)[0]:.1f} ms")
        for after in ("the start", "the overview"):
            for name in ("facet", "histogram, continuous", "why did these fail"):
                with server(runs) as (url, pid):
                    ask(url, PAINT[1])
                    if after == "the overview":
                        ask(url, "overview?run=large")
                        wait_until_idle(pid)
                    print(f"first {name} after {after}: {per_question(url, pid, [QUESTIONS[name]])[0]:.1f} ms")


if __name__ == "__main__":
    main()
