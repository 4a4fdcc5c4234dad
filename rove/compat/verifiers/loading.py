"""v0's way to load an environment: the module's `load_environment`, by the package's name."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from rove.compat.verifiers.errors import MissingKeyError
from rove.envs.loading import environment_file, environment_module


def load_environment(env_id: str, **env_args: Any) -> Any:
    """What `load_environment(**env_args)` of a package returns; the last part of "owner/my-env" is its module's name.

    Raises:
        ValueError: there is no such package.
        MissingKeyError: it needs environment variables that are not set.
        RuntimeError: it could not be loaded, for the error that is the cause.
    """
    name = env_id.split("@")[0].replace("-", "_").split("/")[-1]
    try:
        env = _module(name).load_environment(**env_args)
        env.env_id = env.env_id or env_id
        env.env_args = env.env_args or env_args
        return env
    except ImportError as error:
        raise ValueError(
            f"Could not import '{env_id}' environment ({error}). Ensure that its package is installed."
        ) from error
    except MissingKeyError:
        raise
    except Exception as error:
        raise RuntimeError(f"Failed to load environment '{env_id}': {error}") from error


def _module(name: str) -> Any:
    """An installed module, or one in a folder where rove looks for environments."""
    if name in sys.stdlib_module_names:
        return environment_module(name)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        try:
            environment_file(name)
        except ValueError:
            raise error from None
        return environment_module(name)
