"""`rove serve`: a model as an OpenAI-compatible endpoint, or an environment as an OpenEnv server."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from rove.cli.common import console_for, counted, hint
from rove.cli.environments import hub_option
from rove.cli.options import SETTINGS, device_option, endpoints_option, examples, setting_range, settings, trust_option
from rove.core.checks import Settings
from rove.core.digest import check_base
from rove.core.errors import ConfigError, MissingKeyError, needs_train_extra
from rove.core.messages import text_of
from rove.core.protocols import Client, Request, Response
from rove.core.ranges import Device, NonNegativeInt, Port, PositiveInt, SecondsOrZero
from rove.core.state import State
from rove.envs.environment import Environment
from rove.envs.loading import load_environment
from rove.models.pretrained import model_path
from rove.stages.clients import SCRIPTED, find_endpoint, is_folder, make_client, refuse_device, show_device
from rove.stages.reporter import ConsoleReporter

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}
ROWS = 10_000
"""Rows of each dataset that a scripted policy can answer."""


class ServeConfig(Settings, frozen=True, kw_only=True):
    """Settings of `rove serve`."""

    model: str
    """A model folder, a name in endpoints.toml, or scripted:NAME."""
    trust_remote_code: bool = False
    """Run Python files that the model folder contains."""
    device: Device = "auto"
    """Device that the model computes on: "auto" (CUDA if available, else the CPU), "cpu", "cuda", "cuda:N", or "mps"."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Port = 8000
    """Port to listen on; 0 picks a free one."""
    api_key_var: str | None = None
    """Environment variable with the API key that requests must send; None = no key."""
    name: str | None = None
    """Name of the model in requests; by default MODEL, without "scripted:"."""
    max_batch: PositiveInt = 256
    """Maximum concurrent responses; further requests wait."""
    drain_seconds: SecondsOrZero = 30.0
    """Seconds in which running requests may finish after SIGTERM or Ctrl-C."""
    adapters: dict[str, str] = {}
    """LoRA adapters of a model folder: name in requests → folder in PEFT's format."""
    endpoints: str | None = None
    """File of named endpoints; by default endpoints.toml, configs/endpoints.toml."""
    env: str | None = None
    """Environment that has the scripted policy."""
    env_args: dict[str, Any] = {}
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
    """A state that records the first missing key that was read."""

    missing: str | None = None

    def __missing__(self, key: str) -> Any:
        try:
            return super().__missing__(key)
        except KeyError:
            self.missing = key
            raise


class ScriptedServerClient:
    """A scripted policy behind a server: finds the dataset row of a conversation by its prompt, and puts it into the state."""

    def __init__(self, client: Client, env: Environment):
        self.client = client
        self.env_id = env.env_id
        self.max_concurrent = client.max_concurrent
        prompts = ((row, _words(row["prompt"])) for row in (*env.examples(ROWS), *env.examples(ROWS, train=True)))
        self._rows = {words: row for row, words in prompts}
        self._lengths = sorted({len(words) for words in self._rows}, reverse=True)

    async def respond(self, request: Request) -> Response:
        """Respond with the scripted policy, given the dataset row whose prompt starts the conversation."""
        words = _words(request.messages if request.text is None else request.text)
        found = (self._rows.get(words[:length]) for length in self._lengths)
        row = next((row for row in found if row is not None), None)
        state = _RecordingState() if row is None else _RecordingState(input=row)
        try:
            return await self.client.respond(msgspec.structs.replace(request, state=state))
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
    def example(self) -> dict[str, Any]:
        """Return a request prompt that the policy can answer."""
        prompt = next((row["prompt"] for row in self._rows.values()), None)
        return HELLO if prompt is None else {"prompt" if isinstance(prompt, str) else "messages": prompt}

    async def close(self) -> None:
        """Close the scripted client."""
        await self.client.close()


