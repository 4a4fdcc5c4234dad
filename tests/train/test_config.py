"""Training settings that depend on other values."""

from __future__ import annotations

import pytest

from rove.core.errors import ConfigError
from rove.train.config import LossConfig


def test_the_entropy_bonus_is_0_while_entropy_is_above_the_target():
    loss = LossConfig(entropy_bonus=0.01, entropy_target=0.2)
    assert [
        loss.bonus_after(history) for history in ([], [{"entropy/all/mean": 0.1}], [{"entropy/all/mean": 0.3}])
    ] == [
        0.01,
        0.01,
        0.0,
    ]
    nothing_trained = [{"entropy/all/mean": 0.3}, {"reward/mean": 1.0}]
    assert loss.bonus_after(nothing_trained) == 0.0
    assert LossConfig(entropy_bonus=0.01).bonus_after([{"entropy/all/mean": 9.0}]) == 0.01
    with pytest.raises(ConfigError, match=r"entropy_target is 0.2, but entropy_bonus is 0"):
        LossConfig(entropy_target=0.2).check()
