"""`rove doctor`: what is wrong with an endpoint, or with a training run, before it costs anything."""

from __future__ import annotations

import os
import shlex
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rove.cli.clients import API_KEY_VAR, SCRIPTED, embedded, find_endpoint, is_folder, needs_train_extra
from rove.cli.common import RUNS, WIDTH, ReportProgress, console_for, hint, print_json, progress, run_async, short
from rove.cli.options import SETTINGS, json_object, settings, trust_option
from rove.clients.endpoint import EndpointClient
from rove.clients.openai import OpenAIClient
from rove.core.errors import ConfigError, MissingKeyError
from rove.doctor.endpoint import CHECKS, check_endpoint
from rove.doctor.findings import FAIL, OK, SKIP, WARN, Finding, failed
from rove.server import base_url_of, listening, make_app

SIGNS = {OK: ("✓", "green"), WARN: ("!", "yellow"), FAIL: ("✗", "red"), SKIP: ("–", "dim")}
TIMEOUT, RETRIES = 600.0, 1
"""Of a request to an endpoint, in seconds: slow servers are not broken; tries after the first."""
GROUPS = 8


def endpoint_clients(
    model: str, base_url: str | None, api_key_var: str, endpoints: str | None
) -> list[tuple[EndpointClient, str]]:
    """Clients for `-m MODEL`, and what the model is called there: of a name in endpoints.toml one for each replica.

    Raises:
        ConfigError: it is a scripted policy.
        MissingKeyError: the variable of the key is not set.
    """
    if model.startswith(SCRIPTED):
        raise ConfigError(
            f"{model} is a scripted policy, which always answers; give a model folder or an endpoint's model"
        )
    named = api_key_var != API_KEY_VAR
    key = os.environ.get(api_key_var) or None
    if named and key is None:
        raise MissingKeyError(f"environment variable {api_key_var} is not set, which was to hold the API key")
    options: dict[str, Any] = {"timeout": TIMEOUT, "max_retries": RETRIES}
    endpoint = find_endpoint(model, endpoints) if base_url is None else None
    if endpoint is not None:
        return [(one.client(key if named else None, **options), one.model) for one in endpoint.addresses]
    return [(OpenAIClient(base_url, key, **options), model)]


@asynccontextmanager
async def served(folder: str, trust_remote_code: bool = False) -> AsyncIterator[EndpointClient]:
    """A client of the model folder, served at a free port of this machine: the embedded engine as others meet it."""
    engine = embedded(folder, trust_remote_code)
    try:
        async with listening(make_app(engine, folder)) as runner:
            client = OpenAIClient(base_url_of(runner), "none", timeout=TIMEOUT, max_retries=0)
            try:
                yield client
            finally:
                await client.close()
    finally:
        await engine.close()


async def diagnose_endpoint(
    model: str,
    base_url: str | None,
    api_key_var: str,
    endpoints: str | None,
    tell: ReportProgress,
    trust_remote_code: bool = False,
) -> list[Finding]:
    """All findings about `-m MODEL`; those of several replicas one after another, named by their address."""
    findings: list[Finding] = []
    total = CHECKS

    async def ask(client: EndpointClient, name: str, title: str = "") -> None:
        async for finding in check_endpoint(client, name, lambda check: tell(len(findings), f"{check} …", total)):
            findings.append(msgspec.structs.replace(finding, name=f"{title}{finding.name}"))
            tell(len(findings), finding.name, total)

    if base_url is None and find_endpoint(model, endpoints) is None and is_folder(model):
        async with served(model, trust_remote_code) as client:
            await ask(client, model)
        return findings
    clients = endpoint_clients(model, base_url, api_key_var, endpoints)
    total = CHECKS * len(clients)
    for client, name in clients:
        try:
            await ask(client, name, f"{client.base_url} " if len(clients) > 1 else "")
        finally:
            await client.close()
    return findings


async def diagnose_training(config: Any, groups: int, tell: ReportProgress) -> list[Finding]:
    """All findings about an RL run."""
    from rove.doctor.training import check_training

    def watch(what: str, done: int, total: int) -> None:
        tell(done, what, total or None)

    return [finding async for finding in check_training(config, groups, RUNS, watch)]


def findings_table(findings: Sequence[Finding], title: str, width: int = WIDTH) -> Table:
    """What was found, so many columns wide."""
    table = Table(title=title, title_justify="left", width=width)
    table.add_column("")
    table.add_column("check", style="bold", max_width=22)
    table.add_column("what was seen", ratio=1, overflow="fold")
    table.add_column("advice", ratio=1, overflow="fold")
    for finding in findings:
        sign, style = SIGNS[finding.status]
        table.add_row(Text(sign, style), Text(finding.name), Text(finding.seen), Text(finding.advice, style="dim"))
    return table


