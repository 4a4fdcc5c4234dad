"""Environments of a hub in commands: what is not installed yet can be, after asking."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rove.cli.asking import confirmed
from rove.envs import loading
from rove.errors import ConfigError

if TYPE_CHECKING:
    from rove.hub.finding import Installed
    from rove.hub.names import Reference


_told: set[str] = set()
"""Names of which it has been said that they are not installed."""


def offer() -> None:
    """Let every command know of environments that are installed from a hub, or could be, by names like OWNER/NAME."""
    loading.finders[:] = [_found]
    _told.clear()


def _found(env_id: str) -> loading.Elsewhere | None:
    """An installed environment; nothing of the hub is imported before the first name of this kind."""
    from rove.hub import finding

    return finding.finder(env_id, _absent)


def _absent(reference: Reference) -> Installed | None:
    """Install an environment that a command wants, after asking; None: a module of that name is meant after all.

    Raises:
        ConfigError: there is nobody to ask, or the answer was no.
    """
    from rove.cli.common import console_for
    from rove.cli.install import Installer
    from rove.hub.finding import find
    from rove.hub.settings import hub_of

    name = str(reference)
    if name in _told:
        return None
    console = console_for(True)
    there = find(reference._replace(version=None))
    if hub_of() is None:
        if there is not None:
            raise ConfigError(
                f"{name} is not installed, {there.reference} is; install it: rove install {name} --hub HUB"
            )
        _told.add(name)
        console.print(f"note: {name} is not installed; a module of that name is used, if there is one", markup=False)
        return None
    question = f"{name} is not installed" + (f" ({there.version} is)." if there else ".")
    if not confirmed(f"{question} Look it up on {hub_of()}?", f"install it first: rove install {name}, or give --yes"):
        raise ConfigError(f"{name} is not installed: rove install {name}")
    made = Installer(console).from_hub(reference)
    if made is None:
        raise ConfigError(f"{name} is not installed: rove install {name}")
    console.print(f"installed {made.reference}", markup=False)
    return find(reference)
