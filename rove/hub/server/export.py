"""`rove hub export`: the public part of a hub as plain files, which any web server or `pip` alone can use."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rove.core.errors import ConfigError, PackageError
from rove.hub.server import catalogue, simple
from rove.hub.server.pages.frame import static_files
from rove.hub.server.pages.site import Site
from rove.hub.server.store import Store
from rove.utils.files import atomic_replace

INDEX = "index.html"


class Exported(NamedTuple):
    """What an export holds."""

    environments: int
    versions: int
    bytes: int
    """Of the packages' files."""


def export(store: Store, folder: str | Path, hub: str = "") -> Exported:
    """Write what is public into a folder, laid out as `rove hub serve` answers; a former export there is replaced.

    Args:
        store: what is exported.
        folder: a new one, an empty one or a former export.
        hub: its name. Default: the data folder's.

    Raises:
        ConfigError: there is something else in the folder.
        PackageError: a file of the hub is not what it was when it was uploaded.
    """
    target = Path(folder).absolute()
    _check(target, store)
    draft = target.with_name(f".{target.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        made = _write(store, draft, hub or store.folder.name)
        atomic_replace(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return made


def _check(target: Path, store: Store) -> None:
    if target == store.folder or target in store.folder.parents or store.folder in target.parents:
        raise ConfigError(f"{target} is the hub's own folder, in it or around it; export into another one")
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    try:
        told = msgspec.json.decode((target / "index.json").read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError):
        told = {}
    if not told.keys() >= {"schema", "hub", "environments", "search"} or told["search"] is not None:
        raise ConfigError(f"{target} holds something else than an export, which would be lost; give a new folder")


def _write(store: Store, draft: Path, hub: str) -> Exported:
    listing, site = catalogue.listing(store, hub), Site(store, hub, INDEX)
    versions = size = 0
    owners: dict[str, list[str]] = {}
    for card in listing["environments"]:
        owner, name = card["owner"], card["name"]
        owners.setdefault(owner, []).append(name)
        _json(draft / owner / name / "index.json", catalogue.environment(store, owner, name))
        (draft / owner / name / INDEX).write_bytes(site.environment(owner, name))
        releases = catalogue.releases(store, owner, name)
        _page(draft / owner / "simple" / name, partial(simple.project, name=name, releases=releases))
        for release in releases:
            versions += 1
            place = draft / owner / name / release.version
            size += sum(_copy(store, draft, place / file.filename, file.sha256) for file in release.files)
            runs = catalogue.runs(store, owner, name, release.version)
            _json(place / "runs" / "index.json", runs)
            for run in runs["runs"]:
                _copy(store, draft, place / "runs" / f"{run['id']}.json", run["sha256"])
            for row in site.rows(owner, name, release.version):
                (place / "runs" / f"{row.id}.html").write_bytes(site.run(owner, name, row))
    for owner, names in owners.items():
        _page(draft / owner / "simple", partial(simple.project_list, names=names))
    _json(draft / "index.json", listing)
    (draft / INDEX).write_bytes(site.everything())
    (draft / "static").mkdir()
    for filename, content in static_files().items():
        (draft / "static" / filename).write_bytes(content)
    return Exported(len(listing["environments"]), versions, size)


def _copy(store: Store, draft: Path, target: Path, sha256: str) -> int:
    """Copy a file that is what it was."""
    target.parent.mkdir(parents=True, exist_ok=True)
    source = store.files / target.relative_to(draft)
    shutil.copyfile(source, target)
    with target.open("rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != sha256:
            raise PackageError(
                f"{source} is not what it was when it was uploaded; restore the hub's folder from a backup"
            )
    return target.stat().st_size


def _json(file: Path, told: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.encode(told))


def _page(folder: Path, write: Callable[[str], bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INDEX).write_bytes(write(simple.HTML))
    (folder / "index.json").write_bytes(write(simple.JSON_V1))
