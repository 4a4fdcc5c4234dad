"""Options, tables and clients that the hub commands share."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import click
from rich.console import Console
from rich.table import Table

from rove.hub.client.hub import EnvironmentEntry, Hub, Release
from rove.hub.client.settings import require_hub, token_for
from rove.hub.package.manifest import Manifest
from rove.utils.event_loop import run_async
from rove.utils.terminal_text import inert

T = TypeVar("T")

hub_option = click.option(
    "--hub", help="URL or folder of the hub.  [default: $ROVE_HUB, else the hub of rove hub login]"
)
SHOWN_ARGUMENTS = 12


def with_hub(option: str | None, call: Callable[[Hub], Awaitable[T]]) -> T:
    """Call a function with the hub of --hub or of the settings, and return the result; without a hub, raise ConfigError."""

    async def query() -> T:
        async with hub_at(require_hub(option), option) as hub:
            return await call(hub)

    return run_async(query())


def hub_at(address: str, option: str | None) -> Hub:
    """Return a hub client with the user's token; `option` is the value of --hub, see `token_for`."""
    return Hub(address, token_for(address, option))


def at(hub: str | None) -> str:
    """Return the --hub flag for the same hub; "" for the default hub."""
    return f" --hub {shlex.quote(hub)}" if hub else ""


def plain(text: str) -> str:
    """Return untrusted text as one line that is safe to print in the terminal."""
    return inert(text).replace("\n", "\\n")


def listing(entries: Iterable[EnvironmentEntry]) -> Table:
    """Return a table of environments."""
    table = Table(width=100)
    table.add_column("environment", overflow="fold", ratio=3)
    table.add_column("version", overflow="fold", max_width=12)
    table.add_column("description", overflow="fold", ratio=4)
    table.add_column("tags", overflow="fold", ratio=2)
    table.add_column("written for", overflow="fold", width=12)
    table.add_column("downloads", justify="right", no_wrap=True)
    for entry in entries:
        words = (entry.reference, entry.version, entry.description, ", ".join(entry.tags), entry.compatibility)
        table.add_row(*map(plain, words), str(entry.downloads))
    return table


def details_table(manifest: Manifest, title: str, details: Iterable[tuple[str, str]] = ()) -> Table:
    """Return a table of a package's details: rewards, scores of scripted policies, requirements."""
    table = Table(title=plain(title), show_header=False, width=100, title_justify="left")
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    source = manifest.source
    policies = [f"{name} {policy.reward:.3g} (n={policy.n})" for name, policy in manifest.policies.items()]
    builders = [source.builder, f"rove {manifest.rove}" if manifest.rove else ""]
    rows = [
        ("description", manifest.description),
        ("tags", ", ".join(manifest.tags)),
        ("authors", ", ".join(manifest.authors)),
        ("license", manifest.licence),
        ("written for", manifest.compatibility),
        ("reward", "" if manifest.reward_range is None else "{:g} to {:g}".format(*manifest.reward_range)),
        ("metrics", ", ".join(manifest.metrics)),
        ("policies", ", ".join(policies)),
        ("tools", ", ".join(manifest.tools)),
        ("needs", manifest.needs.description),
        ("data", ", ".join(manifest.data_sources)),
        ("arguments", _arguments(manifest)),
        ("depends on", ", ".join(manifest.dependencies)),
        ("python", manifest.requires_python),
        ("from", f"{source.repository} {source.commit}".strip()),
        ("built by", ", ".join(filter(None, builders))),
        *details,
    ]
    for name, words in rows:
        if words.strip():
            table.add_row(name, plain(words))
    return table


def versions(releases: Iterable[Release]) -> Table:
    """Return a table of versions, newest first."""
    table = Table(width=100)
    for name in ("version", "uploaded", "manifest"):
        table.add_column(name, no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("yanked", overflow="fold", ratio=1)
    for release in reversed(list(releases)):
        size = sum(file.size for file in release.files)
        cells = (release.version, release.uploaded, release.manifest[:16], f"{size:,}", release.yanked or "")
        table.add_row(*map(plain, cells), style="dim" if release.yanked else "")
    return table


def _arguments(manifest: Manifest) -> str:
    descriptions = []
    for argument in manifest.arguments[:SHOWN_ARGUMENTS]:
        text = f"{argument.name}: {argument.type}" if argument.type else argument.name
        descriptions.append(text if argument.default is None else f"{text} = {argument.default}")
    if len(manifest.arguments) > SHOWN_ARGUMENTS:
        descriptions.append("…")
    return ", ".join(descriptions)


def show_notes(console: Console, notes: Iterable[str]) -> None:
    """Print notes before an installation."""
    for note in notes:
        console.print(plain(f"note: {note}"), style="yellow", soft_wrap=True)
