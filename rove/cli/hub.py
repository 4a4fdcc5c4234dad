"""`rove hub`: run a hub, log in to one, and manage what is published there."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from rove.cli.common import console_for, hint, print_json
from rove.cli.hub_options import at, hub_option, with_hub
from rove.cli.options import examples, in_range, json_option
from rove.core.errors import ConfigError
from rove.core.ranges import NonNegativeInt, Port
from rove.hub.client.hub import Hub
from rove.hub.client.settings import is_url, normalize_address, require_server, resolve_hub, save_hub
from rove.hub.package import limits
from rove.hub.package.names import Reference, parse_reference
from rove.hub.package.signing import PUBLIC_BYTES, decode_base64, key_file, load_key, make_key, public_key
from rove.utils.event_loop import run_async
from rove.utils.terminal_text import make_logs_inert
from rove.utils.units import counted

DATA = Path("hub")

data_option = click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=DATA,
    envvar="ROVE_HUB_DATA",
    show_default=True,
    help="Folder of the hub.",
)


@contextmanager
def opened(data: Path, new: bool = False) -> Iterator[Any]:
    """Open the store of a hub."""
    from rove.hub.server.database import FILE
    from rove.hub.server.store import Store

    if not new and not (data / FILE).is_file():
        raise ConfigError(f"there is no hub in {data}; name its folder with --data, or create one: rove hub user OWNER")
    store = Store(data)
    try:
        yield store
    finally:
        store.close()


@click.group(epilog=examples("rove hub token me", "rove hub serve", "rove hub login http://localhost:8900"))
def command() -> None:
    """Run a hub: environments shared as packages, for rove, pip and uv."""


@command.command("user", epilog=examples("rove hub user me", "rove hub user me --key BASE64_KEY"))
@click.argument("owner")
@click.option(
    "--key", "keys", multiple=True, help="Public key (base64) that must sign this owner's packages; repeatable."
)
@click.option("--no-keys", is_flag=True, help="Accept unsigned packages of this owner again.")
@data_option
def user(owner: str, keys: tuple[str, ...], no_keys: bool, data: Path) -> None:
    """Create OWNER, or set the keys that must sign the owner's packages."""
    if keys and no_keys:
        raise ConfigError("--key and --no-keys exclude each other; give one of them")
    for key in keys:
        check_key(key)
    console = console_for(False)
    with opened(data, new=True) as store:
        new = store.add_owner(owner, list(keys) if keys or no_keys else None)
    console.print(f"{owner}: {'new owner' if new else 'an owner'} of the hub in {data}", soft_wrap=True)
    if keys:
        console.print(f"every upload must be signed by one of {counted(len(keys), 'key')}")
    hint(console, f"create a token for them: rove hub token {owner}{_data(data)}")


def check_key(text: str) -> None:
    """Check that a text is a public Ed25519 key in base64."""
    try:
        decode_base64(text, PUBLIC_BYTES)
    except ValueError:
        raise ConfigError(
            f"{text[:80]!r} is not a public key; expected the base64 of {PUBLIC_BYTES} bytes, as rove hub key prints it"
        ) from None


@command.command(
    "token",
    epilog=examples(
        "rove hub token me",
        "rove hub token ci --scope upload:me/my-task --days 90",
        "rove hub token --list",
        "rove hub token --revoke 3",
    ),
)
@click.argument("owner", required=False)
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    help="Permission: read, upload:OWNER/NAME, upload:OWNER/* or admin; repeatable.  [default: read, upload:OWNER/*]",
)
@click.option(
    "--days",
    type=in_range(limits.TokenDaysOrNever),
    default=365,
    show_default=True,
    help="Days until the token expires; 0 = never.",
)
@click.option("--note", default="", help="Purpose of the token.")
@click.option(
    "--list", "listed", is_flag=True, help="List the tokens of OWNER, or of all owners, without creating one."
)
@click.option(
    "--revoke",
    type=in_range(NonNegativeInt),
    metavar="ID",
    help="Revoke the token with this number without creating one.",
)
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
    """Create an API token for OWNER; create OWNER if necessary. The token is shown once; the hub stores only its hash."""
    from rove.hub.server import tokens

    console = console_for(as_json)
    if revoke is not None:
        with opened(data) as store:
            revoked_token = tokens.revoke(store.database, revoke)
        console.print(f"token {revoke} of {revoked_token.owner} was revoked {revoked_token.revoked}")
        return
    if listed:
        with opened(data) as store:
            stored = tokens.tokens(store.database, owner)
        _list_tokens(stored, as_json)
        return
    if owner is None:
        raise ConfigError("name the owner: rove hub token OWNER, or give --list")
    with opened(data, new=True) as store:
        new = store.add_owner(owner)
        text = tokens.make_token(store.database, owner, scopes, days or None, note)
        created = tokens.tokens(store.database, owner)[-1]
    if as_json:
        print_json({**created._asdict(), "token": text})
        return
    if new:
        console.print(f"{owner}: new owner of the hub in {data}", soft_wrap=True)
    expiry = created.expires or "it is revoked"
    console.print(f"{', '.join(created.scopes)}; valid until {expiry} (token {created.id})", soft_wrap=True)
    click.echo(text)
    hint(
        console,
        "copy it now, it is not shown again; on the machine that uses it: rove hub login",
        f"start the hub: rove hub serve{_data(data)}",
    )


