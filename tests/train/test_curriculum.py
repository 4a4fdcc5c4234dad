from __future__ import annotations

import itertools
from collections import Counter
from itertools import islice
from typing import Any

import pytest
from fakes import make_rollout
from hypothesis import given
from hypothesis import strategies as st

from rove.core.errors import ConfigError
from rove.train.config import CurriculumConfig, FilterConfig
from rove.train.curriculum import Difficulty, ExampleOrder, StepExamples, column, interleave, strata

NO_FILTER = Difficulty(FilterConfig(hard_threshold=None, easy_threshold=None, difficulty_window=1))


def make_order(
    examples: list[dict[str, Any]], steps: int = 4, width: int = 4, seed: int = 0, **options: Any
) -> ExampleOrder:
    return ExampleOrder(examples, CurriculumConfig(**options), seed, steps, width)


def examples_by_step(order: ExampleOrder, difficulty: Difficulty = NO_FILTER) -> list[list[int]]:
    """Return the examples of each step."""
    position, steps = 0, []
    for step in range(order.steps):
        draw = StepExamples(order, difficulty, step, position)
        steps.append(draw.take(order.groups))
        position = draw.position
    return steps


def rows(*levels: Any) -> list[dict[str, Any]]:
    return [{"prompt": [], "level": level, "info": {"depth": -i}} for i, level in enumerate(levels)]


def test_examples_are_used_in_dataset_order_and_repeated():
    assert examples_by_step(make_order(rows(*"abcdef"))) == [[0, 1, 2, 3], [4, 5, 0, 1], [2, 3, 4, 5], [0, 1, 2, 3]]


