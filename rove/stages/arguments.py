"""Make the settings of a stage from a config object and keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from rove.core.config import convert, merge
from rove.core.errors import ConfigError
from rove.core.plain import JsonObject
from rove.envs.environment import Environment
from rove.envs.loading import as_environment
from rove.stages.clients import SCRIPTED

S = TypeVar("S", bound=msgspec.Struct)


def settings_from(kind: type[S], config: S | None, changes: Mapping[str, object]) -> S:
    """Return the settings of `config`, changed by the values in `changes` that are not None; tables are merged.

    Example:
        >>> settings_from(RLConfig, None, {"env": "tictactoe", "model": "models/mine", "loss": {"kind": "grpo"}})

    Raises:
        ConfigError: A setting is unknown or missing, or a value has another type or is out of range.
    """
    values: JsonObject = {} if config is None else msgspec.to_builtins(config)
    plain = {name: msgspec.to_builtins(value, enc_hook=str) for name, value in changes.items() if value is not None}
    return convert(kind, merge(values, plain))


def environment_name(env: object) -> str:
    """Return the name of an environment, which must be given by name because other processes load it.

    Raises:
        ConfigError: `env` is not a name or a path.
    """
    if isinstance(env, (str, Path)):
        return str(env)
    raise ConfigError(
        f"env is a {type(env).__name__}; expected the name or the path of an environment, because it is loaded in other "
        "processes: save it as environments/NAME.py, with a function load_environment, and pass NAME"
    )


def name_and_environment(env: str | Environment) -> tuple[str, Environment | None]:
    """Return the name of an environment, and the environment itself unless only its name is given.

    Raises:
        ConfigError: `env` is the name of a model, or not an environment.
    """
    if isinstance(env, str):
        if env.startswith(SCRIPTED):
            raise ConfigError(f"env is '{env}', which names a model; expected an environment: the model comes first")
        return env, None
    loaded = as_environment(env)
    return loaded.env_id or type(loaded).__name__, loaded
