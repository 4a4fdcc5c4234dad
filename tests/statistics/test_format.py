"""Numbers, intervals and durations as text."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rove.statistics.format import duration, interval, limits, sparkline


@pytest.mark.parametrize(
    ("low", "high"), [(-math.inf, 1.0), (0.0, math.inf), (math.nan, 1.0), (None, 1.0), (0.0, None)]
)
def test_an_interval_has_two_finite_limits(low: float | None, high: float | None):
    assert limits({"low": low, "high": high}) is None
    assert interval({"low": low, "high": high, "caveat": "few"}) == "–*"
    assert limits({"low": 0, "high": 1.0}) == (0.0, 1.0)


@given(st.floats(100, 1e6))
def test_a_long_duration_has_whole_minutes_and_fewer_than_60_seconds(seconds: float):
    parts = re.fullmatch(r"([\d,]+) min (\d+) s", duration(seconds))
    assert parts and int(parts[2]) < 60
    assert abs(60 * int(parts[1].replace(",", "")) + int(parts[2]) - seconds) <= 0.5


def test_durations_have_units_for_their_size():
    texts = {0.0005: "under 1 ms", 0.012: "0.012 s", 1.5: "1.5 s", 99.0: "99 s", 340: "5 min 40 s", 359.7: "6 min 0 s"}
    assert {value: duration(value) for value in texts} == texts
    assert [duration(value) for value in (math.nan, math.inf, None, "1")] == ["–"] * 4


def test_a_sparkline_averages_its_values():
    assert sparkline([0.0, 1.0]) == "▁█"
    assert sparkline([0.0, 0.0, 1.0, 1.0], width=2) == "▁█"
    assert sparkline([3.0, math.nan, 3.0]) == "▁▁"
