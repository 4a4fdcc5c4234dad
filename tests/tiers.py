"""Tables of cases of which every run of the quick tests tries the first ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first_quick(cases: Iterable[Any], count: int = 1) -> list[Any]:
    """The first `count` cases as they are, the others for `make test-broad`; cases of several values are tuples."""
    listed = list(cases)
    rest = [
        pytest.param(*(case if type(case) is tuple else (case,)), marks=pytest.mark.broad) for case in listed[count:]
    ]
    return [*listed[:count], *rest]