def _words(prompt: str | Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    if isinstance(prompt, str):
        return (("text", prompt),)
    return tuple((message["role"], text_of(message)) for message in prompt)


def served_client(config: ServeConfig, console: Console | None = None) -> Client:
    """Return the client that answers requests."""
    if config.model.startswith(SCRIPTED):
        refuse_device(config.device, f"{config.model} is a scripted policy")
        if config.env is None:
            raise ConfigError(f"{config.model} belongs to an environment; name it with --env")
        env = load_environment(config.env, config.env_dir, **config.env_args)
        return ScriptedServerClient(make_client(config.model, env), env)
    endpoint = find_endpoint(config.model, config.endpoints)
    if endpoint is not None:
        refuse_device(config.device, f"{config.model} runs at an endpoint")
        return endpoint.client(max_concurrent=config.max_batch)
    folder = Path(model_path(config.model)).expanduser()
    if not folder.is_dir():
        other = "" if is_folder(config.model) else ", nor a name in endpoints.toml, nor scripted:NAME with --env ENV"
        raise ConfigError(f"'{config.model}' is not a model folder{other}")
    with needs_train_extra():
        from rove.engine.client import EngineClient
        from rove.engine.lora import read_folder
        from rove.models.load import load_for_sampling
    if console is not None:
        show_device(config.device, ConsoleReporter(console))
    adapters = {name: read_folder(path) for name, path in config.adapters.items()}  # check before loading the model
    for path in config.adapters.values():
        check_base(path, folder)
    client = EngineClient.from_model(
        load_for_sampling(folder, config.trust_remote_code, config.device), config.max_batch
    )
    for name, adapter in adapters.items():
        client.engine.load_adapter(name, adapter)
    return client


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


def print_start(config: ServeConfig, url: str, console: Console, prompt: Mapping[str, Any] = HELLO) -> None:
    """Print the server's address and example requests with that `prompt`."""
    name = config.served_name
    names = ", ".join([name, *config.adapters])
    console.print(f"serving {names} at {url} (Ctrl-C stops it)", markup=False, soft_wrap=True)
    body = shlex.quote(json.dumps({"model": name, **prompt}, ensure_ascii=False))
    api = "completions" if "prompt" in prompt else "chat/completions"
    key = f' -H "Authorization: Bearer ${config.api_key_var}"' if config.api_key_var else ""
    evaluate = f"rove eval {config.env or 'reverse_text'} -m {name} -b {url}"
    hint(
        console,
        f"try it: curl {url}/{api} -H 'Content-Type: application/json'{key} -d {body}",
        f"evaluate it: {evaluate}" + (f" -k {config.api_key_var}" if config.api_key_var else ""),
        f"see metrics: curl {url.removesuffix('/v1')}/metrics{key}",
    )


def run_serve(config: ServeConfig, console: Console) -> int:
    """Serve until stopped; return the number of requests that were cut off."""
    from rove.server import is_loopback, make_app, serve

    key = api_key_of(config)
    console.print(f"loading {config.model} …", markup=False, soft_wrap=True)
    client = served_client(config, console)
    if config.adapters and not hasattr(client, "engine"):
        raise ConfigError("only a model folder can have adapters; omit --adapter, or serve the folder itself")
    app = make_app(client, [config.served_name, *config.adapters], api_key=key)
    if key is None and not is_loopback(config.host):
        warning = f"warning: anyone who can reach {config.host} can use this model; require a key with --api-key-var"
        console.print(warning, style="yellow", soft_wrap=True)

    async def run_server() -> int:
        try:
            return await serve(
                app,
                config.host,
                config.port,
                config.drain_seconds,
                lambda url: print_start(config, url, console, getattr(client, "example", HELLO)),
                lambda count: console.print(
                    f"waiting for {counted(count, 'response')}; press Ctrl-C again to cut {'it' if count == 1 else 'them'} off"
                ),
            )
        finally:
            await client.close()

    cut_off = asyncio.run(run_server())
    end = f"{counted(cut_off, 'request')} cut off" if cut_off else "all requests were answered"
    console.print(f"stopped; {end}")
    return cut_off


def _read_adapters(_: click.Context, __: click.Parameter, given: Sequence[str]) -> dict[str, str] | None:
    """Return NAME=FOLDER … as a dict; None without any."""
    pairs = [one.partition("=") for one in given]
    adapters: dict[str, str] = {}
    for name, equals, folder in pairs:
        if not (name and equals and folder):
            raise ConfigError(f"--adapter is '{name}{equals}{folder}'; expected NAME=FOLDER")
        if name in adapters:
            raise ConfigError(
                f"two adapters are called '{name}': {adapters[name]} and {folder}; give them different names"
            )
        adapters[name] = folder
    return adapters or None


@click.command(
    epilog=examples(
        "rove serve -m models/tiny --port 8000",
        "rove serve -m models/base --adapter mine=runs/sft/final",
        "rove serve -m scripted:teacher --env tictactoe",
        "rove serve --openenv tictactoe",
    ),
    context_settings=SETTINGS,
    options_metavar="-m MODEL [OPTIONS] [@ FILE] [--KEY VALUE]...",
)
@click.option("-m", "--model", help="A model folder, a name in endpoints.toml, or scripted:NAME.")
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1, this machine only]")
@click.option(
    "--port", type=setting_range(ServeConfig, "port"), help="Port to listen on; 0 picks a free one.  [default: 8000]"
)
@click.option(
    "-k", "--api-key-var", help="Environment variable with the API key that requests must send.  [default: no key]"
)
@click.option("--name", help="Name of the model in requests.  [default: MODEL]")
@click.option(
    "--adapter",
    "adapters",
    multiple=True,
    metavar="NAME=FOLDER",
    callback=_read_adapters,
    help="LoRA adapter and its name in requests; repeatable.",
)
@trust_option
@device_option
@click.option(
    "--max-batch", type=setting_range(ServeConfig, "max_batch"), help="Maximum concurrent responses.  [default: 256]"
)
@click.option(
    "--drain-seconds",
    type=setting_range(ServeConfig, "drain_seconds"),
    help="Seconds for running requests to finish on exit.  [default: 30]",
)
@endpoints_option
@click.option("--env", help="Environment that has the policy scripted:NAME.")
@click.option("--openenv", metavar="ENV", help="Serve this environment with the OpenEnv protocol instead of a model.")
@hub_option
@click.pass_context
def command(ctx: click.Context, openenv: str | None, model: str | None, **named: Any) -> None:
    """Serve MODEL as an OpenAI-compatible endpoint: a model folder, a name in endpoints.toml, or scripted:NAME with --env.

    Routes: chat completions, completions, models, /health and /metrics; for a model folder also /tokenize, /detokenize and
    /generate (token ids in and out). Ctrl-C lets running requests finish; a second Ctrl-C cuts them off (exit status 1). With
    --openenv, an environment is served, and the connecting client acts as the model.
    """
    if openenv is not None:
        if model is not None:
            raise ConfigError(f"--openenv serves an environment, but -m {model} is a model; give one of them")
        run_open_env(settings(OpenEnvConfig, ctx, openenv=openenv, **named), console_for(json=False))
        return
    config = settings(ServeConfig, ctx, bare="model", model=model, **named)  # `rove serve MODEL` still works
    if run_serve(config, console_for(json=False)):
        ctx.exit(1)


