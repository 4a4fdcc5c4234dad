"""Numbers, intervals and durations as text."""

from __future__ import annotations

import math

import pytest

from rove.statistics.format import (
    caveats,
    cost_text,
    cut,
    duration,
    excerpt,
    interval,
    limits,
    number,
    percent,
    shown,
    signed,
    sparkline,
    version_words,
)


def test_numbers_have_the_digits_that_matter():
    assert [percent(value) for value in (0.123, 1.0, 0.0, None, math.nan)] == ["12.3", "100.0", "0.0", "–", "–"]
    texts = {0.12345: "0.123", -0.5: "-0.500", 0: "0", 999.9: "999.900", 1000: "1000", -123456: "-1.235e+05"}
    assert {value: number(value) for value in texts} == texts
    assert [number(0.12345, 1), number(None), number(math.nan)] == ["0.1", "–", "–"]
    assert [signed(value) for value in (0.5, 0.0, -0.5, None)] == ["+0.500", "0", "-0.500", "–"]
    assert [shown(value) for value in (12345, 0.5, math.inf, None)] == ["12,345", "0.500", "–", "–"]


def test_texts_are_shortened_at_the_end_or_in_the_middle():
    assert (excerpt("two \n words", 9), excerpt("two words", 8)) == ("two words", "two wor…")
    assert cut("a" * 9, 9) == "a" * 9
    assert cut("abcdefghi" * 200, 9) == "abcdef\n… 1,791 characters left out …\nghi"


def test_caveats_and_versions_are_listed_once():
    assert caveats([{"caveat": "few"}, {"caveat": None}, {"caveat": "skewed"}, {"caveat": "few"}]) == "* few; skewed"
    assert caveats([{"caveat": None}]) == ""
    spans = [(3, 10), (5, 1)]
    assert [version_words(part) for part in (spans, spans[:1], [])] == ["versions 3–5", "version 3", ""]


@pytest.mark.parametrize(
    ("low", "high"), [(-math.inf, 1.0), (0.0, math.inf), (math.nan, 1.0), (None, 1.0), (0.0, None)]
)
def test_an_interval_has_two_finite_limits(low: float | None, high: float | None):
    assert limits({"low": low, "high": high}) is None
    assert interval({"low": low, "high": high, "caveat": "few"}) == "–*"
    assert limits({"low": 0, "high": 1.0}) == (0.0, 1.0)


def test_durations_have_units_for_their_size():
    texts = {0.0005: "under 1 ms", 0.012: "0.012 s", 1.5: "1.5 s", 99.0: "99 s", 340: "5.7 min", 6001: "1.7 h"}
    assert {value: duration(value) for value in texts} == texts
    assert [duration(value) for value in (math.nan, math.inf, None, "1")] == ["–"] * 4


def test_a_sparkline_averages_its_values():
    assert sparkline([0.0, 1.0]) == "▁█"
    assert sparkline([0.0, 0.0, 1.0, 1.0], width=2) == "▁█"
    assert sparkline([3.0, math.nan, None, math.inf, 3.0]) == "▁▁"


def test_costs_have_significant_digits():
    assert [cost_text(value) for value in (0.000123456, 12.5, None, math.nan)] == ["0.0001235", "12.5", "–", "–"]
    assert cost_text(0.000123456, 2) == "0.00012"
