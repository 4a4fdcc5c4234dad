"""Results of the stages, as functions return them and notebooks show them."""

# Many methods of matplotlib have no types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.table import Table

from rove.runs.metrics import panels, with_derived
from rove.runs.run import Run
from rove.stages.tables import curves_table
from rove.utils.notebook import ShownAsText, data_frame, image

if TYPE_CHECKING:
    from pandas import DataFrame  # pyright: ignore[reportMissingTypeStubs]

    from rove.utils.figure import NotebookFigure


class BestStep(msgspec.Struct, frozen=True):
    """The measurement by which the weights were selected."""

    metric: str
    """The metric `keep_best`."""
    value: float
    step: int


class Ending(msgspec.Struct, frozen=True):
    """The part of a training run's summary that says how the run ended."""

    steps: int = 0
    best: BestStep | None = None
    stopped: str | None = None


@dataclass(frozen=True)
class TrainingResult(ShownAsText):
    """The result of `rove.sft` or `rove.rl`.

    Example:
        >>> result = rove.rl("runs/sft/final", "tictactoe", steps=100)
        >>> result.model  # the folder of the trained model
        >>> result.plot().savefig("curves.png")
    """

    model: Path
    """Folder of the trained model or adapter: the last weights, or the best weights by `keep_best`."""
    run: Run
    """The run folder."""

    @property
    def kind(self) -> str:
        """The stage: "sft" or "rl"."""
        return str(self.run.config()["kind"])

    @property
    def metrics(self) -> list[dict[str, float]]:
        """One row of metrics per step; `step` counts from 1."""
        return self.run.metrics()

    @property
    def ending(self) -> Ending:
        """How the run ended."""
        return read_ending(self.run)

    @property
    def best(self) -> BestStep | None:
        """The measurement that selected the weights; None if the last weights were kept."""
        return self.ending.best

    @property
    def stopped(self) -> str | None:
        """Reason why training ended before its last step; None if it did not."""
        return self.ending.stopped

    @property
    def table(self) -> Table:
        """A table of the most important metrics, with their first and last values and their curves."""
        config = self.run.config()["config"]
        title = f"RL in {config.get('env', 'an environment')}" if self.kind == "rl" else "SFT"
        return curves_table(self.metrics, title)

    def __str__(self) -> str:
        """Return the table, and how the run ended."""
        return "\n".join([str(self.table).rstrip("\n"), *ending_lines(self.run), f"model: {self.model}"])

    def to_pandas(self) -> DataFrame:
        """Return the metrics as a `pandas.DataFrame` with one row per step.

        Raises:
            ConfigError: pandas is not installed.
        """
        return data_frame(self.metrics)

    def plot(self) -> NotebookFigure:
        """Return a matplotlib figure with the curves of the run."""
        return figure_of(self.metrics, str(self.run.path))

    def _repr_html_(self) -> str:
        """Show the curves as an image in notebooks."""
        return image(self.plot())


def read_ending(run: Run) -> Ending:
    """Return how a training run ended, from its summary."""
    return msgspec.convert(run.summary() or {}, Ending, strict=False)


def ending_lines(run: Run) -> list[str]:
    """Return a line about the best evaluation of a training run and, if the run ended early, a line about the reason."""
    ending = read_ending(run)
    lines: list[str] = []
    if ending.best is not None:
        best, folder = ending.best, run.path / "checkpoints" / "best"
        text = f"best {best.metric}: {best.value:.4f} at step {best.step}, kept in {folder}"
        if sum(best.metric in row for row in run.metrics()) > 1:
            text += " (chosen as the best of several measurements, so it is better than on new examples)"
        lines.append(text)
    if ending.stopped is not None:
        lines.append(f"stopped after step {ending.steps}: {ending.stopped}")
    return lines


CURVES = "curves.png"
"""File name of a training run's plot."""

Rows = Sequence[Mapping[str, float]]
"""Metrics of a run, one row per step."""


def figure_of(metrics: Rows, title: str) -> NotebookFigure:
    """Return a figure with all panels of a run."""
    from rove.utils.figure import NotebookFigure  # matplotlib is part of the extra `train`

    rows = [with_derived(row) for row in metrics]
    charts = panels(rows)
    height = (len(charts) + 2) // 3
    figure = NotebookFigure(figsize=(15, 3.4 * height))
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
