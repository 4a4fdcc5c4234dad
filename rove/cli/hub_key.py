"""`rove hub key`: the key that packages are signed with."""

from __future__ import annotations

import click

from rove.cli.common import console_for, hint, print_json
from rove.hub.package.signing import key_file, load_key, make_key, public_key


@click.command("key")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(as_json: bool) -> None:
    """Make the key that your packages are signed with, or show the public half of the one there is."""
    file = key_file()
    is_new = not file.exists()
    public = make_key(file) if is_new else public_key(load_key(file))
    if as_json:
        print_json({"key": public, "file": str(file), "new": is_new})
        return
    console = console_for(False)
    console.print(
        f"{'made' if is_new else 'this is'} the key of {file}; its public half is", soft_wrap=True, markup=False
    )
    console.print(f"  {public}", markup=False)
    if is_new:
        hint(
            console,
            "keep the file: nobody can make it again, and others know your packages by it",
            "sign: rove push --sign",
        )
