from __future__ import annotations

import math
import random
import statistics

import pytest

from rove.statistics import Estimate
from rove.statistics.trend import change_between, ends, flat_reward


def noisy_rewards(start: float, end: float, count: int = 60, noise: float = 0.03, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    return [start + (end - start) * i / (count - 1) + rng.gauss(0.0, noise) for i in range(count)]


def test_a_rising_reward_causes_no_warning():
    assert flat_reward(noisy_rewards(0.37, 0.8)) is None


def test_a_constant_reward_causes_a_warning():
    text = str(flat_reward(noisy_rewards(0.37, 0.37)))
    assert text.startswith("flat_reward: no measurable increase in reward in 60 steps (0.3")
    assert "in the first 15, 0.3" in text


def test_a_falling_reward_causes_a_warning():
    text = str(flat_reward(noisy_rewards(0.8, 0.3)))
    assert "the reward fell in 60 steps" in text
    assert "lower the learning rate" in text


@pytest.mark.parametrize("count", [0, 1, 5, 19])
def test_fewer_than_20_steps_cause_no_warning(count: int):
    assert flat_reward([0.1] * count) is None


def test_rewards_without_noise():
    assert change_between([0.0] * 5, [0.0] * 5) == Estimate(0.0, 0.0, 0.0)
    assert change_between([0.1 + 0.2] * 5, [0.3] * 5) == Estimate(0.0, 0.0, 0.0)
    assert flat_reward([0.0] * 20) is not None
    assert flat_reward([0.0] * 10 + [1.0] * 10) is None


def test_the_interval_contains_the_true_gain_in_95_percent_of_runs():
    covered = []
    for seed in range(400):
        gain = change_between(*ends(noisy_rewards(0.5, 0.5, seed=seed)))
        covered.append(gain.low <= 0.0 <= gain.high)
    assert math.isclose(statistics.fmean(covered), 0.95, abs_tol=0.035)


@pytest.mark.parametrize(("count", "size"), [(2, 1), (9, 4), (10, 5), (20, 5), (23, 5), (24, 6), (400, 100)])
def test_both_ends_have_the_same_size(count: int, size: int):
    values = [float(i) for i in range(count)]
    assert ends(values) == (values[:size], values[-size:])
