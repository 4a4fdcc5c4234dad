"""Packages written for `verifiers` v0, on rove.compat: row by row what the real 0.3.1 made of them.

`compat_recorded` has what the real library did with the same scripted server. `ROVE_VERIFIERS_031=PYTHON`, a Python that has
it, runs it again; `python tests/support/compat_runner.py record PYTHON` writes it anew.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

import pytest
from compat_runner import NAMES, RECORDED, results

ONLY_HERE = {"debate_g1"}
"""Packages that the real 0.3.1 refuses: as for 0.1.2 to 0.1.7."""


def recorded(name: str) -> dict[str, Any]:
    return json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def ours() -> dict[str, Any]:
    return results("rove+bridge")


@pytest.fixture
def aliased(ours: dict[str, Any]) -> dict[str, Any]:
    return ours["rove"]


@pytest.fixture
def bridged(ours: dict[str, Any]) -> dict[str, Any]:
    return ours["bridge"]


def without_question(asked: list[Any]) -> list[str]:
    """Requests with the question that a judge is asked left out: real v0 leaves it empty."""
    return sorted(re.sub(r"Question:\\n```\\n.*?\\n```", "Question:", json.dumps(one, sort_keys=True)) for one in asked)


def test_there_are_eighteen_packages_beside_the_course() -> None:
    assert len({name.removesuffix("_prompts") for name in NAMES} - {"tictactoe_course"}) == 18


@pytest.mark.broad
@pytest.mark.parametrize("name", sorted(set(NAMES) - ONLY_HERE))
def test_rows_and_requests_are_those_of_the_real_library(name: str, aliased: dict[str, Any]) -> None:
    ours, real = aliased[name], recorded(name)
    assert "rows" in ours, ours
    assert ours["rows"] == real["rows"]
    assert without_question(ours["asked"]) == without_question(real["asked"])
    if name != "judge_qa":
        assert ours["asked"] == real["asked"]


@pytest.mark.broad
def test_judges_get_the_question(aliased: dict[str, Any]) -> None:
    asked = "Question:\n```\nCapital of France?\n```"
    assert any(asked in one["messages"][0]["content"] for one in aliased["judge_qa"]["asked"])
    assert not any(asked in one["messages"][0]["content"] for one in recorded("judge_qa")["asked"])


@pytest.mark.broad
def test_a_package_of_the_first_generation_runs(aliased: dict[str, Any]) -> None:
    assert "task" in recorded("debate_g1")["failed"]
    rows = {
        (row["example_id"], row["reward"], row["stop_condition"], len(row["completion"]))
        for row in aliased["debate_g1"]["rows"]
    }
    # So it is on the real 0.1.5 and 0.1.7, too. dogs: agreed at once, a short task (0.5). tea: three turns; the two that
    # were answered have 6 words each.
    assert rows == {(0, 0.5, "is_completed", 1), (1, 1.2, "max_turns_reached", 5)}


@pytest.mark.broad
@pytest.mark.parametrize("name", NAMES)
def test_rove_runs_score_alike(name: str, aliased: dict[str, Any], bridged: dict[str, Any]) -> None:
    kept = ("example_id", "completion", "reward", "metrics", "stop_condition", "is_truncated")
    assert bridged[name]["asked"] == aliased[name]["asked"]

    def told(rows: list[Any]) -> list[str]:
        fair = [row for row in rows if row["error"] is None]
        return sorted(json.dumps([row[k] for k in kept if k != "completion"], sort_keys=True) for row in fair)

    assert told(bridged[name]["rows"]) == told(aliased[name]["rows"])
    failures = [row for row in bridged[name]["rows"] if row["error"]]
    assert all(row["reward"] is None for row in failures)  # v0 scores them; rove never does
    assert len(failures) == sum(row["error"] is not None for row in aliased[name]["rows"])


@pytest.mark.broad
def test_other_model_calls_are_recorded_under_a_model_role(bridged: dict[str, Any]) -> None:
    for row in bridged["user_simulator"]["rows"]:
        assert row["model_roles"]["environment"] in (row["steps"], row["steps"] - 1)


@pytest.mark.slow
@pytest.mark.skipif(
    "ROVE_VERIFIERS_031" not in os.environ, reason="ROVE_VERIFIERS_031 names no Python with verifiers 0.3.1"
)
def test_the_real_library_still_says_so() -> None:
    again = results("real", os.environ["ROVE_VERIFIERS_031"])["real"]
    for name in NAMES:
        assert again[name] == recorded(name), name
