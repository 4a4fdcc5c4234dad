from __future__ import annotations

import math
import random
import statistics

import pytest

from rove.train.evaluation import plateau_warning, reward_gain


def steps(start: float, end: float, count: int = 60, noise: float = 0.03, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    return [start + (end - start) * i / (count - 1) + rng.gauss(0.0, noise) for i in range(count)]


def test_a_rise_needs_no_words():
    assert plateau_warning(steps(0.37, 0.8)) is None


def test_a_reward_that_stays_is_told():
    text = plateau_warning(steps(0.37, 0.37))
    assert text is not None
    assert text.startswith("no measurable increase in reward in 60 steps (0.3")
    assert "in the first 15, 0.3" in text


def test_a_reward_that_falls_is_told():
    text = plateau_warning(steps(0.8, 0.3))
    assert text is not None
    assert "the reward fell in 60 steps" in text
    assert "lower the learning rate" in text


@pytest.mark.parametrize("count", [0, 1, 5, 19])
def test_of_few_steps_nothing_is_said(count: int):
    assert reward_gain([0.1] * count) is None
    assert plateau_warning([0.1] * count) is None


def test_rewards_without_any_scatter():
    assert reward_gain([0.0] * 20) == (0.0, 0.0, 0.0, None)
    assert plateau_warning([0.0] * 20) is not None
    assert plateau_warning([0.0] * 10 + [1.0] * 10) is None


def test_the_interval_is_right_nineteen_times_out_of_twenty():
    inside = []
    for seed in range(400):
        found = reward_gain(steps(0.5, 0.5, seed=seed))
        assert found is not None
        inside.append(found.low <= 0.0 <= found.high)
    assert math.isclose(statistics.fmean(inside), 0.95, abs_tol=0.035)
