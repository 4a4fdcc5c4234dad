"""Settings of a stage from a config object and keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from rove.core.config import convert, merge
from rove.core.plain import JsonObject
from rove.envs.environment import Environment
from rove.envs.loading import as_environment

S = TypeVar("S", bound=msgspec.Struct)


def settings_from(kind: type[S], config: S | None, changes: Mapping[str, object]) -> S:
    """Return settings: those of `config`, changed by the values of `changes` that are not None; tables are merged.

    Example:
        >>> settings_from(RLConfig, None, {"env": "tictactoe", "model": "models/mine", "loss": {"kind": "grpo"}})

    Raises:
        ConfigError: A setting is unknown or missing, or a value has another type or is out of range.
    """
    values: JsonObject = {} if config is None else msgspec.to_builtins(config)
    plain = {name: msgspec.to_builtins(value, enc_hook=str) for name, value in changes.items() if value is not None}
    return convert(kind, merge(values, plain))


def name_and_environment(env: str | Environment) -> tuple[str, Environment | None]:
    """Return the name of an environment, and the environment itself unless only its name is given."""
    if isinstance(env, str):
        return env, None
    loaded = as_environment(env)
    return loaded.env_id or type(loaded).__name__, loaded