def test_shuffling_gives_each_epoch_all_examples_in_a_new_order():
    flat = [i for step in examples_by_step(make_order(rows(*range(8)), steps=6, shuffle=True)) for i in step]
    epochs = [flat[i : i + 8] for i in (0, 8, 16)]
    assert all(sorted(epoch) == list(range(8)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert flat == [i for step in examples_by_step(make_order(rows(*range(8)), steps=6, shuffle=True)) for i in step]
    assert flat != [
        i for step in examples_by_step(make_order(rows(*range(8)), steps=6, shuffle=True, seed=1)) for i in step
    ]


def test_stratified_steps_all_have_the_same_mix():
    levels = ["easy"] * 24 + ["hard"] * 8
    for shuffle in (False, True):
        steps = examples_by_step(make_order(rows(*levels), steps=16, stratify="level", shuffle=shuffle))
        assert all(Counter(levels[i] for i in step) == {"easy": 3, "hard": 1} for step in steps)
        assert sorted(i for step in steps[:8] for i in step) == list(range(32))


def test_without_stratify_a_step_follows_dataset_order():
    levels = ["easy"] * 24 + ["hard"] * 8
    assert Counter(levels[i] for i in examples_by_step(make_order(rows(*levels), steps=1))[0]) == {"easy": 4}


def test_numeric_columns_are_stratified_by_quantile():
    steps = examples_by_step(make_order(rows(*range(32)), steps=8, stratify="level"))
    assert all(sorted(i // 8 for i in step) == [0, 1, 2, 3] for step in steps)
    halves = examples_by_step(make_order(rows(*range(32)), steps=8, stratify="level", stratify_bins=2))
    assert all(sorted(i // 16 for i in step) == [0, 0, 1, 1] for step in halves)
    assert any(sorted(i // 8 for i in step) != [0, 1, 2, 3] for step in halves)


def test_a_skewed_column_has_the_requested_number_of_strata():
    values = [0.0] * 80 + [float(i) for i in range(1, 21)]
    assert sorted(Counter(strata(values, 4)).values()) == [6, 7, 7, 80]
    assert sorted(Counter(strata([-value for value in values], 4)).values()) == [6, 7, 7, 80]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=80), st.integers(2, 8))
def test_there_is_a_stratum_per_bin_or_per_distinct_value(values: list[int], bins: int):
    groups = strata(values, bins)
    assert set(groups) == set(range(min(bins, len(set(values)))))


@given(st.lists(st.integers(1, 30), min_size=3, max_size=9), st.integers(2, 3))
def test_strata_are_as_equal_in_size_as_ties_allow(counts: list[int], bins: int):
    values = [value for value, count in enumerate(counts) for _ in range(count)]
    cuts = itertools.combinations(range(1, len(counts)), bins - 1)
    parts = ([sum(counts[a:b]) for a, b in itertools.pairwise((0, *cut, len(counts)))] for cut in cuts)
    minimum = min(sum(size**2 for size in part) for part in parts)
    groups = strata(values, bins)
    assert groups == sorted(groups)
    if len(counts) > bins:
        assert sum(size**2 for size in Counter(groups).values()) == minimum


@given(st.integers(2, 8), st.integers(1, 12))
def test_strata_of_distinct_numbers_are_equal_in_size(bins: int, size: int):
    assert set(Counter(strata(list(range(bins * size)), bins)).values()) == {size}


@pytest.mark.parametrize("value", [3, "easy"])
def test_a_column_with_one_value_cannot_be_stratified(value: object):
    with pytest.raises(ConfigError, match="stratify column 'level' has the same value in all 8 examples"):
        make_order(rows(*[value] * 8), steps=1, stratify="level")


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(1, 12))
def test_every_window_of_an_interleaved_order_is_close_to_the_overall_mix(stratum: list[int], width: int):
    interleaved = interleave(range(len(stratum)), stratum)
    assert sorted(interleaved) == list(range(len(stratum)))
    for start in range(0, len(interleaved) - width + 1):
        counts = Counter(stratum[i] for i in interleaved[start : start + width])
        for number, size in Counter(stratum).items():
            assert abs(counts[number] - width * size / len(stratum)) <= 1 + 6 / 2


@given(st.lists(st.integers(0, 20), min_size=1, max_size=40), st.integers(2, 6))
def test_strata_are_ascending_and_keep_equal_values_together(values: list[int], bins: int):
    groups = strata(values, bins)
    pairs = sorted(zip(values, groups))
    assert [stratum for _, stratum in pairs] == sorted(groups)
    assert len(dict(pairs)) == len(set(values))
    assert all(dict(pairs)[value] == stratum for value, stratum in pairs)
    assert len(set(groups)) <= bins


def test_a_curriculum_ascends_without_repeated_examples_in_a_step():
    levels = [7, 3, 5, 1, 6, 2, 4, 0]
    steps = examples_by_step(make_order(rows(*levels), steps=5, width=4, column="level"))
    means = [sum(levels[i] for i in step) / 4 for step in steps]
    assert means == sorted(means)
    assert sorted(levels[i] for i in steps[0]) == [0, 1, 2, 3]
    assert sorted(levels[i] for i in steps[-1]) == [4, 5, 6, 7]
    assert all(len(set(step)) == 4 for step in steps)


def test_a_curriculum_over_one_epoch_uses_every_example_once():
    steps = examples_by_step(make_order(rows(*range(16))[::-1], steps=4, column="level"))
    assert [i for step in steps for i in step] == list(range(15, -1, -1))


def test_a_curriculum_with_fewer_examples_than_a_step_repeats_them():
    assert examples_by_step(make_order(rows(2, 1), steps=2, width=3, column="level")) == [[1, 0, 1], [1, 0, 1]]
    assert examples_by_step(make_order(rows(1), steps=1, width=2, column="level")) == [[0, 0]]


def test_columns_of_info_can_be_used():
    assert column(rows("a", "b"), "info.depth") == [0, -1]
    assert examples_by_step(make_order(rows(*"abcd"), steps=1, column="info.depth"))[0] == [3, 2, 1, 0]


def records(rewards: dict[int, float | None], step: int = 1) -> list[Any]:
    return [make_rollout(reward=reward, example_id=i, step=step) for i, reward in rewards.items()]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(None, None, [0, 1, 2, 3]), (0.0, None, [1, 2, 3, 4]), (None, 1.0, [0, 1, 3, 4]), (0.0, 0.9, [1, 3, 4, 5])],
)
def test_examples_that_are_too_hard_or_too_easy_are_skipped(low: float | None, high: float | None, expected: list[int]):
    difficulty = Difficulty(FilterConfig(hard_threshold=low, easy_threshold=high, difficulty_window=100))
    difficulty.add(records({0: 0.0, 1: 0.5, 2: 1.0, 3: None}))
    draw = StepExamples(make_order(rows(*range(8))), difficulty, 1, 0)
    assert draw.take(4) == expected
    assert (draw.position, draw.skipped) == (expected[-1] + 1, expected[-1] - 3)


def test_difficulty_uses_recent_steps_and_skipped_examples_return():
    difficulty = Difficulty(FilterConfig(hard_threshold=0.0, easy_threshold=None, difficulty_window=3))
    difficulty.add(records({0: 0.0}, step=1))
    assert [difficulty.skips(0, step) for step in (2, 3, 4, 5)] == [True, True, True, False]
    difficulty.add([*records({0: 0.0}, step=5), *records({0: 1.0}, step=5)])
    assert difficulty.mean(0, 6) == 0.5
    assert not difficulty.skips(0, 6)


def test_examples_are_used_if_all_would_be_skipped():
    difficulty = Difficulty(FilterConfig(hard_threshold=0.0, easy_threshold=None, difficulty_window=100))
    difficulty.add(records(dict.fromkeys(range(3), 0.0)))
    draw = StepExamples(make_order(rows(*range(3))), difficulty, 1, 0)
    assert draw.take(4) == [0, 1, 2, 0]
    assert draw.skipped == 3


def test_drawing_twice_in_a_step_equals_drawing_once():
    once, twice = (StepExamples(make_order(rows(*range(8))), NO_FILTER, 0, 3) for _ in range(2))
    assert once.take(6) == twice.take(4) + twice.take(2)
    assert once.position == twice.position == 9


def test_an_order_is_infinite():
    for options in ({}, {"shuffle": True}, {"stratify": "level"}, {"column": "level"}):
        assert len(list(islice(make_order(rows(1, 2, 3), **options).step(0, 0), 50))) == 50


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stratify": "levle"}, "no column 'levle'; did you mean 'level'"),
        ({"column": "info.dept"}, "no column 'info.dept'; did you mean 'info.depth'"),
        ({"column": "level"}, "curriculum column 'level' has 'a'; expected numbers"),
    ],
)
def test_missing_and_non_numeric_columns_are_rejected(options: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        make_order(rows("a", "b"), **options)


def test_contradictory_settings_are_rejected():
    with pytest.raises(ConfigError, match="leave one of them out"):
        CurriculumConfig(stratify="level", column="level").check()
    with pytest.raises(ConfigError, match="stratify_bins is 1"):
        CurriculumConfig(stratify_bins=1).check()
    with pytest.raises(ConfigError, match="every example is skipped"):
        FilterConfig(hard_threshold=0.5, easy_threshold=0.5).check()
    with pytest.raises(ConfigError, match="difficulty_window is 0"):
        FilterConfig(difficulty_window=0).check()
