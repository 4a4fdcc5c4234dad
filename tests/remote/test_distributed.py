"""Isolated environments on several nodes: simulated in this process, and lost during rollouts."""

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
from rove.core.state import bookkeeping
from rove.remote import node as node_module
from rove.remote import node_pool
from rove.remote.environment import RemoteEnv
from rove.remote.isolation import Isolation, IsolationConfig, RayConfig
from rove.remote.node_pool import NodePool, NodeWorkers
from rove.remote.rollout import MAX_LOST_NODES, RemoteRollout
from rove.remote.worker_pool import WorkerPool
from rove.workers import Worker
from tests.remote.test_isolation import CRASH, Echo, facts, package

LOCALHOST = "127.0.0.1"
RANK_REWARD = "@vf.group_reward\ndef rank(states):\n    return [state['seed'] % 7 + len(states) for state in states]\n"
CRASH_IF_ENABLED = f"if number == 3 and os.environ.get('STUMBLES') == '1': {CRASH}"


class LocalNode:
    """A node in this process; all nodes share one worker host."""

    def __init__(self, real: node_module.NodeActor, host: str):
        self.real, self.host = real, host
        self.forked: list[int] = []
        self.is_gone = False
        self.ended = asyncio.Event()

    async def call(self, name: str, /, *args: Any) -> Any:
        if self.is_gone:
            raise WorkerError(f"{self.host} is gone")
        if name == "end":  # The other nodes share the host.
            return None
        result = await getattr(self.real, name)(*args)
        if name == "fork":
            self.forked.append(result)
            if self.is_gone:
                self.mark_lost()
                raise WorkerError(f"{self.host} is gone")
        return result

    async def lost(self) -> None:
        await self.ended.wait()

    def call_now(self, name: str, /, *args: Any) -> Any:
        raise NotImplementedError

    def call_no_wait(self, name: str, /, *args: Any) -> None:
        assert name == "kill"
        self.real._envs[args[0]].workers.kill(args[1])

    def end(self) -> None:
        """Lose the node, unless it is already lost."""
        self.mark_lost()

    def mark_lost(self) -> None:
        """Mark the node as lost and kill all its workers."""
        self.is_gone = True
        self.ended.set()
        for number in self.forked:
            self.real._envs["talk"].workers.kill(number)


class MultiNodeEnv(RemoteEnv):
    """An environment on nodes in this process."""

    def __init__(self, real: node_module.NodeActor, count: int = 2, spare_nodes: int = 0, most: int = 64):
        self.real, self.spare_nodes = real, spare_nodes
        self.first_nodes: list[LocalNode] = [LocalNode(real, f"machine {number}") for number in range(count)]
        description = real._envs["talk"].description
        pool = NodePool(
            self.first_nodes,
            self.start_node,
            "talk",
            LOCALHOST,
            keep_groups_together=description["has_group_rewards"],
            max_rollouts=most,
            wait_seconds=0.2,
        )
        self.all = list(self.first_nodes)
        self.nodes = pool
        super().__init__(description, pool)

    async def start_node(self, number: int) -> LocalNode:
        if not self.spare_nodes:
            await asyncio.Event().wait()
        self.spare_nodes -= 1
        self.all.append(LocalNode(self.real, "a new machine"))
        return self.all[-1]

    def call_sync(self, name: str, /, **args: Any) -> Any:
        return self.real._envs["talk"].call_sync(name, **args)

    def close(self) -> None:
        pass


def _load(folder: Path) -> tuple[node_module.NodeActor, Path]:
    real = node_module.NodeActor()
    result = asyncio.run(real.load("talk", "talk", str(folder), {"num_examples": 24}, {}, ""))
    assert set(result) == {"description"}, result
    return real, folder


