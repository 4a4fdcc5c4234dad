"""Environments in actors of a Ray cluster. Only this module imports Ray.

Ray starts actors on free CPUs and reports lost actors. Rollouts use direct connections to the workers instead: a call of
an actor costs the run's process several times as much time as a message on a socket (measured in
docs/decisions/workers.md).
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import logging
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rove.core.errors import ConfigError, InfraError, WorkerError
from rove.core.plain import JsonMapping
from rove.envs.loading import environment_file
from rove.remote import node as node_module
from rove.remote.environment import RemoteEnv
from rove.remote.isolation import Isolation
from rove.remote.node_pool import NodePool
from rove.remote.rollout import MAX_LOST_NODES

OBJECT_STORE_BYTES = 100_000_000
"""Size of the object store of a cluster that rove starts; rove sends only small objects."""
GRACE_S = 20.0
"""Seconds to wait for the other actors once the first actor has started; actors that start later join the running pool."""
CONNECT_TIMEOUT_S = 10.0
RETRY_DELAY_S = 1.0
MAX_CONCURRENT_CALLS = 1000
"""Maximum number of concurrent calls of an actor."""


class RayEnv(RemoteEnv):
    """An environment in workers on the machines of a Ray cluster.

    Each actor loads the environment and forks workers (see `rove.IsolatedEnv`), which send their model requests to this process.
    Rollouts of a lost machine are replayed on other machines with the recorded responses.

    Args:
        env_dir: See `load_environment`; every machine must have this folder.
        prepare: A function, "module:name", that every machine calls before it loads the package.
    """

    def __init__(
        self,
        env_id: str,
        env_args: JsonMapping | None = None,
        env_dir: str | Path | None = None,
        isolation: Isolation = Isolation(),  # noqa: B008  frozen
        prepare: str = "",
    ):
        assert isolation.ray is not None
        self._ray = connect(isolation.ray)
        self._isolation = isolation
        self._name = f"{env_id}-{secrets.token_hex(4)}"
        limits = {"start_seconds": isolation.start_seconds, "hang_seconds": isolation.hang_seconds}
        folder = _env_folder(env_id, env_dir)
        self._load = (self._name, env_id, folder, dict(env_args or {}), {**limits, "python": isolation.python}, prepare)
        self._actors = actor_registry(self._ray.get_runtime_context().get_job_id())
        # The CPUs that this process's actors hold already are not free, but environments share the actors.
        free_cpus = int(self._ray.available_resources().get("CPU", 0))
        nodes = self._open_nodes(isolation.ray_actors or max(1, len(self._actors) + free_cpus))
        description = next(node.description for node in nodes if node is not None)
        pools = NodePool(
            nodes,
            self._replacement,
            self._name,
            self._ray.util.get_node_ip_address(),
            keep_groups_together=description["has_group_rewards"],
            max_rollouts=isolation.ray_rollouts,
            hang_seconds=isolation.hang_seconds,
            wait_seconds=isolation.start_seconds,
        )
        self.nodes = pools
        super().__init__(description, pools, env_args)

    def call_sync(self, name: str, /, **args: Any) -> Any:
        """Call a worker about the dataset, from code that is not async; call another node if one is lost."""
        last_error: Exception | None = None
        for node in list(self.nodes.nodes):
            if node is None:
                continue
            try:
                reply = node.call_now("call_worker", self._name, name, args)
            except WorkerError as error:
                last_error = error
                continue
            if "failed" in reply:
                raise InfraError(reply["failed"])
            return reply["result"]
        raise WorkerError(f"no node with the environment is left: {last_error}")

    def close(self) -> None:
        """End all workers."""
        for node in self.nodes.nodes:
            if node is not None:
                node.call_no_wait("unload", self._name)

    def _actor(self, number: int) -> _StartedActor:
        """Return the actor with this number; start it if there is none."""

        def new() -> _StartedActor:
            kind = self._ray.remote(node_module.NodeActor)
            options = {"num_cpus": 1, "scheduling_strategy": "SPREAD", "max_concurrency": MAX_CONCURRENT_CALLS}
            actor = kind.options(**options).remote()
            return _StartedActor(actor, actor.wait_forever.remote())

        return self._actors.get(number, new)

    def _open_nodes(self, count: int) -> list[RayNode | None]:
        """Return the nodes that have started, with the environment loaded; None stands for each other node."""
        ray = self._ray
        nodes: list[RayNode | None] = [None] * count
        lost_nodes = 0
        while not any(nodes):
            # All actors load the environment at the same time: first every call is made, then every result is read.
            loading: dict[int, tuple[_StartedActor, str, Any]] = {}
            for number, reply in self._ready_actors(count).items():
                started = self._actor(number)
                try:
                    host = self._check_versions(ray.get(reply))
                except ray.exceptions.RayError as error:
                    self._drop(number, started.actor)
                    if not started.is_up:
                        raise ConfigError(f"a Ray actor could not start: {_ray_message(error)}") from error
                    continue  # its machine has been lost since; it is replaced
                started.is_up = True
                loading[number] = started, host, started.actor.load.remote(*self._load)
            for number, (started, host, description) in loading.items():
                try:
                    nodes[number] = self._make_node(number, started, host, ray.get(description))
                except ray.exceptions.RayError as error:
                    self._drop(number, started.actor)
                    lost_nodes += 1
                    if lost_nodes >= MAX_LOST_NODES and not any(nodes):  # the environment itself may crash them
                        raise ConfigError(
                            f"on {host}, while the environment was loaded: {_ray_message(error)}"
                        ) from error
        [first, *further_nodes] = [node for node in nodes if node is not None]
        for node in further_nodes:
            _check_identity(first.description, node)
        return nodes

    def _ready_actors(self, count: int) -> dict[int, Any]:
        """Return the results of `about` from the actors that have started, by the actor's number."""
        ray, seconds = self._ray, self._isolation.start_seconds
        replies = [self._actor(number).actor.about.remote() for number in range(count)]
        ready, _ = ray.wait(replies, timeout=seconds)
        if not ready:
            free_cpus = ray.available_resources().get("CPU", 0)
            all_cpus = ray.cluster_resources().get("CPU", 0)
            raise ConfigError(
                f"no Ray actor has started within {seconds:g} s (isolation.start_seconds): each takes a CPU, and of the "
                f"cluster's {all_cpus:g} CPUs {free_cpus:g} are free"
            )
        # Actors that have served another environment respond at once; of new ones, those that start within the grace time count.
        of_running = [reply for number, reply in enumerate(replies) if self._actor(number).is_up]
        if of_running:
            ray.wait(of_running, num_returns=len(of_running), timeout=seconds)
        last_start = max(self._actor(number).since for number in range(count))
        grace = max(0.0, last_start + min(GRACE_S, seconds) - time.monotonic())
        ready, _ = ray.wait(replies, num_returns=len(replies), timeout=grace)
        return {number: reply for number, reply in enumerate(replies) if reply in ready}

    async def _replacement(self, number: int) -> RayNode:
        """Start an actor to replace a lost actor, as soon as the cluster has a free CPU."""
        while True:
            started = self._actor(number)
            try:
                host = self._check_versions(await started.actor.about.remote())
                started.is_up = True
                description = await started.actor.load.remote(*self._load)
            except self._ray.exceptions.RayError:
                self._drop(number, started.actor)
                await asyncio.sleep(RETRY_DELAY_S)
                continue
            node = self._make_node(number, started, host, description)
            _check_identity(self.description, node)
            return node

    def _drop(self, number: int, actor: object) -> None:
        """Remove a lost actor, and end it if it still runs."""
        self._actors.drop(number, actor)
        with suppress(Exception):  # Ray raises many types of errors for an actor that is gone
            self._ray.kill(actor)

    def _check_versions(self, theirs: Mapping[str, str]) -> str:
        node_module.check_same(node_module.about(), theirs)
        return theirs["where"]

    def _make_node(self, number: int, started: _StartedActor, host: str, description: JsonMapping) -> RayNode:
        if "error" in description:
            raise ConfigError(f"on {host}: {description['error']}")
        drop = functools.partial(self._drop, number, started.actor)
        return RayNode(self._ray, started, host, description["description"], drop)


