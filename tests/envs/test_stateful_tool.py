"""Tests of StatefulToolEnv: hidden arguments, and resources that are closed after every kind of end."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from typing import Any

import pytest
from toy_envs import rows, scripted_client

import rove as vf
from rove.envs import tool as tool_module
from tests.envs.test_tool import call, calls, replies_in_order, run_replies, tool_results


def query(sql: str, db: sqlite3.Connection, limit: int = 5) -> list[Any]:
    """Ask the database.

    Args:
        sql: a SELECT
        db: the connection
    """
    return db.execute(sql).fetchmany(limit)


class Database(vf.StatefulToolEnv):
    """A database per rollout."""

    def __init__(self, **options: Any):
        super().__init__(**{"dataset": rows(1), **options})
        self.add_tool(query, args_to_skip=["db"])
        self.opened: list[sqlite3.Connection] = []
        self.closed: list[sqlite3.Connection] = []

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["db"] = sqlite3.connect(":memory:", check_same_thread=False)
        self.opened.append(state["db"])
        state["db"].execute("CREATE TABLE t AS SELECT 1 AS x")

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> Any:
        return {**tool_args, "db": state["db"]}

    @vf.cleanup
    async def close(self, state: vf.State) -> None:
        if "db" in state:
            state["db"].close()
            self.closed.append(state["db"])


SELECT = call("query", {"sql": "SELECT x FROM t"})


def test_hidden_arguments_are_injected_and_not_shown():
    env = Database()
    assert list(env.tool_defs[0]["function"]["parameters"]["properties"]) == ["sql", "limit"]
    record = run_replies(env, calls(SELECT), calls(call("query", {"sql": "SELECT x FROM t", "db": "mine"})))
    assert tool_results(record) == ["[[1]]", "query has no argument 'db'; known: limit, sql"]
    assert env.opened == env.closed and len(env.opened) == 1


def test_tools_without_hidden_arguments_also_pass_through_update_tool_args():
    class ArgumentAddingEnv(vf.StatefulToolEnv):
        async def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
            state["seen"] = (tool_name, messages[-1].role)
            return {**tool_args, "n": tool_args["n"] + 1}

    def say(n: int) -> int:
        """Say it."""
        return n

    assert tool_results(run_replies(ArgumentAddingEnv(tools=[say], dataset=rows(1)), calls(call("say", {"n": 1})))) == [
        "2"
    ]


def test_update_tool_args_is_required():
    with pytest.raises(TypeError, match="update_tool_args"):
        vf.StatefulToolEnv(dataset=rows(1))  # type: ignore[abstract]


def test_hiding_an_unknown_argument_is_rejected():
    with pytest.raises(vf.ConfigError, match="tool 'query' has no argument 'dbs' to hide; did you mean 'db'"):
        vf.StatefulToolEnv.add_tool(Database(), query, ["dbs"])


def test_invalid_calls_do_not_reach_update_tool_args():
    invalid_calls = [call("query", "[1]"), call("query", "{"), call("querys"), call("query", {"sql": 1})]
    answers = tool_results(run_replies(Database(), calls(*invalid_calls, SELECT)))
    assert [answer.split(";")[0] for answer in answers] == [
        "the arguments of query are a list",
        "the arguments of query are not JSON (Input data was truncated): {",
        "there is no tool 'querys'",
        "query: argument 'sql': Expected `str`, got `int`",
        "[[1]]",
    ]


def raise_key_error(tool_args: dict[str, Any]) -> Any:
    raise KeyError("sandbox_id")


def raise_system_exit(tool_args: dict[str, Any]) -> Any:
    raise SystemExit(2)


def raise_cancelled(tool_args: dict[str, Any]) -> Any:
    raise asyncio.CancelledError


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize(
    ("update", "kind", "message"),
    [
        (raise_key_error, "KeyError", "sandbox_id"),
        (raise_system_exit, "SystemExit", "2"),
        (raise_cancelled, "CancelledError", ""),
        (lambda tool_args: None, "ConfigError", "update_tool_args returned NoneType for 'query'; expected a dict"),
        (
            lambda tool_args: tool_args,
            "ConfigError",
            "tool 'query' needs the argument 'db'; expected it from update_tool_args",
        ),
        (lambda tool_args: {**tool_args, "db": 1, "x": 1}, "ConfigError", "tool 'query' has no argument 'x'"),
    ],
)
def test_an_error_in_update_tool_args_fails_the_rollout(update: Any, kind: str, message: str, parallel: bool):
    class WrongUpdate(Database):
        def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
            return update(tool_args)

    env = WrongUpdate(parallel_calls=parallel)
    record = run_replies(env, calls(SELECT, SELECT))
    assert record.error is not None
    assert (record.error.type, record.error.phase) == (kind, "update_tool_args") and message in record.error.message
    assert env.opened == env.closed


# Cleanup of resources


def test_resources_are_closed_if_setup_state_fails():
    class FailingSetup(Database):
        async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
            await super().setup_state(state)
            raise OSError("disk full")

    env = FailingSetup()
    assert run_replies(env).error is not None
    assert env.opened == env.closed and env.opened


@pytest.mark.parametrize(
    "options", [{"stop_errors": [sqlite3.Error]}, {"max_turns": 1}, {}], ids=["error", "limit", "told"]
)
def test_resources_are_closed_after_errors(options: dict[str, Any]):
    env = Database(**options)
    record = run_replies(env, calls(call("query", {"sql": "SELEC"})))
    assert (record.error is not None) == ("stop_errors" in options)
    assert env.opened == env.closed and env.opened


@pytest.mark.parametrize("threads", [0, 2])
def test_resources_are_closed_after_a_timeout(threads: int):
    release = threading.Event()

    class Slow(Database):
        def __init__(self, **options: Any):
            super().__init__(**options)
            self.add_tool(self.wait, args_to_skip=["db"])

        async def wait(self, db: sqlite3.Connection) -> None:
            """Wait."""
            await asyncio.sleep(60)

        def block(self, db: sqlite3.Connection) -> None:
            """Block a thread."""
            release.wait(60)

        async def clean_up(self, state: vf.State) -> None:
            release.set()
            await super().clean_up(state)

    env = Slow(timeout_seconds=0.1, max_threads=threads)
    if threads:
        env.add_tool(env.block, args_to_skip=["db"])
    record = run_replies(env, calls(*(call(tool) for tool in ("wait", "block") if tool in env.tool_map)))
    assert (record.stop_condition, record.error) == ("timeout_reached", None)
    assert env.opened == env.closed and env.opened


async def test_resources_are_closed_after_a_cancellation():
    started = asyncio.Event()

    class Slow(Database):
        async def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
            started.set()
            await asyncio.sleep(60)

    env = Slow(dataset=rows(3))
    run = asyncio.ensure_future(vf.generate(env, scripted_client(lambda messages, state, rng: calls(SELECT, SELECT))))
    await started.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert set(env.opened) == set(env.closed) and env.opened


class BlockingToolEnv(vf.StatefulToolEnv):
    """Has a tool that no timeout interrupts, and logs the order of events."""

    def __init__(self, **options: Any):
        super().__init__(**{"dataset": rows(1), "timeout_seconds": 0.1, **options})
        self.add_tool(self.work, args_to_skip=["state"])
        self.release = threading.Event()
        self.begun, self.freed = threading.Semaphore(0), threading.Semaphore(0)
        self.log: list[str] = []

    def work(self, state: Any) -> None:
        """Work on."""
        self.log.append("begin")
        self.begun.release()
        self.release.wait(60)
        self.log.append("end")

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "state": state}

    @vf.cleanup
    def free(self, state: vf.State) -> None:
        self.log.append("free")
        self.freed.release()

    @vf.teardown
    def leave(self) -> None:
        self.log.append("leave")


WORK = calls(call("work"))


async def test_cleanup_runs_as_soon_as_a_running_tool_returns():
    class Releasing(BlockingToolEnv):
        async def clean_up(self, state: vf.State) -> None:
            self.log.append("clean up")
            asyncio.get_running_loop().call_later(0.05, self.release.set)
            await super().clean_up(state)

    env = Releasing()
    [record] = await vf.generate(env, replies_in_order(WORK))
    assert (record.stop_condition, record.error) == ("timeout_reached", None)
    assert env.log == ["begin", "clean up", "end", "free", "leave"]


async def test_a_cleanup_is_postponed_if_a_tool_exceeds_the_grace_period(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tool_module, "CLEANUP_GRACE_S", 0.05)
    env = BlockingToolEnv(dataset=rows(2))
    with pytest.warns(UserWarning, match=r"sync tools of 2 rollout\(s\) have not returned"):
        records = await vf.generate(env, scripted_client(lambda messages, state, rng: WORK))
    assert [record.stop_condition for record in records] == ["timeout_reached"] * 2
    assert env.log == ["begin", "begin", "leave"]
    env.release.set()
    for _ in range(2):
        assert await asyncio.to_thread(env.freed.acquire, timeout=10)
    assert sorted(env.log[3:]) == ["end", "end", "free", "free"]


async def test_a_failing_postponed_cleanup_is_reported_as_a_warning(monkeypatch: pytest.MonkeyPatch):
    class Failing(BlockingToolEnv):
        @vf.cleanup
        def free(self, state: vf.State) -> None:
            super().free(state)
            raise OSError("gone")

        async def tear_down(self) -> None:
            monkeypatch.setattr(tool_module, "CLEANUP_GRACE_S", 10)
            self.release.set()
            await super().tear_down()

    monkeypatch.setattr(tool_module, "CLEANUP_GRACE_S", 0.05)
    with pytest.warns(UserWarning, match="a postponed cleanup failed: OSError: gone"):
        await vf.generate(Failing(), replies_in_order(WORK))


async def test_a_cancelled_cleanup_still_waits_for_the_tool():
    env = BlockingToolEnv(timeout_seconds=None)
    run = asyncio.ensure_future(vf.generate(env, replies_in_order(WORK)))
    await asyncio.to_thread(env.begun.acquire, timeout=10)
    for _ in range(3):  # the rollout, then its cleanup, then the teardown
        run.cancel()
        await asyncio.sleep(0.05)
    assert "free" not in env.log
    env.release.set()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert await asyncio.to_thread(env.freed.acquire, timeout=10)
    assert env.log.index("end") < env.log.index("free")


class CounterEnv(vf.StatefulToolEnv):
    """A counter per rollout."""

    def __init__(self, **options: Any):
        super().__init__(**{"dataset": rows(1), **options})
        self.add_tool(self.count, args_to_skip=["state"])
        self.meeting: threading.Barrier | None = None

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["n"] = 0

    def count(self, state: Any) -> int:
        """Count one more."""
        n = state["n"]
        if self.meeting is not None and n == 0:
            self.meeting.wait(10)
        threading.Event().wait(0.01)  # lets other threads run, if they can
        state["n"] = n + 1
        return state["n"]

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "state": state}


def test_sync_tools_of_a_rollout_run_one_at_a_time_in_order():
    assert tool_results(run_replies(CounterEnv(), calls(*[call("count")] * 5))) == ["1", "2", "3", "4", "5"]


async def test_sync_tools_of_different_rollouts_run_concurrently():
    env = CounterEnv(dataset=rows(3))
    env.meeting = threading.Barrier(3)  # no rollout continues until all three are here
    answer = calls(*[call("count")] * 2)
    records = await vf.generate(
        env, scripted_client(lambda messages, state, rng: "done" if state["trajectory"] else answer)
    )
    assert [tool_results(record) for record in records] == [["1", "2"]] * 3


async def test_group_members_do_not_share_resources():
    env = Database(dataset=rows(2))
    script = [calls(call("query", {"sql": "INSERT INTO t VALUES (2)"})), calls(SELECT)]
    records = await vf.generate(env, replies_in_order(*script), rollouts_per_example=3)
    assert [tool_results(record)[-1] for record in records] == ["[[1],[2]]"] * 6
    assert len(set(map(id, env.opened))) == 6 and set(env.opened) == set(env.closed)
