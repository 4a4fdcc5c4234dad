"""The rules that the worker of `MathPool` adds to math-verify."""

from __future__ import annotations

from types import ModuleType

import pytest
from tiers import each_row

CASES: list[tuple[str, str, bool]] = [
    (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}", False),
    (r"\frac{1}{2^{99}}", "2^{-99}", True),
    (r"\frac{1}{2004!}", r"\frac{1}{2006!}", False),
    ("e^{-100}", "e^{-101}", False),
    (r"\frac{x}{2^{99}}", r"\frac{x}{2^{98}}", False),
    ("(1, 10^{-9})", "(1, 10^{-8})", False),
    (r"\{10^{-9}\}", r"\{10^{-8}\}", False),
    ("0.0000001", "0", False),
    ("0", "10^{-20}", False),
    (r"\frac{1}{3}", "0.333333", True),
    (r"\frac{1}{3}", "0.3333", False),
    ("3", "3.", True),
    ("x+1", "x+1;", True),
    ("(2,3)", "(2,3),", True),
    ("120", "5!", True),
    ("1000", r"1\,000", True),
    ("25000", r"25\ 000", True),
    ("1234567", "1 234 567", True),
    ("1000", "(1, 000)", False),
    ("10 km", "10 m", False),
    ("10 km", "10000 m", True),
    ("10 km", "10", True),
    ("10", r"10\text{ km}", True),
    (r"12\text{ apples}", r"12\text{ pears}", True),
    (r"3\text{ hours}", r"3\text{ minutes}", False),
    (r"\frac{1}{2}\text{ hour}", r"30\text{ minutes}", True),
    (r"5\text{ cm}^2", r"5\text{ cm}^3", False),
    (r"5\text{ cm}^2", r"5\text{ square centimeters}", True),
    (r"9.8\ \mathrm{m/s^2}", r"9.8\ \mathrm{m/s}", False),
    ("36 km/h", r"10\text{ meters per second}", True),
    (r"\$10", r"10\text{ dollars}", True),
    (r"\$10", r"10\text{ cents}", False),
    ("90^\\circ", "90", True),
    ("3:4", r"\frac{3}{4}", False),
    ("0.75", "3:4", False),
    ("3:4", "6:8", True),
    ("5m", "5m", True),
    ("13", r"\text{13}", True),
    (r"20^\circ\text{C}", r"20^{\circ}\text{F}", False),
    (r"20^\circ C", "20 °C", True),
    (r"$10^\circ$", r"10^\circ", True),
    ("50", r"50\%", True),
    (r"50\%", "0.5", True),
    ("50", r"5\%", False),
    (r"$(1,2)$", "(1,2)", True),
    (r"60^\circ, 120^\circ", r"120^\circ, 60^\circ", True),
    (r"60^\circ, 120^\circ", r"120^\circ, 70^\circ", False),
    (r"30^\circ", r"x = 30^\circ", True),
    (r"(3,4) \text{ cm}", r"(3,4) \text{ cm}", True),
    (r"5\text{ m}, 6\text{ m}", r"5\text{ m}, 7\text{ m}", False),
    ("60 mph", "60 km/h", False),
    ("60 mph", r"60\text{ miles per hour}", True),
    (r"5\text{ N}", r"5\text{ J}", False),
    ("5V", "5A", False),
    ("2:3", r"2 \colon 3", True),
    (r"\frac{2}{3}", r"2 \colon 3", False),
    ("12345", r"12{\,}345", True),
    ("73", "**73**.", True),
    ("73", "73**", True),
    ("x+1", "__x+1__", True),
    (r"1, 2, \ldots, n", r"1,2,\dots,n", True),
    (r"1, 2, \ldots, n", r"1, 3, 5, \ldots, 2n-1", False),
    (r"1:2:3:\ldots", r"1:4:9:\ldots", False),
    ("1, 2, 3, ...", r"1, 2, 3, \cdots", True),
    (r"x = 1 + 2k, k = 0, 1, \ldots", r"x = 2k + 1, k = 0, 1, \ldots", True),
]


@pytest.fixture(scope="module")
def worker() -> ModuleType:
    """Load the worker program, whose imports take a second."""
    from rove.rubrics import math_worker

    math_worker.setup()
    return math_worker


@each_row(("answer", "response", "is_equal"), CASES)
def test_units_ratios_punctuation_and_small_values_are_compared(
    worker: ModuleType, answer: str, response: str, is_equal: bool
) -> None:
    assert worker.Session().compare(answer, response) is is_equal


@each_row(("text", "tidied"), [("4,,", "4"), (r"4\,\ .", "4"), ("4 ,5", "4 ,5"), ("...", "..."), ("4 \n", "4")])
def test_punctuation_at_the_end_is_left_out(worker: ModuleType, text: str, tidied: str) -> None:
    assert worker._tidied(text) == tidied


def test_a_long_run_of_punctuation_is_read_in_time_in_proportion_to_its_length(worker: ModuleType) -> None:
    text = f"4{100_000 * ','}5"
    assert worker._tidied(text) == text
    assert worker._quantity("1or" * 60_000) is None


@pytest.mark.parametrize("answer", ["", " ", ".", r"\text{ }"])
def test_a_right_answer_that_cannot_be_parsed_is_none(worker: ModuleType, answer: str) -> None:
    assert worker.Session().compare(answer, "7") is None


def test_without_strict_the_decision_is_that_of_math_verify(worker: ModuleType) -> None:
    pairs = [("10 km", "10 m"), ("e^{-100}", "e^{-101}"), ("3:4", "0.75"), ("3", "3.")]
    assert [worker.Session().compare(*pair, strict=False) for pair in pairs] == [True, True, True, False]
