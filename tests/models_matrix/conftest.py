"""Shared by the tests of all families: the family, its model, an environment, and the results for the table in docs/models.md."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from commands import write_environment
from tiny_families import FAMILIES, save_published

from tests.models.test_published_templates import templates as templates

ENVIRONMENT = """
import rove as vf


def letters(completion: vf.Messages) -> float:
    text = "".join(message["content"] for message in completion if message["role"] == "assistant")
    return sum("a" <= letter <= "z" for letter in text) / max(1, len(text))


class ThreeTurns(vf.MultiTurnEnv):
    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs) -> str:
        return "you say"


def load_environment() -> vf.Environment:
    rubric = vf.Rubric()
    rubric.add_reward_func(letters, weight=1.0)
    return ThreeTurns(dataset=[{"question": f"say {number}"} for number in range(4)], rubric=rubric, max_turns=3)
"""
Result = Callable[..., None]
"""Takes the column of the table, and the content of the cell if the test passes."""
CELLS: list[dict[str, str]] = []
"""Results of the tests that record a column, in the order in which they end."""


def expect_failure(request: pytest.FixtureRequest, reasons: Mapping[str, str], family: str) -> None:
    """Expect the test to fail for the families in `reasons`; it is an error if one of them passes."""
    if family in reasons:
        request.applymarker(pytest.mark.xfail(reason=reasons[family], strict=True))


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def result(family: str, record_property: Callable[[str, object], None]) -> Result:
    """Return a function that sets the cell of the table that this test fills if it passes."""

    def record(column: str, value: str = "yes") -> None:
        record_property("family", family)
        record_property("column", column)
        record_property("value", value)

    return record


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the family's published model, in bf16."""
    path = tmp_path_factory.mktemp(family) / "published"
    save_published(family, path, dtype=torch.bfloat16)
    return path


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the environment of the rollouts, which evaluations during training load by name."""
    path = tmp_path_factory.mktemp("environments")
    write_environment(path, "matrix_letters", ENVIRONMENT)
    return path


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--matrix-results", help="file for the results, which tests/support/models_page.py reads")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of a family in one process, which writes its model once per module."""
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and "family" in item.callspec.params:
            item.add_marker(pytest.mark.xdist_group(item.callspec.params["family"]))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    properties = {name: str(value) for name, value in report.user_properties}
    is_result = report.when == "call" or (report.when == "setup" and not report.passed)
    if not is_result or "column" not in properties:
        return
    reason = str(getattr(report, "wasxfail", "")).removeprefix("reason: ")
    if report.skipped and not reason and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
    outcome = "expected failure" if hasattr(report, "wasxfail") and not report.passed else report.outcome
    CELLS.append({**properties, "outcome": outcome, "reason": reason})


def pytest_sessionfinish(session: pytest.Session) -> None:
    file = session.config.getoption("--matrix-results")
    if file is None or hasattr(session.config, "workerinput"):  # the processes of pytest-xdist send their reports
        return
    versions = {name: version(name) for name in ("transformers", "peft", "torch")}
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).write_text(json.dumps({"versions": versions, "cells": CELLS}, indent=1), encoding="utf-8")
