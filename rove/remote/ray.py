"""Environments in actors of a Ray cluster. All that knows Ray.

Ray starts an actor on each CPU, puts them on machines, and says when one is lost. What belongs to a rollout does not go through
it: a call of an actor costs the run's process several times what a message on a connection of one's own does.
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
from rove.envs.loading import environment_file
from rove.remote import node as site
from rove.remote.environment import AwayEnv
from rove.remote.loading import Isolation
from rove.remote.node_pool import NodePool
from rove.remote.rollout import LOSSES

STORE = 100_000_000
"""Bytes of the object store of a cluster that is started here: what goes through it is small."""
GRACE_SECONDS = 20.0
"""How long to wait for the other actors when the first is there; those that come later are played on from then on."""
REACH_SECONDS = 10.0
AGAIN_SECONDS = 1.0
CALLS = 1000
"""That an actor answers at a time."""


class RayEnv(AwayEnv):
    """An environment in workers on the machines of a Ray cluster.

    An actor loads it and forks a worker for the rollouts that are played there (see `rove.IsolatedEnv`), which asks this process
    for the model's turns. Where a machine is lost, its rollouts are played again on others with the answers they have had.

    Args:
        env_id, env_args: as for `load_environment`.
        env_dir: likewise; the same folder must be there on every machine.
        isolation: the cluster, and what holds for workers.
        prepare: a function, "module:name", that is called on every machine before it loads the package.

    Raises:
        ConfigError: Ray is not installed, the cluster cannot be reached, or is not made up as this process is; no actor
            finds a place; the environment cannot be loaded.
    """

    def __init__(
        self,
        env_id: str,
        env_args: Mapping[str, Any] | None = None,
        env_dir: str | Path | None = None,
        isolation: Isolation = Isolation(),  # noqa: B008  frozen
        prepare: str = "",
    ):
        assert isolation.ray is not None
        self._ray = connect(isolation.ray)
        self._isolation = isolation
        self._name = f"{env_id}-{secrets.token_hex(4)}"
        limits = {"start_seconds": isolation.start_seconds, "hang_seconds": isolation.hang_seconds}
        folder = _folder(env_id, env_dir)
        self._load = (self._name, env_id, folder, dict(env_args or {}), {**limits, "python": isolation.python}, prepare)
        self._fleet = fleet(self._ray.get_runtime_context().get_job_id())
        free = int(self._ray.available_resources().get("CPU", 0))
        sites: list[Any] = self._first(isolation.ray_actors or max(1, len(self._fleet) + free))
        told = next(one.told for one in sites if one is not None)
        rooms = NodePool(
            sites,
            self._another,
            self._name,
            self._ray.util.get_node_ip_address(),
            together=told["has_group_rewards"],
            most=isolation.ray_rollouts,
            hang_seconds=isolation.hang_seconds,
            wait_seconds=isolation.start_seconds,
        )
        self.sites = rooms
        super().__init__(told, rooms, env_args)

    def ask_now(self, name: str, /, **args: Any) -> Any:
        """A worker's answer to a call about the dataset, for code that is not async; another's where one is lost."""
        lost: Exception | None = None
        for one in [one for one in self.sites.sites if one is not None]:
            try:
                said = one.call_now("ask", self._name, name, args)
            except WorkerError as error:
                lost = error
                continue
            if "failed" in said:
                raise InfraError(said["failed"])
            return said["result"]
        raise WorkerError(f"no machine is left that has the environment's rows: {lost}")

    def close(self) -> None:
        """End all workers."""
        for one in self.sites.sites:
            if one is not None:
                one.tell("forget", self._name)

    def _actor(self, number: int) -> _Started:
        """The actor of that number; a new one where there is none."""

        def new() -> _Started:
            kind = self._ray.remote(site.NodeActor)
            options = {"num_cpus": 1, "scheduling_strategy": "SPREAD", "max_concurrency": CALLS}
            actor = kind.options(**options).remote()
            return _Started(actor, actor.stay.remote())

        return self._fleet.get(number, new)

    def _first(self, count: int) -> list[_Actor | None]:
        """The actors that are there, with the environment loaded; None for those that have not come yet."""
        ray = self._ray
        found: list[_Actor | None] = [None] * count
        losses = 0
        while not any(found):
            loading: dict[int, tuple[_Started, str, Any]] = {}
            for number, told in self._there(count).items():
                started = self._actor(number)
                try:
                    where = self._checked(ray.get(told))
                except ray.exceptions.RayError as error:
                    self._drop(number, started.actor)
                    if not started.is_up:
                        raise ConfigError(f"a Ray actor could not start: {_words(error)}") from error
                    continue  # its machine has been lost since then: another comes
                started.is_up = True
                loading[number] = started, where, started.actor.load.remote(*self._load)
            for number, (started, where, told) in loading.items():
                try:
                    found[number] = self._loaded(number, started, where, ray.get(told))
                except ray.exceptions.RayError as error:
                    self._drop(number, started.actor)
                    losses += 1
                    if losses >= LOSSES and not any(found):  # it may be the environment that ends them
                        raise ConfigError(f"on {where}, while the environment was loaded: {_words(error)}") from error
        [first, *others] = [one for one in found if one is not None]
        for one in others:
            _check_identity(first, one)
        return found

    def _there(self, count: int) -> dict[int, Any]:
        """What the actors that are there say about themselves, by number."""
        ray, seconds = self._ray, self._isolation.start_seconds
        asked = [self._actor(number).actor.about.remote() for number in range(count)]
        there, _ = ray.wait(asked, timeout=seconds)
        if not there:
            free, all = (one().get("CPU", 0) for one in (ray.available_resources, ray.cluster_resources))
            raise ConfigError(
                f"no Ray actor has started within {seconds:g} s (isolation.start_seconds): each takes a CPU, and of the "
                f"cluster's {all:g} CPUs {free:g} are free"
            )
        known = [told for number, told in enumerate(asked) if self._actor(number).is_up]
        if known:
            ray.wait(known, num_returns=len(known), timeout=seconds)
        youngest = max(self._actor(number).since for number in range(count))
        left = max(0.0, youngest + min(GRACE_SECONDS, seconds) - time.monotonic())
        there, _ = ray.wait(asked, num_returns=len(asked), timeout=left)
        return {number: told for number, told in enumerate(asked) if told in there}

    async def _another(self, number: int) -> _Actor:
        """A new actor in place of one that is lost, as soon as there is room for it."""
        while True:
            started = self._actor(number)
            try:
                where = self._checked(await started.actor.about.remote())
                started.is_up = True
                told = await started.actor.load.remote(*self._load)
            except self._ray.exceptions.RayError:
                self._drop(number, started.actor)
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            made = self._loaded(number, started, where, told)
            _check_identity(self, made)
            return made

    def _drop(self, number: int, actor: Any) -> None:
        """End an actor that is lost, if it is still there."""
        self._fleet.drop(number, actor)
        with suppress(Exception):
            self._ray.kill(actor)

    def _checked(self, theirs: Mapping[str, str]) -> str:
        site.check_same(site.about(), theirs)
        return theirs["where"]

    def _loaded(self, number: int, started: _Started, where: str, told: Mapping[str, Any]) -> _Actor:
        if "refused" in told:
            raise ConfigError(f"on {where}: {told['refused']}")
        drop = functools.partial(self._drop, number, started.actor)
        return _Actor(self._ray, started, where, told["told"], drop)


class _Actor:
    """A `Site` in a Ray actor; see `rove.remote.node_pool.Site`."""

    def __init__(self, ray: Any, started: _Started, where: str, told: Mapping[str, Any], end: Callable[[], None]):
        self._ray, self.actor, self._stay = ray, started.actor, started.stay
        self.where, self.told, self.end = where, told, end

    async def call(self, name: str, /, *args: Any) -> Any:
        """What its method returns."""
        try:
            return await getattr(self.actor, name).remote(*args)
        except self._ray.exceptions.RayError as error:
            raise WorkerError(f"{self.where}: {_words(error)}") from error

    async def lost(self) -> None:
        """Ends when it is gone, or may be."""
        with suppress(self._ray.exceptions.RayError):
            await self._stay

    def call_now(self, name: str, /, *args: Any) -> Any:
        """As `call`, for code that is not async."""
        try:
            return self._ray.get(getattr(self.actor, name).remote(*args))
        except self._ray.exceptions.RayError as error:
            raise WorkerError(f"{self.where}: {_words(error)}") from error

    def tell(self, name: str, /, *args: Any) -> None:
        """Call its method; nobody waits for it."""
        if self._ray.is_initialized():
            getattr(self.actor, name).options(num_returns=0).remote(*args)


def connect(address: str) -> Any:
    """Ray, connected to a cluster, or to one that is started here and ends with this process.

    Args:
        address: HOST:PORT, "auto" (the cluster that this machine is of), or "local". A connection that is there already is kept.

    Raises:
        ConfigError: Ray is not installed, or there is no such cluster.
    """
    here = address == "local"
    if here:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise ConfigError(f"--ray {address} needs Ray, which is not here: pip install 'rove[ray]' ({error})") from error
    if ray.is_initialized():
        return ray
    if not here and address != "auto":
        _reach(address)
    own = {"include_dashboard": False, "object_store_memory": STORE} if here else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except (ConnectionError, RuntimeError, ValueError) as error:  # another version of Ray or Python, too
        start = (
            "" if here else "; a cluster is started by `ray start --head` and joined by `ray start --address HOST:PORT`"
        )
        raise ConfigError(f"--ray {address}: {_words(error)}{start}") from error
    return ray


@dataclass(eq=False, slots=True)
class _Started:
    """An actor, which may still wait for a machine."""

    actor: Any
    stay: Any
    """A call that ends when the actor does; one for all who want to hear of that."""
    since: float = field(default_factory=time.monotonic)
    is_up: bool = False
    """It has been heard of."""


class _Fleet:
    """Actors by number. An environment may be opened in one thread while another replaces what it has lost."""

    def __init__(self) -> None:
        self._started: dict[int, _Started] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._started)

    def get(self, number: int, new: Callable[[], _Started]) -> _Started:
        """The one of that number, made where there is none."""
        with self._lock:
            if number not in self._started:
                self._started[number] = new()
            return self._started[number]

    def drop(self, number: int, actor: Any) -> None:
        """Forget an actor, unless another has its number by now."""
        with self._lock:
            started = self._started.get(number)
            if started is not None and started.actor is actor:
                del self._started[number]


@functools.cache
def fleet(job: str) -> _Fleet:
    """The actors that this process has started: all its environments share them, for they hold the CPUs."""
    return _Fleet()


def _reach(address: str) -> None:
    """See that something listens there: Ray itself would end this process where nothing does."""
    host, _, port = address.rpartition(":")
    if "://" in address or not (host and port.isdigit()):
        raise ConfigError(
            f"--ray {address}: expected HOST:PORT of the cluster's head as `ray start --head` tells it, auto, or local; a run "
            "is started on a machine of the cluster"
        )
    try:
        socket.create_connection((host, int(port)), REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"--ray {address}: nothing answers there ({error}); `ray start --head` starts a cluster and tells its address, "
            "--ray local uses this machine alone"
        ) from error


def _folder(env_id: str, env_dir: str | Path | None) -> str | None:
    """Where actors look for the environment, whose working directory is another one."""
    if env_dir is not None:
        return str(Path(env_dir).resolve())
    around = Path("environments").resolve()
    with suppress(ConfigError):  # not here, but perhaps there
        if environment_file(env_id).is_relative_to(around):
            return str(around)
    return None


def _check_identity(one: Any, other: _Actor) -> None:
    """See that two machines have the same environment."""
    first, second = (each.told["identity"] for each in (one, other))
    if first != second:
        differ = [
            f"{name}: {first.get(name)} and {second.get(name)}" for name in first if first[name] != second.get(name)
        ]
        raise ConfigError(f"{other.where} has another version of the environment ({'; '.join(differ)})")


def _words(error: BaseException) -> str:
    """What Ray says, without its colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().rstrip(".")
