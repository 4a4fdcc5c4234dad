"""Tests of the parts of RLMEnv: instructions, context preview, counting of sub-calls, and the order of steps."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import rove as vf
from rove.envs.rlm import (
    ROLE,
    Exploration,
    SubCalls,
    as_text,
    context_file,
    instructions,
    steps_of,
    sub_calls,
    sub_tokens,
    with_preview,
)


def steps_with_texts(*words: str) -> list[vf.TrajectoryStep]:
    return [vf.TrajectoryStep([], [{"role": "assistant", "content": word}], usage=vf.Usage(3, 1)) for word in words]


async def unexpected_call(*args: Any, **options: Any) -> vf.Message:
    raise AssertionError


def calls_of(**roles: Any) -> SubCalls:
    return SubCalls(unexpected_call, asyncio.Semaphore(1), roles, [steps_with_texts("own")])


def conversation(calls: SubCalls, *words: str, branches: Any = ()) -> vf.State:
    return vf.State(trajectory=steps_with_texts(*words), rlm=Exploration(calls, branches=list(branches)))


def test_steps_of_sub_conversations_follow_the_turn_that_started_them():
    calls = calls_of()
    deepest = conversation(calls, "c")
    inner = conversation(calls, "a", "b", branches=[(1, deepest)])
    state = conversation(
        calls, "1", "2", branches=[(1, inner), (1, conversation(calls, "d")), (2, conversation(calls))]
    )
    assert [step.completion[0]["content"] for step in steps_of(state)] == ["1", "a", "c", "b", "d", "2"]
    assert list(steps_of(conversation(calls))) == []


def test_sub_calls_are_counted_in_model_roles_and_in_conversations():
    separate = conversation(calls_of(**{ROLE: steps_with_texts("a", "b"), "judge": steps_with_texts("c")}))
    assert (sub_calls(separate), sub_tokens(separate)) == (2, 8)
    calls = calls_of()
    calls.conversations += [steps_with_texts("a"), steps_with_texts(), steps_with_texts("b", "c")]
    assert (sub_calls(conversation(calls)), sub_tokens(conversation(calls))) == (3, 12)


def test_the_prompt_ends_with_a_preview_of_the_context():
    def last_content(context: Any, content: Any = "q", count: int = 5) -> Any:
        return with_preview([{"role": "user", "content": content}], context, count)[-1]["content"]

    assert last_content("abcdefgh") == "q\n\n`context` is a text of 8 characters. It begins: 'abcde'"
    assert last_content(["a", "b"]) == "q\n\n`context` is a list of 2. It begins: '[\"a\",'"
    assert last_content({"a": 1}, "").startswith("`context` is a dict of 1. ")
    assert last_content(3, [{"type": "image"}])[1]["text"] == "`context` is a value of type int. It begins: '3'"
    messages = [{"role": "system", "content": "s"}]
    assert [m["role"] for m in with_preview(messages, "a", 1)] == ["system", "user"] and len(messages) == 1


def test_a_context_is_serialized_as_a_file():
    assert context_file("é\r\n") == ("context.txt", b"\xc3\xa9\r\n")
    assert context_file(["é"]) == ("context.json", '["é"]'.encode())
    assert context_file("\ud800") == ("context.txt", b"?")
    with pytest.raises(vf.ConfigError, match="expected a text or a JSON value"):
        as_text({"a": b"bytes"})


def test_instructions_describe_the_interface_the_budget_and_the_depth():
    plain, deep = instructions("tool", 1, 7), instructions("fence", 2, 9)
    assert "tool `python`" in plain and "at most 7 prompts" in plain and "context=part" not in plain
    assert "```python" in deep and "at most 9 prompts" in deep and "context=part" in deep
