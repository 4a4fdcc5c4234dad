"""Compare the estimates that `rove train` made before complete runs of the learning suite with what these runs took.

    python benchmarks/learning/suite.py --seeds 0        # first: the runs
    python benchmarks/learning/estimates.py --seeds 0
    python benchmarks/learning/estimates.py --strangers    # the runs of suite.py --strangers

The estimated time is that of the steps that the run took, not of the maximum number of steps. A second start counts with the
steps of both starts.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from pathlib import Path

from rich.console import Console
from rich.table import Table
from suite import ENVIRONMENTS, RUNS, STRANGERS, is_complete


def took_one_session(folder: Path) -> bool:
    """Return whether a run was completed in one session, whose log then has its whole time."""
    return is_complete(folder) and len((folder / "cpu_seconds.txt").read_text().split()) == 1


def steps_of(stage: Path) -> int:
    """Return the number of steps that a stage took, whether or not it was completed."""
    if not (stage / "metrics.jsonl").exists():
        return 0
    return sum(json.loads(line)["step"] > 0 for line in (stage / "metrics.jsonl").read_text().splitlines())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=[*ENVIRONMENTS, *STRANGERS])
    parser.add_argument("--strangers", action="store_true", help="the environments in strangers instead of the suite")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    args = parser.parse_args()
    names = args.only or (STRANGERS if args.strangers else list(ENVIRONMENTS))
    table = Table("environment", "seed", "CPU-min", "minutes", "estimate", "ratio", "GB", "estimate", "ratio")
    ratios: list[list[float]] = [[], []]
    for env in names:
        runs = [(seed, RUNS / f"{env}-{seed}") for seed in args.seeds if took_one_session(RUNS / f"{env}-{seed}")]
        for seed, folder in runs:
            estimate = json.loads((folder / "estimate.json").read_text())  # see `rove.doctor.estimate.Estimate`
            text = (folder / "log.txt").read_text()
            wall, cpu, gigabytes = re.findall(r"took (\S+) minutes, (\S+) CPU-minutes, at most (\S+) GB", text)[-1]
            sft, rl = steps_of(folder / "sft"), steps_of(folder / "rl1")
            if (folder / "first_start").exists():
                sft += steps_of(folder / "first_start" / "sft")
            parts = [
                estimate["data"],
                sft * estimate["sft_step"],
                estimate["initial"],
                rl * estimate["rl_step"],
                estimate["table"],
            ]
            minutes, memory = sum(parts) / 60, estimate["memory"] / 1e9
            row = [(float(wall), minutes), (float(gigabytes), memory)]
            cells = [f"{measured:.1f}|{guess:.1f}|{guess / measured:.2f}" for measured, guess in row]
            table.add_row(env, str(seed), cpu, *"|".join(cells).split("|"))
            for values, (measured, guess) in zip(ratios, row, strict=True):
                values.append(guess / measured)
    console = Console(width=110)
    console.print(table)
    for name, values in zip(("time", "memory"), ratios, strict=True):
        inside = sum(1 / 1.5 <= ratio <= 1.5 for ratio in values)
        console.print(f"{name}: {inside} of {len(values)} within 1.5; median ratio {statistics.median(values):.2f}")


if __name__ == "__main__":
    main()
