"""The picture of the tutorial on reward holes: docs/reward_hole-light.svg and -dark.svg.

`rove demo hacking`, then `python docs/site/reward_hole.py runs/demo-hacking-seed0` writes them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "rove", "font.family": "sans-serif"}
from learning_curve import ROOT, THEMES  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

WINDOW = 5
"""Steps of which a point is the mean."""
PANELS = {"anywhere": "accepts the sum anywhere in the reply", "exact": "accepts the sum and nothing else"}
CURVES = {"reward/mean": ("reward", "win", "-"), "metrics/matches_answer": ("right answers", "draw", "--")}


def curve(run: Path, key: str) -> list[float]:
    """Return the means of a metric over `WINDOW` steps."""
    rows = [json.loads(line)[key] for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [sum(rows[i : i + WINDOW]) / WINDOW for i in range(len(rows) - WINDOW + 1)]


def main(folder: Path) -> None:
    """Write both pictures from the runs of the demo."""
    for name, theme in THEMES.items():
        figure = Figure(figsize=(9.6, 3.2), facecolor=theme["ground"], layout="constrained")
        for axes, (grader, meaning) in zip(figure.subplots(1, 2, sharey=True), PANELS.items(), strict=True):
            axes.set_facecolor(theme["ground"])
            axes.set_title(f"{grader}: {meaning}", color=theme["text"], fontsize=11)
            for key, (label, color, dash) in CURVES.items():
                points = curve(folder / grader / "rl", key)
                axes.plot(range(WINDOW, WINDOW + len(points)), points, dash, color=theme[color], lw=2, label=label)
            axes.set_xlabel("step of RL", color=theme["faint"])
            axes.set_ylim(bottom=0)
            axes.grid(color=theme["grid"])
            axes.tick_params(colors=theme["faint"])
            for spine in axes.spines.values():
                spine.set_visible(False)
            axes.legend(frameon=False, labelcolor=theme["text"], loc="upper left")
        figure.savefig(ROOT / f"docs/reward_hole-{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
