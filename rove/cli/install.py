"""Find environments on a hub, and install them in virtual environments: `rove search`, `info`, `install`, `list`, `uninstall`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import click
import msgspec
from rich.console import Console
from rich.table import Table

from rove.cli.common import console_for, hint, print_json
from rove.cli.hub_options import at, details_table, hub_at, hub_option, listing, plain, show_notes, versions, with_hub
from rove.cli.options import confirmed, examples, in_range, json_option
from rove.core.errors import ConfigError
from rove.core.plain import JsonObject
from rove.envs.loading import environments_in, example_environments
from rove.hub.client import settings, sources
from rove.hub.client.hub import Hub, Releases
from rove.hub.client.installed import Installed, all_installed, find, require_installed, uninstall
from rove.hub.client.installing import (
    LOCK,
    Locked,
    Offer,
    check_compatible,
    fetch,
    install,
    install_into_current,
    look_up,
    read_lock,
    write_lock,
)
from rove.hub.client.settings import require_hub
from rove.hub.package.limits import SearchLimit
from rove.hub.package.names import Reference, parse_reference
from rove.statistics.format import interval, number
from rove.utils.console import styled
from rove.utils.event_loop import run_async


@dataclass
class Installer:
    """Installs environments, each after showing its details and asking the user."""

    console: Console
    hub: str | None = None
    """URL or folder of the hub (default: from the settings or the lock file)."""
    lock: Path = Path(LOCK)
    """The lock file; updated if it exists."""
    only_locked: bool = False
    """Install only versions in the lock file."""
    into_current: bool = False
    """Install into this interpreter, where dependencies may conflict."""
    allow_source: bool = False
    """Also build dependencies that have no wheel."""
    trusted: str | None = None
    """The owner's new signing key."""

    def from_hub(self, reference: Reference) -> Installed | Offer | None:
        """Install from a hub; return None if the user declined, an `Offer` if installed into this interpreter."""
        locked = read_lock(self.lock).get((reference.owner, reference.name))
        if self.only_locked and (locked is None or reference.version not in (None, locked.version)):
            content = f"it has {locked.version}" if locked else "it has no such environment"
            raise ConfigError(f"{reference} is not in {self.lock} ({content}); omit --locked to add it")
        address = require_hub(self.hub or (locked.hub if locked else None))

        async def get(folder: Path) -> tuple[Offer, Path] | None:
            async with hub_at(address, self.hub) as hub:
                offer = await look_up(hub, reference, locked, self.lock, self.trusted)
                if not self._confirmed(offer):
                    return None
                return offer, await fetch(hub, offer, folder)

        with tempfile.TemporaryDirectory(prefix="rove-install-") as folder:
            fetched = run_async(get(Path(folder)))
            if fetched is None:
                return None
            return self._install(*fetched)

    def from_wheel(self, wheel: Path, origin: str = "") -> Installed | Offer | None:
        """Install a local wheel."""
        offer = sources.offer_of_wheel(wheel, origin)
        return self._install(offer, wheel) if self._confirmed(offer) else None

    def from_folder(self, folder: Path, origin: str = "") -> Installed | Offer | None:
        """Build a package folder and install the wheel."""
        question = f"{origin or folder} must be built, which runs its build backend. Build and install it?"
        if not confirmed(question, "give --yes to confirm"):
            return None
        with tempfile.TemporaryDirectory(prefix="rove-build-") as built:
            wheel = sources.build_wheel(folder, Path(built))
            return self.from_wheel(wheel, origin or str(folder.resolve()))

    def from_git(self, target: str) -> Installed | Offer | None:
        """Clone a repository, build and install it."""
        with tempfile.TemporaryDirectory(prefix="rove-clone-") as parent:
            folder, commit = sources.clone(target, Path(parent) / "repository")
            return self.from_folder(folder, f"{sources.masked(target)} ({commit[:12]})")

    def from_lock(self) -> list[Installed | Offer | None]:
        """Install everything in the lock file that is not installed; the result has None for each environment that the
        user declined.
        """
        content = read_lock(self.lock)
        if not content:
            raise ConfigError(
                f"nothing to install: name an environment (OWNER/NAME), or run this in a folder with {self.lock}"
            )
        done: list[Installed | Offer | None] = []
        for locked in content.values():
            installed = None if self.into_current else find(locked.reference)
            if installed is not None and installed.manifest == locked.manifest:
                self.console.print(f"{locked.reference} is already installed", soft_wrap=True)
                done.append(installed)
                continue
            done.append(self.from_hub(locked.reference))
        return done

    def _confirmed(self, offer: Offer) -> bool:
        check_compatible(offer.manifest, str(offer.reference))
        details = [("from", offer.origin), ("manifest", offer.sha256[:16] or "none; details are from the wheel")]
        details.append(("signed", f"by {settings.fingerprint(offer.key)}" if offer.key else "no"))
        self.console.print(details_table(offer.manifest, str(offer.reference), details))
        show_notes(self.console, offer.notes)
        return confirmed(f"Install {offer.reference}?", "give --yes to confirm")

    def _install(self, offer: Offer, wheel: Path) -> Installed | Offer:
        result = offer
        if self.into_current:
            install_into_current(offer, wheel, self.allow_source)
        else:
            result = install(offer, wheel, self.allow_source)
        # A lock file names versions on a hub; a local package has no address from which others could install it.
        if offer.files and offer.sha256 and offer.reference.owner != sources.LOCAL and self.lock.is_file():
            content: dict[tuple[str, str], Locked] = read_lock(self.lock)
            content[offer.reference.owner, offer.reference.name] = offer.locked
            write_lock(self.lock, content.values())
        return result


