"""Types of the files of a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import each_row

from rove.core.errors import RunError
from rove.core.records import Outcome, Scores
from rove.runs.schema import MAX_DEPTH, MAX_INTEGER, Summary, check_plain, decoded, decoded_row
from rove.statistics import Price, Tally

FILE = Path("summary.json")


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_deep_nesting_and_large_integers_are_refused():
    check_plain({"a": nested(MAX_DEPTH - 1), "b": MAX_INTEGER - 1, "c": True, "d": 1e300})
    for value in (nested(MAX_DEPTH + 1), MAX_INTEGER, -MAX_INTEGER, [{"a": MAX_INTEGER}]):
        with pytest.raises(ValueError, match="nested deeper|digits"):
            check_plain(value)


@given(st.lists(st.floats(-1, 2), max_size=4))
def test_summaries_of_evaluations_match_the_schema(rewards: list[float]):
    tally = Tally(price=Price(1.0, 2.0))
    for index, reward in enumerate(rewards):
        scores = Scores(reward, {"right": reward}, {"right": 1.0}, {"length": 3.0})
        tally.add(Outcome(str(index), index, 0, "answered", False, scores, None))
    content = msgspec.json.encode(tally.result().to_dict())
    assert decoded(FILE, content, Summary) == msgspec.json.decode(content)


def test_unknown_keys_are_kept():
    assert decoded(FILE, b'{"rescored": {"run": "x"}, "scored": 1}', Summary)["rescored"] == {"run": "x"}


@each_row("content", [b"[1]", b'{"reward": 1}', b'{"reward": {"mean": "x"}}', b"{", b"\xff", b"[" * 5000])
def test_wrong_types_are_refused_with_the_name_of_the_file(content: bytes):
    with pytest.raises(RunError, match=r"summary\.json is damaged, or not a file that rove wrote: "):
        decoded(FILE, content, Summary)


@each_row(
    "line",
    [b"[]", b'{"a": [1]}', b'{"step": "x"}', b'{"step": 1.5}', b'{"step": 1e400}', b'{"a": 1' + b"0" * 30 + b"}"],
)
def test_a_row_contains_only_numbers_and_texts(line: bytes):
    assert decoded_row(b'{"step": 1, "loss": null, "text": "x", "reward/mean": 0.5}')["reward/mean"] == 0.5
    with pytest.raises(RunError, match="not a row of numbers and texts"):
        decoded_row(line)
