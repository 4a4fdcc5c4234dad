"""Does a new model of 0.5M parameters show in a few minutes how much SmolLM2-135M learns in an environment?

    python benchmarks/learning/forecast.py            # ten environments: a run with each model
    python benchmarks/learning/forecast.py --table    # only the table of complete runs

A model has learned by the share of the way from the weakest to the best scripted policy (T = 1, held-out examples). The order of
the environments by this share is compared between the models: Spearman's rank correlation, with a 95% interval by resampling
the environments. The large model gets ten minutes of wall time: run nothing else on its cores (`taskset -c 0 python …`).
Some environments need more for the smallest recipe; they are left out of the table.
Repeat the command to continue a stopped run.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from suite import RUNS, read, train

ENVIRONMENTS = {
    "reverse_text": 0,
    "letter_count": 0,
    "modular": 0,
    "mastermind": 0,
    "frozen_lake": 0,
    "nim": 0,
    "facts": 0,
    "color_mix": 2,
    "word_endings": 2,
    "seat_order": 2,
}
"""Environments and the seed of both models' runs: runs of the suite with this seed are used if they are complete."""
LARGE = ("-m", "smollm2-135m", "--minutes", "10")
LARGE_RUNS = Path("runs") / "forecast"
RESAMPLES = 10_000


def ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value; equal values have their mean rank."""
    return [sum(b < a for b in values) + sum(b == a for b in values) / 2 for a in values]


def spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return the rank correlation; None if all values of a side are equal."""
    small, large = (ranks(side) for side in zip(*pairs, strict=True))
    if len(set(small)) == 1 or len(set(large)) == 1:
        return None
    return statistics.correlation(small, large)


def interval(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the 95% interval of the rank correlation, from resampled pairs."""
    rng = random.Random(0)
    drawn = (spearman(rng.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    values = sorted(value for value in drawn if value is not None)
    return values[round(0.025 * len(values))], values[round(0.975 * len(values)) - 1]


def main() -> None:
    """Run both models in every environment, and print the table and the correlation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(ENVIRONMENTS), default=list(ENVIRONMENTS))
    parser.add_argument("--table", action="store_true", help="only print the table")
    args = parser.parse_args()
    console = Console(width=110)
    table = Table(
        "environment", "new model: SFT", "RL", "share", "CPU-min", "SmolLM2-135M: SFT", "RL", "share", "CPU-min"
    )
    pairs: list[tuple[float, float]] = []
    for env in args.only:
        seed = ENVIRONMENTS[env]
        runs = [(RUNS / f"{env}-{seed}", ()), (LARGE_RUNS / f"{env}-{seed}", LARGE)]
        if not args.table:
            for folder, options in runs:
                console.print(f"{env}, {folder}")
                train(env, seed, folder, options)
        small, large = (read(folder) for folder, _ in runs)
        if small is None or large is None:
            continue
        cells: list[str] = []
        shares: list[float] = []
        for result in (small, large):
            weakest, best = result["weakest"].mean, result["best"].mean
            shares.append((result["RL"].mean - weakest) / (best - weakest))
            cells += [str(result["SFT"]), str(result["RL"]), f"{shares[-1]:.2f}", f"{result['cpu']:.1f}"]
        pairs.append((shares[0], shares[1]))
        table.add_row(env, *cells)
    console.print(table)
    correlation = spearman(pairs) if len(pairs) > 2 else None
    if correlation is not None:
        low, high = interval(pairs)
        console.print(
            f"Spearman's rank correlation: {correlation:.2f} [{low:.2f}, {high:.2f}], {len(pairs)} environments"
        )


if __name__ == "__main__":
    main()
