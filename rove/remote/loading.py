"""Load the environment of a run in this process, in a worker process, or on a Ray cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from rove.core.plain import JsonMapping, JsonObject
from rove.envs.environment import Environment
from rove.remote.environment import RemoteEnv
from rove.remote.isolation import Isolation, open_on_this_machine
from rove.remote.ray import RayEnv
from rove.workers.import_alias import active_import_alias

SETTINGS = ("isolation", "ray")
"""Tables of settings that state where an environment runs; they do not change the environment's behavior."""


def open_environment(
    env_id: str,
    env_dir: str | Path | None = None,
    env_args: JsonMapping | None = None,
    isolation: Isolation = Isolation(),  # noqa: B008  frozen
) -> Environment:
    """Load an environment in this process, in a worker process, or in workers on a Ray cluster."""
    if isolation.ray is None:
        return open_on_this_machine(env_id, env_dir, env_args, isolation)
    alias = active_import_alias()
    return RayEnv(env_id, env_args, env_dir, isolation, "" if alias is None else alias.setup)


async def open_environment_in_thread(
    env_id: str, env_dir: str | Path | None, env_args: JsonMapping, isolation: Isolation
) -> Environment:
    """Call `open_environment` without blocking the event loop: starting processes and nodes takes seconds.

    Without isolation the environment loads in this thread, because some packages must be imported in the main thread.
    """
    if not isolation.on:
        return open_environment(env_id, env_dir, env_args, isolation)
    return await asyncio.to_thread(open_environment, env_id, env_dir, env_args, isolation)


@contextmanager
def temporary_environment(
    env_id: str,
    env_dir: str | Path | None = None,
    env_args: JsonMapping | None = None,
    isolation: Isolation = Isolation(),  # noqa: B008  frozen
) -> Iterator[Environment]:
    """Open an environment that runs no rollouts, with a single actor; close it at the end of the `with` block."""
    env = open_environment(env_id, env_dir, env_args, msgspec.structs.replace(isolation, ray_actors=1))
    try:
        yield env
    finally:
        if isinstance(env, RemoteEnv):
            env.close()


def without_isolation(plain: JsonMapping) -> JsonObject:
    """Return the settings of a run as data, without the tables in `SETTINGS`: a run may be resumed with or without isolation."""
    evaluations = [_without_tables(table) for table in plain["evaluation"]]
    return {**_without_tables(plain), "evaluation": evaluations}


def _without_tables(settings: JsonMapping) -> JsonObject:
    return {name: value for name, value in settings.items() if name not in SETTINGS}
