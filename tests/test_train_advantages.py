from __future__ import annotations

import math
from statistics import pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rove.errors import ConfigError
from rove.train.advantages import (
    ESTIMATORS,
    SPREADLESS,
    batch_advantages,
    check_estimator,
    group_advantages,
)

WITHIN = [name for name in ESTIMATORS if name != "batch_std"]

rewards = st.lists(st.floats(-10, 10), min_size=2, max_size=16)
wild = st.lists(st.one_of(st.floats(-1e100, 1e100), st.sampled_from([0.0, 1.0, 1e-5])), max_size=6)


def test_an_advantage_is_the_reward_above_the_groups_mean():
    assert group_advantages([1.0, 0.0, 0.0, 1.0]) == [0.5, -0.5, -0.5, 0.5]
    assert group_advantages([1.2, 0.0, 0.6]) == pytest.approx([0.6, -0.6, 0.0])


@pytest.mark.parametrize("estimator", WITHIN)
@pytest.mark.parametrize("group", [[], [1.0], [0.7, 0.7], [0.1 + 0.2, 0.3], [0.0] * 8])
def test_a_group_without_spread_teaches_nothing(group: list[float], estimator: str):
    assert group_advantages(group, estimator) is None


@given(rewards, st.floats(-5, 5), st.sampled_from(WITHIN))
def test_advantages_sum_to_nothing_and_ignore_a_constant(group: list[float], constant: float, estimator: str):
    advantages = group_advantages(group, estimator)
    if advantages is None:
        assert max(group) - min(group) < SPREADLESS
        return
    assert sum(advantages) == pytest.approx(0, abs=1e-7)
    moved = group_advantages([r + constant for r in group], estimator)
    if moved is not None:
        assert moved == pytest.approx(advantages, abs=1e-7)


@given(rewards, st.floats(0.5, 4), st.sampled_from(WITHIN))
def test_only_dividing_by_the_spread_takes_the_scale_out(group: list[float], factor: float, estimator: str):
    advantages = group_advantages(group, estimator)
    scaled = group_advantages([r * factor for r in group], estimator)
    if advantages is not None and scaled is not None:
        kept = 1.0 if estimator == "std" else factor
        assert scaled == pytest.approx([a * kept for a in advantages], abs=1e-7)


def test_estimators_by_hand():
    # Mean 0.5; deviations −0.5, 0.5, 1.5, −1.5 have a mean square of 1.25.
    group = [0.0, 1.0, 2.0, -1.0]
    assert group_advantages(group, "mean") == [-0.5, 0.5, 1.5, -1.5]
    assert group_advantages(group, "std") == pytest.approx([a / math.sqrt(1.25) for a in (-0.5, 0.5, 1.5, -1.5)])
    # Each against the mean of the others: the first against (1 + 2 − 1) / 3.
    assert group_advantages(group, "leave_one_out") == pytest.approx([0 - 2 / 3, 1 - 1 / 3, 2 - 0 / 3, -1 - 3 / 3])


@given(rewards)
def test_leaving_one_out_is_the_mean_of_the_others(group: list[float]):
    advantages = group_advantages(group, "leave_one_out")
    if advantages is not None:
        others = [(sum(group) - r) / (len(group) - 1) for r in group]
        assert advantages == pytest.approx([r - o for r, o in zip(group, others, strict=True)], abs=1e-9)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_the_one_that_differs_is_kept_and_its_groups_size_leaves_the_unit_spread(size: int):
    # Divided by the deviation of the others alone, [1, 0, 0, 0] would be 1 / 0 for the first.
    advantages = group_advantages([1.0, *[0.0] * (size - 1)], "std")
    assert advantages is not None
    assert pstdev(advantages) == pytest.approx(1)
    # A hundred times less spread: the same, as nothing is added to the deviation.
    assert group_advantages([0.01, *[0.0] * (size - 1)], "std") == pytest.approx(advantages)


def test_a_batch_is_divided_by_one_deviation():
    groups = [[1.0, 0.0], [0.5, 0.5], [4.0, 0.0], [2.0]]
    assert batch_advantages(groups) == [[0.5, -0.5], None, [2.0, -2.0], None]
    spread = math.sqrt((0.25 + 4) / 2)
    found = batch_advantages(groups, "batch_std")
    assert (found[1], found[3]) == (None, None)
    assert found[0] == pytest.approx([0.5 / spread, -0.5 / spread])
    assert found[2] == pytest.approx([2 / spread, -2 / spread])
    assert batch_advantages([*groups, *[[1.0, 1.0]] * 50], "batch_std")[:4] == found  # solved examples change nothing
    assert batch_advantages([[1.0, 1.0]], "batch_std") == [None]
    for name in WITHIN:
        assert batch_advantages(groups, name) == [group_advantages(group, name) for group in groups]


def finite(value: object) -> bool:
    if isinstance(value, list):
        return all(finite(v) for v in value)
    return value is None or (isinstance(value, float) and math.isfinite(value))


@given(st.lists(wild, max_size=4), st.sampled_from(ESTIMATORS))
def test_whatever_the_rewards_an_advantage_is_a_number(groups: list[list[float]], estimator: str):
    found = batch_advantages(groups, estimator)
    assert finite(found)
    assert [a and len(a) for a in found] == [len(g) if a else None for g, a in zip(groups, found, strict=True)]


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_is_refused(poison: float):
    with pytest.raises(ValueError, match="finite"):
        group_advantages([1.0, poison])


def test_wrong_settings_are_refused():
    with pytest.raises(ConfigError, match="did you mean 'leave_one_out'"):
        check_estimator("leave-one-ou")
    with pytest.raises(ConfigError, match="known: batch_std, leave_one_out, mean, std"):
        batch_advantages([[1.0, 0.0]], "zzz")
    with pytest.raises(ConfigError, match="batch_advantages"):
        group_advantages([1.0, 0.0], "batch_std")
    for name in ESTIMATORS:
        check_estimator(name)
