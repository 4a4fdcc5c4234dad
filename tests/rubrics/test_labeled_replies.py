"""Agreement of the scorers with 200 replies that were labeled by hand; labeled/README.md describes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rove.core.errors import InvalidModelResponseError
from rove.rubrics.scorers import choice, numeric
from rove.rubrics.verdicts import read_verdict

FOLDER = Path(__file__).with_name("labeled")
PLANETS = ["Mercury", "Venus", "Mars", "Saturn"]
MIN_VERDICTS = 45
"""Verdicts that are readable: all of them."""


def labeled(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize("row", labeled("numbers"), ids=lambda row: f"{row['answer']} in {row['reply']}"[:60])
def test_numeric_agrees_with_the_label(row: dict[str, Any]):
    assert numeric(row["reply"], row["answer"]) == row["right"]


@pytest.mark.parametrize("row", labeled("choices"), ids=lambda row: f"{row['answer']} in {row['reply']}"[:60])
def test_choice_agrees_with_the_label(row: dict[str, Any]):
    assert choice(row["reply"], row["answer"], PLANETS) == row["right"]


def test_a_verdict_agrees_with_the_label_or_is_unreadable():
    right, wrong = 0, []
    for row in labeled("verdicts"):
        try:
            verdict = read_verdict(row["reply"], ["yes", "no"])
        except InvalidModelResponseError:
            verdict = None
        right += verdict == row["verdict"]
        if verdict is not None and verdict != row["verdict"]:
            wrong.append(row)
    assert wrong == []
    assert right >= MIN_VERDICTS
