"""State: a dict whose reads of the dataset row's fields fall through to the row."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rove.core.state import INPUT_FIELDS, State

ROW = {"prompt": ["p"], "answer": "4", "info": {"a": 1}, "example_id": 7, "task": "sums", "difficulty": 3}


def test_reads_fall_through_to_the_row():
    state = State(input=ROW)
    assert (state["answer"], state["example_id"], state.get("task")) == ("4", 7, "sums")
    assert all(field in state for field in INPUT_FIELDS)


def test_writes_stay_in_the_state():
    state = State(input=dict(ROW))
    state["prompt"] = ["other"]
    assert state["prompt"] == ["other"]
    assert state["input"] == ROW
    del state["prompt"]
    assert state["prompt"] == ["p"]


def test_other_columns_do_not_fall_through():
    state = State(input=ROW)
    assert "difficulty" not in state
    assert state.get("difficulty", "none") == "none"


def test_the_error_of_a_missing_key_lists_the_existing_keys():
    with pytest.raises(KeyError, match=r"'board' is not in this rollout's state; it has \['input', 'seed'\]"):
        State(input=ROW, seed=1)["board"]


def test_a_state_without_a_row_has_no_row_fields():
    for state in (State(), State(input=None), State(input={})):
        assert "answer" not in state
        assert state.get("answer") is None
        with pytest.raises(KeyError, match="answer"):
            state["answer"]


names = st.sampled_from([*sorted(INPUT_FIELDS), "input", "board", "difficulty"])


@given(
    own_fields=st.dictionaries(names.filter(lambda n: n != "input"), st.integers()),
    row=st.dictionaries(names, st.integers()),
)
def test_get_contains_and_getitem_agree(own_fields, row):
    state = State(own_fields, input=row)
    for name in (*INPUT_FIELDS, "board", "difficulty"):
        expected = (
            own_fields[name] if name in own_fields else row[name] if name in row and name in INPUT_FIELDS else None
        )
        assert (name in state) == (expected is not None)
        assert state.get(name) == expected
        if expected is not None:
            assert state[name] == expected
