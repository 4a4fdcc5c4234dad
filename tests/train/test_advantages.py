from __future__ import annotations

import itertools
import math
from statistics import pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rove.core.errors import ConfigError
from rove.train.advantages import (
    ESTIMATORS,
    MIN_SPREAD,
    batch_advantages,
    check_estimator,
    group_advantages,
    returns_to_go,
    turn_advantages,
)

GROUP_ESTIMATORS = [name for name in ESTIMATORS if name != "batch_std"]

rewards = st.lists(st.floats(-10, 10), min_size=2, max_size=16)
extreme_rewards = st.lists(st.one_of(st.floats(-1e100, 1e100), st.sampled_from([0.0, 1.0, 1e-5])), max_size=6)


def test_the_default_advantage_is_the_reward_minus_the_group_mean():
    assert group_advantages([1.0, 0.0, 0.0, 1.0]) == [0.5, -0.5, -0.5, 0.5]
    assert group_advantages([1.2, 0.0, 0.6]) == pytest.approx([0.6, -0.6, 0.0])


@pytest.mark.parametrize("estimator", GROUP_ESTIMATORS)
@pytest.mark.parametrize("group", [[], [1.0], [0.7, 0.7], [0.1 + 0.2, 0.3], [0.0] * 8])
def test_a_group_with_equal_rewards_has_no_advantages(group: list[float], estimator: str):
    assert group_advantages(group, estimator) is None


@given(rewards, st.floats(-5, 5), st.sampled_from(GROUP_ESTIMATORS))
def test_advantages_sum_to_zero_and_ignore_a_constant_offset(group: list[float], constant: float, estimator: str):
    advantages = group_advantages(group, estimator)
    if advantages is None:
        assert max(group) - min(group) < MIN_SPREAD
        return
    assert sum(advantages) == pytest.approx(0, abs=1e-7)
    shifted = group_advantages([r + constant for r in group], estimator)
    if shifted is not None:
        assert shifted == pytest.approx(advantages, abs=1e-7)


@given(rewards, st.floats(0.5, 4), st.sampled_from(GROUP_ESTIMATORS))
def test_only_the_std_estimator_is_invariant_to_the_reward_scale(group: list[float], factor: float, estimator: str):
    advantages = group_advantages(group, estimator)
    scaled = group_advantages([r * factor for r in group], estimator)
    if advantages is not None and scaled is not None:
        expected_factor = 1.0 if estimator == "std" else factor
        assert scaled == pytest.approx([a * expected_factor for a in advantages], abs=1e-7)


def test_estimators_return_values_computed_by_hand():
    # Mean 0.5; deviations −0.5, 0.5, 1.5, −1.5 have a mean square of 1.25.
    group = [0.0, 1.0, 2.0, -1.0]
    assert group_advantages(group, "mean") == [-0.5, 0.5, 1.5, -1.5]
    assert group_advantages(group, "std") == pytest.approx([a / math.sqrt(1.25) for a in (-0.5, 0.5, 1.5, -1.5)])
    # The baseline is the mean of the other rewards: (1 + 2 − 1) / 3 for the first.
    assert group_advantages(group, "leave_one_out") == pytest.approx([0 - 2 / 3, 1 - 1 / 3, 2 - 0 / 3, -1 - 3 / 3])


@given(rewards)
def test_leave_one_out_subtracts_the_mean_of_the_other_rewards(group: list[float]):
    advantages = group_advantages(group, "leave_one_out")
    if advantages is not None:
        other_means = [(sum(group) - r) / (len(group) - 1) for r in group]
        assert advantages == pytest.approx([r - o for r, o in zip(group, other_means, strict=True)], abs=1e-9)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_std_gives_unit_deviation_for_any_group_size_and_reward_scale(size: int):
    # Dividing by the deviation of the other rewards would give 1 / 0 for the first of [1, 0, 0, 0].
    advantages = group_advantages([1.0, *[0.0] * (size - 1)], "std")
    assert advantages is not None
    assert pstdev(advantages) == pytest.approx(1)
    # A deviation 100 times smaller gives the same result: no constant is added to it.
    assert group_advantages([0.01, *[0.0] * (size - 1)], "std") == pytest.approx(advantages)


