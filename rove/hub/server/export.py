"""`rove hub export`: the public part of a hub as static files for any web server, usable by pip."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from rove.core.errors import ConfigError, PackageError
from rove.core.plain import DECODE_ERRORS, JsonObject
from rove.hub.server import catalogue, simple
from rove.hub.server.pages.html import static_files
from rove.hub.server.pages.site import Site
from rove.hub.server.store import Store
from rove.utils.files import atomic_replace

INDEX = "index.html"


class Exported(NamedTuple):
    """Counts of an export."""

    environments: int
    versions: int
    bytes: int
    """Total size of the package files."""


def export(store: Store, folder: str | Path, hub: str = "") -> Exported:
    """Export the public environments into a folder, atomically, in the layout of `rove hub serve`.

    Args:
        folder: New folder, empty folder or earlier export, which is replaced.
        hub: Name of the hub (default: name of the data folder).
    """
    target = Path(folder).absolute()
    _check(target, store)
    draft = target.with_name(f".{target.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        exported = _write(store, draft, hub or store.folder.name)
        atomic_replace(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return exported


def _check(target: Path, store: Store) -> None:
    if target == store.folder or target in store.folder.parents or store.folder in target.parents:
        raise ConfigError(f"{target} overlaps the hub's data folder; export into another folder")
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    try:
        index = msgspec.json.decode((target / "index.json").read_bytes(), type=JsonObject)
    except (OSError, *DECODE_ERRORS):
        index = {}
    has_keys = index.keys() >= {"schema", "hub", "environments", "search"}
    # Only an export sets "search" to null: the index of a running hub has the path of its search API.
    if not has_keys or index["search"] is not None:
        raise ConfigError(f"{target} contains files that are not an export and would be lost; choose a new folder")


def _write(store: Store, draft: Path, hub: str) -> Exported:
    listing, site = catalogue.listing(store, hub), Site(store, hub, INDEX)
    versions = size = 0
    owners: dict[str, list[str]] = {}
    for entry in listing["environments"]:
        owner, name = entry["owner"], entry["name"]
        owners.setdefault(owner, []).append(name)
        _json(draft / owner / name / "index.json", catalogue.environment(store, owner, name))
        (draft / owner / name / INDEX).write_bytes(site.environment(owner, name))
        releases = catalogue.releases(store, owner, name)
        _page(draft / owner / "simple" / name, partial(simple.project, name=name, releases=releases))
        for release in releases:
            versions += 1
            version_folder = draft / owner / name / release.version
            size += sum(_copy(store, draft, version_folder / file.filename, file.sha256) for file in release.files)
            runs = catalogue.runs(store, owner, name, release.version)
            _json(version_folder / "runs" / "index.json", runs)
            for run in runs["runs"]:
                _copy(store, draft, version_folder / "runs" / f"{run['id']}.json", run["sha256"])
            for row in site.rows(owner, name, release.version):
                (version_folder / "runs" / f"{row.id}.html").write_bytes(site.run(owner, name, row))
    for owner, names in owners.items():
        _page(draft / owner / "simple", partial(simple.project_list, names=names))
    _json(draft / "index.json", listing)
    (draft / INDEX).write_bytes(site.index_page())
    (draft / "static").mkdir()
    for filename, content in static_files().items():
        (draft / "static" / filename).write_bytes(content)
    return Exported(len(listing["environments"]), versions, size)


def _copy(store: Store, draft: Path, target: Path, sha256: str) -> int:
    """Copy a file and verify its hash; return its size."""
    target.parent.mkdir(parents=True, exist_ok=True)
    source = store.files / target.relative_to(draft)
    shutil.copyfile(source, target)
    with target.open("rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != sha256:
            raise PackageError(f"{source} was modified after its upload; restore the hub's data folder from a backup")
    return target.stat().st_size


def _json(file: Path, value: Mapping[str, object]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.encode(value))


def _page(folder: Path, write: Callable[[str], bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INDEX).write_bytes(write(simple.HTML))
    (folder / "index.json").write_bytes(write(simple.JSON_V1))
