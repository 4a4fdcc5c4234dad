"""Test the tables, summaries and plots of the command line."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rove.core.records import Outcome, Scores, Timing, Usage
from rove.stages.results import figure_of
from rove.stages.tables import counts_line, curves_table, movers_table
from rove.statistics import Comparison, Difference, Mover, Price, Tally
from rove.statistics.compare import comparison_table
from rove.statistics.format import SPARKS, folded, limits, number, percent, signed, sparkline
from rove.statistics.result import summary_table
from rove.utils.console import SafeConsole

SUMMARY = {
    "rollouts": 10,
    "scored": 8,
    "failed": 2,
    "truncated": 1,
    "reward": {"mean": 0.75, "low": 0.65, "high": 0.85},
    "functions": {
        "right": {"mean": 0.5, "low": 0.3, "high": 0.7, "weight": 1.0},
        "num_turns": {"mean": 3.25, "low": math.nan, "high": math.nan, "weight": 0.0},
    },
    "stops": {"answered": 8},
    "errors": {"model: InfraError": 2},
}


def rendered(thing: object, width: int = 100) -> str:
    console = SafeConsole(width=width, record=True, file=None, quiet=True)
    with console.capture() as capture:
        console.quiet = False
        console.print(thing)
    return capture.get()


def test_the_summary_table_shows_all_reward_functions_and_metrics() -> None:
    text = rendered(summary_table(SUMMARY, "title"))
    assert "0.750" in text
    assert "right" in text
    assert "metric" in text
    assert max(len(line) for line in text.splitlines()) <= 100


def test_intervals_of_summaries_are_shown() -> None:
    text = rendered(summary_table(SUMMARY, "title"))
    assert "[0.650, 0.850]" in text
    assert "*" not in text
    assert [limits({}), limits({"low": None, "high": 0.1}), limits({"low": "x", "high": 1.0})] == [None] * 3


def test_a_caveat_is_shown_as_an_asterisk_and_a_note() -> None:
    tally = Tally()
    for key in range(3):
        tally.add(Outcome(str(key), key, 0, None, False, Scores(key / 2 - 0.25, {"right": 1.0}, {"right": 1.0}), None))
    text = rendered(summary_table(tally.result().to_dict(), "title"))
    assert "[-0.992, 1.492]*" in text
    assert "[0.292, 1.000]" in text
    assert "* interval may be too narrow: fewer than 30 examples" in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 72


def test_counts_show_failures_separately() -> None:
    line = counts_line(SUMMARY).plain
    assert "8 of 10 rollouts scored" in line
    assert "2 × model: InfraError" in line
    assert "1 truncated" in line


def make_summary(rewards: list[list[float]], **options: Any) -> dict[str, Any]:
    """Return the summary of groups of rollouts as read from summary.json; each rollout takes 0.5 s."""
    tally = Tally(**options)
    for key, group in enumerate(rewards):
        for index, reward in enumerate(group):
            scores, times = Scores(reward, {"right": reward}, {"right": 1.0}), [0.25, 0.25]
            usage, timing = Usage(1500, 200), Timing(0.5)
            tally.add(Outcome(str(key), key, index, "answered", index == 1, scores, None, usage, timing, None, times))
    return msgspec.json.decode(msgspec.json.encode(tally.result().to_dict()))


def test_pass_rates_are_shown_if_some_groups_pass() -> None:
    text = rendered(summary_table(make_summary([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]]), "title"))
    rows = {line.split("│")[1].strip(): line for line in text.splitlines() if line.startswith("│")}
    assert list(rows) == ["reward", "pass@1 (reward ≥ 1)", "pass@3 (one of 3)", "pass^3 (all of 3)", "right"]
    assert "0.667" in rows["pass@1 (reward ≥ 1)"]
    assert "1.000" in rows["pass@3 (one of 3)"]
    assert "0.500" in rows["pass^3 (all of 3)"]


def test_pass_rates_of_some_examples_name_their_number() -> None:
    text = rendered(summary_table(make_summary([[1.0, 0.0, 0.0], *[[0.0]] * 99]), "title"))
    assert "pass@1 (reward ≥ 1)" in text
    assert text.count("│ 1 of 100 examples ") == 2


@pytest.mark.parametrize("rewards", [[[1.0], [0.0]], [[1.0, 1.0], [1.0, 1.0]], [[0.5, 0.2], [0.0, 0.1]]])
def test_pass_rates_without_new_information_are_not_shown(rewards: list[list[float]]) -> None:
    assert "pass" not in rendered(summary_table(make_summary(rewards), "title"))


def test_counts_are_followed_by_tokens_time_and_cost_per_rollout() -> None:
    summary = make_summary([[1.0, 0.0]] * 20, price=Price(3.0, 15.0))
    assert counts_line(summary).plain.splitlines() == [
        "40 of 40 rollouts scored; 20 truncated, 50.0%; stop conditions: answered (40)",
        "tokens per rollout: 1,500 in prompts (all turns), 200 in responses",
        "response: 0.25 s (p90 0.25 s, p99 0.25 s); rollout: 0.5 s (p90 0.5 s, p99 0.5 s)",
        "cost: 0.3, 0.0075 per rollout",
        "20 scored examples with equal mean rewards; about 150 are needed to notice that 1 in 50 differs",
    ]


def test_counts_fit_the_line() -> None:
    stops = {f"some_condition_of_an_environment_{i}": i for i in range(2)}
    summary = {**SUMMARY, **make_summary([[1.0, 0.0]] * 20), "failed": 2, "truncated": 1, "stops": stops}
    errors = {"model: InfraError": 1, "reward right: KeyError": 1}
    lines = counts_line({**summary, "errors": errors}).plain.splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert any("; 2 failed (1 × model: InfraError, 1 × reward right: KeyError), 0.0%" in line for line in lines)


@pytest.mark.parametrize("rewards", [[], [[1.0]]])
def test_missing_intervals_are_shown_as_a_dash(rewards: list[list[float]]) -> None:
    summary = make_summary(rewards)
    assert summary["reward"]["low"] is summary["reward"]["high"] is None
    assert "–" in rendered(summary_table(summary, "title"))
    assert f"{len(rewards)} of {len(rewards)} rollouts scored" in counts_line(summary).plain


def make_comparison(names: tuple[str, str], paired: bool = True) -> Comparison:
    return Comparison(
        names=names,
        verdict="B is better",
        main=Difference("reward", 0.5, 0.75, 0.25, 0.15, 0.35, None, 4 * paired, 1, None),
        paired=paired,
        only_a=0,
        only_b=0,
        wins=3,
        ties=0,
        losses=1,
        up=[Mover("0123456789abcdef", 12345, 0.0, 1.0), Mover("f" * 16, 3, 0.25, 0.5)],
        down=[Mover("0" * 16, 7, 1.0, -0.125)],
        needed_examples=10,
        others=[
            Difference("right", 0.5, 0.5, 0.0, math.nan, math.nan, "no interval: x", 1, 0, 1.0),
            Difference("num_turns", 3.0, 2.5, -0.5, -0.75, -0.25, "interval [x]", 4, -1, 0.0),
        ],
        notes=[],
    )


def test_a_comparison_shows_the_direction_of_each_change() -> None:
    text = rendered(comparison_table(make_comparison(("old", "new"))))
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]
    assert cells == [
        ["reward", "0.500", "0.750", "+0.250", "[0.150, 0.350]", "higher"],
        ["right", "0.500", "0.500", "0", "–*", ""],
        ["num_turns", "3.000", "2.500", "-0.500", "[-0.750, -0.250]*", "lower"],
    ]
    assert "* no interval: x; interval [x]" in text
    assert "over the examples of both" in text
    assert "over different examples" in rendered(comparison_table(make_comparison(("old", "new"), paired=False)))


@pytest.mark.parametrize("width", [80, 100])
def test_names_in_tables_are_not_broken_inside_a_word(width: int) -> None:
    names = ("hacking-before--scripted-teacher", "hacking-after")
    comparison = make_comparison(names)
    for table in (comparison_table(comparison, width), movers_table(comparison, {}, width)):
        text = rendered(table, width)
        words = set(re.findall(r"[a-z_]+", text))
        assert {"hacking", "before", "scripted", "teacher", "after"} <= words
        assert "0.350" in text or "difference" in text
    assert folded("format_reward_function", 8) == "format_\nreward_\nfunction"
    assert folded("correctness", 5) == "correctness"


def test_movers_are_identified_by_their_index_in_the_dataset() -> None:
    text = rendered(movers_table(make_comparison(("old", "new"))))
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]
    assert cells == [
        ["12345", "0", "1.000", "+1.000", "0123456789abcdef"],
        ["3", "0.250", "0.500", "+0.250", "f" * 16],
        ["7", "1.000", "-0.125", "-1.125", "0" * 16],
    ]


def test_comparisons_of_runs_with_long_names_fit() -> None:
    long_names = make_comparison(("tictactoe--scripted-teacher--0a1b2c" * 2, "tictactoe--runs-rl-final--0a1b2c" * 2))
    for table in (comparison_table(long_names), movers_table(long_names)):
        text = rendered(table)
        assert max(len(line.rstrip()) for line in text.splitlines()) <= 100
        assert "0.250" in text


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.integers(1, 60))
def test_a_sparkline_fits_the_width_and_uses_its_characters(values: list[float], width: int) -> None:
    line = sparkline(values, width)
    assert 1 <= len(line) <= width
    assert set(line) <= set(SPARKS)


def test_a_sparkline_rises_with_the_values() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == SPARKS
    assert sparkline([]) == ""


def test_numbers_are_formatted() -> None:
    assert [percent(0.123), percent(None), percent(math.nan)] == ["12.3", "–", "–"]
    assert [number(0), number(0.12345), number(math.nan), number(None)] == ["0", "0.123", "–", "–"]
    assert [signed(0), signed(0.5), signed(-0.5), signed(math.nan), signed(None)] == ["0", "+0.500", "-0.500", "–", "–"]


METRICS = [
    {"step": i, "reward/mean": i / 10, "reward/win": 0.5, "entropy/all/mean": 1.0 / (i + 1)} for i in range(1, 6)
]


def test_the_curves_table_omits_missing_metrics() -> None:
    text = rendered(curves_table(METRICS, "RL"))
    assert "reward/mean" in text and "entropy/all/mean" in text
    assert "loss" not in text and "length" not in text


def test_the_curves_table_omits_null_metrics() -> None:
    text = rendered(curves_table([*METRICS, {**METRICS[-1], "reward/mean": None}], "RL"))
    row = next(line for line in text.splitlines() if "reward/mean" in line)
    assert row.split("│")[3].strip() == "–"


def test_the_curves_of_a_run_are_plotted(tmp_path: Path) -> None:
    figure_of(METRICS, "run").savefig(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("metrics", [METRICS[:1]])
def test_a_single_step_can_be_plotted(metrics: list[dict[str, float]]) -> None:
    assert len(figure_of(metrics, "run").axes) == 3
