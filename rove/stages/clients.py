"""The client for `-m MODEL`: a scripted policy, a named endpoint, a model folder, or a model behind an endpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rove.clients.scripted import ScriptedClient
from rove.core.errors import ConfigError, MissingKeyError, as_json, nearest, needs_train_extra, sentence
from rove.core.protocols import Client
from rove.envs.environment import Environment
from rove.models.pretrained import CATALOG, model_path
from rove.stages.reporter import Reporter

if TYPE_CHECKING:
    from rove.clients.endpoints_file import Endpoint
    from rove.engine.client import EngineClient
    from rove.engine.engine import Engine

SCRIPTED = "scripted:"
API_KEY_VAR = "OPENAI_API_KEY"


def make_client(
    model: str | Path,
    env: Environment | None = None,
    base_url: str | None = None,
    api_key_var: str = API_KEY_VAR,
    max_concurrent: int | None = None,
    timeout: float = 600.0,
    max_retries: int = 4,
    endpoints: str | Path | None = None,
    trust_remote_code: bool = False,
    device: str = "auto",
    reporter: Reporter | None = None,
    chat_template: str | None = None,
    template_args: Mapping[str, object] | None = None,
) -> Client:
    """Return the client for a model by its name, as for `-m MODEL` in commands.

    Example:
        >>> client = rove.make_client("runs/sft/final")
        >>> teacher = rove.make_client("scripted:teacher", env)

    "scripted:NAME" is a scripted policy of the environment; a name in endpoints.toml stands for its endpoint. A folder,
    anything that looks like a path, and a name in `rove model list` run in the embedded engine. Any other name is a model's
    name at `base_url`. If `base_url` is given, every name except a scripted policy is a model's name there.

    Args:
        model: The model's name.
        env: The environment whose scripted policies `model` may name; None allows no scripted policy.
        api_key_var: Environment variable with the API key; a name other than the default overrides the variable in
            endpoints.toml.
        endpoints: See `find_endpoint`.
        trust_remote_code, device, chat_template, template_args: See `rove.models.load.load_model`.
        reporter: Shows the device of a model folder.

    Raises:
        ConfigError: The scripted policy or folder does not exist, the file of endpoints is invalid, a device or settings of a
            chat template are given for a model that this machine does not compute, or the folder's chat template lacks what the
            environment needs.
        MissingKeyError: OpenAI's endpoint has no key, or the named variable is not set.
    """
    model = str(model)
    if model.startswith(SCRIPTED):
        refuse_device(device, f"{model} is a scripted policy")
        refuse_template(chat_template, template_args, f"{model} is a scripted policy")
        return _scripted(model, env)
    endpoint = find_endpoint(model, endpoints) if base_url is None else None
    if base_url is None and endpoint is None and is_folder(model):
        client = embedded(model, trust_remote_code, device, reporter, chat_template, template_args)
        if env is not None:
            client.renderer.check_environment(env)  # otherwise, every rollout would fail
        return client
    # A device that is silently ignored would let users believe that their GPU computes.
    refuse_device(device, f"{model} runs at an endpoint")
    refuse_template(chat_template, template_args, f"{model} runs at an endpoint")
    if endpoint is not None:
        key = _key(api_key_var) if api_key_var != API_KEY_VAR else None
        return endpoint.client(key, max_concurrent, timeout, max_retries)
    from rove.clients.endpoints_file import known_endpoints
    from rove.clients.openai import OpenAIClient

    try:
        client = OpenAIClient(
            base_url=base_url,
            api_key=_key(api_key_var),
            max_concurrent=max_concurrent,
            timeout=timeout,
            max_retries=max_retries,
        )
        client.api_key_var = api_key_var  # errors name it
        return client
    except MissingKeyError as error:
        # A misspelled folder or policy is taken for a model's name at OpenAI, which needs a key.
        scripted = ", ".join(SCRIPTED + name for name in sorted(env.policies if env else ()))
        hint = f". '{model}' is neither a folder nor a scripted policy" + (f" ({scripted})" if scripted else "")
        endpoint_names = sorted(known_endpoints(endpoints)) if base_url is None else []
        if endpoint_names:
            hint += f", nor in endpoints.toml: {nearest(model, endpoint_names)}"
        raise MissingKeyError(str(error) + hint) from error


def refuse_device(device: str, reason: str) -> None:
    """Refuse a device for a model that this machine does not compute.

    Raises:
        ConfigError: `device` is not "auto".
    """
    if device != "auto":
        raise ConfigError(f"device is '{device}', but {reason}, so no device is used: leave it out")


def refuse_template(chat_template: str | None, template_args: Mapping[str, object] | None, reason: str) -> None:
    """Refuse settings of a chat template for a model that this machine does not compute.

    Raises:
        ConfigError: `chat_template` or `template_args` is set.
    """
    if chat_template is not None:
        raise ConfigError(f"chat_template is '{chat_template}', but {reason}, so it is not used: leave it out")
    if template_args:
        raise ConfigError(
            f"template_args is {as_json(template_args)}, but {reason}. Leave it out; servers such as vLLM's and rove's accept "
            'these variables in each request: sampling_args={"extra_body": {"chat_template_kwargs": {…}}}'
        )


def _scripted(model: str, env: Environment | None) -> Client:
    """Return the client for "scripted:NAME"."""
    name = model.removeprefix(SCRIPTED)
    if env is None:
        raise ConfigError(
            f"'{model}' is a scripted policy of an environment; expected a model: a folder, an endpoint or a name"
        )
    if not env.policies:
        raise ConfigError(
            f"environment '{env.env_id}' has no scripted policies; pass a model instead: -m MODEL. If you can change the "
            "environment, define policies={'name': fn(messages, state, rng)}; if not, as for a package for verifiers v0, "
            "generate rollouts with rove.generate and a rove.ScriptedClient: docs/guides/migrate_from_verifiers_v0.md"
        )
    if name not in env.policies:
        raise ConfigError(
            f"environment '{env.env_id}' has no scripted policy '{name}'; {sentence(nearest(name, env.policies))} Environments "
            "define them as policies={'name': fn(messages, state, rng)}; a group has those that all its members define"
        )
    return ScriptedClient(env.policies[name], name)


def find_endpoint(model: str, endpoints: str | Path | None = None) -> Endpoint | None:
    """Return an endpoint of endpoints.toml; None if the name or the file does not exist.

    Args:
        endpoints: the file; default: ./endpoints.toml, else ./configs/endpoints.toml.

    Raises:
        ConfigError: The file does not exist or is not valid.
    """
    if endpoints is None and model.startswith((SCRIPTED, ".", "/", "~")):
        return None  # the default file is optional
    from rove.clients.endpoints_file import known_endpoints

    return known_endpoints(endpoints).get(model)


def is_folder(model: str) -> bool:
    """Return whether `model` is a folder, looks like a path, or is a name in `rove model list`."""
    return model in CATALOG or Path(model).is_dir() or model.startswith((".", "/", "~", "runs/", "models/"))


def embedded(
    model: str,
    trust_remote_code: bool = False,
    device: str = "auto",
    reporter: Reporter | None = None,
    chat_template: str | None = None,
    template_args: Mapping[str, object] | None = None,
    max_batch: int = 256,
) -> EngineClient[Engine]:
    """Return a client that runs a model folder in the embedded engine; see `make_client` for the settings, and `Engine` for
    `max_batch`.

    Raises:
        ConfigError: The folder does not exist, a setting does not fit it, the device is not available, or torch is not
            installed.
    """
    path = Path(model_path(model)).expanduser()
    if not path.is_dir():
        raise ConfigError(f"model folder {path} does not exist")
    if reporter is not None:
        show_device(device, reporter)  # first: loading the engine's libraries takes seconds
    with needs_train_extra():
        from rove.engine.client import EngineClient
        from rove.models.load import load_for_sampling
    loaded = load_for_sampling(path, trust_remote_code, device, chat_template, template_args)
    return EngineClient.from_model(loaded, max_batch)


def show_device(device: str, reporter: Reporter) -> None:
    """Show the device that a setting `device` selects."""
    with needs_train_extra():
        from rove.models.device import choose_device, describe_device
    reporter.note(f"device: {describe_device(choose_device(device))}")


def _key(variable: str) -> str | None:
    key = os.environ.get(variable)
    if not key and variable != API_KEY_VAR:  # never send the default key to another provider
        raise MissingKeyError(f"environment variable {variable} is not set; it should hold the API key")
    return key or None
