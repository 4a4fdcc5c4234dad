"""`rove doctor`: check an endpoint, a model folder, or a training run before it starts."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.console import Console

from rove.cli.common import console_for, hint, print_json
from rove.cli.findings import STYLES, print_findings
from rove.cli.options import (
    SETTINGS,
    api_key_var_option,
    base_url_option,
    device_option,
    endpoints_option,
    env_args_option,
    examples,
    in_range,
    json_object,
    json_option,
    settings,
    trust_option,
)
from rove.clients.endpoint import EndpointClient
from rove.clients.openai import OpenAIClient
from rove.core.errors import ConfigError, MissingKeyError, needs_train_extra
from rove.core.findings import HIGH, Finding
from rove.core.plain import JsonMapping
from rove.core.ranges import IntFrom2, PositiveFloat, PositiveInt
from rove.doctor.endpoint import CHECKS, check_endpoint
from rove.server import base_url_of, listening, make_app
from rove.stages.clients import API_KEY_VAR, SCRIPTED, embedded, find_endpoint, is_folder, refuse_device, show_device
from rove.stages.naming import RUNS, short
from rove.stages.reporter import ConsoleReporter, TaskProgress
from rove.utils.console import styled
from rove.utils.event_loop import run_async

if TYPE_CHECKING:
    from rove.train.config import RLConfig

TIMEOUT_S, MAX_RETRIES = 600.0, 1
"""Timeout and retries of a request to an endpoint; the timeout is long because slow servers are not broken."""
GROUPS = 8
"""Default number of groups to sample."""


def endpoint_clients(
    model: str, base_url: str | None, api_key_var: str, endpoints: str | None
) -> list[tuple[EndpointClient, str]]:
    """Return the clients for `-m MODEL`, each with its endpoint's name of the model: one per replica of a name in
    endpoints.toml.
    """
    if model.startswith(SCRIPTED):
        raise ConfigError(
            f"{model} is a scripted policy and needs no check; give a model folder or an endpoint's model"
        )
    named = api_key_var != API_KEY_VAR
    key = os.environ.get(api_key_var) or None
    if named and key is None:
        raise MissingKeyError(f"environment variable {api_key_var} is not set; it should hold the API key")
    options: dict[str, Any] = {"timeout": TIMEOUT_S, "max_retries": MAX_RETRIES}
    endpoint = find_endpoint(model, endpoints) if base_url is None else None
    if endpoint is not None:
        return [(address.client(key if named else None, **options), address.model) for address in endpoint.addresses]
    return [(OpenAIClient(base_url, key, **options), model)]


@asynccontextmanager
async def served(folder: str, trust_remote_code: bool = False, device: str = "auto") -> AsyncIterator[EndpointClient]:
    """Serve a model folder on a free port of this machine, and yield a client for it."""
    engine = embedded(folder, trust_remote_code, device)
    try:
        async with listening(make_app(engine, folder)) as runner:
            client = OpenAIClient(base_url_of(runner), "none", timeout=TIMEOUT_S, max_retries=0)
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
    report: TaskProgress,
    trust_remote_code: bool = False,
    device: str = "auto",
) -> list[Finding]:
    """Return all findings about `-m MODEL`; with several replicas, each finding begins with the replica's address."""
    findings: list[Finding] = []
    total = CHECKS

    async def collect(client: EndpointClient, name: str, title: str = "") -> None:
        async for finding in check_endpoint(client, name, lambda check: report(len(findings), f"{check} …", total)):
            findings.append(msgspec.structs.replace(finding, text=f"{title}{finding.text}"))
            report(len(findings), finding.id, total)

    if base_url is None and find_endpoint(model, endpoints) is None and is_folder(model):
        async with served(model, trust_remote_code, device) as client:
            await collect(client, model)
        return findings
    refuse_device(device, f"{model} runs at an endpoint")
    clients = endpoint_clients(model, base_url, api_key_var, endpoints)
    total = CHECKS * len(clients)
    for client, name in clients:
        try:
            await collect(client, name, f"{client.base_url}: " if len(clients) > 1 else "")
        finally:
            await client.close()
    return findings


async def diagnose_training(config: RLConfig, groups: int, report: TaskProgress) -> list[Finding]:
    """Return all findings about an RL run."""
    from rove.doctor.training import check_training

    def on_progress(activity: str, done: int, total: int) -> None:
        report(done, activity, total or None)

    return [finding async for finding in check_training(config, groups, RUNS, on_progress)]


def print_result(findings: Sequence[Finding], title: str, as_json: bool, console: Console, next_step: str) -> bool:
    """Print the findings as a table or JSON, with counts and a hint; return whether a check failed."""
    failed = any(finding.severity is HIGH for finding in findings)
    if as_json:
        print_json({"failed": failed, "findings": findings})
        return failed
    print_findings(findings, title, console)
    counts = Counter(finding.severity for finding in findings)
    parts = [(f"{counts[severity]} {severity.value}  ", STYLES[severity]) for severity in sorted(counts, reverse=True)]
    console.print(styled(*parts))
    hint(console, "fix the findings of severity high, then repeat this command" if failed else next_step)
    return failed


