"""Tables of cases in one test, and their division into tiers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tiers import each_row, first_quick, some_broad, some_quick


@each_row(("number", "square"), [(2, 4), (3, 9), (-1, 1)])
def test_every_row_is_checked(number: int, square: int) -> None:
    assert number * number == square


@each_row(("number", "square"), [(2, 4), (-3, 9)])
async def test_rows_are_checked_by_a_coroutine(number: int, square: int) -> None:
    await asyncio.sleep(0)
    assert number * number == square


def test_all_failing_rows_are_reported() -> None:
    checked: list[str] = []

    @each_row("text", ["a", "b", "c"])
    def check(text: str, suffix: str) -> None:
        checked.append(text + suffix)
        with pytest.raises(ValueError, match="a"):
            raise ValueError(text)

    with pytest.raises(BaseExceptionGroup, match="2 of 3 rows failed") as failures:
        check(suffix="!")
    assert checked == ["a!", "b!", "c!"]
    assert [error.__notes__ for error in failures.value.exceptions] == [
        ["row 1: {'text': 'b'}"],
        ["row 2: {'text': 'c'}"],
    ]


def tiers(cases: list[Any]) -> list[str]:
    """Return the tier of each case: "" for quick ones."""
    return [case.marks[0].name if hasattr(case, "marks") else "" for case in cases]


def test_the_cases_of_a_table_are_divided_into_tiers() -> None:
    assert tiers(first_quick("abcd")) == ["", "broad", "slow", "slow"]
    assert tiers(first_quick("abcd", 2, broad=0)) == ["", "", "slow", "slow"]
    assert tiers(first_quick("abcd", broad=None)) == ["", "broad", "broad", "broad"]
    assert tiers(some_quick("abcdef", 3)) == ["", "broad", "broad", "", "broad", "broad"]
    assert tiers(some_quick("abcdef", 4, broad_every=4)) == ["", "broad", "slow", "slow", "", "broad"]
    assert tiers(some_broad("abcd", 3)) == ["broad", "slow", "slow", "broad"]
    assert first_quick([(1, 2), (3, 4)])[1].values == (3, 4)


@pytest.mark.broad
@pytest.mark.parametrize("case", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_slow_case_of_a_broad_test_is_not_broad(case: int, request: pytest.FixtureRequest) -> None:
    assert (request.node.get_closest_marker("broad") is None) == (case == 2)


def test_failing_rows_of_a_coroutine_are_reported() -> None:
    @each_row("number", [1, 2])
    async def check(number: int) -> None:
        assert number == 1

    with pytest.raises(BaseExceptionGroup, match="1 of 2 rows failed"):
        asyncio.run(check())
