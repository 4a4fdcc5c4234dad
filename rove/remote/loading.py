"""The environment that settings name: in this process, or in one of its own."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from rove.core.config import check_positive
from rove.core.errors import ConfigError
from rove.envs.environment import Environment
from rove.envs.loading import elsewhere, environment_file, load_environment
from rove.envs.questions import is_question_file
from rove.remote.environment import AwayEnv, IsolatedEnv
from rove.remote.venv import StandIns, python_for
from rove.workers.import_alias import active_import_alias

SETTINGS = frozenset(
    {
        "isolated",
        "isolated_python",
        "isolated_start_seconds",
        "isolated_hang_seconds",
        "ray",
        "ray_actors",
        "ray_rollouts",
    }
)
"""Names of settings that say where an environment is, and change nothing of what it does."""


class Isolation(msgspec.Struct, frozen=True):
    """Whether an environment has a process of its own, and what holds for it then."""

    on: bool = False
    python: str | None = None
    """Interpreter of its virtual environment. Default: of one that is made, where it declares dependencies."""
    start_seconds: float = 60.0
    hang_seconds: float = 120.0
    ray: str | None = None
    """Address of the Ray cluster on whose machines it is; "local" = one that is started here. Default: on this machine."""
    ray_actors: int | None = None
    """Ray actors that have it. Default: as many as the cluster has CPUs that are free."""
    ray_rollouts: int = 128
    """Rollouts of one actor at a time."""

    @staticmethod
    def of(settings: Any) -> Isolation:
        """What settings with the names in `SETTINGS` say; an interpreter or a cluster alone says that it is on.

        Raises:
            ConfigError: one of Ray's is out of range, or given where nothing is on a cluster.
        """
        check_positive(settings, "ray_actors", "ray_rollouts")
        idle = [
            name for name in ("ray_actors", "ray_rollouts") if getattr(settings, name) != getattr(Isolation(), name)
        ]
        if idle and settings.ray is None:
            raise ConfigError(
                f'{idle[0]} is {getattr(settings, idle[0])}, but ray is not given, so there are no actors; add ray = "local", '
                "or the address of a cluster"
            )
        is_on = settings.isolated or settings.isolated_python is not None or settings.ray is not None
        limits = settings.isolated_start_seconds, settings.isolated_hang_seconds
        cluster = settings.ray, settings.ray_actors, settings.ray_rollouts
        return Isolation(is_on, settings.isolated_python, *limits, *cluster)


def open_environment(
    env_id: str,
    env_dir: str | Path | None = None,
    env_args: Mapping[str, Any] | None = None,
    isolation: Isolation = Isolation(),  # noqa: B008  frozen
) -> Environment:
    """The environment, loaded here, in a worker, or in workers on the machines of a Ray cluster.

    Raises:
        ConfigError: it cannot be loaded, what it needs cannot be installed, or the cluster cannot be used.
    """
    prepare, stand_ins = _import_alias()
    if isolation.ray is not None:
        module = importlib.import_module("rove.remote.ray")
        return module.RayEnv(env_id, env_args, env_dir, isolation, prepare)
    limits: dict[str, Any] = {"start_seconds": isolation.start_seconds, "hang_seconds": isolation.hang_seconds}
    away = elsewhere(env_id, env_dir)
    if away is not None:
        return away.load(env_args or {}, python=isolation.python, **limits)
    if not isolation.on or is_question_file(env_id):  # a file of questions has no code to isolate
        return load_environment(env_id, env_dir, **(env_args or {}))
    python = isolation.python or python_for(environment_file(env_id, env_dir), stand_ins)
    return IsolatedEnv(env_id, env_args, env_dir, python, **limits, prepare=prepare)


async def open_beside(
    env_id: str, env_dir: str | Path | None, env_args: Mapping[str, Any], isolation: Isolation
) -> Environment:
    """As `open_environment`, beside what else goes on in the event loop: processes and machines take seconds to come.

    What is loaded in this process is loaded in this thread: some packages want the main one.
    """
    if not isolation.on:
        return open_environment(env_id, env_dir, env_args, isolation)
    return await asyncio.to_thread(open_environment, env_id, env_dir, env_args, isolation)


def _import_alias() -> tuple[str, StandIns]:
    """Return the function that installs this process's import alias in a worker, and the versions that the alias provides."""
    alias = active_import_alias()
    return ("", {}) if alias is None else (alias.setup, alias.provided_versions)


@contextmanager
def looking_at(
    env_id: str,
    env_dir: str | Path | None = None,
    env_args: Mapping[str, Any] | None = None,
    isolation: Isolation = Isolation(),  # noqa: B008  frozen
) -> Iterator[Environment]:
    """As `open_environment`, for a look at it that starts no run; its process ends afterwards."""
    env = open_environment(env_id, env_dir, env_args, msgspec.structs.replace(isolation, ray_actors=1))
    try:
        yield env
    finally:
        if isinstance(env, AwayEnv):
            env.close()


def without_isolation(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run as data, those left out that say where environments are: a run may go on with isolation or without."""
    tables = [{name: value for name, value in one.items() if name not in SETTINGS} for one in plain["evaluation"]]
    return {**{name: value for name, value in plain.items() if name not in SETTINGS}, "evaluation": tables}
