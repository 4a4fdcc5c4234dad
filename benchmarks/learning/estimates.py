"""Compare the estimates that `rove train` made before complete runs of the learning suite with what these runs took.

    python benchmarks/learning/suite.py --seeds 0        # first: the runs
    python benchmarks/learning/estimates.py --seeds 0

The estimated time is that of the steps that the run took, not of the maximum number of steps.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from pathlib import Path

from rich.console import Console
from rich.table import Table
from suite import ENVIRONMENTS, RUNS


def is_complete(folder: Path) -> bool:
    """Return whether a run was completed in one session, whose log then has its whole time."""
    results, sessions = folder / "results.json", folder / "cpu_seconds.txt"
    return results.exists() and len(sessions.read_text().split()) == 1


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=ENVIRONMENTS, default=list(ENVIRONMENTS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    args = parser.parse_args()
    table = Table("environment", "seed", "minutes", "estimate", "ratio", "GB", "estimate", "ratio")
    ratios: list[list[float]] = [[], []]
    for env in args.only:
        runs = [(seed, RUNS / f"{env}-{seed}") for seed in args.seeds if is_complete(RUNS / f"{env}-{seed}")]
        for seed, folder in runs:
            made = json.loads((folder / "estimate.json").read_text())  # see `rove.doctor.estimate.Estimate`
            took = re.findall(r"took (\S+) minutes, .* at most (\S+) GB", (folder / "log.txt").read_text())[-1]
            sft, rl = (json.loads((folder / stage / "summary.json").read_text())["steps"] for stage in ("sft", "rl1"))
            parts = [made["data"], sft * made["sft_step"], made["initial"], rl * made["rl_step"], made["table"]]
            minutes, memory = sum(parts) / 60, made["memory"] / 1e9
            row = [(float(took[0]), minutes), (float(took[1]), memory)]
            cells = [f"{measured:.1f}|{guess:.1f}|{guess / measured:.2f}" for measured, guess in row]
            table.add_row(env, str(seed), *"|".join(cells).split("|"))
            for values, (measured, guess) in zip(ratios, row, strict=True):
                values.append(guess / measured)
    console = Console(width=110)
    console.print(table)
    for name, values in zip(("time", "memory"), ratios, strict=True):
        inside = sum(1 / 1.5 <= one <= 1.5 for one in values)
        console.print(f"{name}: {inside} of {len(values)} within 1.5; median ratio {statistics.median(values):.2f}")


if __name__ == "__main__":
    main()