def single_turn_groups(groups: list[list[float]]) -> list[list[list[float]]]:
    """Return groups whose rollouts have one turn and one reward."""
    return [[[reward] for reward in group] for group in groups]


def test_batch_std_divides_all_groups_by_one_deviation():
    groups = [[1.0, 0.0], [0.5, 0.5], [4.0, 0.0], [2.0]]
    assert batch_advantages(single_turn_groups(groups)) == [[[0.5], [-0.5]], None, [[2.0], [-2.0]], None]
    deviation = math.sqrt((0.25 + 4) / 2)
    advantages = batch_advantages(single_turn_groups(groups), "batch_std")
    assert (advantages[1], advantages[3]) == (None, None)
    assert advantages[0] == [pytest.approx([0.5 / deviation]), pytest.approx([-0.5 / deviation])]
    assert advantages[2] == [pytest.approx([2 / deviation]), pytest.approx([-2 / deviation])]
    with_solved_groups = single_turn_groups([*groups, *[[1.0, 1.0]] * 50])
    assert (
        batch_advantages(with_solved_groups, "batch_std")[:4] == advantages
    )  # solved examples do not change the result
    assert batch_advantages(single_turn_groups([[1.0, 1.0]]), "batch_std") == [None]


@given(st.lists(rewards, max_size=4), st.sampled_from(GROUP_ESTIMATORS), st.floats(0, 1))
def test_rollouts_with_one_reward_are_treated_as_groups_of_one_turn(
    groups: list[list[float]], estimator: str, gamma: float
):
    advantages = [group_advantages(group, estimator) for group in groups]
    expected = [group and [[advantage] for advantage in group] for group in advantages]
    assert batch_advantages(single_turn_groups(groups), estimator, gamma) == expected


def test_returns_to_go_match_values_computed_by_hand():
    assert returns_to_go([1.0, 2.0, 4.0]) == [7.0, 6.0, 4.0]
    assert returns_to_go([1.0, 2.0, 4.0], 0.5) == [1 + 0.5 * (2 + 0.5 * 4), 2 + 0.5 * 4, 4.0]
    assert returns_to_go([1.0, 2.0, 4.0], 0.0) == [1.0, 2.0, 4.0]
    assert returns_to_go([]) == []


def test_turn_advantages_match_values_computed_by_hand():
    # Returns [3, 2], [1, 1], [2]: the mean of the first turns is 2; the mean of the two second turns is 1.5.
    group = [[1.0, 2.0], [0.0, 1.0], [2.0]]
    assert turn_advantages(group) == [[1.0, 0.5], [-1.0, -0.5], [0.0]]
    # With gamma 0.5 the returns are [2, 2], [0.5, 1], [2].
    assert turn_advantages(group, gamma=0.5) == [[0.5, 0.5], [-1.0, -0.5], [0.5]]
    # Baselines from the other group members: (1 + 2) / 2, (3 + 2) / 2, (3 + 1) / 2; then 1, 2.
    assert turn_advantages(group, "leave_one_out") == [[1.5, 1.0], [-1.5, -1.0], [0.0]]
    assert turn_advantages(group, "std") == [
        pytest.approx([math.sqrt(1.5), 1.0]),
        pytest.approx([-math.sqrt(1.5), -1.0]),
        [0.0],
    ]
    # A turn without a counterpart in the group has advantage 0, but its reward counts in the returns of earlier turns.
    assert turn_advantages([[0.0, 5.0], [1.0]]) == [[2.0, 0.0], [-2.0]]
    assert turn_advantages([[1.0, 0.0], [0.0, 1.0, 0.0]]) == [[0.0, -0.5], [0.0, 0.5, 0.0]]
    assert turn_advantages([[1.0, 1.0], [1.0, 1.0]]) is None
    assert turn_advantages([[], []]) is None


turns = st.lists(st.lists(st.floats(-10, 10), max_size=4), max_size=6)


