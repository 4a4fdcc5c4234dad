"""Are evaluation rows also training rows?"""

from __future__ import annotations

import random
from typing import Any

import pytest
from dataset_rows import dataset_row, numbered_rows
from tiers import each_row

from rove.audit.overlap_checks import check_overlap
from rove.core.findings import Severity


def games(first: int, count: int) -> list[dict[str, Any]]:
    """Return rows that differ only in a column that the prompt does not show."""
    return [dataset_row("The same start.", digest=str(n)) for n in range(first, first + count)]


LONG = (
    "Person {0} has bought {0} apples and {1} pears at the market of town {2} on day {3}, and sold {1} of them to friend {2} "
    "for {3} coins before the evening"
)


def stories(first: int, count: int, town: int = 0) -> list[dict[str, Any]]:
    return [
        dataset_row(LONG.format(n, n * 7 % 101, town + n * 13 % 97, n * 31 % 89)) for n in range(first, first + count)
    ]


def choice(number: int, right: str, options: str = "red green blue teal") -> dict[str, Any]:
    """Return a question with the options in this order."""
    listed = [f"{letter}. {option}" for letter, option in zip("ABCD", options.split())]
    text = "\n".join([f"Which color has thing {number}?", *listed])
    return dataset_row(text, "ABCD"[options.split().index(right)])


CHOICES = [choice(number, ("red", "blue")[number % 2]) for number in range(50)]
REORDERED = [choice(number, ("red", "blue")[number % 2], "teal blue red green") for number in range(50)]
OTHER_RIGHT_OPTION = [choice(number, "green", "teal blue red green") for number in range(50)]
PERMUTATIONS = [dataset_row(f"Sort 1 {n} 3 {900 - n} 5", f"1 3 5 {n} {900 - n}") for n in range(10, 110)]
KNITTING_PROBLEMS = [dataset_row(f"{n} rows of {3 * n} cm, edge {n % 7}", str(n * 9)) for n in range(100, 200)]
REWORDED_PROBLEMS = [
    dataset_row(f"The edge is {n % 7}, and {3 * n} cm have {n} rows", str(n * 9)) for n in range(100, 200)
]
REVERSED = [dataset_row(f"Sort 5 {900 - n} 3 {n} 1", f"1 3 5 {n} {900 - n}") for n in range(10, 110)]


@each_row(
    ("train", "evaluation", "severities"),
    [
        (numbered_rows(0, 100), numbered_rows(100, 100), []),
        (numbered_rows(0, 100), numbered_rows(50, 100), [Severity.HIGH]),
        (numbered_rows(0, 100), numbered_rows(95, 100), [Severity.MEDIUM]),
        (numbered_rows(0, 100), [], []),
        (numbered_rows(0, 100), numbered_rows(0, 100), [Severity.HIGH]),
        (games(0, 50), games(50, 50), []),
        (games(0, 50), games(30, 50), [Severity.HIGH]),
        ([dataset_row("The same start.")] * 50, [dataset_row("The same start.")] * 50, []),  # rows do not differ at all
        (
            numbered_rows(0, 100),
            numbered_rows(0, 100, answer="other{}"),
            [],
        ),  # questions about a text that is not in the prompt
        (CHOICES, REORDERED, [Severity.HIGH]),  # the same questions with their options in another order
        (CHOICES, OTHER_RIGHT_OPTION, []),  # another answer: the questions are different ones
        (PERMUTATIONS, REVERSED, []),  # the same numbers in another order are another problem
        (KNITTING_PROBLEMS, REWORDED_PROBLEMS, [Severity.HIGH]),
        # Rows that resemble each other by chance are no copies.
        (
            [*KNITTING_PROBLEMS, *REWORDED_PROBLEMS],
            [dataset_row(f"{3 * n} cm, {n} rows, edge: {n % 7}", str(n * 9)) for n in range(100, 200)],
            [],
        ),
        (games(0, 50), [dataset_row("The same start.", digest=f"other {n}") for n in range(50)], []),
        (stories(0, 100), stories(200, 100), []),
        (stories(0, 100), [dataset_row(story["text"] + " or so") for story in stories(0, 100)], [Severity.MEDIUM]),
    ],
)
def test_overlap(train: Any, evaluation: Any, severities: list[Severity]) -> None:
    assert [finding.severity for finding in check_overlap(train, evaluation, has_both=True)] == severities


def test_a_single_dataset_is_reported_as_info() -> None:
    [finding] = check_overlap(numbered_rows(0, 100), numbered_rows(0, 100), has_both=False)
    assert (finding.severity, "one dataset" in finding.text) == (Severity.INFO, True)


@pytest.mark.parametrize("is_template", [True, False])
def test_rows_from_one_template_are_named(is_template: bool) -> None:
    plain, varied = stories(0, 100), [dataset_row(story["text"] + " or so") for story in stories(0, 100)]
    train = [*plain, *varied] if is_template else [*plain, *stories(200, 100)]
    [finding] = check_overlap(
        train, [dataset_row(train_row["text"] + " at noon") for train_row in plain], has_both=True
    )
    assert ("come from one template" in finding.text) == is_template
    assert finding.severity is (Severity.LOW if is_template else Severity.MEDIUM)


@pytest.mark.parametrize(("most", "severity"), [(10**6, Severity.MEDIUM), (9, Severity.LOW)])
def test_problems_in_two_wordings_before_the_split(most: int, severity: Severity) -> None:
    """With large numbers, equal numbers are the same problem; with small ones, they meet by chance in groups of all sizes."""
    rng = random.Random(0)
    rows: list[dict[str, Any]] = []
    for _ in range(200):
        numbers = 100 + rng.randint(0, most), 200 + rng.randint(0, most // 3), 300
        for words in ("{} buys {}, {} and {} nails.", "For {}, there are {} nails, then {}, then {}."):
            name = "".join(rng.choices("abcdefgh", k=8))
            rows.append(dataset_row(words.format(name, *numbers), str(sum(numbers))))
    rng.shuffle(rows)
    [finding] = check_overlap(rows[:200], rows[200:], has_both=True)
    assert finding.severity is severity


def capital(country: int, variant: int) -> dict[str, Any]:
    """Return a question about a country with other wrong options and another order in each variant."""
    options = [f"City{country}", *(f"City{country * 7 + variant * 13 + k + 100}" for k in range(3))]
    options = options[variant:] + options[:variant]
    lines = [f"{letter}) {option}" for letter, option in zip("ABCD", options, strict=True)]
    text = "\n".join([f"What is the capital of country {country}?", *lines])
    return dataset_row(text, "ABCD"[options.index(f"City{country}")])


def test_questions_that_return_with_other_options() -> None:
    variants = [capital(country, variant) for variant in range(2) for country in range(60)]
    [finding] = check_overlap(variants, [capital(country, 3) for country in range(40, 100)], has_both=True)
    assert finding.severity is Severity.HIGH and "other wrong ones" in finding.text
    assert list(check_overlap(variants, [capital(country, 3) for country in range(60, 120)], has_both=True)) == []
