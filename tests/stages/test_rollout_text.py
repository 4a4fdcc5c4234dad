from __future__ import annotations

from fakes import make_rollout

from rove.core.messages import AssistantMessage, UserMessage
from rove.core.records import ErrorInfo, Scores
from rove.stages.tables import rollout_text


def test_rollout_text_contains_messages_and_scores():
    record = make_rollout(
        prompt=[UserMessage("2 + 2?")],
        completion=[AssistantMessage("4 [bold]")],
        scores=Scores(0.75, {"right": 1.0}, {"right": 0.75}, {"turns": 1.0}),
        is_truncated=True,
    )
    assert rollout_text(record, "step 3").splitlines() == [
        "step 3 · example 0, rollout 0 · reward 0.75 (right 1, turns 1) · stop condition answered, truncated",
        "  user: 2 + 2?",
        "  assistant: 4 [bold]",
    ]
    assert "rollout 0 · reward 0.5 · stop" in rollout_text(make_rollout(scores=Scores(0.5, {}, {}, {})))


def test_tool_calls_and_failures_are_shown_and_long_texts_truncated():
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    message = AssistantMessage("a" * 5000)
    message["tool_calls"] = [call]
    error = ErrorInfo("model", "TimeoutError", "too slow")
    text = rollout_text(make_rollout(completion=[message], reward=None, error=error))
    assert "failed in model: TimeoutError: too slow" in text
    assert '→ add({"a": 2})' in text
    assert "characters left out" in text
    assert len(text) < 2500


def test_malformed_tool_calls_are_shown_unchanged():
    message = AssistantMessage(
        "so", tool_calls=[None, {"function": "f"}, {"function": {"name": "f", "arguments": "x" * 9999}}]
    )
    text = rollout_text(make_rollout(completion=[message, AssistantMessage("", tool_calls="f(1)")]))
    assert "so → None → {'function': 'f'} → f(xxx" in text and len(text) < 3000
