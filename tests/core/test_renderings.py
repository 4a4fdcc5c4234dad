"""Renderings are data of limited size, and each belongs to a message."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rove as vf
from rove.core.renderings import CELL_STYLES, MAX_CELL_CHARS, MAX_SIZE, Rendering
from rove.runs.serialization import decode_record, encode_record

cells = st.tuples(st.text(max_size=MAX_CELL_CHARS), st.sampled_from(CELL_STYLES))
boards = st.builds(Rendering, st.lists(st.lists(cells, max_size=MAX_SIZE), max_size=MAX_SIZE))


@given(boards)
def test_a_rendering_survives_json(board: Rendering):
    assert msgspec.json.decode(msgspec.json.encode(board), type=Rendering) == board


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([[("X", "blinking")]], "the style of a cell is 'blinking'; expected one of '', 'free', 'first'"),
        ([[("x" * 13, "")]], "at most 12 characters"),
        ([[]] * 41, "at most 40 rows"),
        ([[("", "")] * 41], "at most 40 rows of 40 cells"),
    ],
)
def test_invalid_renderings_are_refused(rows: Any, complaint: str):
    with pytest.raises(vf.ConfigError, match=complaint):
        Rendering(rows)
    with pytest.raises(msgspec.ValidationError, match=complaint):
        msgspec.json.decode(msgspec.json.encode({"rows": rows}), type=Rendering)


class CountingEnv(vf.MultiTurnEnv):
    """Renders the number of its responses."""

    def __init__(self, drawn: Any = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.drawn = drawn

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["count"] = 0

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str:
        state["count"] += 1
        return "again"

    def render(self, state: vf.State) -> Any:
        return self.drawn or vf.Rendering([[(str(state["count"]), "")]])


def say(messages: Any, state: Any, rng: Any) -> str:
    return "so"


async def test_renderings_are_stored_by_message_and_not_shown_to_the_model():
    env = CountingEnv(dataset=[{"question": "?"}], system_prompt="Count.", max_turns=2)
    model_inputs: list[Any] = []

    def policy(messages: Any, state: Any, rng: Any) -> str:
        model_inputs.append([dict(message) for message in messages])
        return "so"

    [record] = await vf.generate(env, vf.ScriptedClient(policy))
    assert {key: board.rows for key, board in record.renderings.items()} == {
        1: [[("0", "")]],
        3: [[("1", "")]],
        5: [[("2", "")]],
    }
    assert [message["role"] for message in (*record.prompt, *record.completion)] == [
        "system",
        *["user", "assistant"] * 2,
        "user",
    ]
    assert "rows" not in str(model_inputs)
    assert decode_record(encode_record(record)) == record


@pytest.mark.parametrize("drawn", ["<b>1</b>", [[("1", "")]]])
async def test_an_invalid_return_value_of_render_fails_the_rollout(drawn: Any):
    [record] = await vf.generate(CountingEnv(drawn, dataset=[{"question": "?"}], max_turns=1), vf.ScriptedClient(say))
    assert record.error is not None
    assert (record.error.phase, record.error.type) == ("render", "ConfigError")
    assert "expected a rove.Rendering or None" in record.error.message


async def test_environments_without_render_store_no_renderings():
    env = vf.SingleTurnEnv(dataset=[{"question": "?"}])
    [record] = await vf.generate(env, vf.ScriptedClient(say))
    assert record.renderings == {} and b'"renderings":{}' in encode_record(record)