def print_findings(findings: Sequence[Finding], title: str, as_json: bool, console: Console, next_step: str) -> None:
    """The table, or JSON; how many of each, and what to do next."""
    if as_json:
        print_json({"failed": failed(findings), "findings": findings})
        return
    console.print(findings_table(findings, title, min(WIDTH, console.width)))
    counts = [(sum(f.status == status for f in findings), SIGNS[status][0], status) for status in SIGNS]
    console.print("  ".join(f"{sign} {count} {status}" for count, sign, status in counts if count))
    hint(console, "put right what is marked ✗, then repeat this command" if failed(findings) else next_step)


def _with_at(words: Sequence[str]) -> Iterator[str]:
    """The words, a settings file given as it is marked as one: rl.toml is @rl.toml."""
    before = ""
    for word in words:
        yield f"@{word}" if word.endswith(".toml") and not before.startswith(("@", "-")) else word
        before = word


def _as_rl(words: Sequence[str], given: Mapping[str, Any]) -> str:
    """The command that trains with these settings."""
    given = {f"--{name.replace('_', '-')}": value for name, value in given.items() if value is not None}
    flags = [[flag] if value is True else [flag, str(value)] for flag, value in given.items()]
    return "rove rl " + shlex.join([*words, *(word for flag in flags for word in flag)])


@click.command(context_settings=SETTINGS, options_metavar="[CONFIG.toml | ENV] [OPTIONS] [@ FILE] [--KEY VALUE]...")
@click.option("-m", "--model", help="A model folder, a name in endpoints.toml, or a model's name at -b.")
@click.option("-b", "--base-url", help="An OpenAI-compatible endpoint, like http://localhost:8000/v1.")
@click.option("-k", "--api-key-var", default=API_KEY_VAR, show_default=True, help="Environment variable with the key.")
@click.option("-e", "--endpoints", help="File of endpoint names.  [default: endpoints.toml, configs/endpoints.toml]")
@trust_option
@click.option("-a", "--env-args", help="Environment arguments as JSON.")
@click.option("-r", "--rollouts-per-example", type=int, help="As of rove rl, like every other setting of it.")
@click.option("-T", "--temperature", type=float)
@click.option("-t", "--max-tokens", type=int)
@click.option("--groups", default=GROUPS, show_default=True, help="Groups to sample for a try.")
@click.option("--quick", is_flag=True, help="Sample nothing: settings, memory and disk alone.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    model: str | None,
    base_url: str | None,
    api_key_var: str,
    endpoints: str | None,
    trust_remote_code: bool | None,
    env_args: str | None,
    groups: int,
    quick: bool,
    as_json: bool,
    **named: Any,
) -> None:
    """Check an endpoint (-m MODEL -b URL), a model folder (-m FOLDER), or the settings of `rove rl` before it runs.

    For the latter give what `rove rl` would get: rove doctor rl.toml, or rove doctor ENV -m FOLDER --steps 200. A few
    groups are sampled, one micro-batch is tried, nothing is changed. Exit status 1: something would surely fail.
    """
    console = console_for(as_json)
    ctx.args = list(_with_at(ctx.args))
    if ctx.args:
        if base_url is not None:
            raise ConfigError("-b names an endpoint, whose weights are not here to train; give a model folder with -m")
        with needs_train_extra():
            from rove.train.config import RLConfig
        given = {
            **named,
            "model": model,
            "trust_remote_code": trust_remote_code,
            "env_args": json_object(env_args, "-a"),
        }
        config = settings(RLConfig, ctx, bare="env", **given)
        title = f"rl {config.env} · {short(config.model)}"
        with progress(console, f"doctor {title}") as tell:
            findings = run_async(diagnose_training(config, 0 if quick else max(1, groups), tell))
        next_step = "train: " + _as_rl(ctx.args, given | {"env_args": env_args})
    elif model is not None:
        title = short(model) + (f" at {base_url}" if base_url else "")
        with progress(console, f"doctor {title}", CHECKS) as tell:
            findings = run_async(
                diagnose_endpoint(model, base_url, api_key_var, endpoints, tell, bool(trust_remote_code))
            )
        where = f" -b {base_url}" if base_url else ""
        where += f" -k {api_key_var}" if api_key_var != API_KEY_VAR else ""
        next_step = f"evaluate it: rove eval reverse_text -m {model}{where}"
    else:
        raise click.UsageError(
            "give a model (-m MODEL, with -b URL for an endpoint), or the settings of a training run"
        )
    print_findings(findings, title, as_json, console, next_step)
    if failed(findings):
        ctx.exit(1)
