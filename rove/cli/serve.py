"""`rove serve`: a model as an OpenAI-compatible endpoint, or an environment as an OpenEnv server."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console

from rove.cli.common import console_for, hint
from rove.cli.environments import hub_option
from rove.cli.options import (
    SETTINGS,
    device_option,
    endpoints_option,
    examples,
    setting_range,
    settings,
    template_options,
    trust_option,
)
from rove.core.errors import ConfigError
from rove.core.plain import JsonMapping
from rove.envs.loading import load_environment
from rove.stages.reporter import ConsoleReporter
from rove.stages.serving import HELLO, OpenEnvConfig, ServeConfig, api_key_of, example_of, served_client
from rove.utils.systems import on_signals
from rove.utils.units import counted


def print_start(config: ServeConfig, url: str, console: Console, prompt: JsonMapping = HELLO) -> None:
    """Print the server's address and example requests with that `prompt`."""
    name = config.served_name
    names = ", ".join([name, *config.adapters])
    console.print(f"serving {names} at {url} (Ctrl-C stops it)", soft_wrap=True)
    body = shlex.quote(json.dumps({"model": name, **prompt}, ensure_ascii=False))
    api = "completions" if "prompt" in prompt else "chat/completions"
    key = f' -H "Authorization: Bearer ${config.api_key_var}"' if config.api_key_var else ""
    evaluate = f"rove eval {config.env or 'ENV'} -m {name} -b {url}"
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
    console.print(f"loading {config.model} …", soft_wrap=True)
    client = served_client(config, ConsoleReporter(console))
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
                lambda url: print_start(config, url, console, example_of(client)),
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


def _read_adapters(_: click.Context, __: click.Parameter, values: Sequence[str]) -> dict[str, str] | None:
    """Return values NAME=FOLDER as a dict; None without values."""
    adapters: dict[str, str] = {}
    for text in values:
        name, equals, folder = text.partition("=")
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
@click.option("-m", "--model", help="Model to serve: a folder, a name in endpoints.toml, or scripted:NAME.")
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1, this machine only]")
@click.option(
    "--port", type=setting_range(ServeConfig, "port"), help="Port to listen on; 0 picks a free one.  [default: 8000]"
)
@click.option(
    "-k", "--api-key-var", help="Environment variable with the API key that requests must send.  [default: no key]"
)
@click.option("--name", help="Name of the model in requests.  [default: MODEL, without scripted:]")
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
@template_options
@click.option(
    "--max-batch", type=setting_range(ServeConfig, "max_batch"), help="Maximum concurrent responses.  [default: 256]"
)
@click.option(
    "--drain-seconds",
    type=setting_range(ServeConfig, "drain_seconds"),
    help="Seconds to wait on exit for running requests to finish.  [default: 30]",
)
@endpoints_option
@click.option("--env", help="Environment that has the policy scripted:NAME.")
@click.option("--openenv", metavar="ENV", help="Instead of a model, serve this environment with the OpenEnv protocol.")
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
            on_signals(stop.set, signal.SIGTERM, signal.SIGINT)
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
