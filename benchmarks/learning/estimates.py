"""Is the estimate of `rove train --dry-run` right? Compares it with complete runs of the learning suite.

    python benchmarks/learning/suite.py --seeds 0        # first: the runs
    python benchmarks/learning/estimates.py --seeds 0    # about 10 CPU-seconds for each environment

The estimated time is that of the steps that the run took, not of the maximum number of steps.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys

from rich.console import Console
from rich.table import Table
from suite import ENVIRONMENTS, HERE, RUNS

NUMBERS = (r"SFT (\S+) (\w+) per step, at most ([\d,]+) steps; RL (\S+) (\w+) per step, at most ([\d,]+) steps; "
           r"(\S+) (\w+) in all .*; (\S+) GB of memory")  # fmt: skip
SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}


def estimate(env: str) -> tuple[list[float], list[int], float, float]:
    """Return seconds per step and maximum number of steps of SFT and RL, seconds of the other parts, and gigabytes."""
    folder = RUNS / f"{env}-estimate"
    shutil.rmtree(folder, ignore_errors=True)
    words = [env, "--env-dir", str(HERE / "environments"), "-a", json.dumps(ENVIRONMENTS[env]), "--dry-run"]
    command = [sys.executable, "-m", "rove", "train", *words, "--run-dir", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    found = re.search(NUMBERS, (folder / "recipe.toml").read_text())
    assert found is not None
    part = found.groups()
    seconds = [float(part[0]) * SECONDS[part[1]], float(part[3]) * SECONDS[part[4]]]
    steps = [int(part[2].replace(",", "")), int(part[5].replace(",", ""))]
    rest = float(part[6]) * SECONDS[part[7]] - seconds[0] * steps[0] - seconds[1] * steps[1]
    return seconds, steps, max(0.0, rest), float(part[8])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=ENVIRONMENTS, default=list(ENVIRONMENTS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    args = parser.parse_args()
    table = Table("environment", "seed", "minutes", "estimate", "ratio", "GB", "estimate", "ratio")
    ratios: list[list[float]] = [[], []]
    for env in args.only:
        runs = [(seed, RUNS / f"{env}-{seed}") for seed in args.seeds if (RUNS / f"{env}-{seed}/results.json").exists()]
        per_step, _, rest, memory = estimate(env) if runs else ([], [], 0.0, 0.0)
        for seed, folder in runs:
            took = re.findall(r"took (\S+) minutes, .* at most (\S+) GB", (folder / "log.txt").read_text())[-1]
            steps = [json.loads((folder / stage / "summary.json").read_text())["steps"] for stage in ("sft", "rl1")]
            minutes = (rest + sum(one * count for one, count in zip(per_step, steps, strict=True))) / 60
            row = [(float(took[0]), minutes), (float(took[1]), memory)]
            cells = [f"{measured:.1f}|{made:.1f}|{made / measured:.2f}" for measured, made in row]
            table.add_row(env, str(seed), *"|".join(cells).split("|"))
            for values, (measured, made) in zip(ratios, row, strict=True):
                values.append(made / measured)
    console = Console(width=110)
    console.print(table)
    for name, values in zip(("time", "memory"), ratios, strict=True):
        inside = sum(1 / 1.5 <= one <= 1.5 for one in values)
        console.print(f"{name}: {inside} of {len(values)} within 1.5; median ratio {statistics.median(values):.2f}")


if __name__ == "__main__":
    main()
