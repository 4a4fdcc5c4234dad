"""Rollout records and the values derived from them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rove.core.messages import AssistantMessage, UserMessage
from rove.core.records import ROVE, ErrorInfo, StepTokens, Timing, TrajectoryStep, Usage
from tests.runs.test_serialization import make_record, usages


def test_only_the_reward_of_a_step_can_be_set():
    step = TrajectoryStep([], [])
    assert step["reward"] is None
    step["reward"] = 1
    assert (step.reward, type(step.reward)) == (1.0, float)
    for key in ("advantage", "completion"):
        with pytest.raises(TypeError, match=f"'{key}' of a step cannot be changed"):
            step[key] = 1.0
    with pytest.raises(ValueError, match="finite"):
        step["reward"] = float("nan")
    assert step.reward == 1.0


def test_fields_that_older_lines_lack_are_zero_or_absent():
    assert msgspec.json.decode(b"{}", type=Timing) == Timing(total=0.0, model=0.0, scoring=0.0)
    assert msgspec.json.decode(b"{}", type=Usage) == Usage(prompt_tokens=0, completion_tokens=0)
    tokens = StepTokens([1], [2, 3], [-0.5, -0.5])
    assert (tokens.policy_version, tokens.versions) == (0, [(0, 2)])
    step = TrajectoryStep([], [])
    assert (step.finish_reason, step.seconds, step.usage) == ("stop", 0.0, Usage())
    assert (step.tokens, step.attempts, step.reward, step.tools) == (None, [], None, None)


def test_records_are_frozen():
    with pytest.raises(AttributeError, match="immutable"):
        make_record().answer = "b"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError, match="immutable"):
        make_record().outcome.scores = None  # pyright: ignore[reportAttributeAccessIssue]


def test_reward_is_none_when_the_rollout_failed():
    assert make_record().reward == 1.0
    failed = make_record(scores=None, error=ErrorInfo("model", "InfraError", "gone"))
    assert failed.reward is None


OWN = 'File "/home/ann/sums.py", line 9, in correct'
INSTALLED = 'File "/usr/lib/python3.12/site-packages/sums/sums.py", line 9, in correct'
PYTHON = 'File "/usr/lib/python3.12/json/decoder.py", line 338, in decode'
INTERNAL = f'File "{ROVE}/core/state.py", line 134, in __missing__'


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([INTERNAL, OWN, INTERNAL], f" ({OWN})"),
        ([INTERNAL, OWN, PYTHON], f" ({OWN})"),
        ([INTERNAL, OWN, INSTALLED, PYTHON], f" ({OWN})"),
        ([INTERNAL, INSTALLED, INTERNAL], f" ({INSTALLED})"),
        ([INTERNAL, PYTHON], ""),
        ([], ""),
    ],
)
def test_the_source_line_of_an_error_is_in_the_users_code(frames: list[str], expected: str):
    traceback = "".join(f"  {frame}\n    code\n" for frame in frames)
    assert ErrorInfo("reward correct", "KeyError", "gone", traceback).source_line == expected


@given(st.lists(usages, max_size=4))
def test_usage_adds_up(parts):
    total = sum(parts, Usage())
    assert total.prompt_tokens == sum(part.prompt_tokens for part in parts)
    assert total.completion_tokens == sum(part.completion_tokens for part in parts)


def test_steps_can_be_read_by_attribute_and_by_key():
    step = TrajectoryStep([UserMessage("a")], [AssistantMessage("b")], tokens=StepTokens([1], [2], [-0.5]))
    assert step["completion"] == step.completion
    assert step.tokens is not None
    assert step.tokens.ids == [1, 2]
