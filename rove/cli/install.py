"""`rove install`, `rove list` and `rove uninstall`: environments in virtual environments of their own."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from rove.cli.common import console_for, hint, print_json, run_async
from rove.cli.hub_options import card, hub_at, hub_option, plain, show_notes
from rove.cli.options import confirmed
from rove.core.errors import ConfigError, HubError
from rove.envs.loading import example_environments
from rove.hub.client import known_keys, sources
from rove.hub.client.installed import Installed, all_installed, find, uninstall
from rove.hub.client.installing import Offer, check_runs, fetch, look_up, place, place_here
from rove.hub.client.lock import LOCK, Locked, read_lock, write_lock
from rove.hub.client.settings import needed_hub
from rove.hub.package.names import Reference, parse_reference


class Installer:
    """Shows, asks and installs, one after the other.

    Args:
        hub: URL or folder; None: that of the settings, or of the lock file.
        lock: the lock file; it is kept up to date where there is one.
        only_locked: nothing but what the lock file has.
        into_current: into this interpreter, where pins may clash.
        allow_source: also dependencies that have to be built.
        trusted: the owner's new key.
    """

    def __init__(
        self,
        console: Console,
        hub: str | None = None,
        lock: Path = Path(LOCK),
        only_locked: bool = False,
        into_current: bool = False,
        allow_source: bool = False,
        trusted: str | None = None,
    ):
        self.console, self.hub, self.lock = console, hub, lock
        self.only_locked, self.into_current = only_locked, into_current
        self.allow_source, self.trusted = allow_source, trusted

    def from_hub(self, reference: Reference) -> Installed | Offer | None:
        """Install from a hub; None where the answer was no. An `Offer` is what was put into this interpreter."""
        locked = read_lock(self.lock).get((reference.owner, reference.name))
        if self.only_locked and (locked is None or reference.version not in (None, locked.version)):
            has = f"it has {locked.version}" if locked else "it has no such environment"
            raise ConfigError(f"{reference} is not in {self.lock} ({has}); without --locked it is added")
        where = needed_hub(self.hub or (locked.hub if locked else None))

        async def get(folder: Path) -> tuple[Offer, Path] | None:
            async with hub_at(where, self.hub) as hub:
                offer = await look_up(hub, reference, locked, self.lock, self.trusted)
                if not self._agreed(offer):
                    return None
                return offer, await fetch(hub, offer, folder)

        with tempfile.TemporaryDirectory(prefix="rove-install-") as folder:
            got = run_async(get(Path(folder)))
            if got is None:
                return None
            return self._put(*got)

    def from_wheel(self, wheel: Path, origin: str = "") -> Installed | Offer | None:
        """Install a wheel that lies here."""
        offer = sources.offer_of_wheel(wheel, origin)
        return self._put(offer, wheel) if self._agreed(offer) else None

    def from_folder(self, folder: Path, origin: str = "") -> Installed | Offer | None:
        """Build a package's folder and install what comes of it."""
        question = f"{origin or folder} has to be built, which runs its build backend. Build and install it?"
        if not confirmed(question, "give --yes to agree"):
            return None
        with tempfile.TemporaryDirectory(prefix="rove-build-") as built:
            wheel = sources.built(folder, Path(built))
            return self.from_wheel(wheel, origin or str(folder.resolve()))

    def from_git(self, target: str) -> Installed | Offer | None:
        """Get a repository, build and install it."""
        with tempfile.TemporaryDirectory(prefix="rove-clone-") as parent:
            folder, commit = sources.clone(target, Path(parent) / "repository")
            return self.from_folder(folder, f"{sources.masked(target)} ({commit[:12]})")

    def of_lock(self) -> list[Installed | Offer | None]:
        """Install what the lock file has, where it is not installed already; None where the answer was no."""
        content = read_lock(self.lock)
        if not content:
            raise ConfigError(f"nothing to install: name an environment (OWNER/NAME), or have a {self.lock} here")
        done: list[Installed | Offer | None] = []
        for locked in content.values():
            there = None if self.into_current else find(locked.reference)
            if there is not None and there.manifest == locked.manifest:
                self.console.print(f"{locked.reference} is installed", markup=False, soft_wrap=True)
                done.append(there)
                continue
            done.append(self.from_hub(locked.reference))
        return done

    def _agreed(self, offer: Offer) -> bool:
        check_runs(offer.manifest, str(offer.reference))
        more = [("from", offer.origin), ("manifest", offer.sha256[:16] or "none; this is what its wheel says")]
        more.append(("signed", f"by {known_keys.short(offer.key)}" if offer.key else "no"))
        self.console.print(card(offer.manifest, str(offer.reference), more))
        show_notes(self.console, offer.notes)
        return confirmed(f"Install {offer.reference}?", "give --yes to agree")

    def _put(self, offer: Offer, wheel: Path) -> Installed | Offer:
        if self.into_current:
            place_here(offer, wheel, self.allow_source)
            made = offer
        else:
            made = place(offer, wheel, self.allow_source)
        self._note(offer)
        return made

    def _note(self, offer: Offer) -> None:
        """Keep the lock file up to date, where there is one."""
        if offer.files and offer.sha256 and offer.reference.owner != sources.LOCAL and self.lock.is_file():
            content: dict[tuple[str, str], Locked] = read_lock(self.lock)
            content[offer.reference.owner, offer.reference.name] = offer.locked
            write_lock(self.lock, content.values())


