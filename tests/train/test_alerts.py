from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from tiers import each_row

from rove.core.errors import ConfigError
from rove.train.alerts import ALERTS, REPEAT_AFTER_STEPS, AlertLimits, entropy_collapse, new_alerts

LIMITS = AlertLimits(window=2)
REWARD = "eval/let/reward/mean"


def history(**columns: Sequence[float | None]) -> list[dict[str, float]]:
    """Return rows of metrics; "__" in a name stands for a slash, None for a missing value."""
    length = max(len(values) for values in columns.values())
    rows: list[dict[str, float]] = [{"step": float(i + 1)} for i in range(length)]
    for name, values in columns.items():
        for row, value in zip(rows, values, strict=True):
            if value is not None:
                row[name.replace("__", "/")] = value
    return rows


def held_out(train: Sequence[float], measured: Sequence[float | None]) -> list[dict[str, float]]:
    return history(**{"reward__mean": train, "eval__let__reward__mean": measured})


FLAT = [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
RISING = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]

CASES: dict[str, tuple[list[dict[str, float]], list[dict[str, float]], str, dict[str, Any]]] = {
    "entropy_collapse": (
        history(entropy__all__mean=[1.0, 1.0, 0.5, 0.05, 0.05], reward__mean=[0.0] * 5),
        history(entropy__all__mean=[1.0, 1.0, 0.5, 0.2, 0.1], reward__mean=[0.0] * 5),
        "0.05 nats per token, 1 in the first steps",
        {"entropy_share": 0.01},
    ),
    "entropy_growth": (
        history(entropy__all__mean=[0.4, 0.4, 0.8, 1.5, 2.0]),
        history(entropy__all__mean=[0.4, 0.4, 0.8, 1.1, 1.2]),
        "1.75 nats per token, 0.4 in the first steps",
        {"entropy_factor": 5.0},
    ),
    "ratio_drift": (
        history(ratio__mean=[1.0, 1.0, 1.2, 1.3]),
        history(ratio__mean=[1.0, 1.15, 1.0, 1.05]),
        "1.25 times the sampler's",
        {"ratio": 0.5},
    ),
    "logprob_mismatch": (
        history(mismatch_kl__all__mean=[0.0, 0.02, 0.04], logprob_diff__max=[0.0, 2.5, 1.0]),
        history(mismatch_kl__all__mean=[0.0, 0.018, 0.0], logprob_diff__max=[0.0, 2.5, 0.0]),
        "0.03 nats per token apart, at most 2.5",
        {"mismatch_kl": 0.1},
    ),
    "length_growth": (
        history(length__mean=[100.0, 100.0, 150.0, 250.0, 260.0]),
        history(length__mean=[100.0, 100.0, 150.0, 190.0, 200.0]),
        "255 tokens per rollout, 100 in the first",
        {"length_factor": 3.0},
    ),
    "zero_advantage_groups": (
        history(groups__zero_spread=[1.0, 8.0, 9.0], groups__all=[10.0, 10.0, 10.0]),
        history(groups__zero_spread=[7.0, 8.0, 8.0], groups__all=[10.0, 10.0, 10.0]),
        "85% of the groups have equal rewards",
        {"zero_advantage_groups": 0.9},
    ),
    "policy_collapse": (
        history(reward__mean=[0.3, 0.4, 0.0, 0.0], groups__zero_spread=[2.0, 1.0, 8.0, 8.0], groups__all=[8.0] * 4),
        history(reward__mean=[0.3, 0.4, 0.9, 1.0], groups__zero_spread=[2.0, 1.0, 8.0, 8.0], groups__all=[8.0] * 4),
        "since step 3 all groups have zero advantage, and the reward is 0; it was 0.3 or more before",
        {},
    ),
    "loss_growth": (
        history(loss=[3.0, 2.0, 1.0, 1.0, 3.0, 4.0]),
        history(loss=[3.0, 2.0, 1.0, 1.0, 1.9, 2.0]),
        "3.5 nats per token over 2 steps, and it was 1 before",
        {"loss_factor": 4.0},
    ),
    "format_drift": (
        history(reward__format_reward=[0.5, 0.9, 0.9, 0.7, 0.7]),
        history(reward__format_reward=[0.5, 0.9, 0.9, 0.85, 0.8]),
        "reward/format_reward is 0.7, and was 0.9",
        {"format_drop": 0.3},
    ),
    "held_out_flat": (
        held_out(RISING, [None, 0.5, None, 0.5, None, 0.4, None, 0.45]),
        held_out(RISING, [None, 0.4, None, 0.5, None, 0.5, None, 0.55]),
        "since step 2 the reward in training has risen from 0.15 to 0.75",
        {"held_out_gain": 0.7},
    ),
    "grad_norm_spike": (
        history(optim__grad_norm=[1.0, 2.0, 1.5, 20.0]),
        history(optim__grad_norm=[1.0, 2.0, 1.5, 14.0]),
        "20, usually 1.5",
        {"grad_norm_factor": 20.0},
    ),
    "trainer_idle": (
        history(idle__trainer=[0.1, 0.9, 0.9], idle__sampler=[0.1] * 3, queue__late=[0.0] * 3),
        history(idle__trainer=[1.0, 0.5, 0.9], idle__sampler=[0.1] * 3, queue__late=[0.0] * 3),
        "90% of the time the trainer waits for rollouts. To try: more samplers",
        {"idle": 0.95},
    ),
    "sampler_idle": (
        history(idle__trainer=[0.1] * 3, idle__sampler=[0.1, 0.9, 0.9]),
        history(idle__trainer=[0.1] * 3, idle__sampler=[1.0, 0.5, 0.9]),
        "90% of the slots for rollouts are empty. To try: a faster trainer",
        {"idle": 0.95},
    ),
}


