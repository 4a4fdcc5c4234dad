"""Tables of cases: all rows in one test, or only the first rows in the quick tests."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

Check = Callable[..., Any]


def each_row(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Check], Check]:
    """Call a test function with each row, and report every row that fails; used like `pytest.mark.parametrize`.

    It is for functions whose fixtures may be shared by all rows. pytest needs some 5 ms for a test: for a table of texts that
    is ten times as long as the test itself.
    """
    columns = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    cases = [dict(zip(columns, row if len(columns) > 1 else (row,), strict=True)) for row in rows]

    def decorate(check: Check) -> Check:
        @functools.wraps(check)
        def test(**fixtures: Any) -> None:
            errors: list[BaseException] = []
            for number, case in enumerate(cases):
                try:
                    check(**fixtures, **case)
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"row {number}: {case!r}")
                    errors.append(error)
            if errors:
                raise BaseExceptionGroup(f"{len(errors)} of {len(cases)} rows failed", errors)

        signature = inspect.signature(check)
        fixtures = [parameter for name, parameter in signature.parameters.items() if name not in columns]
        test.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return test

    return decorate


def first_quick(cases: Iterable[Any], count: int = 1) -> list[Any]:
    """The first `count` cases as they are, the others for `make test-broad`; cases of several values are tuples."""
    return [case if place < count else _broad(case) for place, case in enumerate(cases)]


def some_quick(cases: Iterable[Any], every: int) -> list[Any]:
    """Of long tables of many kinds of cases: one in `every` as it is, the others for `make test-broad`."""
    return [_broad(case) if place % every else case for place, case in enumerate(cases)]


def _broad(case: Any) -> Any:
    return pytest.param(*(case if type(case) is tuple else (case,)), marks=pytest.mark.broad)
