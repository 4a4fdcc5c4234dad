"""Estimates: against tables, against brute force, and in simulations whether the intervals keep what they promise."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tiers import first_quick

from rove.errors import ConfigError
from rove.statistics import (
    clustered_estimate,
    clustered_mean,
    example_variance,
    mean,
    needed_examples,
    pass_at_k,
    pass_hat_k,
    percentiles,
    t_quantile,
)

numbers = st.floats(-100, 100)
pairs = st.lists(st.tuples(st.sampled_from("abcd"), numbers), min_size=1, max_size=12)


def test_mean():
    assert mean([1.0, 2.0, 6.0]) == 3.0
    assert math.isnan(mean([]))
    assert mean([0.1] * 10) == 0.1


# Student's t


@pytest.mark.parametrize(
    ("df", "value"),
    [
        (1, 12.706204736174705),
        (2, 4.302652729749464),
        (3, 3.1824463052837096),
        (4, 2.7764451051977944),
        (7, 2.3646242515927853),
        (10, 2.2281388519862747),
        (29, 2.0452296421327043),
        (30, 2.0422724563012383),
        (99, 1.9842169515864175),
        (1000, 1.9623390808264085),
        (99999, 1.9599877077718448),
    ],
)
def test_t_quantiles_are_those_of_the_tables(df: int, value: float):
    # scipy.stats.t.ppf(0.975, df), its digits recomputed with 40
    assert t_quantile(0.975, df) == pytest.approx(value, rel=1e-11)
    assert t_quantile(0.025, df) == -t_quantile(0.975, df)


def test_t_quantiles_far_out_and_in_the_middle():
    assert t_quantile(0.9995, 1) == pytest.approx(636.6192487687196, rel=1e-11)
    assert t_quantile(0.9995, 5) == pytest.approx(6.8688266258811102, rel=1e-11)
    assert t_quantile(0.5, 3) == 0.0


@pytest.mark.parametrize(("p", "df"), [(0.0, 3), (1.0, 3), (0.975, 0), (math.nan, 3)])
def test_t_quantiles_that_do_not_exist(p: float, df: int):
    with pytest.raises(ConfigError, match="expected 0 < p < 1 and df of 1 or more"):
        t_quantile(p, df)


# The clustered mean


def test_an_interval_computed_by_hand():
    # Mean 3/5. Sums of deviations: a = 0.4 - 0.6 = -0.2, b = 0.4 + 0.4 = 0.8, c = -0.6; their squares add up to 1.04.
    # Variance 1.04 / 5² · 3/2 = 0.0624, two degrees of freedom.
    estimate = clustered_mean([("a", 1.0), ("a", 0.0), ("b", 1.0), ("b", 1.0), ("c", 0.0)])
    assert estimate.mean == pytest.approx(0.6)
    assert estimate.half_width == pytest.approx(4.302652729749464 * math.sqrt(0.0624))


def test_two_examples_whose_rollouts_agree():
    # Mean 1/2, sums ±1, variance 2 / 4² · 2 = 1/4: as uncertain as two single values, however many siblings there are.
    many = clustered_mean([("a", 1.0), ("a", 1.0), ("b", 0.0), ("b", 0.0)])
    assert many.half_width == pytest.approx(12.706204736174705 * 0.5)
    assert clustered_mean([("a", 1.0), ("b", 0.0)]) == many


@given(st.lists(numbers, min_size=2, max_size=10))
def test_with_one_value_each_it_is_the_ordinary_t_interval(values):
    estimate = clustered_mean((str(i), value) for i, value in enumerate(values))
    error = statistics.stdev(values) / math.sqrt(len(values))
    assert estimate.half_width == pytest.approx(t_quantile(0.975, len(values) - 1) * error, abs=1e-6)
    assert example_variance(estimate, len(values)) == pytest.approx(statistics.variance(values), abs=1e-6)


@given(pairs, st.integers(2, 4))
def test_repeating_every_sibling_tells_nothing_new(values, times):
    assume(len({cluster for cluster, _ in values}) > 1)
    once, again = clustered_mean(values), clustered_mean(values * times)
    assert again.mean == pytest.approx(once.mean, abs=1e-9)
    assert again.half_width == pytest.approx(once.half_width, abs=1e-6)


@given(pairs, st.randoms(use_true_random=False))
def test_the_order_does_not_matter(values, random):
    shuffled = random.sample(values, len(values))
    assert clustered_mean(shuffled) == pytest.approx(clustered_mean(values), abs=1e-6, nan_ok=True)


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
    assert math.isnan(example_variance(clustered_mean([("a", 1.0)]), 1))


def test_clusters_without_a_value_do_not_count():
    assert clustered_estimate([1.0, 0.0, 0.0, 3.0], [1, 0, 0, 2]) == clustered_estimate([1.0, 3.0], [1, 2])


# Simulations. Of 2500 intervals 95 % ± 0.9 % (two standard errors) would hold the truth if all were exact.

Draw = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]
SIMULATIONS = 2500


def bernoulli(p: float) -> Draw:
    return lambda rng, n: (rng.binomial(1, p, n), np.ones(n, int))


def nested(a: float, b: float) -> Draw:
    """Four rollouts of examples so unlike that siblings nearly always agree."""
    return lambda rng, n: (rng.binomial(4, rng.beta(a, b, n)), np.full(n, 4))


def uneven(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """One to eight continuous rollouts, their example's value and noise of their own."""
    counts = rng.integers(1, 9, n)
    return rng.normal(0.0, 1.0, n) * counts + rng.normal(0.0, 0.3, n) * np.sqrt(counts), counts


