"""Settings of environments in other processes, and a function that opens an environment on this machine."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rove.core.checks import Settings, check_fields
from rove.core.errors import ConfigError
from rove.core.plain import Arguments, JsonMapping
from rove.core.ranges import PositiveInt, Seconds
from rove.envs.environment import Environment
from rove.envs.loading import environment_file, find_external_environment, load_environment
from rove.envs.question_files import is_question_file
from rove.remote.environment import IsolatedEnv
from rove.remote.venv import python_for
from rove.workers.import_alias import active_import_alias


class IsolationConfig(Settings, frozen=True, kw_only=True):
    """The `[isolation]` table: environments in worker processes."""

    enabled: bool = False
    """Run the environment in a worker process, in its own virtual environment if it declares dependencies."""
    python: str | None = None
    """Python interpreter for the worker process; implies `enabled`. By default, rove uses a virtual environment that it
    creates."""
    start_seconds: Seconds = 60.0
    """Maximum seconds that an isolated environment may take to load."""
    hang_seconds: Seconds = 120.0
    """Kill an isolated environment that is unresponsive for this many seconds."""

    @property
    def is_on(self) -> bool:
        """Whether environments run in worker processes."""
        return self.enabled or self.python is not None


class RayConfig(Settings, frozen=True, kw_only=True):
    """The `[ray]` table: environments on a Ray cluster."""

    address: str | None = None
    """Ray cluster whose actors run the environments: "HOST:PORT", "auto" (the cluster that this machine belongs to), or "local"
    (a new cluster on this machine)."""
    actors: PositiveInt | None = None
    """Number of actors; by default, one per free CPU in the cluster."""
    rollouts_per_actor: PositiveInt = 128
    """Maximum number of concurrent rollouts per actor."""


class Isolation(msgspec.Struct, frozen=True):
    """Whether an environment runs in separate processes, and the limits of these processes."""

    on: bool = False
    python: str | None = None
    """Interpreter of the environment's virtual environment. Default: rove creates a virtual environment if the package declares
    dependencies."""
    start_seconds: Seconds = 60.0
    hang_seconds: Seconds = 120.0
    ray: str | None = None
    """Address of the Ray cluster that runs the environment; "local" starts a cluster on this machine. Default: no cluster."""
    ray_actors: PositiveInt | None = None
    """Number of Ray actors. Default: the number of free CPUs of the cluster."""
    ray_rollouts: PositiveInt = 128
    """Maximum number of concurrent rollouts per actor."""

    def __post_init__(self) -> None:
        check_fields(self)

    @staticmethod
    def of(isolation: IsolationConfig, ray: RayConfig) -> Isolation:
        """Return the isolation that these tables describe together; an interpreter or a cluster implies isolation."""
        unused = [n for n in ("actors", "rollouts_per_actor") if getattr(ray, n) != getattr(RayConfig(), n)]
        if unused and ray.address is None:
            raise ConfigError(
                f"ray.{unused[0]} is {getattr(ray, unused[0])}, but ray.address is not set, so there are no actors; set "
                'ray.address to "local" or the address of a cluster'
            )
        is_on = isolation.is_on or ray.address is not None
        limits = isolation.start_seconds, isolation.hang_seconds
        return Isolation(is_on, isolation.python, *limits, ray.address, ray.actors, ray.rollouts_per_actor)


def open_on_this_machine(
    env_id: str, env_dir: str | Path | None, env_args: JsonMapping | None, isolation: Isolation
) -> Environment:
    """Load an environment in this process or in a worker process."""
    limits: Arguments = {"start_seconds": isolation.start_seconds, "hang_seconds": isolation.hang_seconds}
    external = find_external_environment(env_id, env_dir)
    if external is not None:
        return external.load(env_args or {}, python=isolation.python, **limits)
    if not isolation.on or is_question_file(env_id):  # a file of questions has no code
        return load_environment(env_id, env_dir, **(env_args or {}))
    alias = active_import_alias()
    prepare, stand_ins = ("", {}) if alias is None else (alias.setup, alias.provided_versions)
    python = isolation.python or python_for(environment_file(env_id, env_dir), stand_ins)
    return IsolatedEnv(env_id, env_args, env_dir, python, **limits, prepare=prepare)
