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

from rove.cli.clients import SCRIPTED, find_endpoint, is_folder, make_client, needs_train_extra
from rove.cli.common import console_for, counted, hint
from rove.cli.environments import hub_option
from rove.cli.options import SETTINGS, settings, trust_option
from rove.core.config import check_positive
from rove.core.digest import check_base
from rove.core.errors import ConfigError, MissingKeyError
from rove.core.messages import text_of
from rove.core.protocols import Client, Request, Response
from rove.core.state import State
from rove.envs.environment import Environment
from rove.envs.loading import load_environment

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}
ROWS = 10_000
"""Rows of each dataset that a scripted policy is told of."""


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a server."""

    model: str
    """A model folder, a name in endpoints.toml, or scripted:NAME."""
    trust_remote_code: bool = False
    """Run the Python files that come with a model folder, where it needs any."""
    host: str = "127.0.0.1"
    port: int = 8000
    """0 = any that is free."""
    api_key_var: str | None = None
    """Environment variable with the key that requests must bring; None = they need none."""
    name: str | None = None
    """What requests call the model; default: MODEL as it was given, a player without "scripted:"."""
    max_batch: int = 256
    """Most answers under way at once; the others wait."""
    drain_seconds: float = 30.0
    """Time for what runs to end after SIGTERM or Ctrl-C."""
    adapters: dict[str, str] = {}
    """LoRA adapters of a model folder: what requests call each → its folder, as PEFT has written it."""
    endpoints: str | None = None
    """File of endpoint names; default: endpoints.toml, configs/endpoints.toml."""
    env: str | None = None
    """Environment that ships the scripted policy."""
    env_args: dict[str, Any] = {}
    env_dir: str | None = None

    def __post_init__(self) -> None:
        check_positive(self, "max_batch")
        if not 0 <= self.port < 1 << 16:
            raise ConfigError(f"port is {self.port}; expected 0 (any) to 65535")
        if self.drain_seconds < 0:
            raise ConfigError(f"drain_seconds is {self.drain_seconds}; expected 0 or more")
        if self.served_name in self.adapters:
            raise ConfigError(
                f"an adapter and the model are both called '{self.served_name}'; expected names of their own"
            )

    @property
    def served_name(self) -> str:
        """What requests call the model."""
        return self.name or self.model.removeprefix(SCRIPTED)


class _Known(State):
    """A state that remembers what was looked for in vain."""

    sought: str | None = None

    def __missing__(self, key: str) -> Any:
        try:
            return super().__missing__(key)
        except KeyError:
            self.sought = key
            raise


class Informed:
    """A scripted policy that finds the dataset row of a conversation in its state; nothing else of one comes over the wire."""

    def __init__(self, client: Client, env: Environment):
        self.client = client
        self.env_id = env.env_id
        self.max_concurrent = client.max_concurrent
        prompts = ((row, _words(row["prompt"])) for row in (*env.examples(ROWS), *env.examples(ROWS, train=True)))
        self._rows = {words: row for row, words in prompts}
        self._lengths = sorted({len(words) for words in self._rows}, reverse=True)

    async def respond(self, request: Request) -> Response:
        """Ask the player, who is told the row whose prompt the conversation begins with.

        Raises:
            ConfigError: the player looks for what is not in its state.
        """
        words = _words(request.messages if request.text is None else request.text)
        found = (self._rows.get(words[:length]) for length in self._lengths)
        row = next((row for row in found if row is not None), None)
        state = _Known() if row is None else _Known(input=row)
        try:
            return await self.client.respond(msgspec.structs.replace(request, state=state))
        except KeyError as error:
            if state.sought is None:
                raise
            if row is None:
                raise ConfigError(
                    f"this player answers only conversations that begin with one of the prompts of '{self.env_id}': it needs "
                    f"'{state.sought}', which is found by the prompt"
                ) from error
            raise ConfigError(
                f"this player needs '{state.sought}', which only a rollout of '{self.env_id}' has and no request brings; "
                f"let it play without a server: rove eval {self.env_id} -m scripted:NAME"
            ) from error

    @property
    def example(self) -> dict[str, Any]:
        """A request's prompt that it can answer."""
        prompt = next((row["prompt"] for row in self._rows.values()), None)
        return HELLO if prompt is None else {"prompt" if isinstance(prompt, str) else "messages": prompt}

    async def close(self) -> None:
        """Close the player."""
        await self.client.close()