class RayNode:
    """A `Node` in a Ray actor; see `rove.remote.node_pool.Node`."""

    def __init__(self, ray: Any, started: _StartedActor, host: str, description: JsonMapping, end: Callable[[], None]):
        self._ray, self.actor, self._lost = ray, started.actor, started.lost
        self.host, self.description, self.end = host, description, end

    async def call(self, name: str, /, *args: Any) -> Any:
        """See `Node.call`."""
        try:
            return await getattr(self.actor, name).remote(*args)
        except self._ray.exceptions.RayError as error:
            raise WorkerError(f"{self.host}: {_ray_message(error)}") from error

    async def lost(self) -> None:
        """See `Node.lost`."""
        with suppress(self._ray.exceptions.RayError):
            await self._lost

    def call_now(self, name: str, /, *args: Any) -> Any:
        """See `Node.call_now`."""
        try:
            return self._ray.get(getattr(self.actor, name).remote(*args))
        except self._ray.exceptions.RayError as error:
            raise WorkerError(f"{self.host}: {_ray_message(error)}") from error

    def call_no_wait(self, name: str, /, *args: Any) -> None:
        """See `Node.call_no_wait`."""
        if self._ray.is_initialized():
            getattr(self.actor, name).options(num_returns=0).remote(*args)


def connect(address: str) -> Any:
    """Return Ray, connected to an existing cluster or to a new one on this machine that ends with this process.

    Args:
        address: HOST:PORT, "auto" (the cluster of this machine), or "local". An existing connection is reused.
    """
    is_local = address == "local"
    if is_local:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise ConfigError(
            f"--ray {address} needs Ray, which is not installed: pip install 'rove[ray]' ({error})"
        ) from error
    if ray.is_initialized():
        return ray
    if not is_local and address != "auto":
        _check_reachable(address)
    options: dict[str, Any] = {}
    if is_local:
        options = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        # Also if the cluster has another version of Ray or Python.
        start = "; a cluster is started by `ray start --head` and joined by `ray start --address HOST:PORT`"
        advice = "" if is_local else start
        raise ConfigError(f"--ray {address}: {_ray_message(error)}{advice}") from error
    return ray


