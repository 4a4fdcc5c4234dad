"""`rove hub mirror`: the public environments of another hub, kept here with their hashes and signatures."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Collection
from typing import NamedTuple

from rove.core.errors import ConfigError, Error
from rove.hub.client.hub import Hub
from rove.hub.client.listings import Release, Releases
from rove.hub.package.folder import MANIFEST
from rove.hub.package.manifest import filename, read_manifest
from rove.hub.package.names import Reference
from rove.hub.server import catalogue
from rove.hub.server.checkers import Checkers
from rove.hub.server.errors import Refused
from rove.hub.server.results import LARGEST_RUN, read_run
from rove.hub.server.store import Store

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


class Mirrored(NamedTuple):
    """What came of it."""

    new: int
    """Versions that were not here before."""
    known: int
    """Versions that were."""
    problems: list[str]
    """What was not taken, and why."""


class Mirror:
    """Copies from one hub to another what is public there, and not here yet; whatever dies on the way, once more goes on.

    An owner is here either by itself or mirrored from one hub, never both: nobody can publish there in the name of somebody
    here. The keys of an owner are those that were first met.

    Args:
        source: the other hub, opened.
        store: where to.
        tell: told what is being copied.
    """

    def __init__(self, source: Hub, store: Store, tell: Callable[[str], None] = lambda words: None):
        self.source, self.store, self.tell = source, store, tell
        self._checkers = Checkers()
        self._new = self._known = 0
        self._problems: list[str] = []
        self._strangers: set[str] = set()

    async def run(self, owners: Collection[str] = ()) -> Mirrored:
        """Copy what is there of these owners, or of all.

        Raises:
            HubError: the source is no hub.
            InfraError: it does not answer.
        """
        try:
            for card in (await self.source.index()).environments:
                if not owners or card.owner in owners:
                    await self._environment(card.owner, card.name)
        finally:
            await self._checkers.close()
        return Mirrored(self._new, self._known, self._problems)

    async def _environment(self, owner: str, name: str) -> None:
        reference = Reference(owner, name)
        try:
            releases = await self.source.releases(reference)
            if not self._is_ours_to_mirror(owner, releases):
                return
            here = self._here(owner, name)
        except (Error, ValueError) as error:
            self._problems.append(f"{owner[:80]}/{name[:80]}: {error}")
            return
        for release in releases.versions:
            place = Reference(owner, name, release.version)
            try:
                await self._version(place, release, here)
                await self._runs(place)
            except Error as error:
                self._problems.append(f"{place}: {error}")

    def _is_ours_to_mirror(self, owner: str, releases: Releases) -> bool:
        """Whether an owner is mirrored from this source, from now on if it is new here."""
        rows = self.store.database.ask("SELECT mirrored FROM owners WHERE owner = ?", [owner])
        if not rows:
            self.store.add_owner(owner, releases.keys, self.source.where)
        elif rows[0]["mirrored"] != self.source.where:
            if owner not in self._strangers:
                self._strangers.add(owner)
                of = rows[0]["mirrored"] or "this hub itself"
                self._problems.append(
                    f"'{owner}' is an owner of {of}; what {self.source.where} has of that name was left out"
                )
            return False
        elif catalogue.keys(self.store, owner) != releases.keys and owner not in self._strangers:
            self._strangers.add(owner)
            self._problems.append(
                f"'{owner}' has other keys at {self.source.where} than here; ask them, and if that is right: "
                f"rove hub user {owner} {' '.join(f'--key {key}' for key in releases.keys) or '--no-keys'}"
            )
        return True

    def _here(self, owner: str, name: str) -> dict[str, catalogue.Released]:
        try:
            return {release.version: release for release in catalogue.releases(self.store, owner, name, owner)}
        except Refused:
            return {}

    async def _version(self, place: Reference, release: Release, here: dict[str, catalogue.Released]) -> None:
        """Copy a version that is not here; of one that is here, take over whether it was yanked."""
        known = here.get(release.version)
        if known is None:
            self.tell(str(place))
            await self._copy(place, release)
            self._new += 1
            return
        self._known += 1
        if next(file.sha256 for file in known.files if file.kind == "manifest") != release.manifest:
            raise Refused(
                409, f"{self.source.where} has something else than what is here, which was kept; tell its owner"
            )
        if known.yanked != release.yanked:
            self.store.yank(place.owner, place.name, release.version, release.yanked)

    async def _copy(self, place: Reference, release: Release) -> None:
        assert place.version is not None
        draft = self.store.draft()
        try:
            content = await self.source.manifest(place, release.manifest)
            (draft / "manifest").write_bytes(content)
            signature = await self.source.signature(place)
            if signature is not None:
                (draft / "signature").write_bytes(signature)
            for file in release.files:
                kinds = {filename(place.name, place.version, kind): kind for kind in catalogue.ARCHIVES}
                if file.filename not in kinds:
                    raise Refused(422, f"it has a file {file.filename[:80]!r}; expected {' and '.join(kinds)}")
                (await self.source.download(place, file, draft)).rename(draft / kinds[file.filename])
            keys = catalogue.keys(self.store, place.owner)
            kept = await self._checkers.check(draft, place.owner, place.name, place.version, keys)
            manifest = read_manifest((draft / MANIFEST).read_bytes())
            uploaded = release.uploaded if _TIME.fullmatch(release.uploaded) else None
            self.store.add(place.owner, manifest, draft, kept, uploaded=uploaded, yanked=release.yanked)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    async def _runs(self, place: Reference) -> None:
        """Copy the results that are not here."""
        owner, name, version = place
        assert version is not None
        here = {run["id"] for run in catalogue.runs(self.store, owner, name, version, owner)["runs"]}
        for told in await self.source.results(place):
            id = str(told.get("id"))
            if id not in here:
                run = read_run(await self.source.result(place, id, LARGEST_RUN))
                if run.id != id:
                    raise Refused(422, f"its results {id[:40]!r} are not what their name says; they were left out")
                self.store.add_run(owner, name, version, run)


def check_source(where: str, store: Store) -> None:
    """See that a hub is not to be mirrored into itself.

    Raises:
        ConfigError: it is.
    """
    if where == str(store.folder):
        raise ConfigError(
            f"{where} is the data folder itself; a source is a hub's address, or what rove hub export wrote"
        )