class OpenEnvConfig(Settings, frozen=True, kw_only=True):
    """Settings of `rove serve --openenv`."""

    openenv: str
    """The environment."""
    env_args: dict[str, Any] = {}
    """Arguments of the environment."""
    env_dir: str | None = None
    """Folder in which the environment is looked up first."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Port = 8000
    """Port to listen on; 0 picks a free one."""
    max_sessions: PositiveInt = 1024
    """Maximum concurrent sessions; others are refused."""
    seed: NonNegativeInt = 0
    """Random seed of episodes whose reset gives none."""


def run_open_env(config: OpenEnvConfig, console: Console) -> None:
    """Serve until stopped."""
    from rove.integrations.open_env_server import OpenEnvServer
    from rove.server import base_url_of, is_loopback, listening

    env = load_environment(config.openenv, config.env_dir, **config.env_args)
    server = OpenEnvServer(env, env.env_id, config.max_sessions, config.seed)
    if not is_loopback(config.host):
        console.print(f"warning: anyone who can reach {config.host} can connect", style="yellow", soft_wrap=True)

    async def run_server() -> None:
        stop = asyncio.Event()
        async with listening(server.app(), config.host, config.port) as runner:
            for number in (signal.SIGTERM, signal.SIGINT):
                with suppress(NotImplementedError):
                    asyncio.get_running_loop().add_signal_handler(number, stop.set)
            url = base_url_of(runner).removesuffix("/v1")
            console.print(f"serving {env.env_id} at {url} with the OpenEnv protocol (Ctrl-C stops it)", soft_wrap=True)
            hint(
                console,
                f"see its schema: curl {url}/schema",
                f'connect with the openenv package: GenericEnvClient(base_url="{url}")',
            )
            await stop.wait()

    asyncio.run(run_server())
    console.print("stopped")
