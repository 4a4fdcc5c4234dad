"""`rove build` and `rove push`: package an environment and publish it on a hub."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rove.cli.common import console_for, counted, hint, print_json, print_warnings, run_async
from rove.cli.hub_options import at, details_table, hub_at, hub_option
from rove.cli.options import confirmed, examples, json_option
from rove.core.errors import ConfigError, HubError
from rove.hub.client.run_results import collect_results
from rove.hub.client.settings import require_server
from rove.hub.package import signing
from rove.hub.package.archives import MANIFEST, PARTS, SIGNATURE, verify
from rove.hub.package.building import build
from rove.hub.package.manifest import Manifest
from rove.hub.package.names import Reference, check_owner


@click.command(epilog=examples("rove build", "rove build environments/my_task -o dist"))
@click.argument("folder", type=click.Path(path_type=Path), default=".")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Parent folder of NAME-VERSION/.  [default: FOLDER/dist]"
)
@click.option("--no-play", is_flag=True, help="Run no code: the manifest has no scores, metrics and tools.")
@click.option("--python", help="Interpreter that has the package's dependencies.  [default: this one]")
@json_option
def build_command(folder: Path, output: Path | None, no_play: bool, python: str | None, as_json: bool) -> None:
    """Build the environment package in FOLDER (default: the current one): wheel, source archive and manifest.

    Builds are reproducible: equal files give equal bytes.
    """
    built = build(folder, output, not no_play, python)
    if as_json:
        print_json({"folder": str(built.folder), "manifest": built.manifest, "warnings": built.warnings})
        return
    console = console_for(False)
    console.print(table(built.manifest))
    print_warnings(console, built.warnings)
    console.print(f"\nbuilt {built.folder}", soft_wrap=True, markup=False)
    hint(console, "publish it: rove push" + ("" if folder == Path() else f" {folder}"))


def table(manifest: Manifest) -> Table:
    """Return a table of a manifest."""
    rows = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    rows.add_column(style="dim")
    rows.add_column(overflow="fold")
    for name, text in lines(manifest):
        if text:
            rows.add_row(name, Text(text))  # text of the author, not markup
    return rows


def lines(manifest: Manifest) -> list[tuple[str, str]]:
    """Return name and text of each line of a manifest's table; "" for empty values."""
    needs = ["network"] * manifest.needs.network + ["sandbox"] * manifest.needs.sandbox + manifest.needs.secrets
    low_high = manifest.reward_range
    return [
        ("package", f"{manifest.name} {manifest.version}, module {manifest.module}, for {manifest.compatibility}"),
        ("description", manifest.description),
        ("tags", ", ".join(manifest.tags)),
        ("license", manifest.licence),
        ("authors", ", ".join(manifest.authors)),
        ("arguments", ", ".join(_argument(one.name, one.type, one.default) for one in manifest.arguments)),
        ("rewards", "" if low_high is None else f"{low_high[0]:g} to {low_high[1]:g}"),
        *(
            (f"scripted:{name}", f"{score.reward:.3f} over {score.n} rollouts")
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


def package_in(folder: Path) -> tuple[Manifest, dict[str, Path]]:
    """Return the package that `rove build` wrote into a folder: its manifest, and its files by part of an upload.

    Raises:
        PackageError: The folder has no package, or its files do not match the manifest.
    """
    manifest = verify(folder).manifest
    parts = {part: folder / name for part, name in PARTS.items() if (folder / name).is_file()}
    return manifest, parts | {entry.kind: folder / entry.filename for entry in manifest.files}


@click.command(epilog=examples("rove push", "rove push environments/my_task --sign --with-run runs/mine"))
@click.argument("folder", type=click.Path(exists=True, file_okay=False), default=".", metavar="[FOLDER]")
@hub_option
@click.option("--owner", help="Publish as this owner.  [default: the token's owner]")
@click.option("--no-build", is_flag=True, help="Publish what `rove build` wrote into FOLDER or its dist.")
@click.option("--sign", is_flag=True, help="Sign the manifest with your key (rove hub key).")
@click.option(
    "--with-run", "runs", multiple=True, metavar="RUN", help="Also publish the results of this run; repeatable."
)
@click.option("--private", is_flag=True, help="Make it visible only with a token for it.")
@json_option
def push_command(
    folder: str,
    hub: str | None,
    owner: str | None,
    no_build: bool,
    sign: bool,
    runs: tuple[str, ...],
    private: bool,
    as_json: bool,
) -> None:
    """Build the environment package in FOLDER and publish it; --yes confirms.

    A published version never changes: raise `version` in pyproject.toml for the next one. With --with-run, the statistics,
    settings and three rollouts of a run are published too, with API keys masked; also for an existing version.
    """
    console = console_for(as_json)
    where = require_server(hub)
    with tempfile.TemporaryDirectory(prefix="rove-push-") as built:
        package = _built_package(Path(folder)) if no_build else _build(Path(folder), Path(built), console)
        if sign:
            (package / SIGNATURE).write_bytes(signing.sign((package / MANIFEST).read_bytes(), signing.load_key()))
        manifest, parts = package_in(package)
        results = [collect_results(run, manifest, parts["wheel"]) for run in runs]
        owner = check_owner(owner) if owner else run_async(_owner(where, hub))
        reference = Reference(owner, manifest.name, manifest.version)
        console.print(
            details_table(
                manifest, str(reference), [("to", where), ("signed", "yes" if "signature" in parts else "no")]
            )
        )
        if not confirmed(f"Publish {reference}?", "give --yes to confirm"):
            raise click.Abort
        is_new = run_async(_publish(where, hub, reference, parts, results, private))
    if as_json:
        print_json(
            {"environment": f"{owner}/{manifest.name}", "version": manifest.version, "new": is_new, "hub": where}
        )
    status = "published" if is_new else "already published:"
    console.print(
        f"[green]{status}[/green] {reference}" + f", with {counted(len(results), 'run')}" * bool(results),
        soft_wrap=True,
    )
    hint(console, f"install it anywhere: rove install {owner}/{manifest.name}{at(where)}")


def _built_package(folder: Path) -> Path:
    """Return the folder of a built package: the folder itself, or the only one in its `dist`.

    Raises:
        ConfigError: There is no package, or there are several.
    """
    if (folder / "manifest.json").is_file():
        return folder
    found = sorted(file.parent for file in (folder / "dist").glob("*/manifest.json"))
    if len(found) != 1:
        found_text = (
            f"{len(found)} packages ({', '.join(one.name for one in found)}); name one" if found else "no package"
        )
        raise ConfigError(f"{folder / 'dist'} has {found_text}; run `rove build`, or `rove push` without --no-build")
    return found[0]


def _build(folder: Path, output: Path, console: Console) -> Path:
    package = build(folder, output)
    print_warnings(console, package.warnings)
    return package.folder


async def _owner(where: str, given: str | None) -> str:
    """Return the owner of the user's token.

    Raises:
        HubError: The token has no owner.
    """
    async with hub_at(where, given) as hub:
        me = await hub.me()
    if not isinstance(me.get("owner"), str):
        raise HubError(f"{where} does not name the owner of this token; give --owner")
    return check_owner(me["owner"])


async def _publish(
    where: str,
    given: str | None,
    reference: Reference,
    parts: dict[str, Path],
    results: list[dict[str, Any]],
    private: bool,
) -> bool:
    async with hub_at(where, given) as hub:
        if private:
            await hub.set_visibility(reference, "private")
        is_new = await hub.upload(reference, parts)
        for one in results:
            await hub.push_run(reference, one)
    return is_new
