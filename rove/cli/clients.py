"""Who `-m` means: a scripted policy, a name in endpoints.toml, a model folder, or a model behind an endpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from rove.clients.scripted import ScriptedClient
from rove.core.errors import ConfigError, MissingKeyError, missing_train_package, nearest
from rove.core.protocols import Client
from rove.envs.environment import Environment

if TYPE_CHECKING:
    from rove.clients.endpoints import Endpoint

SCRIPTED = "scripted:"
API_KEY_VAR = "OPENAI_API_KEY"


def make_client(
    model: str,
    env: Environment,
    base_url: str | None = None,
    api_key_var: str = API_KEY_VAR,
    max_concurrent: int | None = None,
    timeout: float = 600.0,
    max_retries: int = 4,
    endpoints: str | Path | None = None,
    trust_remote_code: bool = False,
) -> Client:
    """The client for `-m MODEL`.

    "scripted:NAME" is a player the environment ships; a name in endpoints.toml is what that file says; an existing folder
    (or anything that looks like a path) is loaded into the embedded engine; anything else is a model's name at `base_url`,
    and so is everything but a player where a `base_url` is given.

    Args:
        api_key_var: environment variable with the key; one that is not the default wins over that of endpoints.toml.
        endpoints: see `find_endpoint`.
        trust_remote_code: see `rove.models.load.load_model`.

    Raises:
        ConfigError: no such player or folder, or the file of endpoints cannot be used.
        MissingKeyError: OpenAI's own endpoint without a key, or another variable was named and is not set.
    """
    if model.startswith(SCRIPTED):
        name = model.removeprefix(SCRIPTED)
        if name not in env.policies:
            raise ConfigError(
                f"environment '{env.env_id}' has no scripted policy '{name}'; {nearest(name, env.policies)}. An environment has "
                "those of policies={'name': fn(messages, state, rng)}, a group those that all its members have"
            )
        return ScriptedClient(env.policies[name], name)
    endpoint = find_endpoint(model, endpoints) if base_url is None else None
    if endpoint is not None:
        key = _key(api_key_var) if api_key_var != API_KEY_VAR else None
        return endpoint.client(key, max_concurrent, timeout, max_retries)
    if base_url is None and is_folder(model):
        return embedded(model, trust_remote_code)
    from rove.clients.openai import OpenAIClient

    try:
        return OpenAIClient(
            base_url=base_url,
            api_key=_key(api_key_var),
            max_concurrent=max_concurrent,
            timeout=timeout,
            max_retries=max_retries,
        )
    except MissingKeyError as error:
        players = ", ".join(SCRIPTED + name for name in sorted(env.policies))
        hint = f". '{model}' is neither a folder here nor a scripted policy" + (f" ({players})" if players else "")
        if base_url is None and (names := _endpoint_names(endpoints)):
            hint += f", nor in endpoints.toml: {nearest(model, names)}"
        raise MissingKeyError(str(error) + hint) from error


def find_endpoint(model: str, endpoints: str | Path | None = None) -> Endpoint | None:
    """What endpoints.toml says of a name; None when it has no such name, or there is no such file.

    Args:
        endpoints: the file; default: ./endpoints.toml, else ./configs/endpoints.toml.

    Raises:
        ConfigError: the file does not exist or is not as it should be.
    """
    if endpoints is None and model.startswith((SCRIPTED, ".", "/", "~")):
        return None  # whatever the file is like, it is not asked for
    from rove.clients.endpoints import known_endpoints

    return known_endpoints(endpoints).get(model)


def _endpoint_names(endpoints: str | Path | None) -> list[str]:
    from rove.clients.endpoints import known_endpoints

    return sorted(known_endpoints(endpoints))


def is_folder(model: str) -> bool:
    """Whether `model` names a folder, or was plainly meant to."""
    return Path(model).is_dir() or model.startswith((".", "/", "~", "runs/", "models/"))


def embedded(model: str, trust_remote_code: bool = False) -> Client:
    """A model folder in the embedded engine; `trust_remote_code` as for `rove.models.load.load_model`.

    Raises:
        ConfigError: there is no such folder, or no torch.
    """
    path = Path(model).expanduser()
    if not path.is_dir():
        raise ConfigError(f"model folder {path} does not exist")
    with needs_train_extra():
        from rove.engine.client import EngineClient
        from rove.models.load import load_for_sampling
    return EngineClient.from_model(load_for_sampling(path, trust_remote_code))


def _key(variable: str) -> str | None:
    key = os.environ.get(variable)
    if not key and variable != API_KEY_VAR:  # that key must not go where another one was meant for
        raise MissingKeyError(f"environment variable {variable} is not set, which was to hold the API key")
    return key or None


class needs_train_extra:
    """Context in which a missing heavy package becomes advice."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ModuleNotFoundError):
            raise missing_train_package(error.name or "torch") from error