def test_every_alert_has_a_test_case():
    assert CASES.keys() == ALERTS.keys()


@each_row("name", CASES)
def test_an_alert_fires_on_the_bad_history_only(name: str):
    wrong, right, words, lenient = CASES[name]
    finding = ALERTS[name](wrong, LIMITS)
    assert finding is not None and finding.id == name
    assert words in str(finding)
    assert ALERTS[name](right, LIMITS) is None
    assert not lenient or ALERTS[name](wrong, msgspec.structs.replace(LIMITS, **lenient)) is None
    needs_full_window = name not in ("held_out_flat", "policy_collapse")
    assert ALERTS[name](wrong, msgspec.structs.replace(LIMITS, window=9)) is None or not needs_full_window


@each_row("name", CASES)
def test_an_alert_is_reported_once_when_its_condition_starts(name: str):
    wrong, right, _, _ = CASES[name]
    alerts = [alert for i in range(len(wrong) + 1) for alert in new_alerts(wrong[:i], LIMITS) if alert.id == name]
    assert len(alerts) == 1
    assert alerts[0].step is not None and alerts[0].step <= len(wrong)
    next_row = {**wrong[-1], "step": len(wrong) + 1.0}
    if name != "grad_norm_spike":  # with two large norms the usual norm has not changed yet
        assert [a for a in new_alerts([*wrong, next_row], LIMITS) if a.id == name] == []
    assert [a for i in range(len(right) + 1) for a in new_alerts(right[:i], LIMITS) if a.id == name] == []


def test_a_recurring_alert_is_reported_again_only_after_a_delay():
    values = [0.0, 9.0] * 20
    intermittent = history(groups__zero_spread=values, groups__all=[10.0] * 40)
    later = history(
        groups__zero_spread=[9.0] + [0.0] * REPEAT_AFTER_STEPS + [9.0], groups__all=[10.0] * (REPEAT_AFTER_STEPS + 2)
    )
    limits = msgspec.structs.replace(LIMITS, window=1)
    for rows, steps in ((intermittent, [2]), (later, [1, REPEAT_AFTER_STEPS + 2])):
        alert_steps = [alert.step for end in range(1, len(rows) + 1) for alert in new_alerts(rows[:end], limits)]
        assert alert_steps == steps


def test_idle_alerts_name_slow_rollouts_if_trainer_and_sampler_both_wait():
    rows = history(idle__trainer=[0.9] * 2, idle__sampler=[0.9] * 2, queue__late=[0.0, 1.0])
    for name, words in (
        ("trainer_idle", "too old for a later step"),
        ("sampler_idle", "few more rollouts could be trained in time"),
    ):
        line = str(ALERTS[name](rows, LIMITS))
        assert words in line and "raise max_off_policy_steps" in line


def test_logprob_mismatch_names_the_age_of_the_weights_in_off_policy_training():
    rows = history(mismatch_kl__all__mean=[0.02, 0.04], off_policy__max=[3.0, 4.0], optim__lr=[1e-3, 1e-3])
    line = str(ALERTS["logprob_mismatch"](rows, LIMITS))
    assert "weights up to 4 versions old. To try: lower max_off_policy_steps, or the learning rate (up to 0.001" in line


