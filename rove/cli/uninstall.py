"""`rove uninstall`: take environments away."""

from __future__ import annotations

import click

from rove.cli.common import console_for
from rove.cli.confirm import confirmed
from rove.core.errors import HubError
from rove.hub.client.installed import all_installed, find, uninstall
from rove.hub.package.names import parse_reference


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="OWNER/NAME...")
@click.pass_context
def command(ctx: click.Context, names: tuple[str, ...]) -> None:
    """Take environments away, with their virtual environments; --yes answers the question. Runs stay."""
    console = console_for(False)
    references = [parse_reference(name) for name in names]
    for reference in references:
        if find(reference) is None:
            known = ", ".join(str(one.reference) for one in all_installed()) or "none"
            raise HubError(f"{reference} is not installed; installed: {known}")
    if not confirmed(f"Take {', '.join(map(str, references))} away?", "give --yes to agree"):
        ctx.exit(1)
    for reference in references:
        console.print(f"took away {uninstall(reference).reference}", markup=False, soft_wrap=True)