def install_one(target: str, installer: Installer) -> Installed | Offer | None:
    """Install the environment or package that a command-line argument names."""
    path = Path(target).expanduser()
    is_git, is_wheel = sources.is_git(target), target.endswith(".whl")
    is_folder = target.startswith((".", "/", "~")) or (path / "pyproject.toml").is_file()
    if installer.only_locked and (is_git or is_wheel or is_folder):
        raise ConfigError(
            f"--locked installs only versions in {installer.lock}, and {sources.masked(target)} is no environment of a hub "
            "(OWNER/NAME); omit --locked to install it"
        )
    if is_git:
        return installer.from_git(target)
    if is_wheel:
        if not path.is_file():
            raise ConfigError(f"the wheel {target} does not exist")
        return installer.from_wheel(path)
    if is_folder:
        if not (path / "pyproject.toml").is_file():
            raise ConfigError(f"{target} has no pyproject.toml; `rove init` creates a package")
        return installer.from_folder(path)
    return installer.from_hub(parse_reference(target))


def _as_json(installed: Installed | Offer) -> JsonObject:
    if isinstance(installed, Installed):
        keys_of = ("version", "module", "origin", "manifest", "wheel", "compatibility")
        return {
            "environment": f"{installed.owner}/{installed.name}",
            **{key: getattr(installed, key) for key in keys_of},
        }
    owner, name, version = installed.reference
    return {
        "environment": f"{owner}/{name}",
        "version": version,
        "module": installed.manifest.module,
        "origin": installed.origin,
    }