def _mark_files(words: Sequence[str]) -> Iterator[str]:
    """Yield the words, with "@" before settings files."""
    previous = ""
    for word in words:
        if word.endswith(".toml") and not previous.startswith(("@", "-")):
            yield "@"
        yield word
        previous = word


def _rl_command(words: Sequence[str], options: JsonMapping) -> str:
    """Return the command that trains with these settings."""
    options = {f"--{name.replace('_', '-')}": value for name, value in options.items() if value is not None}
    command = list(words)
    for flag, value in options.items():
        command += [flag] if value is True else [flag, str(value)]
    return f"rove rl {shlex.join(command)}"


@click.command(
    epilog=examples(
        "rove doctor -m tiny -b http://localhost:8000/v1   # an endpoint",
        "rove doctor -m models/tiny                        # a model folder",
        "rove doctor rl.toml                               # a training run",
        "rove doctor tictactoe -m models/tiny --steps 150 --quick",
    ),
    context_settings=SETTINGS,
    options_metavar="[CONFIG.toml | ENV] [OPTIONS] [@ FILE] [--KEY VALUE]...",
)
@click.option("-m", "--model", help="Model to check: a folder, a name in endpoints.toml, or a model's name at -b.")
@base_url_option
@api_key_var_option
@endpoints_option
@trust_option
@device_option
@env_args_option
@click.option(
    "-r", "--rollouts-per-example", type=in_range(IntFrom2), help="Rollouts per example: the group size.  [default: 8]"
)
@click.option("-T", "--temperature", type=in_range(PositiveFloat), help="Sampling temperature.  [default: 1]")
@click.option("-t", "--max-tokens", type=in_range(PositiveInt), help="Maximum tokens per response.  [default: 512]")
@click.option(
    "--groups", type=in_range(PositiveInt), default=GROUPS, show_default=True, help="Number of groups to sample."
)
@click.option("--quick", is_flag=True, help="Check only settings, memory and disk, without sampling.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    model: str | None,
    base_url: str | None,
    api_key_var: str | None,
    endpoints: str | None,
    trust_remote_code: bool | None,
    device: str | None,
    env_args: str | None,
    groups: int,
    quick: bool,
    as_json: bool,
    **named: Any,
) -> None:
    """Check an endpoint (-m MODEL -b URL), a model folder (-m FOLDER), or the settings of `rove rl` before it runs.

    For a training run, give the arguments of `rove rl`: rove doctor rl.toml, or rove doctor ENV -m FOLDER --steps 200. A few
    groups are sampled and one micro-batch is computed; no weights are changed. The exit status is 1 if a check fails.
    """
    console = console_for(as_json)
    reporter = ConsoleReporter(console)
    api_key_var = api_key_var or API_KEY_VAR
    ctx.args = list(_mark_files(ctx.args))
    if ctx.args:
        if base_url is not None:
            raise ConfigError("-b is an endpoint, whose weights cannot be trained here; give a model folder with -m")
        with needs_train_extra():
            from rove.train.config import RLConfig
        options = {
            **named,
            "model": model,
            "trust_remote_code": trust_remote_code,
            "device": device,
            "env_args": json_object(env_args, "-a"),
        }
        config = settings(RLConfig, ctx, bare="env", **options)
        title = f"rl {config.env} · {short(config.model)}"
        show_device(config.device, reporter)
        with reporter.progress(f"doctor {title}") as report:
            findings = run_async(diagnose_training(config, 0 if quick else groups, report))
        next_step = "train: " + _rl_command(ctx.args, options | {"env_args": env_args})
    elif model is not None:
        title = short(model) + (f" at {base_url}" if base_url else "")
        if base_url is None and find_endpoint(model, endpoints) is None and is_folder(model):
            show_device(device or "auto", reporter)
        with reporter.progress(f"doctor {title}", CHECKS) as report:
            findings = run_async(
                diagnose_endpoint(
                    model, base_url, api_key_var, endpoints, report, bool(trust_remote_code), device or "auto"
                )
            )
        endpoint_options = f" -b {base_url}" if base_url else ""
        endpoint_options += f" -k {api_key_var}" if api_key_var != API_KEY_VAR else ""
        next_step = f"evaluate it: rove eval reverse_text -m {model}{endpoint_options}"
    else:
        raise click.UsageError(
            "give a model (-m MODEL, with -b URL for an endpoint), or the settings of a training run"
        )
    if print_result(findings, title, as_json, console, next_step):
        ctx.exit(1)
