"""`rove list`: the environments that are installed, or ship with rove."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from rich.table import Table

from rove.cli.common import console_for, hint, print_json
from rove.cli.hub_options import plain
from rove.envs.loading import example_environments
from rove.hub.client.installed import all_installed


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def command(as_json: bool) -> None:
    """List the environments that are installed, each in a virtual environment of its own, and rove's examples."""
    console = console_for(as_json)
    found = all_installed()
    if as_json:
        rows = [
            {**msgspec.to_builtins(one), "environment": f"{one.owner}/{one.name}", "path": str(one.path)}
            for one in found
        ]
        print_json(rows)
        return
    if found:
        table = Table(width=100)
        table.add_column("environment", overflow="fold", ratio=3)
        table.add_column("version", no_wrap=True)
        table.add_column("written for", overflow="fold")
        table.add_column("from", overflow="fold", ratio=4)
        table.add_column("signed", no_wrap=True)
        table.add_column("installed", no_wrap=True)
        for one in found:
            words = (f"{one.owner}/{one.name}", one.version, one.compatibility, one.origin, "yes" if one.key else "no")
            table.add_row(*map(plain, words), one.installed[:10])
        console.print(table)
    else:
        console.print("no environment is installed from a hub")
    console.print(f"examples that come with rove: {', '.join(example_environments())}", soft_wrap=True)
    if found:
        one = found[0]
        hint(
            console,
            f"evaluate a model: rove eval {one.owner}/{one.name} -m MODEL",
            f"they lie in {Path(one.path).parents[2]}",
        )
    else:
        hint(console, "find one: rove search WORDS", "install one: rove install OWNER/NAME")
