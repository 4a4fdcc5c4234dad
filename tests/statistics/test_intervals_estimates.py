"""Estimates: comparison with tables and brute force, and simulations of the coverage of their intervals."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import each_row

from rove.core.errors import ConfigError
from rove.statistics import mean, mean_estimate, needed_examples, pass_at_k, pass_hat_k, percentiles

numbers = st.floats(-100, 100)


def test_mean():
    assert mean([1.0, 2.0, 6.0]) == 3.0
    assert math.isnan(mean([]))
    assert mean([0.1] * 10) == 0.1


@pytest.mark.broad
def test_the_needed_examples_find_two_points_in_80_of_100_cases():
    spread = 0.1
    examples = needed_examples(spread**2)
    assert examples == 197  # (1.95996 + 0.84162)² · 0.01 / 0.0004 = 196.2
    rng, detected = np.random.default_rng(1), 0
    for _ in range(2500):
        detected += mean_estimate(rng.normal(0.02, spread, examples).tolist()).low > 0.0
    assert 0.77 <= detected / 2500 <= 0.83


def test_needed_examples_of_small_and_impossible_spreads():
    assert needed_examples(math.nan) is None
    assert needed_examples(0.0) == 150
    assert needed_examples(1e-6) == 2
    assert needed_examples(0.25) == 4906
    assert needed_examples(0.25, 0.2) == 50
    for difference in (0.0, -0.1, math.nan):
        with pytest.raises(ConfigError, match="expected a positive number"):
            needed_examples(0.25, difference)


# Chances to pass


@each_row("n", range(1, 7))
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


@each_row(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 5), (4, 2, 0), (0, 0, 1)])
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