DRAWS: dict[str, tuple[Draw, float]] = {
    "bernoulli 0.5": (bernoulli(0.5), 0.5),
    "bernoulli 0.3": (bernoulli(0.3), 0.3),
    "normal": (lambda rng, n: (rng.normal(0.7, 0.2, n), np.ones(n, int)), 0.7),
    "uniform": (lambda rng, n: (rng.uniform(0.0, 1.0, n), np.ones(n, int)), 0.5),
    "nested": (nested(0.2, 0.2), 0.5),
    "nested, low": (nested(0.5, 1.0), 1 / 3),
    "uneven": (uneven, 0.0),
}


@pytest.mark.parametrize("examples", [30, 200])
@pytest.mark.parametrize("kind", first_quick(DRAWS, 3))
def test_intervals_hold_the_truth_in_95_of_100_cases(kind: str, examples: int):
    draw, truth = DRAWS[kind]
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(SIMULATIONS):
        sums, counts = draw(rng, examples)
        estimate = clustered_estimate(sums.tolist(), counts.tolist())
        held += abs(estimate.mean - truth) <= estimate.half_width
    print(f"\n{kind}, {examples} examples: {held / SIMULATIONS:.3f}")
    assert 0.93 <= held / SIMULATIONS <= 0.97


def test_siblings_taken_for_independent_would_be_too_sure():
    rng, held = np.random.default_rng(1), 0
    for _ in range(300):
        passes = rng.binomial(4, rng.beta(0.2, 0.2, 50)).tolist()
        values = [float(i < c) for c in passes for i in range(4)]
        estimate = clustered_estimate(values, [1] * len(values))
        held += abs(estimate.mean - 0.5) <= estimate.half_width
    assert held / 300 < 0.85


def test_the_needed_examples_find_two_points_in_80_of_100_cases():
    spread = 0.1
    examples = needed_examples(spread**2)
    assert examples == 197  # (1.95996 + 0.84162)² · 0.01 / 0.0004 = 196.2
    rng, found = np.random.default_rng(1), 0
    for _ in range(SIMULATIONS):
        estimate = clustered_estimate(rng.normal(0.02, spread, examples).tolist(), [1] * examples)
        found += estimate.mean > estimate.half_width
    assert 0.77 <= found / SIMULATIONS <= 0.83


def test_needed_examples_of_small_and_impossible_spreads():
    assert needed_examples(math.nan) is None
    assert needed_examples(0.0) == 150
    assert needed_examples(1e-6) == 2
    assert needed_examples(0.25) == 4906
    assert needed_examples(0.25, 0.2) == 50
    for difference in (0.0, -0.1, math.nan):
        with pytest.raises(ConfigError, match="expected more than 0"):
            needed_examples(0.25, difference)


# Chances to pass


@pytest.mark.parametrize("n", range(1, 7))
def test_chances_to_pass_are_shares_of_all_choices(n: int):
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        tried = [[i < c for i in chosen] for chosen in itertools.combinations(range(n), k)]
        assert pass_at_k(n, c, k) == pytest.approx(mean([any(passed) for passed in tried]))
        assert pass_hat_k(n, c, k) == pytest.approx(mean([all(passed) for passed in tried]))


@given(st.integers(1, 300), st.data())
def test_chances_to_pass_are_the_closed_forms(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    assert pass_at_k(n, c, k) == pytest.approx(1 - math.comb(n - c, k) / math.comb(n, k))
    assert pass_hat_k(n, c, k) == pytest.approx(math.comb(c, k) / math.comb(n, k))
    assert 0.0 <= pass_hat_k(n, c, k) <= c / n + 1e-12
    assert c / n - 1e-12 <= pass_at_k(n, c, k) <= 1.0


def test_chances_to_pass_of_many_rollouts():
    assert pass_at_k(100_000, 1, 50_000) == pytest.approx(0.5)
    assert pass_hat_k(100_000, 99_999, 50_000) == pytest.approx(0.5)
    assert pass_at_k(100_000, 50_000, 40_000) == 1.0
    assert pass_hat_k(100_000, 50_000, 40_000) == 0.0


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 5), (4, 2, 0), (0, 0, 1)])
def test_chances_that_do_not_exist(n: int, c: int, k: int):
    for chance in (pass_at_k, pass_hat_k):
        with pytest.raises(ConfigError, match="expected 0 ≤ c ≤ n passes and 1 ≤ k ≤ n tries"):
            chance(n, c, k)


# Percentiles


@given(st.lists(numbers, min_size=1, max_size=30), st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_percentiles_are_those_of_numpy(values, shares):
    assert percentiles(Counter(values), shares) == pytest.approx(np.quantile(values, shares).tolist(), abs=1e-9)


def test_percentiles_of_nothing():
    assert [math.isnan(value) for value in percentiles({})] == [True, True, True]
