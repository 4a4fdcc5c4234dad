"""Filter expressions: the names they can use, rejected expressions, and errors."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_folders import make_record, make_scores
from tiers import each_row

import rove as vf
from rove.rollouts.filters import MAX_LENGTH, NAMES, Filter, visible


@each_row(
    "expression",
    [
        "reward == 1.2",
        "metrics.win > 0 and metrics.format == 1",
        "metrics['length'] == 3 and rewards.win == 1",
        "not is_truncated and stop_condition == 'answered'",
        "stop_condition in ('answered', 'resigned') and stop_condition is not None",
        "num_turns == 1 and usage.completion_tokens <= 5",
        "info.level == 4 and answer == '4'",
        "0 < len(answer) < 3",
        "example_id % 2 == 0 and rollout_index == 0",
        "max(metrics.win, -1) - abs(-1) == min(0, 1)",
        "'none' not in metrics or metrics.none > 3",
        "1 if metrics.win else 0",
        "  reward  ",
    ],
)
def test_a_matching_rollout_passes(expression: str):
    assert Filter(expression)(make_record(4)) is True


@each_row("expression", ["reward > 2", "metrics.win < 1", "is_truncated", "'none' in metrics", "None"])
def test_a_rollout_that_does_not_match_is_excluded(expression: str):
    assert Filter(expression)(make_record()) is False


def test_failed_rollouts_never_pass():
    assert Filter("True")(make_record(win=None)) is False


def test_metrics_equal_those_of_dataset_rows():
    [row] = vf.make_dataset([make_record()])
    fields = visible(make_record(), make_scores(1.0))
    assert fields["metrics"] == row["metrics"] == {"win": 1.0, "format": 1.0, "length": 3.0}
    assert sorted(fields) == list(NAMES)


@each_row(
    ("expression", "message"),
    [
        ("", "invalid syntax"),
        ("reward >", "invalid syntax"),
        ("reward > 1; 2", "invalid syntax at character 11; write it like"),
        ("reward = 1", "invalid syntax at character 8 (a comparison is written ==); write it like"),
        ("reward > 0 and metrics.win=1", "at character 27 (a comparison is written ==)"),
        ("reward => 1", "invalid syntax at character 8; write it like"),
        ("x" * (MAX_LENGTH + 1), "at most 1000 characters"),
        ("-" * 900 + "1", "longer than 200"),
        ("[" * 500, "filter '["),
        ("reward > 0\0", "null bytes"),
        ("rewrd > 1", "there is no name 'rewrd'; did you mean 'reward'?"),
        ("win > 1", "a reward function or metric is metrics.win"),
        ("len > 1", "there is no name 'len'"),
        ("2 ** 9", "Pow is not allowed"),
        ("reward > 1 & is_truncated", "BitAnd is not allowed"),
        ("[x for x in answer]", "is not allowed"),
        ("(lambda: 1)()", "cannot be called; functions are abs, len, max, min"),
        ("info.get('level')", "'info.get' cannot be called"),
        ("__import__('os').system('true')", "cannot be called"),
        ("(x := 3)", "NamedExpr is not allowed"),
        ("f'{reward}'", "is not allowed"),
        ("max(1, key=abs)", "is not allowed"),
    ],
)
def test_invalid_expressions_are_rejected_before_any_rollout_is_read(expression: str, message: str):
    with pytest.raises(vf.ConfigError) as caught:
        Filter(expression)
    assert message in str(caught.value)


@each_row(
    ("expression", "message"),
    [
        ("metrics.wim > 0", "metrics has no 'wim' here; did you mean 'win'? There are: format, length, win"),
        ("metrics['wim'] > 0", "metrics has no 'wim'"),
        ("metrics.win > 5 and metrics.fromat == 1", "did you mean 'format'?"),
        ("rewards.length", "rewards has no 'length'"),
        ("info.levl", "info has no 'levl' here; did you mean 'level'?"),
        ("info.level.deeper", "'info.level' has no fields: it is 0"),
        ("answer.__class__", "'answer' has no fields"),
        ("metrics.__class__", "metrics has no '__class__'"),
        ("reward > answer", "'>' not supported"),
        ("reward / 0", "division by zero"),
        ("answer * 999999999", "arithmetic is for numbers"),
        ("answer[3]", "out of range"),
    ],
)
def test_evaluation_errors_name_the_rollout_and_the_reason(expression: str, message: str):
    with pytest.raises(vf.ConfigError) as caught:
        Filter(expression)(make_record())
    assert message in str(caught.value)
    assert "(example 0, rollout 0)" in str(caught.value)


def test_a_metric_of_only_some_rollouts_needs_a_membership_test():
    records = [make_record(0), make_record(1, scores=make_scores(1.0, speed=2.0))]
    with pytest.raises(vf.ConfigError, match="metrics has no 'speed'"):
        [Filter("metrics.speed > 1")(record) for record in records]
    assert [Filter("'speed' in metrics and metrics.speed > 1")(record) for record in records] == [False, True]


@given(st.text(max_size=60) | st.text("()[]{}'.,:=<>!*-+ 0019reward infomts", max_size=60))
def test_any_text_is_a_valid_filter_or_a_config_error(expression: str):
    with suppress(vf.ConfigError):
        assert Filter(expression)(make_record()) in (True, False)


OPERANDS = st.sampled_from(["reward", "num_turns", "example_id", "metrics.win", "0", "1", "2.5", "-1"])


@given(
    OPERANDS, st.sampled_from(["<", "<=", "==", "!=", ">", ">="]), OPERANDS, st.sampled_from(["and", "or"]), OPERANDS
)
def test_expressions_have_the_same_meaning_as_in_python(a: str, compared: str, b: str, joined: str, c: str):
    expression = f"{a} {compared} {b} {joined} not {c}"
    names = {"reward": 1.2, "num_turns": 1, "example_id": 0, "metrics": type("Metrics", (), {"win": 1.0})}
    assert Filter(expression)(make_record()) == bool(eval(expression, names))


def test_make_dataset_accepts_a_filter():
    records = [make_record(0, 0, 0.0), make_record(0, 1, 1.0), make_record(1, 0, None), make_record(1, 1, 0.5)]
    assert [row["reward"] for row in vf.make_dataset(records, filter="metrics.win > 0")] == [1.2, 0.7]
    assert [row["reward"] for row in vf.make_dataset(records, 1.0, filter="metrics.win > 0")] == [1.2]
    with pytest.raises(vf.ConfigError, match="did you mean 'win'"):
        vf.make_dataset(records, filter="metrics.wim > 0")