@click.command(
    epilog=examples(
        "rove install alice/my-task",
        "rove install ./environments/my_task",
        "rove install --locked   # everything in rove.lock",
    )
)
@click.argument("targets", nargs=-1, metavar="[OWNER/NAME[@VERSION] | FOLDER | WHEEL | GIT_URL]...")
@hub_option
@click.option("--locked", is_flag=True, help=f"Install only versions in {LOCK}.")
@click.option("--lock", "make_lock", is_flag=True, help=f"Create {LOCK} in this folder if it does not exist.")
@click.option(
    "--into-current", is_flag=True, help="Install into this interpreter instead of a new virtual environment."
)
@click.option(
    "--allow-source", is_flag=True, help="Also build dependencies that have no wheel; building runs their code."
)
@click.option("--trust-key", help="The owner's new signing key, which you received from the owner.")
@json_option
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
    """Install environments, each into its own virtual environment, so that dependencies never conflict.

    Details are shown before you are asked to confirm; --yes skips the question. Hashes are verified against the hub's index,
    signatures against the key that the owner first used, and everything against rove.lock if it exists. Without a name,
    everything in rove.lock is installed. The code of the packages does not run.
    """
    console = console_for(as_json)
    lock = Path(LOCK)
    if make_lock and not lock.exists():
        write_lock(lock, [])
    installer = Installer(console, hub, lock, locked, into_current, allow_source, trust_key)
    results = [install_one(target, installer) for target in targets] if targets else installer.from_lock()
    done = [result for result in results if result is not None]
    if as_json:
        print_json([_as_json(result) for result in done])
    for result in done:
        name = f"{result.reference.owner}/{result.reference.name}"
        console.print(styled(("installed", "green"), f" {result.reference}"), soft_wrap=True)
        # In this interpreter, the package is an ordinary module, which has no owner.
        run = f"rove eval {name if isinstance(result, Installed) else result.manifest.module} -m MODEL"
        hint(
            console,
            f"evaluate a model in it: {run}",
            *([f"uninstall it: rove uninstall {name}"] if isinstance(result, Installed) else []),
        )
    if len(done) < len(results):
        ctx.exit(1)


ENVIRONMENTS = "environments"
"""Folder in which every command looks up environments."""


@click.command(epilog=examples("rove list", "rove list --env-dir examples"))
@click.option("--env-dir", help="Also list the environments in this folder.")
@json_option
def list_command(env_dir: str | None, as_json: bool) -> None:
    """List installed environments, those in ./environments, and the examples that come with rove."""
    console = console_for(as_json)
    if env_dir is not None and not Path(env_dir).is_dir():
        raise ConfigError(f"--env-dir {env_dir} is not a folder")
    folders = {folder: environments_in(folder) for folder in (env_dir, ENVIRONMENTS) if folder is not None}
    environments = all_installed()
    if as_json:
        rows = [
            {
                **msgspec.to_builtins(environment),
                "environment": f"{environment.owner}/{environment.name}",
                "path": str(environment.path),
            }
            for environment in environments
        ]
        for folder, files in folders.items():
            rows += [{"environment": name, "origin": folder, "path": str(file)} for name, file in files.items()]
        print_json(rows)
        return
    if environments:
        console.print(_installed_table(environments))
    else:
        console.print("no environment is installed from a hub")
    for folder, files in folders.items():
        if files:
            console.print(f"in {folder}: {', '.join(files)}", soft_wrap=True)
    console.print(f"examples of rove: {', '.join(example_environments())}", soft_wrap=True)
    if environments:
        folder = environments[0].path.parents[2]
        hint(
            console,
            f"evaluate a model: rove eval {environments[0].owner}/{environments[0].name} -m MODEL",
            f"installed in {folder}",
        )
    else:
        example = "try an example: rove eval tictactoe -m scripted:teacher"
        hint(console, example, "find more on a hub: rove search WORDS")


def _installed_table(environments: Sequence[Installed]) -> Table:
    table = Table(width=100)
    table.add_column("environment", overflow="fold", ratio=3)
    table.add_column("version", no_wrap=True)
    table.add_column("written for", overflow="fold")
    table.add_column("from", overflow="fold", ratio=4)
    table.add_column("signed", no_wrap=True)
    table.add_column("installed", no_wrap=True)
    for environment in environments:
        words = (
            f"{environment.owner}/{environment.name}",
            environment.version,
            environment.compatibility,
            environment.origin,
            "yes" if environment.key else "no",
        )
        table.add_row(*map(plain, words), environment.installed[:10])
    return table


