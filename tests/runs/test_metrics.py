"""Metrics of a training run."""

from __future__ import annotations

import math

from rove.runs.metrics import interval_of


def test_the_interval_of_a_mean_is_measured_or_the_mean():
    measured = {"eval/a/reward/mean": 0.5, "eval/a/reward/interval_low": 0.25, "eval/a/reward/interval_high": None}
    assert interval_of(measured, "eval/a/reward/mean") == (0.25, 0.5)
    assert interval_of({"eval/a/reward/mean": 0.5}, "eval/a/reward/mean") == (0.5, 0.5)
    assert all(map(math.isnan, interval_of({"eval/a/reward/mean": None}, "eval/a/reward/mean")))
