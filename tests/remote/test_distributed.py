"""Rooms on several machines: nodes in this process, which are lost in the middle of things."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rove as vf
from rove.core.errors import ConfigError, WorkerError
from rove.core.protocols import Request, Response
from rove.remote import node as node_module
from rove.remote import node_pool
from rove.remote.environment import RemoteEnv
from rove.remote.loading import Isolation, IsolationConfig, RayConfig
from rove.remote.node_pool import NodePool, NodeWorkers
from rove.remote.rollout import MAX_LOST_NODES, RemoteRollout
from rove.remote.worker_pool import WorkerPool
from rove.workers import Worker
from tests.remote.test_isolation import CRASH, Echo, facts, package

HERE = "127.0.0.1"
RANK = "@vf.group_reward\ndef rank(states):\n    return [state['seed'] % 7 + len(states) for state in states]\n"
STUMBLES = f"if number == 3 and os.environ.get('STUMBLES') == '1': {CRASH}"


class Near:
    """A node in this process; all of them share one host of workers."""

    def __init__(self, real: node_module.NodeActor, where: str):
        self.real, self.where = real, where
        self.forked: list[int] = []
        self.is_gone = False
        self.ended = asyncio.Event()

    async def call(self, name: str, /, *args: Any) -> Any:
        if self.is_gone:
            raise WorkerError(f"{self.where} is gone")
        if name == "end":  # the host is the others', too
            return None
        told = await getattr(self.real, name)(*args)
        if name == "fork":
            self.forked.append(told)
            if self.is_gone:
                self.lose()
                raise WorkerError(f"{self.where} is gone")
        return told

    async def lost(self) -> None:
        await self.ended.wait()

    def call_now(self, name: str, /, *args: Any) -> Any:
        raise NotImplementedError

    def call_no_wait(self, name: str, /, *args: Any) -> None:
        assert name == "kill"
        self.real._envs[args[0]].workers.kill(args[1])

    def end(self) -> None:
        """Lose the node, unless it is lost already."""
        self.lose()

    def lose(self) -> None:
        """All its processes die at once."""
        self.is_gone = True
        self.ended.set()
        for number in self.forked:
            self.real._envs["talk"].workers.kill(number)


class Spread(RemoteEnv):
    """An environment on such nodes."""

    def __init__(self, real: node_module.NodeActor, count: int = 2, more: int = 0, most: int = 64):
        self.real, self.left = real, more
        self.near: list[Near] = [Near(real, f"machine {number}") for number in range(count)]
        told = real._envs["talk"].description
        made = NodePool(
            self.near,
            self.another,
            "talk",
            HERE,
            keep_groups_together=told["has_group_rewards"],
            max_rollouts=most,
            wait_seconds=0.2,
        )
        self.all = list(self.near)
        self.nodes = made
        super().__init__(told, made)

    async def another(self, number: int) -> Near:
        if not self.left:
            await asyncio.Event().wait()
        self.left -= 1
        self.all.append(Near(self.real, "a new machine"))
        return self.all[-1]

    def call_sync(self, name: str, /, **args: Any) -> Any:
        return self.real._envs["talk"].call_sync(name, **args)

    def close(self) -> None:
        pass


def _loaded(folder: Path) -> tuple[node_module.NodeActor, Path]:
    real = node_module.NodeActor()
    told = asyncio.run(real.load("talk", "talk", str(folder), {"num_examples": 24}, {}, ""))
    assert set(told) == {"description"}, told
    return real, folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[node_module.NodeActor, Path]]:
    real, folder = _loaded(package(tmp_path_factory.mktemp("alone"), at_import="import os", in_response=STUMBLES))
    yield real, folder
    asyncio.run(real.unload("talk"))


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[node_module.NodeActor, Path]]:
    real, folder = _loaded(package(tmp_path_factory.mktemp("grouped"), more=RANK, functions=", rank"))
    yield real, folder
    asyncio.run(real.unload("talk"))


class Fateful(Echo):
    """Before an answer, something happens."""

    def __init__(self, happens: Callable[[int, Request], Awaitable[None] | None]):
        super().__init__()
        self.happens = happens
        self.seeds: Counter[int | None] = Counter()

    async def respond(self, request: Request) -> Response:
        self.seeds[request.seed] += 1
        done = self.happens(self.seeds.total(), request)
        if done is not None:
            await done
        return await super().respond(request)


def as_here(folder: Path, rollouts: int = 1) -> list[Any]:
    env = vf.load_environment("talk", folder, num_examples=24)
    return list(map(facts, env.generate_sync(Echo(), rollouts_per_example=rollouts)))


def test_rollouts_are_spread_and_are_as_they_are_here(alone: tuple[node_module.NodeActor, Path]) -> None:
    env = Spread(alone[0], 3)
    for _ in range(2):  # in another event loop, too
        records = env.generate_sync(Echo())
        assert list(map(facts, records)) == as_here(alone[1])
    assert [len(near.forked) for near in env.near] == [2, 2, 2]


@pytest.mark.parametrize("kind", ["alone", "grouped"])
def test_a_lost_machine_loses_nothing_and_repeats_nothing(kind: str, request: pytest.FixtureRequest) -> None:
    real, folder = request.getfixturevalue(kind)
    env = Spread(real, 3)
    most = {30: 0, 70: 1}
    client = Fateful(lambda count, _: env.near[most[count]].lose() if count in most else None)
    records = env.generate_sync(client, rollouts_per_example=2)
    assert env.nodes.lost == 2
    assert list(map(facts, records)) == as_here(folder, 2)
    assert set(client.seeds.values()) == {1} and client.seeds.total() == 2 * 24 * 3


def test_machines_that_come_are_played_on(alone: tuple[node_module.NodeActor, Path]) -> None:
    env = Spread(alone[0], 1, more=1)
    client = Fateful(lambda count, _: env.all[0].lose() if count == 20 else None)
    records = env.generate_sync(client)
    assert list(map(facts, records)) == as_here(alone[1])
    assert len(env.all) == 2 and env.all[1].forked
    assert set(client.seeds.values()) == {1}


def test_without_machines_rollouts_fail_and_say_so(alone: tuple[node_module.NodeActor, Path]) -> None:
    env = Spread(alone[0], 2)
    client = Fateful(lambda count, _: [near.lose() for near in env.near] and None if count == 40 else None)
    records = env.generate_sync(client)
    failed = [record.error for record in records if record.error]
    assert failed and {error.type for error in failed} == {"WorkerError"}
    assert all("no node is left, and no new one started within 0.2 s" in error.message for error in failed)


def test_a_rollout_under_which_machines_are_lost_again_and_again_is_given_up(
    alone: tuple[node_module.NodeActor, Path],
) -> None:
    env = Spread(alone[0], 1, more=9)

    class Waits(Echo):
        async def respond(self, request: Request) -> Response:
            while True:
                await asyncio.sleep(0.02)
                env.all[-1].lose()

    [record] = env.generate_sync(Waits(), num_examples=1)
    assert record.error is not None and record.error.type == "WorkerError"
    assert "its node is lost" in record.error.message
    assert env.nodes.lost == MAX_LOST_NODES and len(env.all) <= MAX_LOST_NODES + 1


def test_what_crashes_a_worker_fails_alone(
    alone: tuple[node_module.NodeActor, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine is still there, so it is to blame."""
    monkeypatch.setenv("STUMBLES", "1")
    real, _ = _loaded(package(tmp_path, in_response=STUMBLES))
    env = Spread(real)
    records = env.generate_sync(Echo())
    assert [record.info["number"] for record in records if record.error] == [3]
    error = next(record.error for record in records if record.error)
    assert error.type == "WorkerError" and "was ended by SIGSEGV" in error.message
    assert env.nodes.lost == 0
    asyncio.run(real.unload("talk"))


