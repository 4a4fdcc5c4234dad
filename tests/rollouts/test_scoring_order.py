"""The order at the end of a rollout: `post_rollout`, reward functions, `@cleanup` methods, group rewards."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tiers import first_quick
from toy_envs import rows, scripted_client

import rove as vf
from rove.remote.environment import IsolatedEnv
from rove.runs.run import Run


class Shop(vf.MultiTurnEnv):
    """An environment that records its sales in a database."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["db"] = sqlite3.connect(":memory:", check_same_thread=False)
        state["db"].execute("CREATE TABLE sales (item)")

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str:
        state["db"].execute("INSERT INTO sales VALUES (?)", [messages[-1].content])
        return "sold"

    @vf.cleanup
    def close(self, state: vf.State) -> None:
        state["db"].close()


def sales(state: vf.State) -> float:
    [count] = state["db"].execute("SELECT count(*) FROM sales").fetchone()
    return float(count)


def test_a_reward_can_read_a_database_that_a_cleanup_closes(tmp_path: Path):
    env = Shop(dataset=rows(2), max_turns=2, rubric=vf.Rubric([sales]))
    summary = asyncio.run(vf.evaluate(env, scripted_client("tea"), run=tmp_path / "run", rollouts_per_example=2))
    assert (summary.scored, summary.reward.mean) == (4, 2.0)
    with Run(tmp_path / "run") as source:
        assert asyncio.run(vf.rescore(env, source, into=tmp_path / "rescored")).reward.mean == 2.0


class EventLoggingEnv(vf.MultiTurnEnv):
    """Writes down the order of events."""

    def __init__(self, log: list[str], fail_in: str = "", **kwargs: Any):
        self.log, self.fail_in = log, fail_in

        def reward(state: vf.State) -> float:
            self.note("reward")
            return 1.0

        @vf.group_reward
        def group(states: list[vf.State]) -> list[float]:
            self.note("group")
            return [0.0] * len(states)

        super().__init__(dataset=rows(1), max_turns=1, rubric=vf.Rubric([reward, group]), **kwargs)

    def note(self, event: str) -> None:
        self.log.append(event)
        if self.fail_in == event:
            raise ValueError(f"{event} failed")

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str:
        self.note("env_response")
        return "so"

    async def post_rollout(self, state: vf.State) -> None:
        self.note("post_rollout")

    @vf.cleanup
    def tidy(self, state: vf.State) -> None:
        self.note("cleanup")


def test_the_order_of_events():
    log: list[str] = []
    [record] = EventLoggingEnv(log).generate_sync(scripted_client("a"))
    assert record.reward == 1.0
    assert log == ["env_response", "post_rollout", "reward", "cleanup", "group"]


@pytest.mark.parametrize(
    ("event", "phase", "log"),
    [
        ("env_response", "env_response", ["env_response", "post_rollout", "cleanup"]),
        ("post_rollout", "post_rollout", ["env_response", "post_rollout", "cleanup"]),
        ("reward", "reward reward", ["env_response", "post_rollout", "reward", "cleanup"]),
        ("cleanup", "cleanup", ["env_response", "post_rollout", "reward", "cleanup"]),
    ],
)
def test_after_a_failure_the_rollout_is_still_cleaned_up(event: str, phase: str, log: list[str]):
    events: list[str] = []
    [record] = EventLoggingEnv(events, fail_in=event).generate_sync(scripted_client("a"))
    assert record.scores is None
    assert record.error is not None
    assert (record.error.phase, record.error.message) == (phase, f"{event} failed")
    assert events == log


async def test_a_rollout_that_is_cancelled_while_it_is_scored_is_cleaned_up():
    log: list[str] = []
    scoring = asyncio.Event()

    async def slow(state: vf.State) -> float:
        scoring.set()
        await asyncio.sleep(60)
        return 1.0

    env = EventLoggingEnv(log)
    env.rubric = vf.Rubric([slow])
    task = asyncio.create_task(env.generate(scripted_client("a")))
    await scoring.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["env_response", "post_rollout", "cleanup"]


PACKAGE = """
import sqlite3
import rove as vf

class Shop(vf.MultiTurnEnv):
    async def setup_state(self, state, **kwargs):
        state["db"] = sqlite3.connect(":memory:", check_same_thread=False)
        state["db"].execute("CREATE TABLE sales (item)")

    async def env_response(self, messages, state, **kwargs):
        state["db"].execute("INSERT INTO sales VALUES (?)", [messages[-1].content])
        return "sold"

    async def post_rollout(self, state):
        state["prepared"] = 10.0

    @vf.cleanup
    def close(self, state):
        state["db"].close()
        if state["info"].get("fails"):
            raise ValueError("cannot close")

def sales(state):
    return state["db"].execute("SELECT count(*) FROM sales").fetchone()[0] + state["prepared"]

@vf.group_reward
def members(states):
    return [float(len(states)) for state in states]

def load_environment(grouped: bool = False):
    rows = [{"question": "?", "info": {"fails": i == 1}} for i in range(2)]
    return Shop(dataset=rows, max_turns=2, rubric=vf.Rubric([sales, members] if grouped else [sales]))
"""


@pytest.mark.parametrize(("grouped", "expected"), first_quick([(True, 14.0), (False, 12.0)]))
def test_the_order_is_the_same_in_a_worker(grouped: bool, expected: float, tmp_path: Path):
    (tmp_path / "shop.py").write_text(PACKAGE)
    env = IsolatedEnv("shop", {"grouped": grouped}, env_dir=tmp_path)
    try:
        records = env.generate_sync(scripted_client("tea"), rollouts_per_example=2)
    finally:
        env.close()
    outcomes = sorted((record.example_id, record.reward, record.error and record.error.phase) for record in records)
    assert outcomes[:2] == [(0, expected, None)] * 2
    assert outcomes[2:] == [(1, None, "cleanup")] * 2
