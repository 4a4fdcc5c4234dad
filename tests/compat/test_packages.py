"""Run packages for `verifiers` v0 on rove.compat: each row is the same as with verifiers 0.3.1.

`compat_recorded` has the results of the real library with the same scripted server. If `ROVE_VERIFIERS_031` is the path of a
Python that has the library, the slow test runs it again. `python tests/support/compat_runner.py record PYTHON` rewrites the
results.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

import pytest
from compat_runner import NAMES, RECORDED, results

ROVE_ONLY = {"debate_g1"}
"""Packages for 0.1.2 to 0.1.7, which the real 0.3.1 refuses."""


def recorded(name: str) -> dict[str, Any]:
    return json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def rove_results() -> dict[str, Any]:
    return results("rove+bridge")


@pytest.fixture
def aliased(rove_results: dict[str, Any]) -> dict[str, Any]:
    return rove_results["rove"]


@pytest.fixture
def bridged(rove_results: dict[str, Any]) -> dict[str, Any]:
    return rove_results["bridge"]


def without_question(requests: list[Any]) -> list[str]:
    """Return the sorted requests without the question in a judge's prompt, which is empty in the real v0."""
    return sorted(
        re.sub(r"Question:\\n```\\n.*?\\n```", "Question:", json.dumps(request, sort_keys=True)) for request in requests
    )


def test_there_are_18_packages_without_the_course() -> None:
    assert len({name.removesuffix("_prompts") for name in NAMES} - {"tictactoe_course"}) == 18


@pytest.mark.broad
@pytest.mark.parametrize("name", sorted(set(NAMES) - ROVE_ONLY))
def test_rows_and_requests_match_those_of_the_real_library(name: str, aliased: dict[str, Any]) -> None:
    ours, real = aliased[name], recorded(name)
    assert "rows" in ours, ours
    assert ours["rows"] == real["rows"]
    assert without_question(ours["asked"]) == without_question(real["asked"])
    if name != "judge_qa":
        assert ours["asked"] == real["asked"]


@pytest.mark.broad
def test_a_judges_prompt_contains_the_question(aliased: dict[str, Any]) -> None:
    question = "Question:\n```\nCapital of France?\n```"
    assert any(question in request["messages"][0]["content"] for request in aliased["judge_qa"]["asked"])
    assert not any(question in request["messages"][0]["content"] for request in recorded("judge_qa")["asked"])


@pytest.mark.broad
def test_a_package_of_the_first_releases_runs(aliased: dict[str, Any]) -> None:
    assert "task" in recorded("debate_g1")["failed"]
    rows = {
        (row["example_id"], row["reward"], row["stop_condition"], len(row["completion"]))
        for row in aliased["debate_g1"]["rows"]
    }
    # The real 0.1.5 and 0.1.7 have the same rows. dogs: immediate agreement, a short task (0.5). tea: three turns; the two
    # turns with a reply have 6 words each.
    assert rows == {(0, 0.5, "is_completed", 1), (1, 1.2, "max_turns_reached", 5)}


@pytest.mark.broad
@pytest.mark.parametrize("name", NAMES)
def test_rove_runs_and_v0_evaluations_have_the_same_scores(
    name: str, aliased: dict[str, Any], bridged: dict[str, Any]
) -> None:
    fields = ("example_id", "completion", "reward", "metrics", "stop_condition", "is_truncated")
    assert bridged[name]["asked"] == aliased[name]["asked"]

    def comparable(rows: list[Any]) -> list[str]:
        scored = [row for row in rows if row["error"] is None]
        return sorted(json.dumps([row[k] for k in fields if k != "completion"], sort_keys=True) for row in scored)

    assert comparable(bridged[name]["rows"]) == comparable(aliased[name]["rows"])
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
def test_the_real_library_still_has_the_recorded_results() -> None:
    results_now = results("real", os.environ["ROVE_VERIFIERS_031"])["real"]
    for name in NAMES:
        assert results_now[name] == recorded(name), name
