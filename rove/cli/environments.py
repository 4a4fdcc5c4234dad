"""Environments of a hub in commands: what is not installed yet can be, after asking."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from rove.cli.confirm import confirmed
from rove.core.errors import ConfigError
from rove.envs import loading

if TYPE_CHECKING:
    from rove.hub.client.installed import Installed
    from rove.hub.package.names import Reference


_told: set[str] = set()
"""Names of which it has been said that they are not installed."""


_HUB = "rove.cli.environments.hub"


def _keep(ctx: click.Context, _: click.Parameter, hub: str | None) -> None:
    ctx.meta[_HUB] = hub


hub_option = click.option(
    "--hub",
    expose_value=False,
    callback=_keep,
    help="URL or folder of the hub where OWNER/NAME is looked up, if it is not installed.  "
    "[default: $ROVE_HUB, else that of rove hub login]",
)
"""Of commands that load environments."""


def offer() -> None:
    """Let every command know of environments that are installed from a hub, or could be, by names like OWNER/NAME."""
    loading.finders[:] = [_found]
    _told.clear()


def _found(env_id: str) -> loading.Elsewhere | None:
    """An installed environment; nothing of the hub is imported before the first name of this kind."""
    from rove.hub.client import installed

    return installed.finder(env_id, _absent)


def _absent(reference: Reference) -> Installed | None:
    """Install an environment that a command wants, after asking; None: a module of that name is meant after all.

    Raises:
        ConfigError: there is nobody to ask, or the answer was no.
    """
    from rove.cli.common import console_for
    from rove.cli.install import Installer
    from rove.hub.client.installed import find
    from rove.hub.client.settings import hub_of

    name = str(reference)
    if name in _told:
        return None
    context = click.get_current_context(silent=True)
    given = None if context is None else context.meta.get(_HUB)
    install = f"rove install {name}" + (f" --hub {shlex.quote(given)}" if given else "")
    console = console_for(True)
    there = find(reference._replace(version=None))
    if hub_of(given) is None:
        if there is not None:
            raise ConfigError(
                f"{name} is not installed, {there.reference} is; install it: rove install {name} --hub HUB"
            )
        _told.add(name)
        console.print(f"note: {name} is not installed; a module of that name is used, if there is one", markup=False)
        return None
    question = f"{name} is not installed" + (f" ({there.version} is)." if there else ".")
    if not confirmed(f"{question} Look it up on {hub_of(given)}?", f"install it first: {install}, or give --yes"):
        raise ConfigError(f"{name} is not installed: {install}")
    made = Installer(console, given).from_hub(reference)
    if made is None:
        raise ConfigError(f"{name} is not installed: {install}")
    console.print(f"installed {made.reference}", markup=False)
    return find(reference)
