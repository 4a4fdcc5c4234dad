"""`rove build`: an environment's folder as a package."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from rove.cli.common import console_for, hint, print_json, print_warnings
from rove.hub.package.building import build
from rove.hub.package.manifest import Manifest


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=".")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Where to put NAME-VERSION/.  [default: FOLDER/dist]"
)
@click.option("--no-play", is_flag=True, help="Load nothing: the manifest has no scores, metrics and tools.")
@click.option("--python", help="Interpreter of an environment that has what the package needs.  [default: this one]")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest, and warnings, as JSON.")
def command(folder: Path, output: Path | None, no_play: bool, python: str | None, as_json: bool) -> None:
    """Build the environment in FOLDER (this one by default): wheel, source archive and manifest.

    The same files give the same bytes, on every machine and at any time.
    """
    built = build(folder, output, not no_play, python)
    if as_json:
        print_json({"folder": str(built.folder), "manifest": built.manifest, "warnings": built.warnings})
        return
    console = console_for(False)
    console.print(table(built.manifest))
    print_warnings(console, built.warnings)
    console.print(f"\nbuilt {built.folder}", soft_wrap=True, markup=False)
    hint(console, "share it: rove push" + ("" if folder == Path() else f" {folder}"))


def table(manifest: Manifest) -> Table:
    """A manifest for people."""
    rows = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    rows.add_column(style="dim")
    rows.add_column(overflow="fold")
    for name, text in lines(manifest):
        if text:
            rows.add_row(name, Text(text))  # not markup: its author has written it
    return rows


def lines(manifest: Manifest) -> list[tuple[str, str]]:
    """Name and text of every line that people see of a manifest; "" where there is nothing to say."""
    needs = ["network"] * manifest.needs.network + ["sandbox"] * manifest.needs.sandbox + manifest.needs.secrets
    low_high = manifest.reward_range
    return [
        ("package", f"{manifest.name} {manifest.version}, module {manifest.module}, for {manifest.compatibility}"),
        ("description", manifest.description),
        ("tags", ", ".join(manifest.tags)),
        ("licence", manifest.licence),
        ("authors", ", ".join(manifest.authors)),
        ("arguments", ", ".join(_argument(one.name, one.type, one.default) for one in manifest.arguments)),
        ("rewards", "" if low_high is None else f"{low_high[0]:g} to {low_high[1]:g}"),
        *(
            (f"player {name}", f"{score.reward:.3f} over {score.n} rollouts")
            for name, score in manifest.policies.items()
        ),
        ("metrics", ", ".join(manifest.metrics)),
        ("tools", ", ".join(manifest.tools)),
        ("needs", ", ".join(needs)),
        ("data from", ", ".join(manifest.data_sources)),
        ("depends on", ", ".join(manifest.dependencies)),
        ("source", " at ".join(part for part in (manifest.source.repository, manifest.source.commit) if part)),
        ("built by", f"rove {manifest.rove}, {manifest.source.builder}"),
        *((file.kind, f"{file.filename}, {file.size:,} bytes, SHA-256 {file.sha256}") for file in manifest.files),
        ("content", manifest.content),
    ]


def _argument(name: str, type: str, default: str | None) -> str:
    return name + (f": {type}" if type else "") + ("" if default is None else f" = {default}")