@given(turns, st.sampled_from(GROUP_ESTIMATORS), st.floats(0, 1))
def test_advantages_of_each_turn_index_sum_to_zero(group: list[list[float]], estimator: str, gamma: float):
    group_result = turn_advantages(group, estimator, gamma)
    if group_result is None:
        return
    assert list(map(len, group_result)) == list(map(len, group))
    for turn in range(max(map(len, group_result))):
        column = [advantages[turn] for advantages in group_result if len(advantages) > turn]
        assert sum(column) == pytest.approx(0, abs=1e-6)
        assert len(column) > 1 or column == [0.0]


@given(turns, st.floats(-5, 5), st.floats(0, 1))
def test_turn_advantages_do_not_depend_on_rewards_of_earlier_turns(
    group: list[list[float]], constant: float, gamma: float
):
    shifted_group = [[(rewards[0] + constant * i), *rewards[1:]] if rewards else [] for i, rewards in enumerate(group)]
    original, shifted = (turn_advantages(g, gamma=gamma) or [[0.0] * len(r) for r in g] for g in (group, shifted_group))
    assert [advantages[1:] for advantages in original] == [advantages[1:] for advantages in shifted]


def test_turn_advantages_do_not_bias_the_choice_to_continue():
    """Compute the exact expected gradient over all outcomes of three group members.

    Each rollout stops (reward 1) or continues (reward 3) and then succeeds (1) or fails (0). With the leave-one-out
    baseline, the expected gradient of each choice is the value of the choice times the probability that another group
    member took the same turn, although the policy chooses the number of turns.
    """
    p_continue, p_success = 0.3, 0.6
    outcomes = [
        ([1.0], 1 - p_continue),
        ([3.0, 1.0], p_continue * p_success),
        ([3.0, 0.0], p_continue * (1 - p_success)),
    ]
    gradient = [0.0, 0.0]  # with respect to the log-odds of continuing and of succeeding
    for group in itertools.product(outcomes, repeat=3):
        chance = math.prod(p for _, p in group)
        results = turn_advantages([r for r, _ in group], "leave_one_out") or [[0.0] * len(r) for r, _ in group]
        for (rewards, _), advantages in zip(group, results, strict=True):
            gradient[0] += chance * advantages[0] * (float(len(rewards) > 1) - p_continue) / 3
            if len(rewards) > 1:
                gradient[1] += chance * advantages[1] * (rewards[1] - p_success) / 3
    p_comparison = 1 - (1 - p_continue) ** 2
    assert gradient[0] == pytest.approx(p_continue * (1 - p_continue) * (3 + p_success - 1))
    assert gradient[1] == pytest.approx(p_continue * p_success * (1 - p_success) * p_comparison)


def is_finite(value: object) -> bool:
    if isinstance(value, list):
        return all(is_finite(v) for v in value)
    return value is None or (isinstance(value, float) and math.isfinite(value))


@given(st.lists(st.lists(extreme_rewards, max_size=4), max_size=4), st.sampled_from(ESTIMATORS), st.floats(0, 1))
def test_advantages_are_finite_for_extreme_rewards(groups: list[list[list[float]]], estimator: str, gamma: float):
    advantages = batch_advantages(groups, estimator, gamma)
    assert is_finite(advantages)
    assert [a and len(a) for a in advantages] == [
        len(g) if a else None for g, a in zip(groups, advantages, strict=True)
    ]


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_non_finite_rewards_are_rejected(poison: float):
    with pytest.raises(ValueError, match="finite"):
        group_advantages([1.0, poison])


def test_invalid_settings_are_rejected():
    with pytest.raises(ConfigError, match="did you mean 'leave_one_out'"):
        check_estimator("leave-one-ou")
    with pytest.raises(ConfigError, match="known: batch_std, leave_one_out, mean, std"):
        batch_advantages([[[1.0], [0.0]]], "zzz")
    with pytest.raises(ConfigError, match="batch_advantages"):
        group_advantages([1.0, 0.0], "batch_std")
    for name in ESTIMATORS:
        check_estimator(name)
    for wrong in (-0.1, 1.1, math.nan):
        with pytest.raises(ConfigError, match="gamma"):
            turn_advantages([[1.0], [0.0]], gamma=wrong)