@pytest.fixture(scope="module")
def node_and_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[node_module.NodeActor, Path]]:
    real, folder = _load(package(tmp_path_factory.mktemp("alone"), at_import="import os", in_response=CRASH_IF_ENABLED))
    yield real, folder
    asyncio.run(real.unload("talk"))


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[node_module.NodeActor, Path]]:
    real, folder = _load(package(tmp_path_factory.mktemp("grouped"), more=RANK_REWARD, functions=", rank"))
    yield real, folder
    asyncio.run(real.unload("talk"))


class HookedClient(Echo):
    """A client that calls a function before each response."""

    def __init__(self, before_response: Callable[[int, Request], Awaitable[None] | None]):
        super().__init__()
        self.before_response = before_response
        self.seeds: Counter[int | None] = Counter()

    async def respond(self, request: Request) -> Response:
        self.seeds[request.seed] += 1
        pending = self.before_response(self.seeds.total(), request)
        if pending is not None:
            await pending
        return await super().respond(request)


def run_locally(folder: Path, rollouts: int = 1) -> list[Any]:
    env = vf.load_environment("talk", folder, num_examples=24)
    return list(map(facts, env.generate_sync(Echo(), rollouts_per_example=rollouts)))


def test_rollouts_are_distributed_and_equal_local_ones(node_and_folder: tuple[node_module.NodeActor, Path]) -> None:
    env = MultiNodeEnv(node_and_folder[0], 3)
    for _ in range(2):  # The second time in another event loop.
        records = env.generate_sync(Echo())
        assert list(map(facts, records)) == run_locally(node_and_folder[1])
    assert [len(node.forked) for node in env.first_nodes] == [2, 2, 2]


@pytest.mark.parametrize("kind", ["node_and_folder", "grouped"])
def test_a_lost_node_loses_no_rollout_and_repeats_no_request(kind: str, request: pytest.FixtureRequest) -> None:
    real, folder = request.getfixturevalue(kind)
    env = MultiNodeEnv(real, 3)
    lost_at = {30: 0, 70: 1}
    client = HookedClient(lambda count, _: env.first_nodes[lost_at[count]].mark_lost() if count in lost_at else None)
    records = env.generate_sync(client, rollouts_per_example=2)
    assert env.nodes.lost == 2
    assert list(map(facts, records)) == run_locally(folder, 2)
    assert set(client.seeds.values()) == {1} and client.seeds.total() == 2 * 24 * 3


def test_new_nodes_run_rollouts(node_and_folder: tuple[node_module.NodeActor, Path]) -> None:
    env = MultiNodeEnv(node_and_folder[0], 1, spare_nodes=1)
    client = HookedClient(lambda count, _: env.all[0].mark_lost() if count == 20 else None)
    records = env.generate_sync(client)
    assert list(map(facts, records)) == run_locally(node_and_folder[1])
    assert len(env.all) == 2 and env.all[1].forked
    assert set(client.seeds.values()) == {1}


def test_rollouts_fail_with_an_error_if_no_node_is_left(node_and_folder: tuple[node_module.NodeActor, Path]) -> None:
    env = MultiNodeEnv(node_and_folder[0], 2)
    client = HookedClient(
        lambda count, _: [node.mark_lost() for node in env.first_nodes] and None if count == 40 else None
    )
    records = env.generate_sync(client)
    failed = [record.error for record in records if record.error]
    assert failed and {error.type for error in failed} == {"WorkerError"}
    assert all("no node is left, and no new one started within 0.2 s" in error.message for error in failed)


def test_a_rollout_fails_after_too_many_lost_nodes(
    node_and_folder: tuple[node_module.NodeActor, Path],
) -> None:
    env = MultiNodeEnv(node_and_folder[0], 1, spare_nodes=9)

    class NodeLosingClient(Echo):
        async def respond(self, request: Request) -> Response:
            while True:
                await asyncio.sleep(0.02)
                env.all[-1].mark_lost()

    [record] = env.generate_sync(NodeLosingClient(), num_examples=1)
    assert record.error is not None and record.error.type == "WorkerError"
    assert "its node is lost" in record.error.message
    assert env.nodes.lost == MAX_LOST_NODES and len(env.all) <= MAX_LOST_NODES + 1


