"""Training settings that depend on other values."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from tiers import each_row

from rove.core.config import convert
from rove.core.errors import ConfigError
from rove.train.config import EvaluationConfig, LossConfig, RLConfig, SFTConfig


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


RL: dict[str, Any] = {"env": "tictactoe", "model": "models/tiny"}
SFT: dict[str, Any] = {"data": "runs/data", "model": "models/tiny"}


@each_row(
    ("values", "message"),
    [
        ({"loss": {"clip_low": 0.2}}, r"loss.clip_low is 0.2, but the loss 'cispo' does not use it.*\(grpo, dapo"),
        ({"loss": {"clip_high": 0.2}}, "loss.clip_high is 0.2, but the loss 'cispo' does not use it"),
        ({"loss": {"kind": "grpo", "max_ratio": 3.0}}, r"loss.max_ratio is 3.0, but the loss 'grpo'.*\(cispo\)"),
        ({"loss": {"kind": "reinforce", "max_ratio": 3.0}}, "loss.max_ratio is 3.0, but the loss 'reinforce'"),
        ({"loss": {"constant": 9}}, "loss.constant is 9.0, but the losses of tokens are combined by 'token'"),
        ({"filter": {"difficulty_window": 5}}, "filter.difficulty_window is 5, but neither hard_threshold"),
        ({"curriculum": {"stratify_bins": 3}}, "curriculum.stratify_bins is 3, but curriculum.stratify is not set"),
        ({"lora": {"alpha": 16}}, "lora.alpha is 16.0, but lora.rank is 0"),
        ({"batch_size": 20}, "batch_size is 20; expected a multiple of rollouts_per_example"),
    ],
)
def test_a_setting_without_effect_is_an_error(values: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        convert(RLConfig, {**RL, **values}).check()
    with pytest.raises(ConfigError, match=message):
        RLConfig(**RL, **values).check()


def test_bounds_that_the_loss_uses_are_accepted():
    RLConfig(**RL, loss={"kind": "grpo", "clip_low": 0.1, "clip_high": 0.3}).check()
    RLConfig(**RL, loss={"max_ratio": 3.0}).check()
    RLConfig(**RL, loss={"kind": "dr_grpo", "constant": 64}).check()


@each_row(
    ("name", "value", "expected"),
    [
        ("max_grad_norm", -1, "a number, more than 0"),  # trained uphill
        ("weight_decay", -0.1, "a number, 0 or more"),
        ("warmup_steps", -5, "an integer, 0 or more"),
        ("learning_rate", math.inf, "a finite number, more than 0"),
        ("min_reward", math.nan, "a finite number"),
        ("max_examples", -7, "an integer, 1 or more, or -1 for all"),
        ("final_lr_fraction", 7, "a number, 0 to 1"),
    ],
)
def test_values_that_earlier_versions_accepted_are_errors(name: str, value: float, expected: str):
    with pytest.raises(ConfigError, match=re.escape(f"{name} is {value!r}; expected {expected}")):
        convert(SFTConfig, {**SFT, name: value})
    with pytest.raises(ConfigError, match=re.escape(f"{name} is {value!r}; expected {expected}")):
        SFTConfig(**SFT, **{name: value})


def test_tables_may_be_dicts_in_python():
    config = RLConfig(**RL, loss={"kind": "grpo"}, lora={"rank": 4}, evaluation=[{"env": "tictactoe"}], gamma=1)
    assert (config.loss, config.lora.rank, config.evaluation) == (
        LossConfig(kind="grpo"),
        4,
        [EvaluationConfig(env="tictactoe")],
    )
    assert isinstance(config.gamma, float)
    with pytest.raises(ConfigError, match="loss.entropy_bonus is -1; expected a number, 0 or more"):
        RLConfig(**RL, loss={"entropy_bonus": -1})
    with pytest.raises(ConfigError, match="lora.alpha is inf; expected a finite number, more than 0"):
        SFTConfig(**SFT, lora={"alpha": math.inf})
    with pytest.raises(ConfigError, match="loss has the unknown setting 'knd'; did you mean 'kind'"):
        RLConfig(**RL, loss={"knd": "grpo"})
