"""Tables of cases in one test."""

from __future__ import annotations

import pytest
from tiers import each_row


@each_row(("number", "square"), [(2, 4), (3, 9), (-1, 1)])
def test_every_row_is_checked(number: int, square: int) -> None:
    assert number * number == square


def test_all_failing_rows_are_reported() -> None:
    seen: list[str] = []

    @each_row("text", ["a", "b", "c"])
    def check(text: str, more: str) -> None:
        seen.append(text + more)
        with pytest.raises(ValueError, match="a"):
            raise ValueError(text)

    with pytest.raises(BaseExceptionGroup, match="2 of 3 rows failed") as failures:
        check(more="!")
    assert seen == ["a!", "b!", "c!"]
    assert [error.__notes__ for error in failures.value.exceptions] == [
        ["row 1: {'text': 'b'}"],
        ["row 2: {'text': 'c'}"],
    ]