def test_entropy_growth_from_a_very_low_entropy_is_no_alert():
    assert ALERTS["entropy_growth"](history(entropy__all__mean=[0.02, 0.02, 0.3, 0.4, 0.4]), LIMITS) is None


def test_held_out_flat_needs_enough_measurements():
    few = held_out(RISING, [None, 0.5, None, None, None, 0.4, None, 0.45])
    assert ALERTS["held_out_flat"](few, LIMITS) is None
    assert ALERTS["held_out_flat"](few, msgspec.structs.replace(LIMITS, held_out_measurements=2)) is not None
    assert ALERTS["held_out_flat"](held_out(FLAT, [0.5] * 8), LIMITS) is None


def test_steps_without_training_metrics_do_not_cause_alerts():
    assert new_alerts([{"step": 1.0}, {"step": 2.0}, {"step": 3.0}], LIMITS) == []
    gaps = history(ratio__mean=[1.2, None, 1.2])
    assert [alert.id for alert in new_alerts(gaps, LIMITS)] == ["ratio_drift"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"window": 0}, "window is 0; expected an integer, 1 or more"),
        ({"zero_advantage_groups": 1.5}, "zero_advantage_groups is 1.5; expected a number, more than 0 and at most 1"),
        ({"entropy_share": -1.0}, "entropy_share is -1.0"),
    ],
)
def test_invalid_limits_are_rejected(wrong: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        AlertLimits(**wrong)


def test_entropy_collapse_is_not_reported_for_sft():
    assert entropy_collapse(history(entropy__all__mean=[1.0, 1.0, 0.5, 0.05, 0.05]), LIMITS) is None


def alert_history(rows: list[dict[str, float]], limits: AlertLimits = LIMITS) -> list[tuple[int | None, str, str]]:
    ends = range(1, len(rows) + 1)
    return [(alert.step, alert.id, str(alert)) for end in ends for alert in new_alerts(rows[:end], limits)]


def test_a_collapse_after_a_high_learning_rate_names_the_learning_rate():
    rows = history(
        reward__mean=[0.3] + [-0.1] * 7,
        groups__zero_spread=[2.0] + [8.0] * 7,
        groups__all=[8.0] * 8,
        optim__lr=[2.0] + [None] * 7,
    )
    [(step, name, text)] = alert_history(rows, AlertLimits())
    assert (step, name) == (3, "policy_collapse")
    assert "the learning rate (up to 2 so far) is probably too high" in text


def test_zero_advantage_groups_with_falling_reward_advise_a_lower_learning_rate():
    rows = history(reward__mean=[0.5, 0.4, 0.2, 0.1], groups__zero_spread=[1.0, 5.0, 9.0, 9.0], groups__all=[10.0] * 4)
    [(_, name, text)] = alert_history(rows)
    assert name == "zero_advantage_groups"
    assert "and the reward has fallen. To try: lower the learning rate first" in text


def test_a_sudden_entropy_drop_is_a_collapse_although_the_reward_rises_slightly():
    rows = history(
        reward__mean=[0.026, 0.038, 0.035, 0.036, 0.04, 0.04],
        entropy__all__mean=[5.8, None, 0.4, 0.02, None, None],
        groups__zero_spread=[5.0, 8.0, 6.0, 7.0, 8.0, 8.0],
        groups__all=[8.0] * 6,
    )
    first, second = alert_history(rows, AlertLimits())
    assert first[:2] == (3, "policy_collapse")
    assert "entropy fell from 5.8 to 0.4 nats per token; the learning rate is probably too high" in first[2]
    assert second[:2] == (5, "zero_advantage_groups")
    assert "certain of its answers. To try: lower the learning rate first, unless they earn the most" in second[2]


def test_a_low_entropy_may_fall_further_without_an_alert():
    rows = history(reward__mean=[0.5, 0.6], entropy__all__mean=[0.3, 0.01])
    assert alert_history(rows) == []


def test_groups_that_never_had_advantages_are_not_a_policy_collapse():
    rows = history(reward__mean=[0.0] * 4, groups__zero_spread=[8.0] * 4, groups__all=[8.0] * 4)
    assert [name for _, name, _ in alert_history(rows)] == ["zero_advantage_groups"]


@pytest.mark.parametrize(
    ("living", "groups", "collapsed"),
    [
        (1, 1.0, False),  # probability 1/9
        (8, 1.0, False),  # probability 1/100
        (9, 1.0, True),
        (1, 4.0, True),
    ],
)
def test_two_zero_advantage_steps_are_a_collapse_only_if_chance_is_unlikely(
    living: int, groups: float, collapsed: bool
):
    rows = history(
        reward__mean=[0.5] * living + [0.0] * 2,
        groups__zero_spread=[0.0] * living + [groups] * 2,
        groups__all=[groups] * (living + 2),
    )
    assert ("policy_collapse" in [name for _, name, _ in alert_history(rows)]) == collapsed


def test_diverging_sft_is_reported_immediately():
    rows = history(loss=[5.8, 2607.0, 303.0], optim__lr=[5.0, 10.0, 8.0])
    [(step, name, text)] = alert_history(rows, AlertLimits())
    assert (step, name) == (2, "loss_growth")
    assert text.startswith("loss_growth: 2,607 nats per token, and it was 5.8 before")
    assert "a tenth of learning_rate (up to 10 so far)" in text


def test_a_rising_rl_loss_is_no_alert():
    rows = history(loss=[0.1, 0.1, 30.0], reward__mean=[0.1, 0.2, 0.3])
    assert ALERTS["loss_growth"](rows, LIMITS) is None


def test_growth_of_small_losses_is_no_alert():
    assert alert_history(history(loss=[0.2, 0.01, 0.01, 0.02, 0.3, 0.3])) == []


HELD_OUT = "eval/sampled/reward/mean"


def test_zero_advantage_groups_are_no_alert_while_the_held_out_reward_rises():
    rows = history(groups__zero_spread=[1.0] + [8.0] * 5, groups__all=[9.0] * 6)
    assert ALERTS["zero_advantage_groups"](rows, LIMITS) is not None
    rising = [{**row, HELD_OUT: 0.945 + 0.01 * row["step"]} for row in rows]
    assert ALERTS["zero_advantage_groups"](rising, LIMITS) is None
    falling = [{**row, HELD_OUT: 0.945 - 0.01 * row["step"]} for row in rows]
    assert ALERTS["zero_advantage_groups"](falling, LIMITS) is not None


def test_rewards_below_the_held_out_reward_show_no_memorization():
    rewards = {"reward__mean": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]}
    flat = [{**row, HELD_OUT: 0.75} for row in history(**rewards)]
    assert ALERTS["held_out_flat"](flat[:-1], LIMITS) is None
    assert ALERTS["held_out_flat"]([{**row, HELD_OUT: 0.5} for row in flat], LIMITS) is not None


