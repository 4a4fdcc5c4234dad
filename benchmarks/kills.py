"""A kill harness: `kill -9` at random instants of evaluation runs; what is there in the end must be what is there without.

    python benchmarks/kills.py [--kills 200] [--examples 400]

An evaluation by a seeded scripted player is started, killed at a random instant and started again, until it comes to its end;
then the next one begins, until there have been so many kills. After each run its rollouts must be those of a run that nobody
disturbed: none missing, none twice, every reward and every word the same. Some of the kills hit the start, some the end.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rove.runs import Run


def command(folder: Path, examples: int) -> list[str]:
    """One evaluation in this run folder."""
    words = ["eval", "tictactoe", "-m", "scripted:teacher", "-n", str(examples), "-r", "2", "--run-dir", str(folder)]
    return [sys.executable, "-m", "rove.cli.main", *words, "--json"]


def results(folder: Path) -> dict[tuple[str, int], Any]:
    """What a run came to; refuses a rollout that is there twice."""
    found: dict[tuple[str, int], Any] = {}
    for record in Run(folder).rollouts():
        place = record.example_key, record.rollout_index
        if place in found:
            sys.exit(f"{place} is there twice")
        found[place] = (record.scores, record.completion, record.stop_condition, record.seed, record.error)
    return found


def main() -> None:
    """Kill and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--examples", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    instants = random.Random(given.seed)
    kills = runs = torn = 0
    with tempfile.TemporaryDirectory() as place:
        began = time.perf_counter()
        subprocess.run(command(Path(place, "calm"), given.examples), check=True, capture_output=True)
        takes = time.perf_counter() - began
        calm = results(Path(place, "calm"))
        print(
            f"an undisturbed run: {len(calm)} rollouts in {takes:.2f} s; kills come between 0 and {1.2 * takes:.2f} s"
        )
        while kills < given.kills:
            runs += 1
            folder = Path(place, f"run{runs}")
            while True:
                process = subprocess.Popen(
                    command(folder, given.examples), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
                )
                try:
                    status = process.wait(instants.uniform(0.0, 1.2 * takes))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                    kills += 1
                    file = folder / "rollouts.jsonl"
                    torn += file.exists() and not (b"\n" + file.read_bytes()).endswith(b"\n")
                    continue
                if status:
                    assert process.stderr is not None
                    sys.exit(f"a run failed after {kills} kills: {process.stderr.read().decode()}")
                break
            if results(folder) != calm:
                sys.exit(f"run {runs}: its results differ from the undisturbed run's")
    print(f"{kills} kills over {runs} runs, {torn} lines torn; every run ended with the results of the undisturbed one")


if __name__ == "__main__":
    main()