def _words(prompt: str | Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    if isinstance(prompt, str):
        return (("text", prompt),)
    return tuple((message["role"], text_of(message)) for message in prompt)


def served_client(config: ServeConfig) -> Client:
    """Who answers.

    Raises:
        ConfigError: there is no such folder, endpoint, player or adapter, an adapter does not fit, or only a model folder
            could have any.
    """
    if config.model.startswith(SCRIPTED):
        if config.env is None:
            raise ConfigError(f"{config.model} is a player of an environment; give that with --env")
        env = load_environment(config.env, config.env_dir, **config.env_args)
        return Informed(make_client(config.model, env), env)
    endpoint = find_endpoint(config.model, config.endpoints)
    if endpoint is not None:
        return endpoint.client(max_concurrent=config.max_batch)
    folder = Path(config.model).expanduser()
    if not folder.is_dir():
        other = "" if is_folder(config.model) else ", nor a name in endpoints.toml, nor scripted:NAME with --env ENV"
        raise ConfigError(f"'{config.model}' is no model folder here{other}")
    with needs_train_extra():
        from rove.engine.client import EngineClient
        from rove.engine.lora import read_folder
        from rove.models.load import load_for_sampling
    adapters = {name: read_folder(path) for name, path in config.adapters.items()}  # first: the model may take minutes
    for path in config.adapters.values():
        check_base(path, folder)
    client = EngineClient.from_model(load_for_sampling(folder, config.trust_remote_code), config.max_batch)
    for name, adapter in adapters.items():
        client.engine.load_adapter(name, adapter)
    return client


def api_key_of(config: ServeConfig) -> str | None:
    """The key that requests must bring.

    Raises:
        MissingKeyError: the variable that was to hold it is not set.
    """
    if config.api_key_var is None:
        return None
    key = os.environ.get(config.api_key_var, "").strip()
    if not key:
        raise MissingKeyError(
            f"environment variable {config.api_key_var} is not set, which was to hold the key that requests must bring"
        )
    return key


def print_start(config: ServeConfig, url: str, console: Console, prompt: Mapping[str, Any] = HELLO) -> None:
    """Where it is, and what to try, with that `prompt`."""
    name = config.served_name
    names = ", ".join([name, *config.adapters])
    console.print(f"serving {names} at {url} (Ctrl-C stops it)", markup=False, soft_wrap=True)
    body = shlex.quote(json.dumps({"model": name, **prompt}, ensure_ascii=False))
    api = "completions" if "prompt" in prompt else "chat/completions"
    key = f' -H "Authorization: Bearer ${config.api_key_var}"' if config.api_key_var else ""
    evaluate = f"rove eval {config.env or 'reverse_text'} -m {name} -b {url}"
    hint(
        console,
        f"curl {url}/{api} -H 'Content-Type: application/json'{key} -d {body}",
        evaluate + (f" -k {config.api_key_var}" if config.api_key_var else ""),
        f"curl {url.removesuffix('/v1')}/metrics{key}",
    )


def run_serve(config: ServeConfig, console: Console) -> int:
    """Serve until told to stop; returns how many requests were cut off then."""
    from rove.server import is_loopback, make_app, serve

    key = api_key_of(config)
    console.print(f"loading {config.model} …", markup=False, soft_wrap=True)
    client = served_client(config)
    if config.adapters and not hasattr(client, "engine"):
        raise ConfigError("only a model folder has adapters; leave --adapter out, or serve the folder itself")
    app = make_app(client, [config.served_name, *config.adapters], api_key=key)
    if key is None and not is_loopback(config.host):
        warning = f"warning: anybody who can reach {config.host} can use this model; ask for a key with --api-key-var"
        console.print(warning, style="yellow", soft_wrap=True)

    async def go() -> int:
        try:
            return await serve(
                app,
                config.host,
                config.port,
                config.drain_seconds,
                lambda url: print_start(config, url, console, getattr(client, "example", HELLO)),
                lambda count: console.print(
                    f"waiting for {counted(count, 'answer')}; Ctrl-C again cuts {'it' if count == 1 else 'them'} off"
                ),
            )
        finally:
            await client.close()

    cut_off = asyncio.run(go())
    end = f"{counted(cut_off, 'request')} cut off" if cut_off else "every request was answered"
    console.print(f"stopped; {end}")
    return cut_off


def _read_adapters(_: click.Context, __: click.Parameter, given: Sequence[str]) -> dict[str, str] | None:
    """NAME=FOLDER … as a table; None where none is given."""
    pairs = [one.partition("=") for one in given]
    adapters: dict[str, str] = {}
    for name, equals, folder in pairs:
        if not (name and equals and folder):
            raise ConfigError(f"--adapter is '{name}{equals}{folder}'; expected NAME=FOLDER")
        if name in adapters:
            raise ConfigError(
                f"two adapters are called '{name}': {adapters[name]} and {folder}; expected names of their own"
            )
        adapters[name] = folder
    return adapters or None


@click.command(context_settings=SETTINGS, options_metavar="MODEL [OPTIONS] [@ FILE] [--KEY VALUE]...")
@click.option("--host", help="Where to listen.  [default: 127.0.0.1, this machine alone]")
@click.option("--port", type=int, help="0 = any that is free.  [default: 8000]")
@click.option(
    "-k", "--api-key-var", help="Environment variable with the key that requests must bring.  [default: none]"
)
@click.option("--name", help="What requests call the model.  [default: MODEL]")
@click.option(
    "--adapter",
    "adapters",
    multiple=True,
    metavar="NAME=FOLDER",
    callback=_read_adapters,
    help="A LoRA adapter, and what requests call it; may be given again.",
)
@trust_option
@click.option("--max-batch", type=int, help="Most answers under way at once.  [default: 256]")
@click.option("--drain-seconds", type=float, help="Time for what runs to end after SIGTERM or Ctrl-C.  [default: 30]")
@click.option("-e", "--endpoints", help="File of endpoint names.  [default: endpoints.toml, configs/endpoints.toml]")
@click.option("--env", help="Environment that ships the player scripted:NAME.")
@click.option("--openenv", metavar="ENV", help="Serve this environment, not a model, with OpenEnv's protocol.")
@hub_option
@click.pass_context
def command(ctx: click.Context, openenv: str | None, **named: Any) -> None:
    """Serve MODEL with OpenAI's API: a model folder, a name in endpoints.toml, or scripted:NAME with --env.

    Chat completions, completions, models; /tokenize, /detokenize and /generate (token ids in and out) for a model
    folder; /health and /metrics. Ctrl-C lets what runs end, for --drain-seconds; a second one cuts it off (exit status 1).
    With --openenv: an environment, of which whoever connects takes the model's role.
    """
    if openenv is not None:
        run_open_env(settings(OpenEnvConfig, ctx, openenv=openenv, **named), console_for(json=False))
        return
    if run_serve(settings(ServeConfig, ctx, bare="model", **named), console_for(json=False)):
        ctx.exit(1)


class OpenEnvConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of an OpenEnv server."""

    openenv: str
    """The environment."""
    env_args: dict[str, Any] = {}
    env_dir: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    """0 = any that is free."""
    max_sessions: int = 1024
    """Connections at a time; others are refused."""
    seed: int = 0
    """Of episodes whose reset gives none."""

    def __post_init__(self) -> None:
        check_positive(self, "max_sessions")


def run_open_env(config: OpenEnvConfig, console: Console) -> None:
    """Serve until told to stop."""
    from rove.integrations.open_env_server import OpenEnvServer
    from rove.server import base_url_of, is_loopback, listening

    env = load_environment(config.openenv, config.env_dir, **config.env_args)
    server = OpenEnvServer(env, env.env_id, config.max_sessions, config.seed)
    if not is_loopback(config.host):
        console.print(f"warning: anybody who can reach {config.host} can play", style="yellow", soft_wrap=True)

    async def go() -> None:
        stop = asyncio.Event()
        async with listening(server.app(), config.host, config.port) as runner:
            for number in (signal.SIGTERM, signal.SIGINT):
                with suppress(NotImplementedError):
                    asyncio.get_running_loop().add_signal_handler(number, stop.set)
            url = base_url_of(runner).removesuffix("/v1")
            console.print(f"serving {env.env_id} at {url} with OpenEnv's protocol (Ctrl-C stops it)", soft_wrap=True)
            hint(
                console,
                f"curl {url}/schema",
                f'GenericEnvClient(base_url="{url}") of the openenv package connects to it',
            )
            await stop.wait()

    asyncio.run(go())
    console.print("stopped")
