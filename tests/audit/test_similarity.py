"""Similarity of wrong answers to right ones."""

from __future__ import annotations

import pytest

from rove.audit.similarity import similarity


@pytest.mark.parametrize(
    ("candidate", "answer", "low", "high"),
    [
        ("Paris", "paris ", 1, 1),
        ("A", "B", 0, 0),
        ("90", "100", 0.9, 0.9),
        ("-5", "5", 0, 0),
        ("the answer is 3", "the answer is 5", 0.9, 0.95),
        ("red blue", "blue red", 1, 1),
        ("qxzj", "Berlin", 0, 0.3),
        ("0", "0.0", 1, 1),
    ],
)
def test_similarity(candidate: str, answer: str, low: float, high: float) -> None:
    assert low - 1e-9 <= similarity(candidate, answer) <= high + 1e-9