def test_only_the_rollout_that_crashes_its_worker_fails(
    node_and_folder: tuple[node_module.NodeActor, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node is still there, so the rollout caused the crash."""
    monkeypatch.setenv("STUMBLES", "1")
    real, _ = _load(package(tmp_path, in_response=CRASH_IF_ENABLED))
    env = MultiNodeEnv(real)
    records = env.generate_sync(Echo())
    assert [record.info["number"] for record in records if record.error] == [3]
    error = next(record.error for record in records if record.error)
    assert error.type == "WorkerError" and "was ended by SIGSEGV" in error.message
    assert env.nodes.lost == 0
    asyncio.run(real.unload("talk"))


def test_a_rollout_that_loses_nodes_before_its_first_turn_fails(
    node_and_folder: tuple[node_module.NodeActor, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each new node is lost as well."""

    real = Worker.request

    async def fails(self: Worker, name: str, /, **args: Any) -> Any:
        if name != "time_limit":
            return await real(self, name, **args)
        env.all[-1].mark_lost()
        raise WorkerError("the worker was ended")

    env = MultiNodeEnv(node_and_folder[0], 1, spare_nodes=9)
    monkeypatch.setattr(Worker, "request", fails)
    [record] = env.generate_sync(Echo(), num_examples=1)
    assert record.error is not None and record.error.type == "WorkerError"
    assert env.nodes.lost == MAX_LOST_NODES


def test_scoring_fails_after_too_many_lost_nodes(
    grouped: tuple[node_module.NodeActor, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = RemoteRollout.score_with

    async def fails(self: RemoteRollout, *args: Any) -> Any:
        env.all[-1].mark_lost()
        return await real(self, *args)

    env = MultiNodeEnv(grouped[0], 1, spare_nodes=9)
    monkeypatch.setattr(RemoteRollout, "score_with", fails)
    records = env.generate_sync(Echo(), num_examples=1, rollouts_per_example=2)
    assert [record.error and record.error.type for record in records] == ["WorkerError"] * 2
    assert env.nodes.lost == MAX_LOST_NODES


def test_pools_respect_max_rollouts(node_and_folder: tuple[node_module.NodeActor, Path]) -> None:
    env = MultiNodeEnv(node_and_folder[0], 2, most=3)
    peaks: list[int] = []

    def record_load(count: int, request: Request) -> None:
        peaks.append(max(pool.load for pool in env.nodes._pools.values()))

    records = env.generate_sync(HookedClient(record_load))
    assert list(map(facts, records)) == run_locally(node_and_folder[1]) and max(peaks) == 3
    assert env.nodes._slots.held == 0


def test_groups_with_group_rewards_share_a_pool(grouped: tuple[node_module.NodeActor, Path]) -> None:
    env = MultiNodeEnv(grouped[0], 3)
    prompt_pools: dict[str, set[Any]] = {}

    def record_pool(count: int, request: Request) -> None:
        assert request.state is not None
        prompt_pools.setdefault(request.messages[0]["content"], set()).add(bookkeeping(request.state).remote.pool)

    records = env.generate_sync(HookedClient(record_pool), rollouts_per_example=3)
    assert list(map(facts, records)) == run_locally(grouped[1], 3)
    assert {len(pools) for pools in prompt_pools.values()} == {1} and len(set.union(*prompt_pools.values())) == 3
    assert all(pool.load == 0 for pool in set.union(*prompt_pools.values()))


async def test_a_worker_of_a_lost_node_is_closed(node_and_folder: tuple[node_module.NodeActor, Path]) -> None:
    """The pool is closed while the worker is starting."""

    class ClosedDuringStart(LocalNode):
        async def call(self, name: str, /, *args: Any) -> Any:
            pool.close_lost("its node is lost")
            return await super().call(name, *args)

    pool = WorkerPool(NodeWorkers(ClosedDuringStart(node_and_folder[0], "far away"), "talk", LOCALHOST), 120.0)
    with pytest.raises(WorkerError, match="its node is lost"):
        await pool.open_worker()


async def test_a_connection_without_the_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_pool, "RESPONSE_TIMEOUT_S", 0.2)
    with socket.create_server((LOCALHOST, 0)) as listener:
        listener.setblocking(False)
        address = listener.getsockname()
        connections = [socket.create_connection(address) for _ in range(3)]
        connections[0].sendall(b"x" * node_pool.TOKEN_BYTES)
        connections[1].close()
        token = os.urandom(node_pool.TOKEN_BYTES)
        worker = node_module._connect(*address, token)
        accepted = await node_pool._accept(listener, token)
        assert accepted.getpeername() == worker.getsockname()
        for connection in (*connections, worker, accepted):
            connection.close()


async def test_a_worker_that_does_not_connect_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_pool, "FORK_TIMEOUT_S", 0.05)

    class UnconnectedNode(LocalNode):
        async def call(self, name: str, /, *args: Any) -> Any:
            return 1

    with pytest.raises(WorkerError, match=r"no worker of far away connected to 127.0.0.1:\d+ within 0.05 s"):
        await NodeWorkers(UnconnectedNode(node_module.NodeActor(), "far away"), "talk", LOCALHOST).open()


async def test_a_loading_error_on_a_node_has_its_traceback(tmp_path: Path) -> None:
    folder = package(tmp_path, at_import="def broken():\n    raise KeyError('lost')\nbroken()")
    result = await node_module.NodeActor().load("one", "talk", str(folder), {}, {}, "")
    assert "environment 'talk' could not be imported: KeyError: 'lost'" in result["error"]
    assert "in broken" in result["error"]
    unknown = await node_module.NodeActor().load("one", "no_such", None, {}, {}, "")
    assert unknown["error"].startswith("no environment 'no_such'") and "Traceback" not in unknown["error"]


@pytest.mark.broad
def test_nodes_must_have_the_same_versions_of_python_and_rove() -> None:
    ours = node_module.about()
    node_module.check_same(ours, {**ours, "where": "elsewhere"})
    other_version = f"{sys.version_info[0]}.{sys.version_info[1] + 1}.0"
    with pytest.raises(ConfigError, match=f"elsewhere has Python {other_version} in .*, this process"):
        node_module.check_same(ours, {**ours, "python": other_version, "where": "elsewhere"})
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
    async def run_tasks() -> None:
        semaphore = node_pool._ResizableSemaphore()
        running = 0

        async def hold(seconds: int) -> None:
            nonlocal running
            await semaphore.acquire()
            assert semaphore.held <= max(semaphore.limit, running + 1)
            running += 1
            for _ in range(seconds):
                await asyncio.sleep(0)
            running -= 1
            semaphore.release()

        tasks: list[asyncio.Task[None]] = []
        for limit, seconds in changes:
            tasks += [asyncio.create_task(hold(seconds)) for _ in range(3)]
            semaphore.resize(limit)
            await asyncio.sleep(0)
        waiting = [task for task in tasks if not task.done()]
        for _ in range(min(cancelled, len(waiting) if not running else 0)):
            waiting.pop(data.draw(st.integers(0, len(waiting) - 1))).cancel()
        semaphore.resize(2)
        async with asyncio.timeout(5):
            await asyncio.gather(*tasks, return_exceptions=True)
        assert semaphore.held == running == 0

    asyncio.run(run_tasks())


@pytest.mark.broad
def test_actor_settings_need_a_cluster():
    with pytest.raises(ConfigError, match="ray.actors is 4, but ray.address is not set"):
        Isolation.of(IsolationConfig(), RayConfig(actors=4))
    assert Isolation.of(IsolationConfig(), RayConfig(address="local", actors=4)).ray_actors == 4
