"""Plot the mean reward per step of training runs, side by side in one image.

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
    """Draw one panel per run and save the image."""
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    figure, axes = plt.subplots(1, len(args.runs), figsize=(4.2 * len(args.runs), 2.6), squeeze=False)
    for run, axis in zip(args.runs, axes[0], strict=True):
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        rewards = [line["reward/mean"] for line in lines if "reward/mean" in line]
        axis.plot(range(1, len(rewards) + 1), rewards)
        axis.set(title=run.name, xlabel="step", ylabel="reward", ylim=(0, 1))
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(args.output, dpi=90)


if __name__ == "__main__":
    main()