def test_low_entropy_is_no_alert_while_the_held_out_reward_rises():
    rows = history(entropy__all__mean=[1.0, 1.0, 0.05, 0.05], reward__mean=[0.5] * 4)
    assert ALERTS["entropy_collapse"](rows, LIMITS) is not None
    rising = [{**row, HELD_OUT: 0.5 + 0.1 * row["step"]} for row in rows]
    assert ALERTS["entropy_collapse"](rising, LIMITS) is None


def test_a_collapse_is_refuted_by_a_rising_held_out_reward():
    rows = history(reward__mean=[0.5] * 4 + [0.1] * 2, groups__zero_spread=[0.0] * 4 + [8.0] * 2, groups__all=[8.0] * 6)
    assert ALERTS["policy_collapse"](rows, LIMITS) is not None
    assert (
        ALERTS["policy_collapse"]([{**rows[0], HELD_OUT: 0.5}, *rows[1:-1], {**rows[-1], HELD_OUT: 0.6}], LIMITS)
        is None
    )
    assert ALERTS["policy_collapse"]([{**rows[0], HELD_OUT: 0.5}, *rows[1:-1], {**rows[-1], HELD_OUT: 0.2}], LIMITS)
    rising = [{**row, HELD_OUT: 0.1 * row["step"]} for row in rows]
    rising[1]["eval/another/reward/mean"] = 0.5  # a single measurement of another evaluation says nothing
    assert ALERTS["policy_collapse"](rising, LIMITS) is None


@pytest.mark.parametrize(
    ("rewards", "cause"),
    [
        ([0.2, 0.9, 0.9, 0.9, 0.9], "no reward function reads the additional tokens"),
        ([0.1, 0.3, 0.5, 0.7, 0.9], "the reward favors length"),
    ],
)
def test_growing_responses_are_explained_by_the_reward(rewards: list[float], cause: str):
    lengths = [10.0, 11.0, 20.0, 25.0, 30.0]
    rows = history(
        reward__mean=[reward for reward in rewards for _ in range(2)],
        length__mean=[length for length in lengths for _ in range(2)],
    )
    finding = ALERTS["length_growth"](rows, LIMITS)
    assert finding is not None
    assert finding.cause == cause
