"""The environment that a command is about: in this process, or in one of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rove import compat
from rove.envs.environment import Environment
from rove.envs.loading import environment_file, load_environment

if TYPE_CHECKING:
    from rove.cli.eval import EvalConfig


def environment_of(config: EvalConfig) -> Environment:
    """The environment of an evaluation.

    Raises:
        ConfigError: it cannot be loaded, or what it needs cannot be installed.
    """
    if not config.isolated and config.isolated_python is None:
        return load_environment(config.env, config.env_dir, **config.env_args)
    from rove.isolation import IsolatedEnv
    from rove.isolation.venv import python_for

    python = config.isolated_python or python_for(environment_file(config.env, config.env_dir), compat.STAND_INS)
    return IsolatedEnv(
        config.env,
        config.env_args,
        config.env_dir,
        python,
        start_seconds=config.isolated_start_seconds,
        hang_seconds=config.isolated_hang_seconds,
        prepare=compat.in_workers(),
    )