@click.command(epilog=examples("rove uninstall alice/my-task"))
@click.argument("names", nargs=-1, required=True, metavar="OWNER/NAME...")
@click.pass_context
def uninstall_command(ctx: click.Context, names: tuple[str, ...]) -> None:
    """Uninstall environments and their virtual environments, after a confirmation (not with --yes). Runs are kept."""
    console = console_for(False)
    references = [parse_reference(name) for name in names]
    for reference in references:
        require_installed(reference)
    if not confirmed(f"Uninstall {', '.join(map(str, references))}?", "give --yes to confirm"):
        ctx.exit(1)
    for reference in references:
        console.print(f"uninstalled {uninstall(reference).reference}", soft_wrap=True)


@click.command(epilog=examples("rove search", "rove search chess --tag game"))
@click.argument("words", nargs=-1)
@hub_option
@click.option("--tag", help="Show only environments with this tag.")
@click.option("--limit", type=in_range(SearchLimit), default=25, show_default=True, help="Maximum number of results.")
@json_option
def search_command(words: tuple[str, ...], hub: str | None, tag: str | None, limit: int, as_json: bool) -> None:
    """Search for environments with all WORDS in owner, name, description or tags; without words, list all."""
    console = console_for(as_json)
    entries, total = with_hub(hub, lambda client: client.search(" ".join(words), tag, limit=limit))
    if as_json:
        print_json({"environments": msgspec.to_builtins(entries), "total": total})
        return
    if not entries:
        text = f"nothing found; try fewer words, or list everything: rove search{at(hub)}"
        console.print(text, soft_wrap=True)
        return
    console.print(listing(entries))
    if total > len(entries):
        console.print(f"{len(entries)} of {total}; show more with --limit")
    first = f"{entries[0].reference}{at(hub)}"
    hint(console, f"show details: rove info {first}", f"install it: rove install {first}")


class _Info(NamedTuple):
    offer: Offer
    releases: Releases
    results: list[JsonObject]


async def _info(hub: Hub, reference: Reference) -> _Info:
    releases = await hub.releases(reference)
    # The page of a yanked version says why it was yanked.
    version = releases.choose(reference.version, allow_yanked=True).version
    offer = await look_up(hub, reference._replace(version=version))
    return _Info(offer, releases, await hub.results(offer.reference))


def _results(results: list[JsonObject]) -> Table:
    table = Table(title="results", width=100, title_justify="left")
    table.add_column("model", overflow="fold", ratio=3)
    for name in ("rollouts", "reward", "95% interval"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("pushed", no_wrap=True)
    for result in results:
        summary = result.get("summary") or {}
        reward = summary.get("reward")
        reward = reward if isinstance(reward, dict) else {}
        mean = reward.get("mean")
        figures = [number(mean) if isinstance(mean, (int, float)) else "–", interval(reward)]
        words = (result.get("model", ""), summary.get("scored", "–"), *figures, str(result.get("uploaded", ""))[:10])
        table.add_row(*(plain(str(word)) for word in words))
    return table


@click.command(epilog=examples("rove info alice/my-task", "rove info alice/my-task@1.0.0"))
@click.argument("name", metavar="OWNER/NAME[@VERSION]")
@hub_option
@json_option
def info_command(name: str, hub: str | None, as_json: bool) -> None:
    """Show an environment's rewards, requirements, versions, results, and scores of scripted policies."""
    console = console_for(as_json)
    reference, address = parse_reference(name), require_hub(hub)
    offer, releases, results = with_hub(hub, lambda client: _info(client, reference))
    installed = find(offer.reference._replace(version=None))
    if as_json:
        content = {
            "manifest": msgspec.json.decode(offer.content),
            "index": msgspec.to_builtins(releases),
            "results": results,
        }
        print_json({**content, "hub": address, "key": offer.key, "installed": installed and installed.version})
        return
    details = [("hub", address), ("signed", f"by {settings.fingerprint(offer.key)}" if offer.key else "no")]
    details.append(("installed", installed.version if installed else "no"))
    console.print(details_table(offer.manifest, str(offer.reference), details))
    console.print(versions(releases.versions))
    if results:
        console.print(_results(results))
    short = f"{reference.owner}/{reference.name}"
    install = f"install it: rove install {short}{at(hub)}"
    hint(console, f"evaluate a model in it: rove eval {short} -m MODEL" if installed else install)