def _list_tokens(stored: list[Any], as_json: bool) -> None:
    if as_json:
        print_json([token._asdict() for token in stored])
        return
    table = Table("id", "owner", "scopes", "note", "until", box=None)
    for token in stored:
        until = f"revoked {token.revoked}" if token.revoked else token.expires or "never"
        table.add_row(str(token.id), token.owner, ", ".join(token.scopes), token.note, until)
    console_for(False).print(table)


@command.command("serve", epilog=examples("rove hub serve", "rove hub serve --data /srv/hub --host 0.0.0.0 --port 80"))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=in_range(Port),
    default=8900,
    show_default=True,
    help="Port to listen on; 0 picks a free one.",
)
@click.option("--name", default="", help="Name of the hub.  [default: the folder's name]")
@click.option(
    "--fallback",
    metavar="URL",
    help="Package index, such as https://index.example/simple/, for projects that an owner does not have.  [default: none]",
)
@click.option(
    "--allow-shadow",
    multiple=True,
    metavar="NAME",
    help="Let owners publish NAME even if the index of --fallback has a project of that name; repeatable.",
)
@click.option(
    "--uploads",
    type=in_range(limits.ConcurrentUploads),
    default=8,
    show_default=True,
    help="Maximum number of uploads received at once.",
)
@data_option
def serve(
    host: str, port: int, name: str, fallback: str | None, allow_shadow: tuple[str, ...], uploads: int, data: Path
) -> None:
    """Serve a hub until Ctrl-C. Publishing is atomic."""
    from rove.hub.server.app import make_app, serve_hub
    from rove.hub.server.uploads import UploadLimits
    from rove.server import is_loopback

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    make_logs_inert()  # log lines repeat what strangers send
    console = console_for(False)
    if fallback is not None and not fallback.startswith(("https://", "http://")):
        raise ConfigError(f"--fallback is '{fallback}'; expected an address like https://index.example/simple/")

    def started(url: str) -> None:
        console.print(f"the hub in {data} is at {url} (Ctrl-C stops it)", soft_wrap=True)
        if not is_loopback(host):
            console.print("warning: tokens are sent unencrypted; put a web server with TLS in front", style="yellow")
        hint(
            console,
            f"publish: rove hub login {url}; rove push",
            f"search it: rove search{at(url)}",
            *([] if owners else [f"create an owner and a token first: rove hub token OWNER{_data(data)}"]),
        )

    with opened(data, new=True) as store:
        owners = store.database.query("SELECT 1 FROM owners LIMIT 1")
        for file in store.recover():
            console.print(f"{file} is missing or damaged; restore it from a backup", style="red", soft_wrap=True)
        pace = UploadLimits(uploads=uploads)
        app = make_app(store, name, fallback=fallback, allow_shadow=allow_shadow, pace=pace)
        try:
            run_async(serve_hub(app, host, port, started))
        except KeyboardInterrupt:
            console.print("stopped")


