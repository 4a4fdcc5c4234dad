"""Run environments that override one life-cycle method each on rove.compat: rows are the same as with the real releases.

`compat_recorded_lifecycle` has the rows of verifiers 0.1.2, 0.1.6, 0.1.9 and 0.3.1 with the same scripted server. If
`ROVE_VERIFIERS_<RELEASE>` (such as `ROVE_VERIFIERS_016`) is the path of a Python that has the release, the slow test runs it
again. `python tests/support/compat_lifecycle.py record PYTHON RELEASE` rewrites the rows.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import pytest
from compat_lifecycle import SOURCES, recorded, results
from tiers import first_quick, some_broad

CASES = [(release, case) for release in SOURCES for case in recorded(release)]
OPEN_REQUIREMENTS = {"0.1.2": ">=0.1.2", "0.1.6": ">=0.1.2"}
"""Requirements that also allow newer releases: the code shows which one the package is written for."""


@cache
def rove_results(release: str, requirement: str) -> dict[str, Any]:
    return results("all", release, requirement=requirement)


def test_at_least_ten_methods_are_overridden_in_each_release() -> None:
    for release in SOURCES:
        assert len({case.split(",")[0] for case in recorded(release)}) >= 10
        assert not [case for case, result in recorded(release).items() if "failed" in result]
        rewards = [row["reward"] for result in recorded(release).values() for row in result["rows"]]
        assert len(set(rewards)) >= 10


@pytest.mark.parametrize(("release", "case"), some_broad(CASES, 8))
def test_rows_match_those_of_the_real_release(release: str, case: str) -> None:
    real, run = recorded(release)[case], rove_results(release, "")
    assert run["rove"][case] == real
    assert run["bridge"][case].get("rows") == real["rows"], run["bridge"][case]
    assert run["bridge"][case]["asked"] == real["asked"]


@pytest.mark.broad
@pytest.mark.parametrize("release", first_quick(OPEN_REQUIREMENTS, broad=0))
def test_a_package_with_an_open_requirement_has_the_same_rows(release: str) -> None:
    run = rove_results(release, OPEN_REQUIREMENTS[release])["rove"]
    assert {case: run[case] for case in run} == {case: recorded(release)[case] for case in run}


@pytest.mark.slow
@pytest.mark.parametrize("release", SOURCES)
def test_the_real_release_still_gives_the_recorded_rows(release: str) -> None:
    variable = f"ROVE_VERIFIERS_{release.replace('.', '')}"
    if variable not in os.environ:
        pytest.skip(f"{variable} names no Python with verifiers {release}")
    assert results("real", release, os.environ[variable])["real"] == recorded(release)
