"""Authors may use every key of the state: rove's own bookkeeping of a rollout is elsewhere.

Each case sets one key to odd values from everywhere that user code runs. The keys are read from the documentation and the code.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from toys import says

import rove as vf
from rove.core.records import Outcome, RolloutRecord, Scores, Timing, TrajectoryStep, Usage
from rove.core.state import INPUT_FIELDS, READABLE, Bookkeeping, bookkeeping
from rove.runs.run import Run

ROOT = Path(__file__).resolve().parents[2]
USES = (
    re.compile(r"""\bstate(?:\[|\.(?:get|pop|setdefault)\()["'](\w+)["']"""),
    re.compile(r"\bstate\.update\((?:\{[^}]*\}, )?(\w+)="),
    re.compile(r"""["'](\w+)["'] (?:not )?in state\b"""),
)
SET_BY_AUTHORS = {"prompt", "tools", "final_env_response"}
"""Keys that rove reads; see `State`."""


def keys_in_use() -> list[str]:
    """Return every key that the documentation or the code reads or sets in a state, and every name of a field of a record."""
    folders = (ROOT / "docs", ROOT / "rove", ROOT / "environments")
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".md", ".py")]
    texts = [path.read_text() for path in (ROOT / "README.md", *files)]
    keys = {key for text in texts for pattern in USES for key in pattern.findall(text)}
    keys |= {field.name for field in dataclasses.fields(Bookkeeping)}
    for struct in (RolloutRecord, Outcome, Scores, Timing, Usage, TrajectoryStep):
        keys |= {field.name for field in msgspec.structs.fields(struct)}
    return sorted(keys)


def test_the_keys_are_found():
    keys = keys_in_use()
    assert len(keys) > 100
    assert set(keys) >= READABLE | INPUT_FIELDS | SET_BY_AUTHORS
    assert {"error", "seconds", "reward", "metrics", "timing", "usage", "completion", "turn", "responses"} <= set(keys)


def circular() -> list[Any]:
    value: list[Any] = [{}]
    value[0]["again"] = value
    return value


VALUES = {
    "text": lambda: "illegal move",
    "nan": lambda: float("nan"),
    "bytes": lambda: b"\xff\x00",
    "circular": circular,
    "huge": lambda: 10**5000,
    "none": lambda: None,
    "empty": dict,
    "list": lambda: [1, "a", None],
    "object": object,
    "class": lambda: ValueError,
}
PLACES = ("setup_state", "env_response", "stop", "reward", "cleanup", "post_rollout")


def kept_by(key: str, position: str) -> Any:
    """Return a function that sets `key` if the row says so."""

    def set_key(state: vf.State) -> None:
        info = bookkeeping(state).input["info"]  # pyright: ignore[reportOptionalSubscript]
        if info["place"] == position:
            state[key] = VALUES[info["value"]]()

    return set_key


class Author(vf.MultiTurnEnv):
    """Two turns; every hook may set a key."""

    def __init__(self, key: str, **kwargs: Any):
        self.key = key
        rows = [{"question": "?", "answer": "b", "info": {"place": p, "value": v}} for p in PLACES for v in VALUES]

        def reward(state: vf.State, completion: vf.Messages) -> float:
            kept_by(key, "reward")(state)
            return float([message.content for message in completion] == ["b", "go on", "b", "go on"])

        super().__init__(dataset=rows, max_turns=2, rubric=vf.Rubric([reward]), **kwargs)

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        kept_by(self.key, "setup_state")(state)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str:
        kept_by(self.key, "env_response")(state)
        return "go on"

    @vf.stop
    def never(self, state: vf.State) -> bool:
        kept_by(self.key, "stop")(state)
        return False

    async def post_rollout(self, state: vf.State) -> None:
        kept_by(self.key, "post_rollout")(state)

    @vf.cleanup
    def set_at_the_end(self, state: vf.State) -> None:
        kept_by(self.key, "cleanup")(state)


class ToolAuthor(Author, vf.ToolEnv):  # pyright: ignore[reportIncompatibleMethodOverride]
    """The same with tools, whose environment reads more of the state."""

    def no_tools_called(self, state: vf.State) -> bool:
        return False


def check_run(env: vf.Environment, path: Path, may_fail: bool) -> list[RolloutRecord]:
    """Evaluate, open, rescore and resume a run; return its records."""
    count = len(PLACES) * len(VALUES)
    asyncio.run(vf.evaluate(env, says("b"), run=path / "run"))
    records = sorted(Run(path / "run").rollouts(), key=lambda record: record.example_id)
    assert len(records) == count
    for record in records:
        if record.error is not None:
            assert may_fail, record.error
            assert record.error.type == "ConfigError", record.error
        elif not may_fail:
            assert (record.reward, len(record.steps), record.stop_condition) == (1.0, 2, "max_turns_reached")
    scored = sum(record.error is None for record in records)
    with Run(path / "run") as source:
        rescored = asyncio.run(vf.rescore(env, source, into=path / "rescored"))
    assert (rescored.scored, rescored.failed) == (scored, 0)
    content_before = (path / "run" / "rollouts.jsonl").read_bytes()
    resumed = asyncio.run(vf.evaluate(env, says("b"), run=path / "run"))
    assert resumed.scored == scored
    if scored == count:
        assert (path / "run" / "rollouts.jsonl").read_bytes() == content_before
    return records


@pytest.mark.parametrize("key", keys_in_use())
def test_a_key_of_the_author_breaks_nothing(key: str, tmp_path: Path):
    check_run(Author(key), tmp_path, may_fail=key in SET_BY_AUTHORS - {"tools"})


@pytest.mark.parametrize("key", sorted(READABLE | INPUT_FIELDS | {"final_env_response", "seconds", "mcp_servers"}))
def test_a_key_of_the_author_breaks_nothing_in_an_environment_with_tools(key: str, tmp_path: Path):
    check_run(ToolAuthor(key, tools=[]), tmp_path, may_fail=key in SET_BY_AUTHORS)
