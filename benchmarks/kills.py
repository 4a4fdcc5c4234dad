"""Test that runs survive `kill -9` at random times: a run that was killed and resumed must end with the same results.

    python benchmarks/kills.py [--what eval,rl,sft] [--kills 200] [--examples 400]

The script starts a run, kills it at a random time and resumes it until it finishes, then starts the next run, until the number
of kills is reached. The kills can hit any part of a run, including its start and its end. The time limit grows with the number
of kills of a run, so that runs finish even if the machine becomes slower. The script also prints how many kills hit a run that
had already written results.

- "eval" is an evaluation of a seeded scripted policy. The rollouts of each run must equal those of an uninterrupted run: none
  missing, none duplicated, with the same rewards and messages.
- "rl" and "sft" train a tiny model. The weights must be bitwise equal to those of an uninterrupted run.
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

from rove import Run


class Setting(NamedTuple):
    """A command, and its results that must not change."""

    arguments: list[str]
    """Arguments of rove without the run folder."""
    results: Callable[[Path], Any]
    """Returns the results in a run folder."""


def settings(what: str, folder: Path, examples: int) -> Setting:
    """Return the setting "eval", "rl" or "sft"; the inputs of training are created in `folder`."""
    if what == "eval":
        return Setting(["eval", "tictactoe", "-m", "scripted:teacher", "-n", str(examples), "-r", "2"], rollouts)
    model = folder / "model"
    run_rove("model", "new", "--env", "tictactoe", "-o", str(model))
    common = ["--micro_batch_tokens", "1024", "--threads", "1"]
    if what == "rl":
        shape = ["--steps", "12", "--batch-size", "16", "-r", "4", "-t", "12", "--learning-rate", "1e-3"]
        shape += ["--checkpoint_every", "2"]
        return Setting(["rl", "tictactoe", "-m", str(model), *shape, *common], weights)
    data = folder / "data"
    run_rove("eval", "tictactoe", "-m", "scripted:teacher", "-n", "60", "-r", "1", "--run-dir", str(data))
    shape = ["--data", str(data), "--epochs", "3", "--batch-size", "8"]
    shape += ["--validate_every", "2"]  # also saves a checkpoint each time
    return Setting(["sft", "-m", str(model), *shape, *common], weights)


def run_rove(*arguments: str) -> None:
    """Run a rove command; exit with a message if it fails."""
    done = subprocess.run(rove_command(list(arguments)), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"rove {' '.join(arguments)} failed:\n{done.stderr}")


def rove_command(arguments: list[str]) -> list[str]:
    """Return the command line of rove with these arguments."""
    return [sys.executable, "-m", "rove.cli.main", *arguments]


def weights(folder: Path) -> str:
    """Return the SHA-256 digest of the final weights."""
    return hashlib.sha256((folder / "final" / "model.safetensors").read_bytes()).hexdigest()


def rollouts(folder: Path) -> dict[tuple[str, int], Any]:
    """Return the results of a run by (example key, rollout index); exit with a message if a rollout is duplicated."""
    results: dict[tuple[str, int], Any] = {}
    for record in Run(folder).rollouts():
        key = record.example_key, record.rollout_index
        if key in results:
            sys.exit(f"rollout {key} is duplicated in {folder}")
        results[key] = (record.scores, record.completion, record.stop_condition, record.seed, record.error)
    return results


def has_results(folder: Path) -> bool:
    """Return whether a run has written rollouts or metrics."""
    return any((folder / name).exists() for name in ("rollouts.jsonl", "metrics.jsonl"))


def kill_runs(what: str, setting: Setting, parent: Path, max_kills: int, rng: random.Random) -> None:
    """Kill and resume runs until `max_kills` is reached, and compare their results with those of an uninterrupted run.

    Exit with a message if a run fails or its results differ.

    Args:
        what: Name of the setting, for messages.
        setting: The command to run.
        parent: Folder in which run folders are created.
        max_kills: Number of kills after which no new run is started.
        rng: Source of the times of the kills.
    """

    def command(folder: Path) -> list[str]:
        return rove_command([*setting.arguments, "--run-dir", str(folder), "--json"])

    start = time.perf_counter()
    subprocess.run(command(parent / "uninterrupted"), check=True, capture_output=True)
    seconds = time.perf_counter() - start
    expected = setting.results(parent / "uninterrupted")
    print(f"{what}: an uninterrupted run takes {seconds:.2f} s; kills after 0 to {1.2 * seconds:.2f} s", flush=True)
    kills = late = runs = 0
    while kills < max_kills:
        runs += 1
        folder, before = parent / f"run{runs}", kills
        while True:
            max_seconds = 1.2 * seconds * (1 + (kills - before) / 10)
            process = subprocess.Popen(command(folder), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            try:
                status = process.wait(rng.uniform(0.0, max_seconds))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
                late += has_results(folder)
                continue
            if status:
                assert process.stderr is not None
                sys.exit(f"a run failed after {kills} kills: {process.stderr.read().decode()}")
            break
        if setting.results(folder) != expected:
            sys.exit(f"{what}, run {runs}: the results differ from those of the uninterrupted run")
        print(
            f"{what}, run {runs}: same results; {kills} kills so far, {late} of them after results had been written",
            flush=True,
        )
    print(
        f"{what}: {kills} kills in {runs} runs; every run ended with the results of the uninterrupted run", flush=True
    )


def main() -> None:
    """Run the test for each setting of --what."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", default="eval")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--examples", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for what in args.what.split(","):
        with tempfile.TemporaryDirectory() as folder:
            setting = settings(what, Path(folder), args.examples)
            kill_runs(what, setting, Path(folder), args.kills, random.Random(args.seed))


if __name__ == "__main__":
    main()
