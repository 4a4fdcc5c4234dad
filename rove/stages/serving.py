"""The settings of `rove serve`, and the client with which it answers requests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from rove.core.checks import Settings
from rove.core.digest import check_base
from rove.core.errors import ConfigError, MissingKeyError, needs_train_extra
from rove.core.messages import text_of
from rove.core.plain import Arguments, JsonMapping, JsonObject
from rove.core.protocols import Client, Request, Response
from rove.core.ranges import Device, NonNegativeInt, Port, PositiveInt, SecondsOrZero
from rove.core.state import State
from rove.envs.environment import Environment
from rove.envs.loading import load_environment
from rove.models.pretrained import model_path
from rove.stages.clients import (
    SCRIPTED,
    embedded,
    find_endpoint,
    is_folder,
    make_client,
    refuse_device,
    refuse_template,
)
from rove.stages.reporter import Reporter

HELLO: JsonObject = {"messages": [{"role": "user", "content": "Hello"}]}
ROWS = 10_000
"""Maximum number of rows of each dataset that a scripted policy can answer."""


class ServeConfig(Settings, frozen=True, kw_only=True):
    """Settings of `rove serve`."""

    model: str
    """Model: a folder, a name in endpoints.toml, or scripted:NAME."""
    trust_remote_code: bool = False
    """Run Python files that the model folder contains."""
    device: Device = "auto"
    """Device that the model computes on: "auto" (CUDA if available, else the CPU), "cpu", "cuda", "cuda:N", or "mps"."""
    chat_template: str | None = None
    """Chat template that replaces the model folder's own: "chatml", or the path of a Jinja file."""
    template_args: Arguments = {}
    """Variables of a model folder's chat template in every conversation, such as {"enable_thinking": false}; variables of a
    request take precedence."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Port = 8000
    """Port to listen on; 0 picks a free port."""
    api_key_var: str | None = None
    """Environment variable with the API key that requests must send; None = no key."""
    name: str | None = None
    """Name of the model in requests; by default, MODEL without "scripted:"."""
    max_batch: PositiveInt = 256
    """Maximum number of concurrent responses; further requests wait."""
    drain_seconds: SecondsOrZero = 30.0
    """Maximum seconds to wait for running requests after SIGTERM or Ctrl-C."""
    adapters: dict[str, str] = {}
    """LoRA adapters of a model folder: name in requests → folder in PEFT's format."""
    endpoints: str | None = None
    """File of named endpoints; by default, endpoints.toml, else configs/endpoints.toml."""
    env: str | None = None
    """Environment that has the scripted policy."""
    env_args: Arguments = {}
    """Arguments of the environment."""
    env_dir: str | None = None
    """Folder in which the environment is looked up first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.served_name in self.adapters:
            raise ConfigError(
                f"an adapter and the model are both called '{self.served_name}'; give them different names"
            )

    @property
    def served_name(self) -> str:
        """Name of the model in requests."""
        return self.name or self.model.removeprefix(SCRIPTED)


class _RecordingState(State):
    """A state that records the first key that was read but is missing."""

    missing: str | None = None

    def __missing__(self, key: str) -> Any:
        try:
            return super().__missing__(key)
        except KeyError:
            self.missing = key
            raise


class ScriptedServerClient:
    """A scripted policy behind a server: finds the dataset row of a conversation by its prompt, and puts the row into
    the state.
    """

    def __init__(self, client: Client, env: Environment):
        self.client = client
        self.env_id = env.env_id
        self.max_concurrent = client.max_concurrent
        rows = [*env.examples(ROWS), *env.examples(ROWS, train=True)]
        self._rows = {_contents(row["prompt"]): row for row in rows}
        self._lengths = sorted({len(contents) for contents in self._rows}, reverse=True)

    async def respond(self, request: Request) -> Response:
        """Respond with the scripted policy, given the dataset row whose prompt starts the conversation."""
        contents = _contents(request.messages if request.text is None else request.text)
        # The longest prompt first: a shorter one may be its beginning.
        matches = (self._rows.get(contents[:length]) for length in self._lengths)
        row = next((row for row in matches if row is not None), None)
        state = _RecordingState() if row is None else _RecordingState(input=row)
        try:
            return await self.client.respond(msgspec.structs.replace(request, state=state))
        # A policy may read what only a rollout sets; the client of the server should learn which key.
        except KeyError as error:
            if state.missing is None:
                raise
            if row is None:
                raise ConfigError(
                    f"this scripted policy only answers conversations that start with a prompt of '{self.env_id}': it reads "
                    f"'{state.missing}', which is looked up by the prompt"
                ) from error
            raise ConfigError(
                f"this scripted policy reads '{state.missing}', which only a rollout of '{self.env_id}' has; "
                f"use it without a server: rove eval {self.env_id} -m scripted:NAME"
            ) from error

    @property
    def example(self) -> JsonObject:
        """Return a request prompt that the policy can answer."""
        prompt = next((row["prompt"] for row in self._rows.values()), None)
        if prompt is None:
            return HELLO
        return {"prompt": prompt} if isinstance(prompt, str) else {"messages": prompt}

    async def close(self) -> None:
        """Close the scripted client."""
        await self.client.close()


def _contents(prompt: str | Sequence[JsonMapping]) -> tuple[tuple[str, str], ...]:
    """Return the role and the text of each message, by which conversations are compared."""
    if isinstance(prompt, str):
        return (("text", prompt),)
    return tuple((message["role"], text_of(message)) for message in prompt)


def served_client(config: ServeConfig, reporter: Reporter | None = None) -> Client:
    """Return the client that answers requests."""
    if config.model.startswith(SCRIPTED):
        refuse_device(config.device, f"{config.model} is a scripted policy")
        refuse_template(config.chat_template, config.template_args, f"{config.model} is a scripted policy")
        if config.env is None:
            raise ConfigError(f"{config.model} belongs to an environment; name it with --env")
        env = load_environment(config.env, config.env_dir, **config.env_args)
        return ScriptedServerClient(make_client(config.model, env), env)
    endpoint = find_endpoint(config.model, config.endpoints)
    if endpoint is not None:
        refuse_device(config.device, f"{config.model} runs at an endpoint")
        refuse_template(config.chat_template, config.template_args, f"{config.model} runs at an endpoint")
        return endpoint.client(max_concurrent=config.max_batch)
    folder = Path(model_path(config.model)).expanduser()
    if not folder.is_dir():
        message = f"'{config.model}' is not a model folder"
        if not is_folder(config.model):
            message += ", nor a name in endpoints.toml, nor scripted:NAME with --env ENV"
        raise ConfigError(message)
    with needs_train_extra():
        from rove.engine.lora import read_folder
    adapters = {name: read_folder(path) for name, path in config.adapters.items()}  # check before loading the model
    for path in config.adapters.values():
        check_base(path, folder)
    client = embedded(
        config.model,
        config.trust_remote_code,
        config.device,
        reporter,
        config.chat_template,
        config.template_args,
        config.max_batch,
    )
    for name, adapter in adapters.items():
        client.engine.load_adapter(name, adapter)
    return client


def example_of(client: Client) -> JsonObject:
    """Return the prompt of a request that a client can answer."""
    renderer = getattr(client, "renderer", None)  # only models that are computed here have one
    if renderer is not None and not renderer.template:
        return {"prompt": "Hello"}
    return getattr(client, "example", HELLO)


def api_key_of(config: ServeConfig) -> str | None:
    """Return the API key that requests must send."""
    if config.api_key_var is None:
        return None
    key = os.environ.get(config.api_key_var, "").strip()
    if not key:
        raise MissingKeyError(
            f"environment variable {config.api_key_var} is not set; it should hold the API key of requests"
        )
    return key


class OpenEnvConfig(Settings, frozen=True, kw_only=True):
    """Settings of `rove serve --openenv`."""

    openenv: str
    """The environment."""
    env_args: Arguments = {}
    """Arguments of the environment."""
    env_dir: str | None = None
    """Folder in which the environment is looked up first."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Port = 8000
    """Port to listen on; 0 picks a free port."""
    max_sessions: PositiveInt = 1024
    """Maximum number of concurrent sessions; further sessions are refused."""
    seed: NonNegativeInt = 0
    """Random seed of episodes whose reset does not set a seed."""
