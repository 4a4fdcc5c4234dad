"""Curves of a training run as a PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure


def panels(metrics: Sequence[Mapping[str, float]]) -> list[tuple[str, list[str]]]:
    """Return the panels: (title, metric names), only metrics that the run has."""
    names = {name for row in metrics for name in row}
    groups = [
        ("reward", ["reward/mean"]),
        ("held-out reward", sorted(n for n in names if n.startswith("eval/") and n.endswith("/reward/mean"))),
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


def plot_run(metrics: Sequence[Mapping[str, float]], path: Path, title: str) -> Path:
    """Draw all panels of a run and write the PNG."""
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
    figure.savefig(path, dpi=90)
    return path
