"""Run all rows of a table in one test, or divide them among the quick, broad and slow tests."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

Check = Callable[..., Any]


def each_row(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Check], Check]:
    """Call a test function with each row and report every row that fails; a decorator like `pytest.mark.parametrize`.

    All rows share the fixtures of one call. pytest takes about 5 ms per test, which for a table of texts is ten times as long
    as the test itself.
    """
    columns = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    cases = [dict(zip(columns, row if len(columns) > 1 else (row,), strict=True)) for row in rows]

    def decorate(check: Check) -> Check:
        def report(errors: list[BaseException]) -> None:
            if errors:
                raise BaseExceptionGroup(f"{len(errors)} of {len(cases)} rows failed", errors)

        @functools.wraps(check)
        def test(**fixtures: Any) -> None:
            errors: list[BaseException] = []
            for number, case in enumerate(cases):
                try:
                    check(**fixtures, **case)
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"row {number}: {case!r}")
                    errors.append(error)
            report(errors)

        @functools.wraps(check)
        async def async_test(**fixtures: Any) -> None:
            errors: list[BaseException] = []
            for number, case in enumerate(cases):
                try:
                    await check(**fixtures, **case)
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"row {number}: {case!r}")
                    errors.append(error)
            report(errors)

        signature = inspect.signature(check)
        fixtures = [parameter for name, parameter in signature.parameters.items() if name not in columns]
        chosen: Check = async_test if inspect.iscoroutinefunction(check) else test
        chosen.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return chosen

    return decorate


def first_quick(cases: Iterable[Any], count: int = 1, broad: int | None = 1) -> list[Any]:
    """Leave the first `count` cases quick, mark the next `broad` ones as broad and the others as slow.

    With `broad` None, all others are broad. Cases of several values are tuples.
    """
    marked: list[Any] = []
    for position, case in enumerate(cases):
        if position < count:
            marked.append(case)
        elif broad is None or position < count + broad:
            marked.append(_marked(case, pytest.mark.broad))
        else:
            marked.append(_marked(case, pytest.mark.slow))
    return marked


def some_quick(cases: Iterable[Any], every: int, broad_every: int | None = None) -> list[Any]:
    """Leave one in `every` cases quick, mark one in `broad_every` as broad and the others as slow; for long varied tables.

    With `broad_every` None, all others are broad.
    """
    marked: list[Any] = []
    for position, case in enumerate(cases):
        if position % every == 0:
            marked.append(case)
        elif broad_every is None or position % broad_every == 1:
            marked.append(_marked(case, pytest.mark.broad))
        else:
            marked.append(_marked(case, pytest.mark.slow))
    return marked


def some_broad(cases: Iterable[Any], every: int) -> list[Any]:
    """Mark one in `every` cases as broad and the others as slow; for long tables without quick cases."""
    marked: list[Any] = []
    for position, case in enumerate(cases):
        mark = pytest.mark.slow if position % every else pytest.mark.broad
        marked.append(_marked(case, mark))
    return marked


def _marked(case: Any, mark: pytest.MarkDecorator) -> Any:
    return pytest.param(*(case if type(case) is tuple else (case,)), marks=mark)
