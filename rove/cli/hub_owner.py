"""`rove hub yank` and `rove hub visibility`: what an owner says of what is published already."""

from __future__ import annotations

import click

from rove.cli.common import console_for, hint
from rove.cli.hub_options import at, hub_option, with_hub
from rove.core.errors import ConfigError
from rove.hub.client.settings import needed_server
from rove.hub.package.names import Reference, parse_reference


@click.command("yank")
@click.argument("version", metavar="OWNER/NAME@VERSION")
@click.option("--reason", help="Why nobody should use it; shown with the version.")
@click.option("--undo", is_flag=True, help="Take it back.")
@hub_option
def yank(version: str, reason: str | None, undo: bool, hub: str | None) -> None:
    """Advise against a version: it is chosen by nobody who does not name it, and stays for whoever does."""
    reference = parse_reference(version)
    if reference.version is None:
        raise ConfigError(f"which version of {reference}? write {reference}@VERSION; rove info {reference} lists them")
    if undo == (reason is not None):
        raise ConfigError("give --reason WORDS, or --undo to take one back")
    needed_server(hub)
    with_hub(hub, lambda one: one.yank(reference, reason))
    console = console_for(False)
    console.print(f"{reference} {'is offered again' if undo else 'is yanked'}", markup=False, soft_wrap=True)
    if not undo:
        hint(console, f"take it back: rove hub yank {reference} --undo{at(hub)}")


@click.command("visibility")
@click.argument("environment", metavar="OWNER/NAME")
@click.argument("to", type=click.Choice(["public", "private"]))
@hub_option
def visibility(environment: str, to: str, hub: str | None) -> None:
    """Show an environment to everybody, or only to those who have a token for it; needs a token with the scope admin."""
    reference = parse_reference(environment)
    if reference.version is not None:
        raise ConfigError(f"{reference} is one version; all of an environment are shown or hidden: name OWNER/NAME")
    needed_server(hub)
    with_hub(hub, lambda one: one.set_visibility(Reference(reference.owner, reference.name), to))
    console_for(False).print(f"{reference} is {to}", markup=False, soft_wrap=True)
