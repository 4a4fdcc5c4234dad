"""`rove search`: find environments on a hub."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from rove.cli.common import console_for, hint, print_json
from rove.cli.hub_options import at, hub_option, listing, with_hub


@click.command()
@click.argument("words", nargs=-1)
@hub_option
@click.option("--tag", help="With this tag.")
@click.option("--owner", help="Of this owner.")
@click.option("--compatibility", type=click.Choice(["rove", "verifiers v0"]), help="Written for this.")
@click.option("--limit", type=click.IntRange(1, 1000), default=25, show_default=True, help="Most that are shown.")
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def command(words: tuple[str, ...], hub: str | None, limit: int, as_json: bool, **wanted: Any) -> None:
    """Find environments that have all WORDS in their names, descriptions or tags; without words all of them."""
    console = console_for(as_json)
    found, total = with_hub(hub, lambda one: one.search(" ".join(words), limit=limit, **wanted))
    if as_json:
        print_json({"environments": msgspec.to_builtins(found), "total": total})
        return
    if not found:
        told = f"nothing was found; fewer words find more, and `rove search{at(hub)}` alone lists everything"
        console.print(told, markup=False, soft_wrap=True)
        return
    console.print(listing(found))
    if total > len(found):
        console.print(f"{len(found)} of {total}; --limit shows more")
    first = f"{found[0].reference}{at(hub)}"
    hint(console, f"what it is: rove info {first}", f"install it: rove install {first}")
