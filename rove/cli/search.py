"""`rove search` and `rove info`: find environments on a hub."""

from __future__ import annotations

from typing import Any

import click
import msgspec
from rich.table import Table
from rich.text import Text

from rove.cli.common import console_for, hint, print_json, run_async
from rove.cli.hub_options import at, details_table, hub_at, hub_option, listing, plain, versions, with_hub
from rove.cli.options import examples, json_option
from rove.hub.client import known_keys
from rove.hub.client.hub import Releases
from rove.hub.client.installed import find
from rove.hub.client.installing import Offer, look_up
from rove.hub.client.settings import needed_hub
from rove.hub.package.names import Reference, parse_reference
from rove.viewer.format import interval, number


@click.command(epilog=examples("rove search", "rove search chess --tag game"))
@click.argument("words", nargs=-1)
@hub_option
@click.option("--tag", help="Only environments with this tag.")
@click.option("--owner", help="Only environments of this owner.")
@click.option("--compatibility", type=click.Choice(["rove", "verifiers v0"]), help="Only environments for this API.")
@click.option("--limit", type=click.IntRange(1, 1000), default=25, show_default=True, help="Maximum results.")
@json_option
def search_command(words: tuple[str, ...], hub: str | None, limit: int, as_json: bool, **wanted: Any) -> None:
    """Search for environments with all WORDS in name, description or tags; without words, list all."""
    console = console_for(as_json)
    found, total = with_hub(hub, lambda one: one.search(" ".join(words), limit=limit, **wanted))
    if as_json:
        print_json({"environments": msgspec.to_builtins(found), "total": total})
        return
    if not found:
        text = f"nothing found; try fewer words, or list everything: rove search{at(hub)}"
        console.print(text, markup=False, soft_wrap=True)
        return
    console.print(listing(found))
    if total > len(found):
        console.print(f"{len(found)} of {total}; show more with --limit")
    first = f"{found[0].reference}{at(hub)}"
    hint(console, f"show details: rove info {first}", f"install it: rove install {first}")


async def _look_up(where: str, given: str | None, reference: Reference) -> tuple[Offer, Releases, list[dict[str, Any]]]:
    async with hub_at(where, given) as hub:
        offer = await look_up(hub, reference)
        return offer, await hub.releases(reference), await hub.results(offer.reference)


def _results(results: list[dict[str, Any]]) -> Table:
    table = Table(title="results", width=100, title_justify="left")
    table.add_column("model", overflow="fold", ratio=3)
    for name in ("rollouts", "reward", "95 % interval"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("pushed", no_wrap=True)
    for one in results:
        summary = one.get("summary") or {}
        reward = summary.get("reward")
        reward = reward if isinstance(reward, dict) else {}
        figures = [_figure(reward.get("mean")), interval(reward)]
        words = (one.get("model", ""), summary.get("scored", "–"), *figures, str(one.get("uploaded", ""))[:10])
        table.add_row(*(plain(str(word)) for word in words))
    return table


def _figure(value: Any) -> str:
    return number(value) if isinstance(value, (int, float)) else "–"


@click.command(epilog=examples("rove info alice/my-task", "rove info alice/my-task@1.0.0 --readme"))
@click.argument("name", metavar="OWNER/NAME[@VERSION]")
@hub_option
@click.option("--readme", is_flag=True, help="Also print the README.")
@json_option
def info_command(name: str, hub: str | None, readme: bool, as_json: bool) -> None:
    """Show an environment's rewards, scores of scripted policies, requirements, versions and results."""
    console = console_for(as_json)
    reference, where = parse_reference(name), needed_hub(hub)
    offer, releases, results = run_async(_look_up(where, hub, reference))
    installed = find(offer.reference._replace(version=None))
    if as_json:
        content = {
            "manifest": msgspec.json.decode(offer.content),
            "index": msgspec.to_builtins(releases),
            "results": results,
        }
        print_json({**content, "hub": where, "key": offer.key, "installed": installed and installed.version})
        return
    more = [("hub", where), ("signed", f"by {known_keys.short(offer.key)}" if offer.key else "no")]
    more.append(("installed", installed.version if installed else "no"))
    console.print(details_table(offer.manifest, str(offer.reference), more))
    console.print(versions(releases.versions))
    if results:
        console.print(_results(results))
    if readme:
        lines = run_async(_readme(where, hub, offer.reference)).splitlines()
        console.print(Text("\n").join(map(plain, lines)), soft_wrap=True)
    short = f"{reference.owner}/{reference.name}"
    install = f"install it: rove install {short}{at(hub)}"
    hint(console, f"evaluate a model in it: rove eval {short} -m MODEL" if installed else install)


async def _readme(where: str, given: str | None, reference: Reference) -> str:
    async with hub_at(where, given) as hub:
        return await hub.readme(reference) or "it has no README"
