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
        assert max(group) - min(group) < MIN_SPREAD
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


def whole(groups: list[list[float]]) -> list[list[list[float]]]:
    """Groups whose rollouts are rewarded as a whole."""
    return [[[reward] for reward in group] for group in groups]


def test_a_batch_is_divided_by_one_deviation():
    groups = [[1.0, 0.0], [0.5, 0.5], [4.0, 0.0], [2.0]]
    assert batch_advantages(whole(groups)) == [[[0.5], [-0.5]], None, [[2.0], [-2.0]], None]
    spread = math.sqrt((0.25 + 4) / 2)
    found = batch_advantages(whole(groups), "batch_std")
    assert (found[1], found[3]) == (None, None)
    assert found[0] == [pytest.approx([0.5 / spread]), pytest.approx([-0.5 / spread])]
    assert found[2] == [pytest.approx([2 / spread]), pytest.approx([-2 / spread])]
    more = whole([*groups, *[[1.0, 1.0]] * 50])
    assert batch_advantages(more, "batch_std")[:4] == found  # solved examples change nothing
    assert batch_advantages(whole([[1.0, 1.0]]), "batch_std") == [None]


@given(st.lists(rewards, max_size=4), st.sampled_from(WITHIN), st.floats(0, 1))
def test_rollouts_that_are_rewarded_as_a_whole_are_groups_of_one_turn(
    groups: list[list[float]], estimator: str, gamma: float
):
    found = [group_advantages(group, estimator) for group in groups]
    expected = [group and [[advantage] for advantage in group] for group in found]
    assert batch_advantages(whole(groups), estimator, gamma) == expected


def test_returns_to_go_by_hand():
    assert returns_to_go([1.0, 2.0, 4.0]) == [7.0, 6.0, 4.0]
    assert returns_to_go([1.0, 2.0, 4.0], 0.5) == [1 + 0.5 * (2 + 0.5 * 4), 2 + 0.5 * 4, 4.0]
    assert returns_to_go([1.0, 2.0, 4.0], 0.0) == [1.0, 2.0, 4.0]
    assert returns_to_go([]) == []


def test_advantages_of_turns_by_hand():
    # Returns [3, 2], [1, 1], [2]: the first turns have a mean of 2, the second ones, of two siblings, of 1.5.
    group = [[1.0, 2.0], [0.0, 1.0], [2.0]]
    assert turn_advantages(group) == [[1.0, 0.5], [-1.0, -0.5], [0.0]]
    # Half of what comes later: [2, 2], [0.5, 1], [2].
    assert turn_advantages(group, gamma=0.5) == [[0.5, 0.5], [-1.0, -0.5], [0.5]]
    # Against the siblings alone: (1 + 2) / 2, (3 + 2) / 2, (3 + 1) / 2; and 1, 2.
    assert turn_advantages(group, "leave_one_out") == [[1.5, 1.0], [-1.5, -1.0], [0.0]]
    assert turn_advantages(group, "std") == [
        pytest.approx([math.sqrt(1.5), 1.0]),
        pytest.approx([-math.sqrt(1.5), -1.0]),
        [0.0],
    ]
    # A turn that nobody else took teaches nothing by itself, and the turns before it by what came of it.
    assert turn_advantages([[0.0, 5.0], [1.0]]) == [[2.0, 0.0], [-2.0]]
    assert turn_advantages([[1.0, 0.0], [0.0, 1.0, 0.0]]) == [[0.0, -0.5], [0.0, 0.5, 0.0]]
    assert turn_advantages([[1.0, 1.0], [1.0, 1.0]]) is None
    assert turn_advantages([[], []]) is None


turns = st.lists(st.lists(st.floats(-10, 10), max_size=4), max_size=6)


@given(turns, st.sampled_from(WITHIN), st.floats(0, 1))
def test_each_number_of_a_turn_sums_to_nothing(group: list[list[float]], estimator: str, gamma: float):
    found = turn_advantages(group, estimator, gamma)
    if found is None:
        return
    assert list(map(len, found)) == list(map(len, group))
    for turn in range(max(map(len, found))):
        column = [advantages[turn] for advantages in found if len(advantages) > turn]
        assert sum(column) == pytest.approx(0, abs=1e-6)
        assert len(column) > 1 or column == [0.0]


@given(turns, st.floats(-5, 5), st.floats(0, 1))
def test_a_turns_advantage_knows_nothing_of_the_turns_before_it(
    group: list[list[float]], constant: float, gamma: float
):
    first = [[(rewards[0] + constant * i), *rewards[1:]] if rewards else [] for i, rewards in enumerate(group)]
    found, moved = (turn_advantages(some, gamma=gamma) or [[0.0] * len(r) for r in some] for some in (group, first))
    assert [advantages[1:] for advantages in found] == [advantages[1:] for advantages in moved]


def test_deciding_to_go_on_is_not_charged_for():
    """Exactly, over all that three siblings can do: stop (earns 1) or go on (earns 3), then do well (1) or badly (0).

    With the baseline of the siblings alone, the expected update of each choice is what the choice is worth, times the
    chance that a sibling is there to compare with. That is so although the number of turns is the policy's own choice.
    """
    on, well = 0.3, 0.6
    plays = [([1.0], 1 - on), ([3.0, 1.0], on * well), ([3.0, 0.0], on * (1 - well))]
    gradient = [0.0, 0.0]  # of the log-odds of going on, and of doing well
    for group in itertools.product(plays, repeat=3):
        chance = math.prod(p for _, p in group)
        found = turn_advantages([r for r, _ in group], "leave_one_out") or [[0.0] * len(r) for r, _ in group]
        for (rewards, _), advantages in zip(group, found, strict=True):
            gradient[0] += chance * advantages[0] * (float(len(rewards) > 1) - on) / 3
            if len(rewards) > 1:
                gradient[1] += chance * advantages[1] * (rewards[1] - well) / 3
    compared = 1 - (1 - on) ** 2
    assert gradient[0] == pytest.approx(on * (1 - on) * (3 + well - 1))
    assert gradient[1] == pytest.approx(on * well * (1 - well) * compared)


def finite(value: object) -> bool:
    if isinstance(value, list):
        return all(finite(v) for v in value)
    return value is None or (isinstance(value, float) and math.isfinite(value))


@given(st.lists(st.lists(wild, max_size=4), max_size=4), st.sampled_from(ESTIMATORS), st.floats(0, 1))
def test_whatever_the_rewards_an_advantage_is_a_number(groups: list[list[list[float]]], estimator: str, gamma: float):
    found = batch_advantages(groups, estimator, gamma)
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
        batch_advantages([[[1.0], [0.0]]], "zzz")
    with pytest.raises(ConfigError, match="batch_advantages"):
        group_advantages([1.0, 0.0], "batch_std")
    for name in ESTIMATORS:
        check_estimator(name)
    for wrong in (-0.1, 1.1, math.nan):
        with pytest.raises(ConfigError, match="gamma"):
            turn_advantages([[1.0], [0.0]], gamma=wrong)
