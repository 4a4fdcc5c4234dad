"""Run ten packages in the style of `verifiers` 0.1.0 to 0.1.2 on rove.compat: rows are the same as with 0.1.2.post1.

`compat_recorded_012` has the rows of the real library with the same scripted server. If `ROVE_VERIFIERS_012` is the path of a
Python that has 0.1.2.post1, the slow test runs it again. `python tests/support/compat_runner_012.py record PYTHON` rewrites
the rows.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from compat_runner_012 import NAMES, RECORDED, results

ROVE_ONLY_METRICS = ("num_turns", "total_tool_calls", "reward")
"""Metrics that 0.1.2 does not have: those of 0.1.9, and the reward of a rubric with its own scoring method.

Metrics `NAME_calls` of tools are also new in 0.1.9.
"""


def recorded(name: str) -> dict[str, Any]:
    return json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def rove_results() -> dict[str, Any]:
    return results("rove+bridge")


def sorted_rows(rows: list[Any]) -> list[Any]:
    return sorted(rows, key=lambda row: json.dumps([row["prompt"], row["completion"], row["reward"]]))


def test_there_are_ten_packages_with_varied_rewards() -> None:
    assert len(NAMES) == 10
    assert sorted(file.stem for file in RECORDED.glob("*.json")) == NAMES
    rewards = [row["reward"] for name in NAMES for row in recorded(name)["rows"]]
    assert len(rewards) == 64
    assert len(set(rewards)) > 20


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["rove", "bridge"])
@pytest.mark.parametrize("name", NAMES)
def test_rows_match_those_of_the_real_library(name: str, mode: str, rove_results: dict[str, Any]) -> None:
    assert "rows" in rove_results[mode][name], rove_results[mode][name]
    rows, real = sorted_rows(rove_results[mode][name]["rows"]), sorted_rows(recorded(name)["rows"])
    assert [row["prompt"] for row in rows] == [row["prompt"] for row in real]
    assert [row["completion"] for row in rows] == [row["completion"] for row in real]
    assert [row["reward"] for row in rows] == pytest.approx([row["reward"] for row in real], abs=1e-12)
    for row, expected in zip(rows, real, strict=True):
        assert {key: row["metrics"].get(key) for key in expected["metrics"]} == pytest.approx(expected["metrics"])
        extra = row["metrics"].keys() - expected["metrics"].keys()
        assert all(key in ROVE_ONLY_METRICS or key.endswith("_calls") for key in extra), extra


@pytest.mark.slow
@pytest.mark.skipif(
    "ROVE_VERIFIERS_012" not in os.environ, reason="ROVE_VERIFIERS_012 names no Python with verifiers 0.1.2.post1"
)
def test_the_real_library_still_gives_the_recorded_rows() -> None:
    results_now = results("real", os.environ["ROVE_VERIFIERS_012"])["real"]
    for name in NAMES:
        assert results_now[name] == recorded(name), name
