"""The curves of a training run: a PNG in its folder."""

# Many methods of matplotlib have no types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from rove.runs.metrics import panels, with_derived
from rove.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CURVES = "curves.png"
"""File name of a training run's plot."""

Rows = Sequence[Mapping[str, float]]
"""Metrics of a run, one row per step."""


def figure_of(metrics: Rows, title: str) -> Figure:
    """Return a figure with all panels of a run."""
    from matplotlib.figure import Figure  # part of the extra `train`

    rows = [with_derived(row) for row in metrics]
    charts = panels(rows)
    height = (len(charts) + 2) // 3
    figure = Figure(figsize=(15, 3.4 * height))
    axes = figure.subplots(height, 3, squeeze=False)
    for axis in axes.flat[len(charts) :]:
        axis.axis("off")
    for axis, chart in zip(axes.flat, charts, strict=False):
        for metric, label in chart["curves"].items():
            points = [(row["step"], row[metric]) for row in rows if metric in row]
            axis.plot(*zip(*points, strict=True), label=label, linewidth=1.2)
        axis.set_title(chart["title"])
        axis.grid(alpha=0.3)
        if len(chart["curves"]) > 1:
            axis.legend(fontsize=8)
    figure.suptitle(title)
    figure.tight_layout()
    return figure


def draw(run: Run) -> Path:
    """Draw the curves of a run into its folder; return the PNG."""
    path = run.path / CURVES
    figure_of(run.metrics(), str(run.path)).savefig(path, dpi=90)
    return path


def held_out_rewards(metrics: Rows) -> list[str]:
    """Return the names of the rewards in held-out evaluations."""
    names = [name for name in set(chain.from_iterable(metrics)) if name.startswith("eval/")]
    return sorted(name for name in names if name.endswith("/reward/mean"))
