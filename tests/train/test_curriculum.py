from __future__ import annotations

import itertools
from collections import Counter
from itertools import islice
from typing import Any

import pytest
from fakes import record_of
from hypothesis import given
from hypothesis import strategies as st

from rove.core.errors import ConfigError
from rove.train.config import CurriculumConfig, FilterConfig
from rove.train.curriculum import Difficulty, ExampleOrder, StepExamples, column, interleave, strata

NOBODY = Difficulty(FilterConfig(hard_threshold=None, easy_threshold=None, difficulty_window=1))


def order(
    examples: list[dict[str, Any]], steps: int = 4, width: int = 4, seed: int = 0, **options: Any
) -> ExampleOrder:
    return ExampleOrder(examples, CurriculumConfig(**options), seed, steps, width)


def played(made: ExampleOrder, difficulty: Difficulty = NOBODY) -> list[list[int]]:
    """What each step plays."""
    position, steps = 0, []
    for step in range(made.steps):
        draw = StepExamples(made, difficulty, step, position)
        steps.append(draw.take(made.groups))
        position = draw.position
    return steps


def rows(*levels: Any) -> list[dict[str, Any]]:
    return [{"prompt": [], "level": level, "info": {"depth": -i}} for i, level in enumerate(levels)]


def test_examples_come_in_dataset_order_over_and_over():
    assert played(order(rows(*"abcdef"))) == [[0, 1, 2, 3], [4, 5, 0, 1], [2, 3, 4, 5], [0, 1, 2, 3]]