def install_one(target: str, installer: Installer) -> Installed | Offer | None:
    """Install whatever a word of the command line means."""
    if sources.is_git(target):
        return installer.from_git(target)
    path = Path(target).expanduser()
    if target.endswith(".whl"):
        if not path.is_file():
            raise ConfigError(f"there is no wheel {target}")
        return installer.from_wheel(path)
    if target.startswith((".", "/", "~")) or (path / "pyproject.toml").is_file():
        if not (path / "pyproject.toml").is_file():
            raise ConfigError(f"{target} is no folder with a pyproject.toml; `rove init` makes one")
        return installer.from_folder(path)
    return installer.from_hub(parse_reference(target))


def _told(made: Installed | Offer) -> dict[str, Any]:
    if isinstance(made, Installed):
        keys_of = ("version", "module", "origin", "manifest", "wheel", "compatibility")
        return {"environment": f"{made.owner}/{made.name}", **{key: getattr(made, key) for key in keys_of}}
    owner, name, version = made.reference
    return {"environment": f"{owner}/{name}", "version": version, "module": made.manifest.module, "origin": made.origin}


@click.command()
@click.argument("targets", nargs=-1, metavar="[OWNER/NAME[@VERSION] | FOLDER | WHEEL | GIT_URL]...")
@hub_option
@click.option("--locked", is_flag=True, help=f"Install exactly what {LOCK} has, or nothing.")
@click.option("--lock", "make_lock", is_flag=True, help=f"Write {LOCK} here, if there is none yet.")
@click.option("--into-current", is_flag=True, help="Into this interpreter instead of a virtual environment of its own.")
@click.option("--allow-source", is_flag=True, help="Build dependencies that have no wheel, which runs their code.")
@click.option("--trust-key", help="The owner's new key, as the owner told you.")
@click.option("--json", "as_json", is_flag=True, help="Print what was installed as JSON.")
@click.pass_context
def install_command(
    ctx: click.Context,
    targets: tuple[str, ...],
    hub: str | None,
    locked: bool,
    make_lock: bool,
    into_current: bool,
    allow_source: bool,
    trust_key: str | None,
    as_json: bool,
) -> None:
    """Install environments, each into a virtual environment of its own, so that what one needs breaks no other.

    What a package is, is shown first; --yes answers the question. Its hashes are checked against the hub's index, its
    signature against the key that its owner was first met with, and all of it against rove.lock where there is one.
    Without a name everything of rove.lock is installed. No code of a package runs.
    """
    console = console_for(as_json)
    lock = Path(LOCK)
    if make_lock and not lock.exists():
        write_lock(lock, [])
    installer = Installer(console, hub, lock, locked, into_current, allow_source, trust_key)
    asked = [install_one(target, installer) for target in targets] if targets else installer.of_lock()
    done = [made for made in asked if made is not None]
    if as_json:
        print_json([_told(made) for made in done])
    for made in done:
        name = f"{made.reference.owner}/{made.reference.name}"
        console.print(f"[green]installed[/green] {made.reference}", soft_wrap=True)
        run = f"rove eval {name if isinstance(made, Installed) else made.manifest.module} -m MODEL"
        hint(
            console,
            f"evaluate a model in it: {run}",
            *([f"take it away: rove uninstall {name}"] * isinstance(made, Installed)),
        )
    if len(done) < len(asked):
        ctx.exit(1)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def list_command(as_json: bool) -> None:
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


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="OWNER/NAME...")
@click.pass_context
def uninstall_command(ctx: click.Context, names: tuple[str, ...]) -> None:
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