@dataclass(eq=False, slots=True)
class _StartedActor:
    """An actor that may still wait for a CPU."""

    actor: Any
    lost: Any
    """A call that ends when the actor ends, shared by all callers that wait for its loss."""
    since: float = field(default_factory=time.monotonic)
    is_up: bool = False
    """Whether it has responded."""


class _ActorRegistry:
    """Actors by number, with a lock: one thread may open an environment while another replaces a lost actor."""

    def __init__(self) -> None:
        self._started: dict[int, _StartedActor] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._started)

    def get(self, number: int, new: Callable[[], _StartedActor]) -> _StartedActor:
        """Return the actor with this number; start it if there is none."""
        with self._lock:
            if number not in self._started:
                self._started[number] = new()
            return self._started[number]

    def drop(self, number: int, actor: object) -> None:
        """Remove an actor, unless another actor has taken over its number."""
        with self._lock:
            started = self._started.get(number)
            if started is not None and started.actor is actor:
                del self._started[number]


@functools.cache
def actor_registry(job: str) -> _ActorRegistry:
    """Return the actors of this process; all its environments share them, because each holds a CPU."""
    return _ActorRegistry()


def _check_reachable(address: str) -> None:
    """Check that something listens at the address, because Ray itself would end this process otherwise."""
    host, _, port = address.rpartition(":")
    if "://" in address or not (host and port.isdigit()):
        raise ConfigError(
            f"--ray {address}: expected HOST:PORT as `ray start --head` prints it, auto, or local; start "
            "the run on a machine of the cluster"
        )
    try:
        socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"--ray {address}: nothing listens there ({error}); `ray start --head` starts a cluster and prints its address, "
            "--ray local uses only this machine"
        ) from error


def _env_folder(env_id: str, env_dir: str | Path | None) -> str | None:
    """Return the folder in which actors look for the environment; their working directory differs."""
    if env_dir is not None:
        return str(Path(env_dir).resolve())
    default_folder = Path("environments").resolve()
    with suppress(ConfigError):  # the cluster may have it
        if environment_file(env_id).is_relative_to(default_folder):
            return str(default_folder)
    return None


def _check_identity(description: JsonMapping, node: RayNode) -> None:
    """Check that a machine's environment has this description, so that all rollouts of the run have the same environment."""
    expected, actual = description["identity"], node.description["identity"]
    if expected == actual:
        return
    differences: list[str] = []
    for name, value in expected.items():
        if value != actual.get(name):
            differences.append(f"{name}: {value} and {actual.get(name)}")
    raise ConfigError(f"{node.host} has another version of the environment ({'; '.join(differences)})")


def _ray_message(error: BaseException) -> str:
    """Return Ray's message without color codes."""
    return re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().rstrip(".")
