"""`rove hub mirror`: copy the public environments of another hub, with their hashes and signatures."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Collection
from typing import NamedTuple

from rove.core.errors import ConfigError, Error, RejectedError
from rove.hub.client.hub import Hub, Release, Releases
from rove.hub.package.archives import MANIFEST
from rove.hub.package.manifest import filename, read_manifest
from rove.hub.package.names import Reference
from rove.hub.server import catalogue
from rove.hub.server.checkers import Checkers
from rove.hub.server.store import MAX_RUN_BYTES, Store, read_run

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


class MirrorResult(NamedTuple):
    """Result of mirroring."""

    new: int
    """Number of versions copied."""
    known: int
    """Number of versions that were already present."""
    problems: list[str]
    """Versions that were not copied, with reasons."""


class Mirror:
    """Copies the public environments of another hub that are missing here; an interrupted copy can be repeated.

    An owner is either local or mirrored from one hub, never both, so that another hub cannot publish under a local owner's
    name. The owner's keys are those seen first.
    """

    def __init__(self, source: Hub, store: Store, on_copy: Callable[[str], None] = lambda name: None):
        if source.where == str(store.folder):
            raise ConfigError(
                f"{source.where} is this hub's data folder; expected another hub's address or the output of rove hub export"
            )
        self.source, self.store, self.on_copy = source, store, on_copy
        self._checkers = Checkers()
        self._new = self._known = 0
        self._problems: list[str] = []
        self._skipped_owners: set[str] = set()

    async def run(self, owners: Collection[str] = ()) -> MirrorResult:
        """Copy the environments of the given owners (default: all)."""
        try:
            for listed in (await self.source.index()).environments:
                if not owners or listed.owner in owners:
                    await self._environment(listed.owner, listed.name)
        finally:
            await self._checkers.close()
        return MirrorResult(self._new, self._known, self._problems)

    async def _environment(self, owner: str, name: str) -> None:
        reference = Reference(owner, name)
        try:
            releases = await self.source.releases(reference)
            if not self._may_mirror(owner, releases):
                return
            local = self._local_releases(owner, name)
        except (Error, ValueError) as error:
            self._problems.append(f"{owner[:80]}/{name[:80]}: {error}")
            return
        for release in releases.versions:
            reference = reference._replace(version=release.version)
            try:
                await self._version(reference, release, local)
                await self._runs(reference)
            except Error as error:
                self._problems.append(f"{reference}: {error}")

    def _may_mirror(self, owner: str, releases: Releases) -> bool:
        """Return whether an owner may be mirrored from this source; register a new owner."""
        rows = self.store.database.query("SELECT mirrored FROM owners WHERE owner = ?", [owner])
        if not rows:
            self.store.add_owner(owner, releases.keys, self.source.where)
        elif rows[0]["mirrored"] != self.source.where:
            if owner not in self._skipped_owners:
                self._skipped_owners.add(owner)
                origin = rows[0]["mirrored"] or "this hub"
                self._problems.append(
                    f"'{owner}' is an owner of {origin}; environments of that name at {self.source.where} were skipped"
                )
            return False
        elif catalogue.keys(self.store, owner) != releases.keys and owner not in self._skipped_owners:
            self._skipped_owners.add(owner)
            self._problems.append(
                f"'{owner}' has different keys at {self.source.where} than here; if the owner confirms them, run "
                f"rove hub user {owner} {' '.join(f'--key {key}' for key in releases.keys) or '--no-keys'}"
            )
        return True

    def _local_releases(self, owner: str, name: str) -> dict[str, catalogue.StoredRelease]:
        try:
            return {release.version: release for release in catalogue.releases(self.store, owner, name, owner)}
        except RejectedError:
            return {}

    async def _version(self, reference: Reference, release: Release, local: dict[str, catalogue.StoredRelease]) -> None:
        """Copy a missing version; for an existing one, update whether it is yanked."""
        known = local.get(release.version)
        if known is None:
            self.on_copy(str(reference))
            await self._copy(reference, release)
            self._new += 1
            return
        self._known += 1
        if next(file.sha256 for file in known.files if file.kind == "manifest") != release.manifest:
            raise RejectedError(
                409,
                f"{self.source.where} has a different version with this number; the local version was kept. Contact the owner",
            )
        if known.yanked != release.yanked:
            self.store.yank(reference.owner, reference.name, release.version, release.yanked)

    async def _copy(self, reference: Reference, release: Release) -> None:
        assert reference.version is not None
        draft = self.store.new_draft()
        try:
            content = await self.source.manifest(reference, release.manifest)
            (draft / "manifest").write_bytes(content)
            signature = await self.source.signature(reference)
            if signature is not None:
                (draft / "signature").write_bytes(signature)
            for file in release.files:
                kinds = {filename(reference.name, reference.version, kind): kind for kind in catalogue.ARCHIVES}
                if file.filename not in kinds:
                    raise RejectedError(422, f"unexpected file {file.filename[:80]!r}; expected {' and '.join(kinds)}")
                (await self.source.download(reference, file, draft)).rename(draft / kinds[file.filename])
            keys = catalogue.keys(self.store, reference.owner)
            kept = await self._checkers.check(draft, reference.owner, reference.name, reference.version, keys)
            manifest = read_manifest((draft / MANIFEST).read_bytes())
            uploaded = release.uploaded if _TIME.fullmatch(release.uploaded) else None
            self.store.add(reference.owner, manifest, draft, kept, uploaded=uploaded, yanked=release.yanked)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    async def _runs(self, reference: Reference) -> None:
        """Copy missing results."""
        owner, name, version = reference
        assert version is not None
        local = {run["id"] for run in catalogue.runs(self.store, owner, name, version, owner)["runs"]}
        for entry in await self.source.results(reference):
            id = str(entry.get("id"))
            if id not in local:
                run = read_run(await self.source.result(reference, id, MAX_RUN_BYTES))
                if run.id != id:
                    raise RejectedError(422, f"the results {id[:40]!r} do not match their id; they were skipped")
                self.store.add_run(owner, name, version, run)
