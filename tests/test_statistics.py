"""Means, their clustered intervals, and the tally of an evaluation."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from test_records import make_record

from rove.records import ErrorInfo, Scores, Usage
from rove.statistics import Tally, clustered_mean, mean

numbers = st.floats(-100, 100)
pairs = st.lists(st.tuples(st.sampled_from("abcd"), numbers), min_size=1, max_size=12)


def test_mean():
    assert mean([1.0, 2.0, 6.0]) == 3.0
    assert math.isnan(mean([]))
    assert mean([0.1] * 10) == 0.1


def test_an_interval_computed_by_hand():
    # Mean 3/5. Sums of deviations: a = 0.4 - 0.6 = -0.2, b = 0.4 + 0.4 = 0.8, c = -0.6; their squares add up to 1.04.
    # Variance 1.04 / 5² · 3/2 = 0.0624.
    estimate = clustered_mean([("a", 1.0), ("a", 0.0), ("b", 1.0), ("b", 1.0), ("c", 0.0)])
    assert estimate.mean == pytest.approx(0.6)
    assert estimate.half_width == pytest.approx(1.96 * math.sqrt(0.0624))


def test_two_examples_whose_rollouts_agree():
    # Mean 1/2, sums ±1, variance 2 / 4² · 2 = 1/4: as uncertain as two single values, however many siblings there are.
    assert clustered_mean([("a", 1.0), ("a", 1.0), ("b", 0.0), ("b", 0.0)]).half_width == pytest.approx(1.96 * 0.5)
    assert clustered_mean([("a", 1.0), ("b", 0.0)]).half_width == pytest.approx(1.96 * 0.5)


@given(st.lists(numbers, min_size=2, max_size=10))
def test_with_one_value_each_it_is_the_ordinary_standard_error(values):
    estimate = clustered_mean((str(i), value) for i, value in enumerate(values))
    error = statistics.stdev(values) / math.sqrt(len(values))
    assert estimate.half_width == pytest.approx(1.96 * error, abs=1e-6)


@given(pairs, st.integers(2, 4))
def test_repeating_every_sibling_tells_nothing_new(values, times):
    assume(len({cluster for cluster, _ in values}) > 1)
    once, again = clustered_mean(values), clustered_mean(values * times)
    assert again.mean == pytest.approx(once.mean, abs=1e-9)
    assert again.half_width == pytest.approx(once.half_width, abs=1e-6)


@given(pairs, st.randoms(use_true_random=False))
def test_the_order_does_not_matter(values, random):
    shuffled = random.sample(values, len(values))
    assert clustered_mean(shuffled) == pytest.approx(clustered_mean(values), abs=1e-9, nan_ok=True)


@given(pairs, numbers, st.floats(0.1, 10))
def test_the_interval_moves_and_stretches_with_the_values(values, shift, scale):
    before = clustered_mean(values)
    after = clustered_mean((cluster, scale * value + shift) for cluster, value in values)
    assert after.mean == pytest.approx(scale * before.mean + shift, abs=1e-6)
    assert after.half_width == pytest.approx(scale * before.half_width, abs=1e-6, nan_ok=True)


def test_one_example_tells_no_interval():
    assert clustered_mean([("a", 1.0), ("a", 0.0)]).mean == 0.5
    assert math.isnan(clustered_mean([("a", 1.0), ("a", 0.0)]).half_width)
    assert all(math.isnan(value) for value in clustered_mean([]))


def scored(key: str, right: float, stop: str = "answered", **fields):
    scores = Scores(2 * right, {"correct": right}, {"correct": 2.0}, {"num_turns": 3.0})
    return make_record(example_key=key, scores=scores, stop_condition=stop, usage=Usage(10, 2), **fields)


def failed(phase: str = "model", kind: str = "InfraError"):
    error = ErrorInfo(phase, kind, "gone")
    return make_record(scores=None, error=error, usage=Usage(5, 0), is_truncated=True)


def test_a_tally_counts_failures_apart_from_scores():
    tally = Tally()
    for record in (
        scored("a", 1.0),
        scored("b", 0.0, "max_turns_reached"),
        failed(),
        failed(),
        failed("stop", "KeyError"),
    ):
        tally.add(record)
    assert tally.summary() == {
        "rollouts": 5,
        "scored": 2,
        "failed": 3,
        "truncated": 3,
        "reward": {"mean": 1.0, "half_width": pytest.approx(1.96)},
        "functions": {
            "correct": {"mean": 0.5, "half_width": pytest.approx(0.98), "weight": 2.0},
            "num_turns": {"mean": 3.0, "half_width": 0.0, "weight": 0.0},
        },
        "stops": {"answered": 1, "max_turns_reached": 1},
        "errors": {"model: InfraError": 2, "stop: KeyError": 1},
        "prompt_tokens": 35,
        "completion_tokens": 4,
    }


def test_a_tally_of_failures_has_no_reward():
    tally = Tally()
    tally.add(failed())
    summary = tally.summary()
    assert math.isnan(summary["reward"]["mean"])
    assert summary["functions"] == {}


def test_an_empty_tally():
    summary = Tally().summary()
    assert (summary["rollouts"], summary["scored"], summary["failed"]) == (0, 0, 0)
