"""A kill harness: `kill -9` at random instants of runs; what is there in the end must be what is there without.

    python benchmarks/kills.py [--what eval,rl,sft] [--kills 200] [--examples 400]

A run is started, killed at a random instant and started again, until it comes to its end; then the next one begins, until there
have been so many kills. Some of them hit the start, some the end; a run that was killed often is given more time, or a machine
that has become slower would never see its end. Printed is also how many kills hit a run that had begun its work in that session
or earlier. "eval" is an evaluation by a seeded scripted policy: after
each run its rollouts must be those of a run that nobody disturbed, none missing, none twice, every reward and every word the
same. "rl" and "sft" train a tiny model: after each run every weight must be the same to the bit.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rove.runs.run import Run


class Setting(NamedTuple):
    """What is run, and what must come out the same."""

    words: list[str]
    """Arguments of rove, but for the run folder."""
    results: Callable[[Path], Any]


def settings(what: str, place: Path, examples: int) -> Setting:
    """The setting of this name; a model to train is made in `place`."""
    if what == "eval":
        return Setting(["eval", "tictactoe", "-m", "scripted:teacher", "-n", str(examples), "-r", "2"], rollouts)
    model = place / "model"
    rove("model", "new", "--env", "tictactoe", "-o", str(model))
    few = ["--micro_batch_tokens", "1024", "--threads", "1"]
    if what == "rl":
        shape = ["--steps", "12", "--batch-size", "16", "-r", "4", "-t", "12", "--learning-rate", "1e-3"]
        shape += ["--checkpoint_every", "2"]
        return Setting(["rl", "tictactoe", "-m", str(model), *shape, *few], weights)
    data = place / "data"
    rove("eval", "tictactoe", "-m", "scripted:teacher", "-n", "60", "-r", "1", "--run-dir", str(data))
    shape = ["--data", str(data), "--epochs", "3", "--batch-size", "8"]
    shape += ["--validate_every", "2"]  # and a checkpoint each time
    return Setting(["sft", "-m", str(model), *shape, *few], weights)


def rove(*words: str) -> None:
    """Run a command to its end."""
    done = subprocess.run(command(list(words)), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"rove {' '.join(words)} failed:\n{done.stderr}")


def command(words: list[str]) -> list[str]:
    """Rove in a process of its own."""
    return [sys.executable, "-m", "rove.cli.main", *words]


def weights(folder: Path) -> str:
    """A digest of the final model."""
    return hashlib.sha256((folder / "final" / "model.safetensors").read_bytes()).hexdigest()


def rollouts(folder: Path) -> dict[tuple[str, int], Any]:
    """What a run came to; refuses a rollout that is there twice."""
    found: dict[tuple[str, int], Any] = {}
    for record in Run(folder).rollouts():
        place = record.example_key, record.rollout_index
        if place in found:
            sys.exit(f"{place} is there twice")
        found[place] = (record.scores, record.completion, record.stop_condition, record.seed, record.error)
    return found


def has_begun(folder: Path) -> bool:
    """Whether a run has kept anything yet."""
    return any((folder / name).exists() for name in ("rollouts.jsonl", "metrics.jsonl"))


def harass(what: str, setting: Setting, place: Path, most: int, instants: random.Random) -> None:
    """Kill and compare, and print a line."""

    def started(folder: Path) -> list[str]:
        return command([*setting.words, "--run-dir", str(folder), "--json"])

    began = time.perf_counter()
    subprocess.run(started(place / "calm"), check=True, capture_output=True)
    takes = time.perf_counter() - began
    calm = setting.results(place / "calm")
    print(f"{what}: an undisturbed run takes {takes:.2f} s; kills come between 0 and {1.2 * takes:.2f} s", flush=True)
    kills = late = runs = 0
    while kills < most:
        runs += 1
        folder, before = place / f"run{runs}", kills
        while True:
            most_seconds = 1.2 * takes * (1 + (kills - before) / 10)
            process = subprocess.Popen(started(folder), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            try:
                status = process.wait(instants.uniform(0.0, most_seconds))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
                late += has_begun(folder)
                continue
            if status:
                assert process.stderr is not None
                sys.exit(f"a run failed after {kills} kills: {process.stderr.read().decode()}")
            break
        if setting.results(folder) != calm:
            sys.exit(f"{what}, run {runs}: its results differ from the undisturbed run's")
        print(
            f"{what}, run {runs}: the same; {kills} kills so far, {late} of them after its work had begun", flush=True
        )
    print(
        f"{what}: {kills} kills over {runs} runs; every run ended with the results of the undisturbed one", flush=True
    )


def main() -> None:
    """Kill and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", default="eval")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--examples", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for what in given.what.split(","):
        with tempfile.TemporaryDirectory() as place:
            setting = settings(what, Path(place), given.examples)
            harass(what, setting, Path(place), given.kills, random.Random(given.seed))


if __name__ == "__main__":
    main()
