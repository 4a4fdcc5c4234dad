from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rove.train.advantages import SPREADLESS, group_advantages

rewards = st.lists(st.floats(-10, 10), min_size=2, max_size=16)


def test_an_advantage_is_the_reward_above_the_groups_mean():
    assert group_advantages([1.0, 0.0, 0.0, 1.0]) == [0.5, -0.5, -0.5, 0.5]
    assert group_advantages([1.2, 0.0, 0.6]) == pytest.approx([0.6, -0.6, 0.0])


@pytest.mark.parametrize("group", [[], [1.0], [0.7, 0.7], [0.1 + 0.2, 0.3], [0.0] * 8])
def test_a_group_without_spread_teaches_nothing(group: list[float]):
    assert group_advantages(group) is None


@given(rewards, st.floats(-5, 5))
def test_advantages_sum_to_nothing_and_ignore_a_constant(group: list[float], constant: float):
    advantages = group_advantages(group)
    if advantages is None:
        assert max(group) - min(group) < SPREADLESS
        return
    assert sum(advantages) == pytest.approx(0, abs=1e-9)
    moved = group_advantages([r + constant for r in group])
    if moved is not None:
        assert moved == pytest.approx(advantages, abs=1e-9)


@given(rewards, st.floats(0.5, 4))
def test_the_spread_is_not_divided_out(group: list[float], factor: float):
    advantages, scaled = group_advantages(group), group_advantages([r * factor for r in group])
    if advantages is not None and scaled is not None:
        assert scaled == pytest.approx([a * factor for a in advantages], abs=1e-9)