def test_shuffled_every_epoch_has_every_example_once_in_an_order_of_its_own():
    flat = [i for step in played(order(rows(*range(8)), steps=6, shuffle=True)) for i in step]
    epochs = [flat[i : i + 8] for i in (0, 8, 16)]
    assert all(sorted(epoch) == list(range(8)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert flat == [i for step in played(order(rows(*range(8)), steps=6, shuffle=True)) for i in step]
    assert flat != [i for step in played(order(rows(*range(8)), steps=6, shuffle=True, seed=1)) for i in step]


def test_stratified_every_step_has_the_same_mix():
    levels = ["easy"] * 24 + ["hard"] * 8
    for shuffle in (False, True):
        steps = played(order(rows(*levels), steps=16, stratify="level", shuffle=shuffle))
        assert all(Counter(levels[i] for i in step) == {"easy": 3, "hard": 1} for step in steps)
        assert sorted(i for step in steps[:8] for i in step) == list(range(32))


def test_without_stratify_the_mix_is_that_of_the_datasets_order():
    levels = ["easy"] * 24 + ["hard"] * 8
    assert Counter(levels[i] for i in played(order(rows(*levels), steps=1))[0]) == {"easy": 4}


def test_many_numbers_are_stratified_by_quantile():
    steps = played(order(rows(*range(32)), steps=8, stratify="level"))
    assert all(sorted(i // 8 for i in step) == [0, 1, 2, 3] for step in steps)
    halves = played(order(rows(*range(32)), steps=8, stratify="level", stratify_bins=2))
    assert all(sorted(i // 16 for i in step) == [0, 0, 1, 1] for step in halves)
    assert any(sorted(i // 8 for i in step) != [0, 1, 2, 3] for step in halves)


def test_a_skewed_column_has_as_many_strata_as_asked():
    values = [0.0] * 80 + [float(i) for i in range(1, 21)]
    assert sorted(Counter(strata(values, 4)).values()) == [6, 7, 7, 80]
    assert sorted(Counter(strata([-value for value in values], 4)).values()) == [6, 7, 7, 80]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=80), st.integers(2, 8))
def test_there_is_a_stratum_per_bin_or_per_distinct_value(values: list[int], bins: int):
    found = strata(values, bins)
    assert set(found) == set(range(min(bins, len(set(values)))))


@given(st.lists(st.integers(1, 30), min_size=3, max_size=9), st.integers(2, 3))
def test_strata_are_as_equal_as_ties_allow(counts: list[int], bins: int):
    values = [value for value, count in enumerate(counts) for _ in range(count)]
    cuts = itertools.combinations(range(1, len(counts)), bins - 1)
    parts = ([sum(counts[a:b]) for a, b in itertools.pairwise((0, *cut, len(counts)))] for cut in cuts)
    least = min(sum(size**2 for size in part) for part in parts)
    found = strata(values, bins)
    assert found == sorted(found)
    if len(counts) > bins:
        assert sum(size**2 for size in Counter(found).values()) == least


@given(st.integers(2, 8), st.integers(1, 12))
def test_strata_of_distinct_numbers_are_equal_in_size(bins: int, size: int):
    assert set(Counter(strata(list(range(bins * size)), bins)).values()) == {size}


@pytest.mark.parametrize("value", [3, "easy"])
def test_a_column_of_one_value_cannot_stratify(value: object):
    with pytest.raises(ConfigError, match="stratify column 'level' has the same value in all 8 examples"):
        order(rows(*[value] * 8), steps=1, stratify="level")


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(1, 12))
def test_no_stretch_is_far_from_its_share(stratum: list[int], width: int):
    made = interleave(range(len(stratum)), stratum)
    assert sorted(made) == list(range(len(stratum)))
    for start in range(0, len(made) - width + 1):
        seen = Counter(stratum[i] for i in made[start : start + width])
        for number, size in Counter(stratum).items():
            assert abs(seen[number] - width * size / len(stratum)) <= 1 + 6 / 2


@given(st.lists(st.integers(0, 20), min_size=1, max_size=40), st.integers(2, 6))
def test_strata_of_numbers_ascend_and_keep_equals_together(values: list[int], bins: int):
    found = strata(values, bins)
    pairs = sorted(zip(values, found))
    assert [stratum for _, stratum in pairs] == sorted(found)
    assert len(dict(pairs)) == len(set(values))
    assert all(dict(pairs)[value] == stratum for value, stratum in pairs)
    assert len(set(found)) <= bins


def test_a_curriculum_ascends_and_plays_no_example_twice_in_a_step():
    levels = [7, 3, 5, 1, 6, 2, 4, 0]
    steps = played(order(rows(*levels), steps=5, width=4, column="level"))
    means = [sum(levels[i] for i in step) / 4 for step in steps]
    assert means == sorted(means)
    assert sorted(levels[i] for i in steps[0]) == [0, 1, 2, 3]
    assert sorted(levels[i] for i in steps[-1]) == [4, 5, 6, 7]
    assert all(len(set(step)) == 4 for step in steps)


def test_a_curriculum_over_one_epoch_plays_every_example_once():
    steps = played(order(rows(*range(16))[::-1], steps=4, column="level"))
    assert [i for step in steps for i in step] == list(range(15, -1, -1))


def test_a_curriculum_of_fewer_examples_than_a_step_plays_them_all():
    assert played(order(rows(2, 1), steps=2, width=3, column="level")) == [[1, 0, 1], [1, 0, 1]]
    assert played(order(rows(1), steps=1, width=2, column="level")) == [[0, 0]]


def test_columns_may_be_in_info():
    assert column(rows("a", "b"), "info.depth") == [0, -1]
    assert played(order(rows(*"abcd"), steps=1, column="info.depth"))[0] == [3, 2, 1, 0]


def seen(rewards: dict[int, float | None], step: int = 1) -> list[Any]:
    return [record_of(reward=reward, example_id=i, step=step) for i, reward in rewards.items()]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(None, None, [0, 1, 2, 3]), (0.0, None, [1, 2, 3, 4]), (None, 1.0, [0, 1, 3, 4]), (0.0, 0.9, [1, 3, 4, 5])],
)
def test_what_is_too_hard_or_too_easy_is_skipped(low: float | None, high: float | None, expected: list[int]):
    difficulty = Difficulty(FilterConfig(hard_threshold=low, easy_threshold=high, difficulty_window=100))
    difficulty.add(seen({0: 0.0, 1: 0.5, 2: 1.0, 3: None}))
    draw = StepExamples(order(rows(*range(8))), difficulty, 1, 0)
    assert draw.take(4) == expected
    assert (draw.position, draw.skipped) == (expected[-1] + 1, expected[-1] - 3)


def test_the_mean_is_over_recent_steps_and_a_skipped_example_comes_back():
    difficulty = Difficulty(FilterConfig(hard_threshold=0.0, easy_threshold=None, difficulty_window=3))
    difficulty.add(seen({0: 0.0}, step=1))
    assert [difficulty.skips(0, step) for step in (2, 3, 4, 5)] == [True, True, True, False]
    difficulty.add([*seen({0: 0.0}, step=5), *seen({0: 1.0}, step=5)])
    assert difficulty.mean(0, 6) == 0.5
    assert not difficulty.skips(0, 6)


def test_where_everything_would_be_skipped_it_is_played():
    difficulty = Difficulty(FilterConfig(hard_threshold=0.0, easy_threshold=None, difficulty_window=100))
    difficulty.add(seen(dict.fromkeys(range(3), 0.0)))
    draw = StepExamples(order(rows(*range(3))), difficulty, 1, 0)
    assert draw.take(4) == [0, 1, 2, 0]
    assert draw.skipped == 3


def test_more_can_be_drawn_in_the_same_step():
    whole, twice = (StepExamples(order(rows(*range(8))), NOBODY, 0, 3) for _ in range(2))
    assert whole.take(6) == twice.take(4) + twice.take(2)
    assert whole.position == twice.position == 9


def test_an_order_never_ends():
    for options in ({}, {"shuffle": True}, {"stratify": "level"}, {"column": "level"}):
        assert len(list(islice(order(rows(1, 2, 3), **options).step(0, 0), 50))) == 50


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stratify": "levle"}, "no column 'levle'; did you mean 'level'"),
        ({"column": "info.dept"}, "no column 'info.dept'; did you mean 'info.depth'"),
        ({"column": "level"}, "curriculum column 'level' has 'a'; expected numbers"),
    ],
)
def test_columns_that_are_not_there_or_cannot_ascend_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        order(rows("a", "b"), **options)


def test_what_contradicts_itself_is_refused():
    with pytest.raises(ConfigError, match="leave one of them out"):
        CurriculumConfig(stratify="level", column="level").check()
    with pytest.raises(ConfigError, match="stratify_bins is 1"):
        CurriculumConfig(stratify_bins=1).check()
    with pytest.raises(ConfigError, match="every example is skipped"):
        FilterConfig(hard_threshold=0.5, easy_threshold=0.5).check()
    with pytest.raises(ConfigError, match="difficulty_window is 0"):
        FilterConfig(difficulty_window=0).check()
