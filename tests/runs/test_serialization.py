"""Records survive encoding and decoding, and their size grows linearly with the number of turns."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import each_row

from rove.core.errors import RunError
from rove.core.messages import AssistantMessage, Message, UserMessage
from rove.core.records import (
    SCHEMA_VERSION,
    ErrorInfo,
    RolloutRecord,
    Scores,
    StepTokens,
    Timing,
    TrajectoryStep,
    Usage,
)
from rove.runs.serialization import CHECKSUM_BYTES, decode_record, encode_record

texts = st.text(max_size=8)
numbers = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
messages = st.builds(
    lambda role, content, fields: Message(role=role, content=content, **fields),
    st.sampled_from(["system", "user", "assistant", "tool"]),
    st.none() | texts | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}), max_size=2),
    st.dictionaries(st.sampled_from(["name", "tool_call_id", "reasoning_content"]), texts, max_size=1),
)
conversations = st.lists(messages, max_size=3)
ids = st.lists(st.integers(0, 9), max_size=4)
tools = st.none() | st.just([]) | st.just([{"type": "function"}])
usages = st.builds(Usage, st.integers(0, 99), st.integers(0, 99))


spans = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), max_size=3)


@st.composite
def trajectories(draw) -> list[TrajectoryStep]:
    """Draw turns that extend the history in messages, tokens, both or neither; tokens may be missing."""
    steps: list[TrajectoryStep] = []
    history: list[Message] = []
    history_ids: list[int] = []
    for _ in range(draw(st.integers(0, 4))):
        prompt = (history if draw(st.booleans()) else []) + draw(conversations)
        completion = draw(conversations)
        tokens = None
        if draw(st.booleans()):
            sampled = draw(ids)
            logprobs = draw(st.lists(numbers, min_size=len(sampled), max_size=len(sampled)))
            prompt_ids = (history_ids if draw(st.booleans()) else []) + draw(ids)
            tokens = StepTokens(prompt_ids, sampled, logprobs, draw(st.integers(0, 5)), draw(spans))
        reason = draw(st.sampled_from(["stop", "length", "tool_calls"]))
        reward = draw(st.none() | numbers)
        steps.append(
            TrajectoryStep(
                prompt,
                completion,
                reason,
                draw(usages),
                draw(numbers),
                tokens,
                reward=reward,
                tools=draw(tools),
            )
        )
        history = prompt + completion
        history_ids = tokens.ids if tokens else []
    return steps


values = st.dictionaries(texts, numbers, max_size=2)
all_scores = st.builds(Scores, numbers, values, values, values, st.dictionaries(texts, json_values, max_size=2))
all_errors = st.builds(ErrorInfo, texts, texts, texts, texts, st.lists(texts, max_size=2))


@st.composite
def records(draw) -> RolloutRecord:
    scores = draw(st.none() | all_scores)
    return RolloutRecord(
        example_key=draw(texts),
        example_id=draw(st.integers(0, 99)),
        rollout_index=draw(st.integers(0, 7)),
        seed=draw(st.integers(0, 2**63 - 1)),
        prompt=draw(conversations),
        completion=draw(conversations),
        answer=draw(texts),
        info=draw(st.dictionaries(texts, json_values, max_size=2)),
        steps=draw(trajectories()),
        stop_condition=draw(st.none() | texts),
        is_truncated=draw(st.booleans()),
        scores=scores,
        error=None if scores else draw(all_errors),
        usage=draw(usages),
        timing=draw(st.builds(Timing, numbers, numbers, numbers)),
        temperature=draw(numbers),
        step=draw(st.none() | st.integers(0, 99)),
        tools=draw(st.none() | st.lists(st.dictionaries(texts, json_values, max_size=2), max_size=2)),
    )


def make_record(**fields) -> RolloutRecord:
    defaults = {
        "example_key": "k",
        "example_id": 0,
        "rollout_index": 0,
        "seed": 1,
        "prompt": [UserMessage("q")],
        "completion": [AssistantMessage("a")],
        "answer": "a",
        "info": {},
        "steps": [],
        "stop_condition": None,
        "is_truncated": False,
        "scores": Scores(1.0, {"correct": 1.0}, {"correct": 1.0}),
        "error": None,
    }
    return RolloutRecord(**{**defaults, **fields})


@given(records())
def test_decoding_what_was_encoded_gives_the_same_record(record):
    line = encode_record(record)
    assert decode_record(line) == record
    assert b"\n" not in line


@given(records())
def test_decoded_messages_have_the_message_type(record):
    back = decode_record(encode_record(record))
    decoded = [*back.prompt, *back.completion, *(m for s in back.steps for m in [*s.prompt, *s.completion])]
    assert all(isinstance(message, Message) for message in decoded)


def record_of_turns(turns: int) -> RolloutRecord:
    """Return a record in which the prompt of every turn contains all earlier turns."""
    steps: list[TrajectoryStep] = []
    history: list[Any] = []
    history_ids: list[int] = []
    for turn in range(turns):
        prompt: list[Any] = [*history, UserMessage(f"question {turn:04}")]
        answer: list[Any] = [AssistantMessage(f"answer {turn:04}")]
        tokens = StepTokens([*history_ids, 1, 2, 3], [4, 5], [-0.5, -0.5])
        steps.append(TrajectoryStep(prompt, answer, tokens=tokens))
        history, history_ids = prompt + answer, tokens.ids
    return make_record(prompt=history[:1], completion=history[1:], steps=steps)


def test_the_size_of_a_record_is_linear_in_its_turns():
    sizes = [len(encode_record(record_of_turns(turns))) for turns in (50, 100, 150)]
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0]
    assert decode_record(encode_record(record_of_turns(100))) == record_of_turns(100)


def test_a_step_that_rewrites_the_history_is_stored_in_full():
    first = TrajectoryStep([UserMessage("a")], [AssistantMessage("b")], tokens=StepTokens([1], [2], [0.0]))
    second = TrajectoryStep([UserMessage("A")], [AssistantMessage("c")], tokens=StepTokens([9, 2], [3], [0.0]))
    record = make_record(steps=[first, second])
    assert decode_record(encode_record(record)).steps == [first, second]


def test_values_without_a_json_form_are_converted():
    """A tool may return any value; an unusual one must not end the run."""
    info = {"array": np.arange(2), "number": np.float32(0.5), ("a", 1): {3}, "kind": int}
    record = make_record(info=info, completion=[AssistantMessage("half a pair: \ud800")])
    back = decode_record(encode_record(record))
    assert back.info == {"array": [0, 1], "number": 0.5, "('a', 1)": [3], "kind": "<class 'int'>"}
    assert back.completion == [AssistantMessage("half a pair: ?")]
    assert back.scores == record.scores


def without_checksum(line: bytes) -> bytes:
    return line[:-CHECKSUM_BYTES] + b"}"


NOT_UTF8 = without_checksum(encode_record(make_record(answer="quite unusual"))).replace(b"quite unusual", b"\xff")
NESTED = without_checksum(encode_record(make_record(info={"a": 7_777}))).replace(
    b"7777", 100_000 * b"[" + 100_000 * b"]"
)


@each_row(
    "line",
    [b"", b"{}", b"[1]", b'{"record": {}, "steps": []}', encode_record(make_record())[:-1], NOT_UTF8, NESTED],
)
def test_invalid_lines_are_refused_and_quoted(line):
    with pytest.raises(RunError, match=r"not a rollout record: .*; the line starts b"):
        decode_record(line)


def test_records_of_a_newer_schema_are_refused():
    newer = make_record(schema_version=SCHEMA_VERSION + 1)
    with pytest.raises(
        RunError, match=f"schema {SCHEMA_VERSION + 1}; this version of rove reads up to {SCHEMA_VERSION}. Upgrade"
    ):
        decode_record(encode_record(newer))


def test_unknown_fields_of_later_versions_are_ignored():
    stored = json.loads(encode_record(make_record()))
    stored["record"]["colour"] = "blue"
    assert decode_record(json.dumps(stored).encode()) == make_record()
