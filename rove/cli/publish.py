"""`rove build` and `rove push`: package an environment and publish it on a hub."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from rove.cli.common import console_for, hint, print_json, print_warnings
from rove.cli.hub_options import at, details_table, hub_option, with_hub
from rove.cli.options import confirmed, examples, json_option
from rove.core.errors import ConfigError, HubError
from rove.core.plain import JsonObject
from rove.hub.client.hub import Hub
from rove.hub.client.run_results import collect_results
from rove.hub.client.settings import require_server
from rove.hub.package import signing
from rove.hub.package.archives import MANIFEST, PARTS, SIGNATURE, verify
from rove.hub.package.building import build
from rove.hub.package.manifest import Manifest
from rove.hub.package.names import Reference, check_owner
from rove.utils.console import styled
from rove.utils.units import counted


@click.command(epilog=examples("rove build", "rove build environments/my_task -o dist"))
@click.argument("folder", type=click.Path(path_type=Path), default=".")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Folder in which to create NAME-VERSION/.  [default: FOLDER/dist]",
)
@click.option(
    "--no-play", is_flag=True, help="Do not run the package's code; its manifest then has no scores, metrics, or tools."
)
@click.option(
    "--python",
    help="Python interpreter that has the package's dependencies.  [default: the interpreter that runs rove]",
)
@click.option(
    "--verifiers-v1",
    is_flag=True,
    help="Also write a wheel NAME_v1, which is a taskset for verifiers 0.4 (vf-eval, prime-rl).",
)
@json_option
def build_command(
    folder: Path, output: Path | None, no_play: bool, python: str | None, verifiers_v1: bool, as_json: bool
) -> None:
    """Build the environment package in FOLDER (default: the current folder): a wheel, a source archive, and a manifest.

    Builds are reproducible: the same files always produce a byte-identical package.
    """
    built = build(folder, output, not no_play, python, verifiers_v1)
    if as_json:
        report = {"folder": str(built.folder), "manifest": built.manifest, "warnings": built.warnings}
        if built.verifiers_v1 is not None:
            report["verifiers_v1"] = str(built.verifiers_v1)
        print_json(report)
        return
    console = console_for(False)
    manifest = built.manifest
    files = [(file.kind, f"{file.filename}, {file.size:,} bytes, SHA-256 {file.sha256}") for file in manifest.files]
    title = f"{manifest.name} {manifest.version}, module {manifest.module}"
    console.print(details_table(manifest, title, [*files, ("content", manifest.content)]))
    print_warnings(console, built.warnings)
    console.print(f"\nbuilt {built.folder}", soft_wrap=True)
    if built.verifiers_v1 is not None:
        console.print(f"built {built.verifiers_v1}", soft_wrap=True)
    hint(console, "publish it: rove push" + ("" if folder == Path() else f" {folder}"))


def package_in(folder: Path) -> tuple[Manifest, dict[str, Path]]:
    """Return the package that `rove build` wrote into a folder: its manifest, and its files by part of an upload."""
    manifest = verify(folder).manifest
    parts = {part: folder / name for part, name in PARTS.items() if (folder / name).is_file()}
    return manifest, parts | {entry.kind: folder / entry.filename for entry in manifest.files}


@click.command(epilog=examples("rove push", "rove push environments/my_task --sign --with-run runs/mine"))
@click.argument("folder", type=click.Path(exists=True, file_okay=False), default=".", metavar="[FOLDER]")
@hub_option
@click.option("--owner", help="Publish as this owner.  [default: the token's owner]")
@click.option(
    "--no-build", is_flag=True, help="Publish the package that `rove build` wrote into FOLDER or FOLDER/dist."
)
@click.option("--sign", is_flag=True, help="Sign the manifest with your key (rove hub key).")
@click.option(
    "--with-run", "runs", multiple=True, metavar="RUN", help="Also publish the results of this run; repeatable."
)
@click.option("--private", is_flag=True, help="Make the environment private: visible only with a token for it.")
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
    """Build the environment package in FOLDER and publish it, after a confirmation (not with --yes).

    A published version never changes: to publish changes, increase `version` in pyproject.toml. With --with-run, rove also
    publishes the statistics, the settings, and three rollouts of a run, with API keys masked. This also works for an existing
    version.
    """
    console = console_for(as_json)
    address = require_server(hub)
    with tempfile.TemporaryDirectory(prefix="rove-push-") as built:
        if no_build:
            package = _built_package(Path(folder))
        else:
            package_build = build(Path(folder), Path(built))
            print_warnings(console, package_build.warnings)
            package = package_build.folder
        if sign:
            (package / SIGNATURE).write_bytes(signing.sign((package / MANIFEST).read_bytes(), signing.load_key()))
        manifest, parts = package_in(package)
        results = [collect_results(run, manifest, parts["wheel"]) for run in runs]
        owner = check_owner(owner) if owner else with_hub(hub, _owner)
        reference = Reference(owner, manifest.name, manifest.version)
        details = [("to", address), ("signed", "yes" if "signature" in parts else "no")]
        console.print(details_table(manifest, str(reference), details))
        if not confirmed(f"Publish {reference}?", "give --yes to confirm"):
            raise click.Abort
        is_new = with_hub(hub, lambda client: _publish(client, reference, parts, results, private))
    if as_json:
        name = f"{owner}/{manifest.name}"
        print_json({"environment": name, "version": manifest.version, "new": is_new, "hub": address})
    status = "published" if is_new else "already published:"
    with_runs = f", with {counted(len(results), 'run')}" if results else ""
    console.print(styled((status, "green"), f" {reference}{with_runs}"), soft_wrap=True)
    hint(console, f"install it anywhere: rove install {owner}/{manifest.name}{at(address)}")


def _built_package(folder: Path) -> Path:
    """Return the folder of a built package: the folder itself, or the only package folder in its `dist`."""
    if (folder / "manifest.json").is_file():
        return folder
    packages = sorted(file.parent for file in (folder / "dist").glob("*/manifest.json"))
    if len(packages) != 1:
        names = "no package"
        if packages:
            names = f"{len(packages)} packages ({', '.join(path.name for path in packages)}); name one"
        raise ConfigError(f"{folder / 'dist'} has {names}; run `rove build`, or `rove push` without --no-build")
    return packages[0]


async def _owner(hub: Hub) -> str:
    """Return the owner of the user's token."""
    me = await hub.me()
    if not isinstance(me.get("owner"), str):
        raise HubError(f"{hub.address} does not name the owner of this token; give --owner")
    return check_owner(me["owner"])


async def _publish(
    hub: Hub, reference: Reference, parts: dict[str, Path], results: list[JsonObject], private: bool
) -> bool:
    if private:
        await hub.set_visibility(reference, "private")
    is_new = await hub.upload(reference, parts)
    for result in results:
        await hub.push_run(reference, result)
    return is_new
