"""`rove hub login`: keep which hub is used, and the token for it."""

from __future__ import annotations

import sys

import click

from rove.cli.common import console_for, hint, run_async
from rove.core.errors import ConfigError
from rove.hub.client.hub import Hub
from rove.hub.client.settings import hub_of, is_url, keep, normal


@click.command("login")
@click.argument("hub", required=False, metavar="[URL_OR_FOLDER]")
@click.option("--token", help="The token; without it you are asked, or a pipe is read.")
@click.option(
    "--no-token", is_flag=True, help="Keep only the address: whoever reads public environments needs no token."
)
def command(hub: str | None, token: str | None, no_token: bool) -> None:
    """Keep the address of a hub, and the token that it gave you, in a file that only you can read.

    Tokens are made on the hub's machine: rove hub token OWNER --scope upload:OWNER/*
    """
    console = console_for(False)
    where = normal(hub) if hub else hub_of()
    if where is None:
        raise ConfigError("which hub? give its URL or folder: rove hub login http://localhost:8900")
    if not is_url(where):
        if token:
            raise ConfigError(f"{where} is a folder, which asks for no token")
        no_token = True
    if not no_token and not token:
        token = click.prompt("token", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()
    token = (token or "").strip() or None
    who = run_async(_checked(where, token))
    file = keep(where, token)
    console.print(f"{where} is now your hub{who}; kept in {file}", markup=False, soft_wrap=True)
    if (
        where.startswith("http://")
        and token
        and not where.removeprefix("http://").startswith(("localhost", "127.", "[::1]"))
    ):
        console.print("note: without https others on the network can read the token", style="yellow")
    hint(
        console,
        "look around: rove search",
        "publish: rove push FOLDER" if token else "install: rove install OWNER/NAME",
    )


async def _checked(where: str, token: str | None) -> str:
    """See that there is a hub, and that it knows the token."""
    async with Hub(where, token or "") as one:
        await one.index()
        if token is None:
            return ""
        told = await one.me()
    return f", where you are '{told.get('owner', '?')}' ({', '.join(map(str, told.get('scopes', []))) or 'no scopes'})"
