"""Ten packages written as for `verifiers` 0.1.0 to 0.1.2 score on rove.compat, row by row, as on the real 0.1.2.post1.

`compat_recorded_012` has the rows of the real library with the same scripted server. `ROVE_VERIFIERS_012=PYTHON`, a Python
that has 0.1.2.post1, runs it again; `python tests/support/compat_runner_012.py record PYTHON` writes the rows anew.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from compat_runner_012 import NAMES, RECORDED, results

OURS_ONLY = ("num_turns", "total_tool_calls", "reward")
"""Metrics since 0.1.9, with `NAME_calls` of every tool, and the reward of a rubric that scores by itself."""


def recorded(name: str) -> dict[str, Any]:
    return json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def ours() -> dict[str, Any]:
    return results("rove+bridge")


def ordered(rows: list[Any]) -> list[Any]:
    return sorted(rows, key=lambda row: json.dumps([row["prompt"], row["completion"], row["reward"]]))


def test_there_are_ten_packages() -> None:
    assert len(NAMES) == 10
    assert sorted(file.stem for file in RECORDED.glob("*.json")) == NAMES
    rewards = [row["reward"] for name in NAMES for row in recorded(name)["rows"]]
    assert len(rewards) == 64
    assert len(set(rewards)) > 20


@pytest.mark.broad
@pytest.mark.parametrize("how", ["rove", "bridge"])
@pytest.mark.parametrize("name", NAMES)
def test_rows_are_those_of_the_real_library(name: str, how: str, ours: dict[str, Any]) -> None:
    assert "rows" in ours[how][name], ours[how][name]
    rows, real = ordered(ours[how][name]["rows"]), ordered(recorded(name)["rows"])
    assert [row["prompt"] for row in rows] == [row["prompt"] for row in real]
    assert [row["completion"] for row in rows] == [row["completion"] for row in real]
    assert [row["reward"] for row in rows] == pytest.approx([row["reward"] for row in real], abs=1e-12)
    for row, wanted in zip(rows, real, strict=True):
        assert {key: row["metrics"].get(key) for key in wanted["metrics"]} == pytest.approx(wanted["metrics"])
        more = row["metrics"].keys() - wanted["metrics"].keys()
        assert all(key in OURS_ONLY or key.endswith("_calls") for key in more), more


@pytest.mark.slow
@pytest.mark.skipif(
    "ROVE_VERIFIERS_012" not in os.environ, reason="ROVE_VERIFIERS_012 names no Python with verifiers 0.1.2.post1"
)
def test_the_real_library_still_gives_the_recorded_rows() -> None:
    again = results("real", os.environ["ROVE_VERIFIERS_012"])["real"]
    for name in NAMES:
        assert again[name] == recorded(name), name
