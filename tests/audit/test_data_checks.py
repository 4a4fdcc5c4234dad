"""Checks of datasets, without rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dataset_rows import dataset_row, numbered_rows
from tiers import each_row

from rove.audit.data_checks import (
    check_contradictions,
    check_copied_numbers,
    check_leaks,
    check_round_trip,
    check_same_rows,
    check_seed_shift,
)
from rove.audit.rows import facts
from rove.core.findings import Severity


def questions(wrong_rows: int, template: str = "Write the symbol of element{}.") -> list[dict[str, Any]]:
    """Return two questions about each of 30 elements; some answers of the second ones are those of the next element."""
    first = [dataset_row(f"What is the symbol of element{n}?", f"E{n}") for n in range(30)]
    second = [dataset_row(template.format(n), f"E{n + 1 if n < wrong_rows else n}") for n in range(30)]
    return [*first, *second]


@each_row(
    ("rows", "severities"),
    [
        (questions(0), []),
        (questions(2), [Severity.MEDIUM]),
        (questions(6), [Severity.HIGH]),
        (questions(30, "What is the number of element{}?"), []),  # another property: all pairs differ
        (numbered_rows(0, 100), []),
    ],
)
def test_rows_that_contradict_each_other(rows: Any, severities: list[Severity]) -> None:
    assert [finding.severity for finding in check_contradictions(rows)] == severities


def readings(number: int, written: str = "{:.2f}") -> dict[str, Any]:
    """Return a row whose answer has the sorted numbers of its prompt, written in this way."""
    numbers = [30.11 + number, 25.37 + number, 41.59 + number]
    prompt_numbers = ", ".join(f"{value:.2f}" for value in numbers)
    return dataset_row(f"Sort {prompt_numbers}", ", ".join(written.format(value) for value in sorted(numbers)))


@pytest.mark.parametrize(
    ("rows", "severities"),
    [
        (list(map(readings, range(60))), []),
        # The second number is copied from the prompt, the others are rounded.
        (
            [*map(readings, range(40)), *[dataset_row("20.11, 25.37, 31.59", "20.1, 25.37, 31.59")] * 20],
            [Severity.HIGH],
        ),
        ([dataset_row(f"Add {n} to 31 and 57", f"{n + 31} {n + 57}") for n in range(60)], []),
        ([dataset_row(f"Sort 1,{n + 100} and 2,345", f"1{n + 100}, 2345") for n in range(60)], []),
        (
            [
                dataset_row(
                    f"Add {n + 25} and 50 (and 3)" if n % 2 else f"{n + 25} and 50", f"{n + 25} + 50 = {n + 75}"
                )
                for n in range(60)
            ],
            [],
        ),
        ([dataset_row(f"Day {n}, {n + 30} guests", f"2024-03-{n % 28 + 1:02d}") for n in range(60)], []),
        # "2016.5.28" is a date, and 2016 is no rounded 2016.5.
        (
            [
                dataset_row(
                    f"{2000 + n}.{n % 9 + 1}.28" if n % 3 else f"28/{n % 9 + 1}/{2000 + n}",
                    f"{2000 + n}-0{n % 9 + 1}-28",
                )
                for n in range(60)
            ],
            [],
        ),
    ],
)
def test_answers_with_numbers_that_their_prompt_lacks(rows: Any, severities: list[Severity]) -> None:
    assert [finding.severity for finding in check_copied_numbers(rows)] == severities


def test_tuples_that_become_lists_are_of_low_severity() -> None:
    rows = [dataset_row("x", changed=("info: tuples become lists",))]
    [finding] = check_round_trip(rows)
    assert finding.severity is Severity.LOW
    [finding] = check_round_trip(rows, is_anything_paid=False)  # a grader that compares tuples with lists
    assert finding.severity is Severity.MEDIUM


@pytest.mark.parametrize(
    ("other_rows", "is_found"),
    [
        (numbered_rows(1, 100), True),
        ([*numbered_rows(1, 99), *numbered_rows(0, 1)], True),  # the rows cover everything
        (numbered_rows(500, 100), False),
        (numbered_rows(0, 100), False),
        (numbered_rows(0, 100)[::-1], False),
    ],
)
def test_seed_shift(other_rows: Any, is_found: bool) -> None:
    assert len(list(check_seed_shift(numbered_rows(0, 100), other_rows))) == is_found


def test_seed_shift_of_rows_that_have_their_number_or_equal_prompts() -> None:
    def with_number(first: int) -> list[dict[str, Any]]:
        return [{**numbered_row, "digest": str(n)} for n, numbered_row in enumerate(numbered_rows(first, 100))]

    assert len(list(check_seed_shift(with_number(0), with_number(1)))) == 1
    assert list(check_seed_shift(with_number(0), with_number(500))) == []
    games = [dataset_row("The same start.", digest=str(n)) for n in range(101)]
    assert len(list(check_seed_shift(games[:100], games[1:]))) == 1


def test_rows_of_other_processes() -> None:
    rows = numbered_rows(0, 20)
    assert list(check_same_rows(rows, rows)) == []
    assert [
        "1 of 20 rows differ" in finding.text for finding in check_same_rows(rows, [dataset_row("other"), *rows[1:]])
    ] == [True]
    assert ["0 instead of 20 rows" in finding.text for finding in check_same_rows(rows, [])] == [True]


def test_round_trip() -> None:
    assert list(check_round_trip(numbered_rows(0, 5))) == []
    (finding,) = check_round_trip([*numbered_rows(0, 5), dataset_row("x", changed=("info",))])
    assert finding.text == "1 of 6 rows change in a JSON round trip (info)"


@each_row(
    ("template", "answer", "shown_text", "is_found"),
    [
        ("How much is {} and 5?", "sum{}", "", False),
        ("The gold answer is: sum{}. How much?", "sum{}", "", True),
        ("Invoice INV-{}X: how much?", "{}", "", True),
        ("Room row{}_a: how much?", "{}", "", True),
        ("There are 100{} apples. How many?", "100{}", "", False),  # extraction
        ("What are the last digits of the card 5500{}?", "{}", "", False),
        ("What are the last digits of the card 5500-{}?", "{}", "", False),
        ("一共有{}个苹果。多少?", "{}", "", False),
        ("What is the singular of 'cat{}cats'?", "cat{}cat", "", False),
        ("Which is correct: sum{0} or some{0}?", "sum{}", "", False),
        ("Which one is correct (sum{0}/some{0})?", "sum{}", "", False),
        ("Which one is correct: sum{0}, som{0} or some{0}?", "sum{}", "", False),
        ("Which one is correct?\n- sum{0}\n- some{0}", "sum{}", "", False),
        ("The smallest of {}.000, 7000 and 8000?", "{}", "", False),  # the same number
        ("How much is {}?", "sum{}", " ".join(f"sum{n}" for n in range(200)), True),
    ],
)
def test_leaks(template: str, answer: str, shown_text: str, is_found: bool) -> None:
    rows = numbered_rows(100, 40, template, answer)
    assert [leak.severity for leak in check_leaks(rows, shown_text)] == [Severity.HIGH] * is_found


def test_warnings_about_known_defects_are_facts_of_the_rows(tmp_path: Path) -> None:
    program = """
import warnings
import rove as vf
from rove.integrations.known_defects import KnownDefectWarning

def load_environment():
    warnings.warn("the library says something else")
    warnings.warn("'syllogism' has a known defect", KnownDefectWarning)
    return vf.SingleTurnEnv(dataset=[{"question": "1 + 1?", "answer": "2"}], rubric=vf.Rubric([]))
"""
    (tmp_path / "warned.py").write_text(program)
    assert facts("warned", str(tmp_path), {})["known_defects"] == ["'syllogism' has a known defect"]


def test_options_in_the_system_prompt_are_no_leak() -> None:
    queues = ["billing", "returns", "delivery", "repairs", "accounts", "complaints"]
    shown_text = f"The queues are: {', '.join(queues)}"
    tickets = [dataset_row(f"ticket {number}", queues[number % len(queues)]) for number in range(60)]
    assert list(check_leaks(tickets, shown_text)) == []
