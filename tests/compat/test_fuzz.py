"""rove.compat against the real 0.3.1, in processes of their own, on cases made by hypothesis.

`compat_recorded/fuzz.json` has what the real library answered to some of them. With `ROVE_VERIFIERS_031=PYTHON`, a Python that
has it, the slow test asks it about many more; `python tests/compat/test_fuzz.py PYTHON` writes the file anew.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from compat_cases import FUZZ, KINDS, Side
from hypothesis import HealthCheck, Phase, given, settings

EXAMPLES = 1000


@pytest.fixture(scope="module")
def ours() -> Iterator[Side]:
    side = Side("rove")
    yield side
    side.close()


def each_case(kind: str, number: int, check: Callable[[Any], None]) -> None:
    """Call `check` with so many cases, the same ones every time."""
    quiet = list(HealthCheck)
    given(KINDS[kind])(
        settings(
            max_examples=number,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=quiet,
        )(lambda case: check(case))
    )()


def recorded(kind: str) -> list[Any]:
    return json.loads(FUZZ.read_text(encoding="utf-8"))[kind]


@pytest.mark.broad
@pytest.mark.parametrize("kind", KINDS)
def test_recorded_answers_of_the_real_library(kind: str, ours: Side) -> None:
    known = recorded(kind)
    assert len(known) >= 50
    for case, said in known:
        assert ours.ask(kind, case) == said, case


@pytest.mark.broad
@pytest.mark.parametrize("kind", ["parsers", "rubrics", "stops"])
def test_the_cases_tell_the_fixes_from_the_faults(kind: str) -> None:
    side = Side("rove", ROVE_COMPAT="fixed")
    try:
        assert any(side.ask(kind, case) != said for case, said in recorded(kind))
    finally:
        side.close()


@pytest.mark.slow
@pytest.mark.skipif(
    "ROVE_VERIFIERS_031" not in os.environ, reason="ROVE_VERIFIERS_031 names no Python with verifiers 0.3.1"
)
@pytest.mark.parametrize("kind", KINDS)
def test_no_case_tells_them_apart(kind: str, ours: Side) -> None:
    real = Side("real", os.environ["ROVE_VERIFIERS_031"])

    def check(case: Any) -> None:
        assert ours.ask(kind, case) == real.ask(kind, case), case

    try:
        each_case(kind, EXAMPLES, check)
    finally:
        real.close()


def record(python: str, number: int = 50) -> None:
    """Keep what the real library answers."""
    real = Side("real", python)
    known: dict[str, list[Any]] = {kind: [] for kind in KINDS}
    for kind in KINDS:
        each_case(kind, number, lambda case, kind=kind: known[kind].append([case, real.ask(kind, case)]))
    real.close()
    lines = ",\n".join(
        f'"{kind}": [\n' + ",\n".join(json.dumps(one) for one in some) + "\n]" for kind, some in known.items()
    )
    FUZZ.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    record(sys.argv[1])
