"""Authors may use every key of the state: rove's own bookkeeping of a rollout is elsewhere.

Each case sets one key to one odd value from one place where user code runs. The keys are read from the documentation and the
code. The quick tests set every key from every place, to a value that differs from place to place and from key to key; the slow
tests set it to every value.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from toy_envs import scripted_client

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


Case = tuple[str, str, str]
"""The key, the place that sets it, and the name of the value."""


def every_value(keys: list[str]) -> list[Case]:
    return list(itertools.product(keys, PLACES, VALUES))


def changing_values(keys: list[str]) -> list[Case]:
    """Return a case per key and place; after ten keys, every place has set every value."""
    names = list(VALUES)
    return [
        (key, position, names[(key_number + place_number) % len(names)])
        for key_number, key in enumerate(keys)
        for place_number, position in enumerate(PLACES)
    ]


def set_key(state: vf.State, position: str) -> None:
    """Set the key of the row if the row names this place."""
    info = bookkeeping(state).input["info"]  # pyright: ignore[reportOptionalSubscript]
    if info["place"] == position:
        state[info["key"]] = VALUES[info["value"]]()


class KeySettingEnv(vf.MultiTurnEnv):
    """Two turns; every hook may set a key."""

    def __init__(self, cases: list[Case], **kwargs: Any):
        rows = [{"question": "?", "answer": "b", "info": {"key": k, "place": p, "value": v}} for k, p, v in cases]

        def reward(state: vf.State, completion: vf.Messages) -> float:
            set_key(state, "reward")
            return float([message.content for message in completion] == ["b", "go on", "b", "go on"])

        super().__init__(dataset=rows, max_turns=2, rubric=vf.Rubric([reward]), **kwargs)

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        set_key(state, "setup_state")

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str:
        set_key(state, "env_response")
        return "go on"

    @vf.stop
    def never(self, state: vf.State) -> bool:
        set_key(state, "stop")
        return False

    async def post_rollout(self, state: vf.State) -> None:
        set_key(state, "post_rollout")

    @vf.cleanup
    def set_at_the_end(self, state: vf.State) -> None:
        set_key(state, "cleanup")


class KeySettingToolEnv(KeySettingEnv, vf.ToolEnv):  # pyright: ignore[reportIncompatibleMethodOverride]
    """The same with tools, whose environment reads more of the state."""

    def no_tools_called(self, state: vf.State) -> bool:
        return False


def check_run(env: vf.Environment, path: Path, count: int, may_fail: bool) -> list[RolloutRecord]:
    """Evaluate, open, rescore and resume a run of `count` rows; return its records."""
    asyncio.run(vf.evaluate(env, scripted_client("b"), run=path / "run"))
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
    resumed = asyncio.run(vf.evaluate(env, scripted_client("b"), run=path / "run"))
    assert resumed.scored == scored
    if scored == count:
        assert (path / "run" / "rollouts.jsonl").read_bytes() == content_before
    return records


READ = SET_BY_AUTHORS - {"tools"}
"""Keys that rove reads in an environment without tools: a value that it cannot use is an error."""
SPECIAL = READABLE | INPUT_FIELDS | {"final_env_response", "seconds", "mcp_servers"}


def test_keys_of_the_author_break_nothing(tmp_path: Path):
    cases = changing_values([key for key in keys_in_use() if key not in READ])
    check_run(KeySettingEnv(cases), tmp_path, len(cases), may_fail=False)


def test_keys_of_the_author_break_nothing_in_an_environment_with_tools(tmp_path: Path):
    cases = changing_values(sorted(SPECIAL - SET_BY_AUTHORS))
    check_run(KeySettingToolEnv(cases, tools=[]), tmp_path, len(cases), may_fail=False)


@pytest.mark.parametrize("with_tools", [False, True])
def test_an_unusable_value_of_a_key_that_rove_reads_is_a_config_error(tmp_path: Path, with_tools: bool):
    cases = every_value(sorted(SET_BY_AUTHORS if with_tools else READ))
    env = KeySettingToolEnv(cases, tools=[]) if with_tools else KeySettingEnv(cases)
    check_run(env, tmp_path, len(cases), may_fail=True)


@pytest.mark.slow
@pytest.mark.parametrize("key", keys_in_use())
def test_every_value_of_a_key_breaks_nothing(key: str, tmp_path: Path):
    cases = every_value([key])
    check_run(KeySettingEnv(cases), tmp_path, len(cases), may_fail=key in READ)


@pytest.mark.slow
@pytest.mark.parametrize("key", sorted(SPECIAL))
def test_every_value_of_a_key_breaks_nothing_in_an_environment_with_tools(key: str, tmp_path: Path):
    cases = every_value([key])
    check_run(KeySettingToolEnv(cases, tools=[]), tmp_path, len(cases), may_fail=key in SET_BY_AUTHORS)
