"""Tables and plots say what the numbers say."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from rove.viewer.plots import panels, plot_run
from rove.viewer.tables import SPARKS, counts_line, curves_table, number, percent, sparkline, summary_table

SUMMARY = {
    "rollouts": 10,
    "scored": 8,
    "failed": 2,
    "truncated": 1,
    "reward": {"mean": 0.75, "half_width": 0.1},
    "functions": {
        "right": {"mean": 0.5, "half_width": 0.2, "weight": 1.0},
        "num_turns": {"mean": 3.25, "half_width": math.nan, "weight": 0.0},
    },
    "stops": {"answered": 8},
    "errors": {"model: InfraError": 2},
}


def rendered(thing: object) -> str:
    console = Console(width=100, record=True, file=None, quiet=True)
    with console.capture() as capture:
        console.quiet = False
        console.print(thing)
    return capture.get()


def test_summary_table_shows_every_function_with_weight_or_as_metric() -> None:
    text = rendered(summary_table(SUMMARY, "title"))
    assert "0.750" in text
    assert "right" in text
    assert "metric" in text
    assert max(len(line) for line in text.splitlines()) <= 100


def test_counts_keep_failures_apart() -> None:
    line = counts_line(SUMMARY)
    assert "8 of 10 rollouts scored" in line
    assert "2 × model: InfraError" in line
    assert "1 truncated" in line


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.integers(1, 60))
def test_sparkline_fits_and_uses_the_whole_scale(values: list[float], width: int) -> None:
    line = sparkline(values, width)
    assert 1 <= len(line) <= width
    assert set(line) <= set(SPARKS)


def test_sparkline_rises_with_the_values() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == SPARKS
    assert sparkline([]) == ""


def test_numbers_for_people() -> None:
    assert [percent(0.123), percent(None), percent(math.nan)] == ["12.3", "–", "–"]
    assert [number(0), number(0.12345), number(math.nan)] == ["0", "0.123", "–"]


METRICS = [
    {"step": i, "reward/mean": i / 10, "reward/win": 0.5, "entropy/all/mean": 1.0 / (i + 1)} for i in range(1, 6)
]


def test_curves_table_leaves_out_what_was_not_measured() -> None:
    text = rendered(curves_table(METRICS, ["reward/mean", "nothing"], "RL"))
    assert "reward/mean" in text
    assert "nothing" not in text


def test_plot_has_a_panel_per_measured_group(tmp_path: Path) -> None:
    assert [title for title, _ in panels(METRICS)] == ["reward", "reward functions", "entropy/all/mean"]
    file = plot_run(METRICS, tmp_path / "curves.png", "run")
    assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("metrics", [METRICS[:1]])
def test_one_step_is_enough_for_a_plot(tmp_path: Path, metrics: list[dict[str, float]]) -> None:
    assert plot_run(metrics, tmp_path / "c.png", "run").exists()
