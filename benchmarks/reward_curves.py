"""The reward of training runs, step by step, side by side as one small picture.

python benchmarks/reward_curves.py runs/lake-rl runs/sums-rl -o docs/integrations_rl.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt


def main() -> None:
    """Draw them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    figure, places = plt.subplots(1, len(given.runs), figsize=(4.2 * len(given.runs), 2.6), squeeze=False)
    for run, place in zip(given.runs, places[0], strict=True):
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        rewards = [line["reward/mean"] for line in lines if "reward/mean" in line]
        place.plot(range(1, len(rewards) + 1), rewards)
        place.set(title=run.name, xlabel="step", ylabel="reward", ylim=(0, 1))
        place.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(given.output, dpi=90)


if __name__ == "__main__":
    main()
