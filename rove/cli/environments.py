"""Environments named OWNER/NAME: commands find installed ones, and offer to install others from a hub."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from rove.cli.options import confirmed
from rove.core.errors import ConfigError
from rove.envs import loading

if TYPE_CHECKING:
    from rove.hub.client.installed import Installed
    from rove.hub.package.names import Reference


_reported: set[str] = set()
"""Names that were already reported as not installed."""


_HUB = "rove.cli.environments.hub"


def _store_hub(ctx: click.Context, _: click.Parameter, hub: str | None) -> None:
    ctx.meta[_HUB] = hub


hub_option = click.option(
    "--hub",
    expose_value=False,
    callback=_store_hub,
    help="URL or folder of the hub that has OWNER/NAME.  [default: $ROVE_HUB, else the hub of rove hub login]",
)
"""Option of commands that load environments."""


def register_finder() -> None:
    """Let every command load environments by names like OWNER/NAME."""
    loading.external_finders[:] = [_find]
    _reported.clear()


def _find(env_id: str) -> loading.ExternalEnvironment | None:
    """Return an installed environment. The hub client is imported only for names like OWNER/NAME."""
    from rove.hub.client import installed

    return installed.finder(env_id, _install_missing)


def _install_missing(reference: Reference) -> Installed | None:
    """Ask the user, then install an environment; None if no hub is known, so that the caller tries a module of that name."""
    from rove.cli.common import console_for
    from rove.cli.install import Installer
    from rove.hub.client.installed import find
    from rove.hub.client.settings import resolve_hub

    name = str(reference)
    if name in _reported:
        return None
    context = click.get_current_context(silent=True)
    hub = None if context is None else context.meta.get(_HUB)
    install = f"rove install {name}" + (f" --hub {shlex.quote(hub)}" if hub else "")
    console = console_for(True)
    other_version = find(reference._replace(version=None))
    if resolve_hub(hub) is None:
        if other_version is not None:
            raise ConfigError(
                f"{name} is not installed, {other_version.reference} is; install it: rove install {name} --hub HUB"
            )
        _reported.add(name)
        console.print(f"note: {name} is not installed; trying a module of that name")
        return None
    question = f"{name} is not installed" + (f" ({other_version.version} is)." if other_version else ".")
    if not confirmed(f"{question} Look it up on {resolve_hub(hub)}?", f"install it first: {install}, or give --yes"):
        raise ConfigError(f"{name} is not installed: {install}")
    installed = Installer(console, hub).from_hub(reference)
    if installed is None:
        raise ConfigError(f"{name} is not installed: {install}")
    console.print(f"installed {installed.reference}")
    return find(reference)
