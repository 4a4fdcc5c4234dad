"""`rove hub`: a hub of your own, where environments are shared as packages."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from rove.cli import hub_key, hub_login, hub_owner
from rove.cli.common import console_for, counted, hint, print_json, run_async
from rove.cli.hub_options import at
from rove.core.errors import ConfigError

DATA = Path("hub")
KEY_BYTES = 32

data_option = click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=DATA,
    envvar="ROVE_HUB_DATA",
    show_default=True,
    help="The hub's folder.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@contextmanager
def opened(data: Path, new: bool = False) -> Iterator[Any]:
    """The store in a folder.

    Raises:
        ConfigError: there is none, and it is not to be made.
    """
    from rove.hub.server.database import FILE
    from rove.hub.server.store import Store

    if not new and not (data / FILE).is_file():
        raise ConfigError(f"there is no hub in {data}; name its folder with --data, or make one: rove hub user OWNER")
    store = Store(data)
    try:
        yield store
    finally:
        store.close()


@click.group()
def command() -> None:
    """Run a hub: environments shared as packages, for rove, pip and uv.

    Begin with: rove hub token OWNER; rove hub serve
    """


@command.command("user")
@click.argument("owner")
@click.option(
    "--key", "keys", multiple=True, help="A public key, in base64, that signs this owner's packages; may be repeated."
)
@click.option("--no-keys", is_flag=True, help="Take packages without a signature again.")
@data_option
def user(owner: str, keys: tuple[str, ...], no_keys: bool, data: Path) -> None:
    """Make OWNER, in whose name environments are shared, or set the keys that have to sign their packages."""
    if keys and no_keys:
        raise ConfigError("--key and --no-keys say opposite things; give one of them")
    for key in keys:
        check_key(key)
    console = console_for(False)
    with opened(data, new=True) as store:
        new = store.add_owner(owner, list(keys) if keys or no_keys else None)
    console.print(f"{owner}: {'new owner' if new else 'an owner'} of the hub in {data}", markup=False, soft_wrap=True)
    if keys:
        console.print(f"every upload has to be signed by one of {counted(len(keys), 'key')}", markup=False)
    hint(console, f"give them a token: rove hub token {owner}{_data(data)}")


def check_key(text: str) -> None:
    """Check that a text is a public Ed25519 key in base64.

    Raises:
        ConfigError: it is not.
    """
    try:
        size = len(base64.b64decode(text, validate=True))
    except binascii.Error:
        size = 0
    if size != KEY_BYTES:
        raise ConfigError(
            f"{text[:80]!r} is no public key; expected the base64 of {KEY_BYTES} bytes, as rove prints it"
        )


@command.command("token")
@click.argument("owner", required=False)
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    help="read, upload:OWNER/NAME, upload:OWNER/* or admin; may be repeated.  [default: read and upload:OWNER/*]",
)
@click.option("--days", type=float, default=365, show_default=True, help="For how long; 0 = for ever.")
@click.option("--note", default="", help="What it is for.")
@click.option("--list", "listed", is_flag=True, help="List tokens instead, of OWNER or of all.")
@click.option("--revoke", type=int, metavar="ID", help="Make a token good for nothing instead.")
@data_option
@json_option
def token(
    owner: str | None,
    scopes: tuple[str, ...],
    days: float,
    note: str,
    listed: bool,
    revoke: int | None,
    data: Path,
    as_json: bool,
) -> None:
    """Make an API token for OWNER, who is made, too, if need be. It is shown once; the hub keeps its hash only."""
    from rove.hub.server import tokens

    console = console_for(as_json)
    if revoke is not None:
        with opened(data) as store:
            found = tokens.revoke(store.database, revoke)
        console.print(f"token {revoke} of {found.owner} was revoked {found.revoked}", markup=False)
        return
    if listed:
        with opened(data) as store:
            found = tokens.tokens(store.database, owner)
        _list_tokens(found, as_json)
        return
    if owner is None:
        raise ConfigError("whose token? rove hub token OWNER, or --list")
    with opened(data, new=True) as store:
        new = store.add_owner(owner)
        text = tokens.make_token(store.database, owner, scopes, days or None, note)
        made = tokens.tokens(store.database, owner)[-1]
    if as_json:
        print_json({**made._asdict(), "token": text})
        return
    if new:
        console.print(f"{owner}: new owner of the hub in {data}", markup=False, soft_wrap=True)
    console.print(
        f"{', '.join(made.scopes)}; until {made.expires or 'it is revoked'} (token {made.id})",
        markup=False,
        soft_wrap=True,
    )
    click.echo(text)
    hint(
        console,
        "nobody can show it again; on the machine that uses it: rove hub login",
        f"start the hub: rove hub serve{_data(data)}",
    )


def _list_tokens(found: list[Any], as_json: bool) -> None:
    if as_json:
        print_json([token._asdict() for token in found])
        return
    table = Table("id", "owner", "scopes", "note", "until", box=None)
    for token in found:
        until = f"revoked {token.revoked}" if token.revoked else token.expires or "for ever"
        table.add_row(str(token.id), token.owner, ", ".join(token.scopes), token.note, until)
    console_for(False).print(table)


@command.command("serve")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--port", type=click.IntRange(0, 65535), default=8900, show_default=True, help="0 = any that is free.")
@click.option("--name", default="", help="Of the hub.  [default: the folder's]")
@click.option(
    "--fallback",
    metavar="URL",
    help="Simple index where pip is sent for what an owner does not have, like https://index.example/simple/.",
)
@click.option("--uploads", type=click.IntRange(1, 64), default=8, show_default=True, help="Uploads at once; more wait.")
@data_option
def serve(host: str, port: int, name: str, fallback: str | None, uploads: int, data: Path) -> None:
    """Serve a hub until Ctrl-C. Whatever stops it, a version is there whole or not at all."""
    from rove.hub.server.app import make_hub, serve_hub
    from rove.hub.server.uploads import Pace
    from rove.server import is_loopback

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    console = console_for(False)
    if fallback is not None and not fallback.startswith(("https://", "http://")):
        raise ConfigError(f"--fallback is '{fallback}'; expected an address like https://index.example/simple/")

    def started(url: str) -> None:
        console.print(f"the hub in {data} is at {url} (Ctrl-C stops it)", markup=False, soft_wrap=True)
        if not is_loopback(host):
            console.print("tokens are not encrypted on their way; put a web server with TLS before it", style="yellow")
        hint(
            console,
            f"publish: rove hub login {url}; rove push",
            f"look: rove search{at(url)}",
            *([] if owners else [f"nobody can publish yet: rove hub token OWNER{_data(data)}"]),
        )

    with opened(data, new=True) as store:
        owners = store.database.query("SELECT 1 FROM owners LIMIT 1")
        for file in store.enter():
            console.print(
                f"{file} is not there, or not whole; restore it from a backup",
                style="red",
                markup=False,
                soft_wrap=True,
            )
        app = make_hub(store, name, fallback=fallback, pace=Pace(uploads=uploads))
        try:
            run_async(serve_hub(app, host, port, started))
        except KeyboardInterrupt:
            console.print("stopped")


@command.command("export")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--name", default="", help="Of the hub.  [default: the folder's]")
@data_option
@json_option
def export(folder: Path, name: str, data: Path, as_json: bool) -> None:
    """Write what is public into FOLDER, as files for any web server, for pip and for rove itself."""
    from rove.hub.server.export import export as write

    console = console_for(as_json)
    with opened(data) as store:
        made = write(store, folder, name)
    if as_json:
        print_json(made._asdict())
        return
    console.print(
        f"{folder}: {counted(made.environments, 'environment')}, {counted(made.versions, 'version')}, {made.bytes:,} bytes",
        markup=False,
        soft_wrap=True,
    )
    hint(
        console,
        f"look: rove search{at(str(folder))}",
        f"install: pip install --index-url file://{folder.resolve()}/OWNER/simple/ NAME",
        f"serve: any web server will do, like python -m http.server -d {folder}",
    )


@command.command("mirror")
@click.argument("source", metavar="URL_OR_FOLDER")
@click.argument("to", metavar="[DATA]", required=False, type=click.Path(path_type=Path))
@click.option("--owner", "owners", multiple=True, help="Only this owner's environments; may be repeated.")
@data_option
@json_option
def mirror(source: str, to: Path | None, owners: tuple[str, ...], data: Path, as_json: bool) -> None:
    """Copy the public environments of another hub, or what is new there since the last time.

    Hashes and archives are checked; manifests, signatures, results and what was yanked are kept. DATA is this hub's folder.
    """
    from rove.hub.client.hub import Hub
    from rove.hub.server.mirror import Mirror, Mirrored, check_source

    console = console_for(as_json)
    data = to or data

    async def run(store: Any) -> Mirrored:
        async with Hub(source) as hub:
            check_source(hub.where, store)
            return await Mirror(hub, store, lambda words: console.print(words, markup=False)).run(owners)

    with opened(data, new=True) as store:
        store.enter()
        done = run_async(run(store))
    if as_json:
        print_json(done._asdict())
    else:
        console.print(
            f"{data}: {counted(done.new, 'new version')}, {done.known} that were there", markup=False, soft_wrap=True
        )
        hint(console, f"serve it: rove hub serve{_data(data)}")
    for problem in done.problems:
        console.print(problem, style="red", markup=False, soft_wrap=True)
    if done.problems:
        raise click.exceptions.Exit(1)


def _data(data: Path) -> str:
    return "" if data == DATA else f" --data {data}"


command.add_command(hub_login.command)
command.add_command(hub_key.command)
command.add_command(hub_owner.yank)
command.add_command(hub_owner.visibility)