@command.command("export", epilog=examples("rove hub export public/"))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--name", default="", help="Name of the hub.  [default: the folder's name]")
@data_option
@json_option
def export(folder: Path, name: str, data: Path, as_json: bool) -> None:
    """Export all public environments into FOLDER, as static files for any web server, pip and rove."""
    from rove.hub.server.export import export as write

    console = console_for(as_json)
    with opened(data) as store:
        exported = write(store, folder, name)
    if as_json:
        print_json(exported._asdict())
        return
    counts = f"{counted(exported.environments, 'environment')}, {counted(exported.versions, 'version')}, {exported.bytes:,} bytes"
    console.print(f"{folder}: {counts}", soft_wrap=True)
    hint(
        console,
        f"search it: rove search{at(str(folder))}",
        f"install: pip install --index-url {folder.resolve().as_uri()}/OWNER/simple/ NAME",
        f"serve it with any web server: python -m http.server -d {folder}",
    )


def _data(data: Path) -> str:
    return "" if data == DATA else f" --data {data}"


@command.command(
    "login", epilog=examples("rove hub login http://localhost:8900", "rove hub login shared/hub --no-token")
)
@click.argument("hub", required=False, metavar="[URL_OR_FOLDER]")
@click.option("--token", help="The API token.  [default: ask for it, or read it from a pipe]")
@click.option("--no-token", is_flag=True, help="Store only the address; reading public environments needs no token.")
def login(hub: str | None, token: str | None, no_token: bool) -> None:
    """Store the address of a hub and your token for it in a file that only you can read.

    Create tokens on the hub's machine: rove hub token OWNER --scope upload:OWNER/*
    """
    console = console_for(False)
    address = normalize_address(hub) if hub else resolve_hub()
    if address is None:
        raise ConfigError("give the URL or folder of a hub: rove hub login http://localhost:8900")
    if not is_url(address):
        if token:
            raise ConfigError(f"{address} is a folder and needs no token; omit --token")
        no_token = True
    if not no_token and not token:
        token = click.prompt("token", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()
    token = (token or "").strip() or None
    account = run_async(_account(address, token))
    file = save_hub(address, token)
    console.print(f"{address} is now your hub{account}; stored in {file}", soft_wrap=True)
    is_local = address.startswith(("http://localhost", "http://127.", "http://[::1]"))
    if token and address.startswith("http://") and not is_local:
        console.print("note: without https, others on the network can read the token", style="yellow")
    hint(
        console,
        "search it: rove search",
        "publish: rove push FOLDER" if token else "install: rove install OWNER/NAME",
    )


async def _account(address: str, token: str | None) -> str:
    """Check the hub and the token; return a description of the token's owner."""
    async with Hub(address, token or "") as client:
        await client.index()
        if token is None:
            return ""
        me = await client.me()
    scopes = ", ".join(map(str, me.get("scopes", []))) or "no scopes"
    return f", where you are '{me.get('owner', '?')}' ({scopes})"


@command.command("key", epilog=examples("rove hub key", "rove push --sign"))
@json_option
def key(as_json: bool) -> None:
    """Create your signing key for packages, or show its public half."""
    file = key_file()
    is_new = not file.exists()
    public = make_key(file) if is_new else public_key(load_key(file))
    if as_json:
        print_json({"key": public, "file": str(file), "new": is_new})
        return
    console = console_for(False)
    console.print(f"{'created' if is_new else 'this is'} the key in {file}; its public half is", soft_wrap=True)
    console.print(f"  {public}")
    if is_new:
        hint(
            console,
            "back up the file: it cannot be recreated, and others recognize your packages by it",
            "sign: rove push --sign",
        )


@command.command(
    "yank",
    epilog=examples("rove hub yank me/my-task@1.0.0 --reason 'wrong answers'", "rove hub yank me/my-task@1.0.0 --undo"),
)
@click.argument("version", metavar="OWNER/NAME@VERSION")
@click.option("--reason", help="Reason not to use the version, which users see next to it.")
@click.option("--undo", is_flag=True, help="Undo a yank.")
@hub_option
def yank(version: str, reason: str | None, undo: bool, hub: str | None) -> None:
    """Yank a version: it is no longer selected by default, but anyone who names it still gets it."""
    reference = parse_reference(version)
    if reference.version is None:
        raise ConfigError(f"name a version: {reference}@VERSION; rove info {reference} lists them")
    if undo == (reason is not None):
        raise ConfigError("give --reason TEXT, or --undo to undo a yank")
    require_server(hub)
    with_hub(hub, lambda client: client.yank(reference, reason))
    console = console_for(False)
    console.print(f"{reference} {'is available again' if undo else 'is yanked'}", soft_wrap=True)
    if not undo:
        hint(console, f"undo it: rove hub yank {reference} --undo{at(hub)}")


@command.command("visibility", epilog=examples("rove hub visibility me/my-task private"))
@click.argument("environment", metavar="OWNER/NAME")
@click.argument("to", type=click.Choice(["public", "private"]))
@hub_option
def visibility(environment: str, to: str, hub: str | None) -> None:
    """Make an environment public, or private (visible only with a token for it). You need a token with the scope admin."""
    reference = parse_reference(environment)
    if reference.version is not None:
        raise ConfigError(f"{reference} is one version; visibility applies to all versions: name OWNER/NAME")
    require_server(hub)
    with_hub(hub, lambda client: client.set_visibility(Reference(reference.owner, reference.name), to))
    console_for(False).print(f"{reference} is {to}", soft_wrap=True)
