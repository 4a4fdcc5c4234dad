"""Warnings about known defects of other libraries' tasks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest

import rove
from rove.integrations.known_defects import known_defects, warn_of_known_defects, warn_of_seed_overlap


@pytest.fixture(autouse=True)
def not_yet_warned() -> Iterator[None]:
    warn_of_known_defects.cache_clear()
    warn_of_seed_overlap.cache_clear()
    yield
    warn_of_known_defects.cache_clear()
    warn_of_seed_overlap.cache_clear()


def warnings_for(library: str, name: str) -> list[str]:
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        warn_of_known_defects(library, name)
        warn_of_known_defects(library, name)
    return [str(warning.message) for warning in caught_warnings]


def test_known_defects_cause_one_warning() -> None:
    name, defects = next(iter(known_defects()["reasoning-gym"].defects.items()))
    [text] = warnings_for("reasoning-gym", name)
    assert f"'{name}' has known defects" in text and defects[0] in text and "audit_report.md" in text


@pytest.mark.parametrize(
    ("library", "name", "defect"),
    [
        ("reasoning-gym", "syllogism", "one gold answer in ten is wrong"),
        ("textarena", "Bandit-v0", "worse buttons earn more"),
        ("textarena", "Bandit-v0-hard-train", "worse buttons earn more"),
    ],
)
def test_reported_defects_cause_one_warning(library: str, name: str, defect: str) -> None:
    [text] = warnings_for(library, name)
    assert f"'{name}' has a known defect" in text and defect in text


@pytest.mark.parametrize("load", [lambda: rove.ReasoningGymEnv("syllogism"), lambda: rove.TextArenaEnv("Bandit-v0")])
def test_loading_an_environment_with_a_reported_defect_warns(load: Callable[[], object]) -> None:
    with pytest.warns(UserWarning, match="known defect"):
        load()


@pytest.mark.parametrize(
    ("library", "name"),
    [("reasoning-gym", "chain_sum"), ("other", "chain_sum"), ("textarena", "Bandit"), ("textarena", "Bandit-v01")],
)
def test_tasks_without_known_defects_cause_no_warning(library: str, name: str) -> None:
    assert warnings_for(library, name) == []


def test_overlapping_seeds_cause_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"seeds task i with seed \+ i"):
        warn_of_seed_overlap()