def test_workers_that_take_their_machines_with_them_are_given_up(
    alone: tuple[node_module.NodeActor, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a turn is played, too."""

    real = Worker.request

    async def fails(self: Worker, name: str, /, **args: Any) -> Any:
        if name != "time_limit":
            return await real(self, name, **args)
        env.all[-1].lose()
        raise WorkerError("the worker was ended")

    env = Spread(alone[0], 1, more=9)
    monkeypatch.setattr(Worker, "request", fails)
    [record] = env.generate_sync(Echo(), num_examples=1)
    assert record.error is not None and record.error.type == "WorkerError"
    assert env.nodes.lost == MAX_LOST_NODES


def test_scores_that_take_their_machines_with_them_are_given_up(
    grouped: tuple[node_module.NodeActor, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = RemoteRollout.score_with

    async def fails(self: RemoteRollout, *args: Any) -> Any:
        env.all[-1].lose()
        return await real(self, *args)

    env = Spread(grouped[0], 1, more=9)
    monkeypatch.setattr(RemoteRollout, "score_with", fails)
    records = env.generate_sync(Echo(), num_examples=1, rollouts_per_example=2)
    assert [record.error and record.error.type for record in records] == ["WorkerError"] * 2
    assert env.nodes.lost == MAX_LOST_NODES


def test_pools_respect_max_rollouts(alone: tuple[node_module.NodeActor, Path]) -> None:
    env = Spread(alone[0], 2, most=3)
    peaks: list[int] = []

    def happens(count: int, request: Request) -> None:
        peaks.append(max(room.load for room in env.nodes._pools.values()))

    records = env.generate_sync(Fateful(happens))
    assert list(map(facts, records)) == as_here(alone[1]) and max(peaks) == 3
    assert env.nodes._slots.held == 0


def test_groups_with_group_rewards_share_a_pool(grouped: tuple[node_module.NodeActor, Path]) -> None:
    env = Spread(grouped[0], 3)
    seen: dict[str, set[Any]] = {}

    def happens(count: int, request: Request) -> None:
        assert request.state is not None
        seen.setdefault(request.messages[0]["content"], set()).add(request.state["isolated"].pool)

    records = env.generate_sync(Fateful(happens), rollouts_per_example=3)
    assert list(map(facts, records)) == as_here(grouped[1], 3)
    assert {len(places) for places in seen.values()} == {1} and len(set.union(*seen.values())) == 3
    assert all(room.load == 0 for room in set.union(*seen.values()))


async def test_a_worker_of_a_lost_node_is_closed(alone: tuple[node_module.NodeActor, Path]) -> None:
    """Its machine was taken for lost while the worker was on its way."""
    pool = WorkerPool(NodeWorkers(Near(alone[0], "far away"), "talk", HERE), 120.0)
    opening = asyncio.create_task(pool.open_worker())
    await asyncio.sleep(0)
    pool.close_lost("its node is lost")
    with pytest.raises(WorkerError, match="its node is lost"):
        await opening


async def test_a_connection_without_the_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_pool, "RESPONSE_TIMEOUT_S", 0.2)
    with socket.create_server((HERE, 0)) as listener:
        listener.setblocking(False)
        place = listener.getsockname()
        others = [socket.create_connection(place) for _ in range(3)]
        others[0].sendall(b"x" * node_pool.TOKEN_BYTES)
        others[1].close()
        token = os.urandom(node_pool.TOKEN_BYTES)
        worker = node_module._connect(*place, token)
        taken = await node_pool._accept(listener, token)
        assert taken.getpeername() == worker.getsockname()
        for one in (*others, worker, taken):
            one.close()


async def test_a_worker_that_does_not_connect_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_pool, "FORK_TIMEOUT_S", 0.05)

    class Silent(Near):
        async def call(self, name: str, /, *args: Any) -> Any:
            return 1

    with pytest.raises(WorkerError, match=r"no worker of far away connected to 127.0.0.1:\d+ within 0.05 s"):
        await NodeWorkers(Silent(node_module.NodeActor(), "far away"), "talk", HERE).open()


async def test_a_loading_error_on_a_node_has_its_traceback(tmp_path: Path) -> None:
    folder = package(tmp_path, at_import="def broken():\n    raise KeyError('lost')\nbroken()")
    told = await node_module.NodeActor().load("one", "talk", str(folder), {}, {}, "")
    assert "environment 'talk' could not be imported: KeyError: 'lost'" in told["error"]
    assert "in broken" in told["error"]
    wrong = await node_module.NodeActor().load("one", "no_such", None, {}, {}, "")
    assert wrong["error"].startswith("no environment 'no_such'") and "Traceback" not in wrong["error"]


@pytest.mark.broad
def test_machines_must_be_alike() -> None:
    ours = node_module.about()
    node_module.check_same(ours, {**ours, "where": "elsewhere"})
    other = f"{sys.version_info[0]}.{sys.version_info[1] + 1}.0"
    with pytest.raises(ConfigError, match=f"elsewhere has Python {other} in .*, this process"):
        node_module.check_same(ours, {**ours, "python": other, "where": "elsewhere"})
    with pytest.raises(
        ConfigError, match="elsewhere has rove 0.0.1 .old. in .*, this process .*: a run's machines need the same"
    ):
        node_module.check_same(ours, {**ours, "rove": "0.0.1 (old)", "where": "elsewhere"})


@pytest.mark.broad
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=12), st.integers(0, 8), st.data())
@settings(max_examples=60, deadline=None)
def test_the_resizable_semaphore_never_exceeds_its_limit(
    changes: list[tuple[int, int]], cancelled: int, data: st.DataObject
) -> None:
    async def play() -> None:
        places = node_pool._ResizableSemaphore()
        playing = 0

        async def one(seconds: int) -> None:
            nonlocal playing
            await places.acquire()
            assert places.held <= max(places.limit, playing + 1)
            playing += 1
            for _ in range(seconds):
                await asyncio.sleep(0)
            playing -= 1
            places.release()

        tasks: list[asyncio.Task[None]] = []
        for most, seconds in changes:
            tasks += [asyncio.create_task(one(seconds)) for _ in range(3)]
            places.resize(most)
            await asyncio.sleep(0)
        waiting = [task for task in tasks if not task.done()]
        for _ in range(min(cancelled, len(waiting) if not playing else 0)):
            waiting.pop(data.draw(st.integers(0, len(waiting) - 1))).cancel()
        places.resize(2)
        async with asyncio.timeout(5):
            await asyncio.gather(*tasks, return_exceptions=True)
        assert places.held == playing == 0

    asyncio.run(play())


@pytest.mark.broad
def test_actor_settings_need_a_cluster():
    with pytest.raises(ConfigError, match="ray.actors is 4, but ray.address is not set"):
        Isolation.of(IsolationConfig(), RayConfig(actors=4))
    assert Isolation.of(IsolationConfig(), RayConfig(address="local", actors=4)).ray_actors == 4
