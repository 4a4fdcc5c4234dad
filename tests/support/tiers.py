"""Tables of cases of which every run of the quick tests tries the first ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first_quick(cases: Iterable[Any], count: int = 1) -> list[Any]:
    """The first `count` cases as they are, the others for `make test-broad`; cases of several values are tuples."""
    return [case if place < count else _broad(case) for place, case in enumerate(cases)]


def some_quick(cases: Iterable[Any], every: int) -> list[Any]:
    """Of long tables of many kinds of cases: one in `every` as it is, the others for `make test-broad`."""
    return [_broad(case) if place % every else case for place, case in enumerate(cases)]


def _broad(case: Any) -> Any:
    return pytest.param(*(case if type(case) is tuple else (case,)), marks=pytest.mark.broad)
