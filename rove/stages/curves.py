"""The curves of a training run: a PNG of panels in its folder, and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rove.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CURVES = "curves.png"
"""File name of a training run's plot."""

Rows = Sequence[Mapping[str, float]]
"""Metrics of a run, one row per step."""


def panels(metrics: Rows) -> list[tuple[str, list[str]]]:
    """Return the panels: (title, metric names), only metrics that the run has."""
    names = {name for row in metrics for name in row}
    groups = [
        ("reward", ["reward/mean"]),
        ("held-out reward", held_out_rewards(metrics)),
        (
            "reward functions",
            sorted(n for n in names if n.startswith("reward/") and n not in ("reward/mean", "reward/invalid_move")),
        ),
        ("metrics", sorted(n for n in names if n.startswith("metrics/") and n != "metrics/num_turns")),
        ("invalid moves", ["reward/invalid_move"]),
        ("lengths (tokens, turns)", ["length/mean", "metrics/num_turns"]),
        ("entropy/all/mean", ["entropy/all/mean"]),
        ("importance ratio", ["ratio/mean", "ratio/max"]),
        ("gradient norm", ["optim/grad_norm"]),
        ("zero-advantage groups", ["groups/zero_spread"]),
        ("loss", ["loss", "validation_loss"]),
        ("seconds per step", ["time/sampling", "time/training", "time/step"]),
    ]
    return [(title, [n for n in wanted if n in names]) for title, wanted in groups if any(n in names for n in wanted)]


def _label(metric: str) -> str:
    return (
        metric.removeprefix("eval/").removesuffix("/reward/mean") if metric[:5] == "eval/" else metric.split("/", 1)[-1]
    )


def figure_of(metrics: Rows, title: str) -> Figure:
    """Return a figure with all panels of a run."""
    from matplotlib.figure import Figure  # part of the extra `train`

    chosen = panels(metrics)
    rows = (len(chosen) + 2) // 3
    figure = Figure(figsize=(15, 3.4 * rows))
    axes = figure.subplots(rows, 3, squeeze=False)
    for axis in axes.flat[len(chosen) :]:
        axis.axis("off")
    for axis, (name, wanted) in zip(axes.flat, chosen, strict=False):
        for metric in wanted:
            points = [(row["step"], row[metric]) for row in metrics if metric in row]
            axis.plot(*zip(*points, strict=True), label=_label(metric), linewidth=1.2)
        axis.set_title(name)
        axis.grid(alpha=0.3)
        if len(wanted) > 1:
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
    names = {name for row in metrics for name in row}
    return sorted(name for name in names if name.startswith("eval/") and name.endswith("/reward/mean"))


def table_metrics(metrics: Rows, kind: str) -> list[str]:
    """Return the metrics that the table of a training run shows; `kind` is "sft" or "rl"."""
    if kind == "sft":
        return ["loss", "validation_loss", *held_out_rewards(metrics), "entropy/all/mean", "optim/grad_norm"]
    names = {name for row in metrics for name in row}
    rewards = sorted((n for n in names if n.startswith("reward/")), key=lambda name: (name != "reward/mean", name))
    others = ["length/mean", "entropy/all/mean", "ratio/mean", "ratio/max", "optim/grad_norm", "groups/zero_spread"]
    return [*rewards, *held_out_rewards(metrics), *others]
