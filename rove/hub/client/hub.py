"""A hub to read from and to push to, whatever it is: a folder, a static web server, or `rove hub serve`."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlencode

import aiohttp
import msgspec

from rove.core.errors import ConfigError, HubError, TrustError
from rove.hub.client.listings import HubFile, Index, Listed, Releases, check_filename
from rove.hub.client.settings import is_url, normal, token_for
from rove.hub.client.transport import AbsentError, Folder, Sink, Text, Web
from rove.hub.package import limits
from rove.hub.package.names import Reference, check_name, check_owner, check_version

SCHEMA = 1
SEARCH = "/api/search"
"""Where a hub searches that does not say otherwise in its index."""
OWN_REFUSALS = (400, 401)
"""Statuses with which a hub refuses a query or a token; with others a web server says that it has no such page."""
INDEX = 64 << 20
"""Bytes of the list of all environments."""
RELEASES = 4 << 20
"""Bytes of an environment's list of versions."""

T = TypeVar("T")


class Hub:
    """A hub, to be used as `async with Hub(where) as hub`.

    What it says is checked for shape, size and, where a hash is known, content, while it comes; whether it is to be
    believed is `rove.hub.client.installing`'s to decide.

    Args:
        where: URL or folder.
        token: to show it, "" for none; default: the one kept for it. See `rove.hub.client.settings`.
        options: of `rove.hub.client.transport.Web`.
    """

    def __init__(self, where: str, token: str | None = None, **options: Any):
        self.where = normal(where)
        if is_url(self.where):
            self._from: Web | Folder = Web(self.where, token_for(self.where) if token is None else token, **options)
        else:
            self._from = Folder(self.where)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._from.close()

    async def index(self) -> Index:
        """All environments.

        Raises:
            HubError: this is no hub, or one of a newer kind.
        """
        try:
            content = await self._read("/index.json", INDEX)
        except AbsentError:
            raise HubError(
                f"{self.where} has no index.json; it is not a hub, nor what `rove hub export` writes"
            ) from None
        return _decoded(content, Index, f"{self.where}/index.json")

    async def search(
        self,
        words: str = "",
        tag: str | None = None,
        owner: str | None = None,
        compatibility: str | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> tuple[list[Listed], int]:
        """The environments that have all words, and how many there are beyond `limit`; by the hub itself if it can."""
        asked = {"q": words, "tag": tag, "owner": owner, "compatibility": compatibility}
        given = {key: value for key, value in asked.items() if value} | {"limit": limit, "offset": offset}
        if self._from.has_api:
            try:
                return await self._found(SEARCH, given)
            except HubError as error:  # a static one: the list of all, which may be long, is asked for only then
                if error.status in OWN_REFUSALS:
                    raise
        index = await self.index()
        if self._from.has_api and index.search not in (None, SEARCH):
            return await self._found(index.search, given)
        wanted = words.lower().split()

        def fits(one: Listed) -> bool:
            text = " ".join([one.owner, one.name, one.description, *one.tags]).lower()
            return (
                all(word in text for word in wanted)
                and tag in (None, *one.tags)
                and owner in (None, one.owner)
                and compatibility in (None, one.compatibility)
            )

        fitting = [one for one in index.environments if fits(one)]
        return fitting[offset : offset + limit], len(fitting)

    async def releases(self, reference: Reference) -> Releases:
        """The versions of an environment.

        Raises:
            HubError: the hub has no such environment.
        """
        path = f"/{check_owner(reference.owner)}/{check_name(reference.name)}/index.json"
        try:
            content = await self._read(path, RELEASES)
        except AbsentError:
            raise HubError(
                f"the hub {self.where} has no environment {reference.owner}/{reference.name}, or does not show it to you; "
                f"`rove search {reference.name}` looks for others"
            ) from None
        found = _decoded(content, Releases, f"{self.where}{path}")
        if (found.owner, found.name) != (reference.owner, reference.name):
            said = f"{found.owner}/{found.name}"[:100]
            raise TrustError(f"{self.where}{path} is about {said!r}; it has been mixed up or tampered with")
        for one in found.versions:
            check_version(one.version)
            for file in one.files:
                check_filename(file.filename)
        return found

    async def manifest(self, reference: Reference, sha256: str) -> bytes:
        """The manifest of a version, which has this hash.

        Raises:
            TrustError: it has another one.
        """
        content = await self._read(f"{_folder(reference)}/manifest.json", limits.MANIFEST)
        _check_hash(hashlib.sha256(content).hexdigest(), sha256, f"the manifest of {reference}", "the hub's index")
        return content

    async def signature(self, reference: Reference) -> bytes | None:
        """The signature of a version's manifest; None where it is not signed."""
        return await self._optional(f"{_folder(reference)}/manifest.sig", limits.SIGNATURE)

    async def readme(self, reference: Reference) -> str | None:
        """The README of a version, if there is one."""
        content = await self._optional(f"{_folder(reference)}/README.md", limits.METADATA)
        return None if content is None else content.decode(errors="replace")

    async def results(self, reference: Reference) -> list[dict[str, Any]]:
        """What runs in a version came to, as they were pushed with it."""
        content = await self._optional(f"{_folder(reference)}/runs/index.json", RELEASES)
        if content is None:
            return []
        return _decoded(content, _Runs, f"{self.where}{_folder(reference)}/runs/index.json").runs

    async def result(self, reference: Reference, id: str, limit: int) -> bytes:
        """All that was pushed with one of these runs."""
        return await self._read(f"{_folder(reference)}/runs/{id}.json", limit)

    async def download(self, reference: Reference, file: HubFile, folder: Path) -> Path:
        """Put a file of a version into a folder, under its own name, its size and hash checked while it comes.

        Raises:
            TrustError: it is not the file that its hash says.
        """
        target = folder / check_filename(file.filename)
        if file.size > limits.ARCHIVE:
            raise HubError(f"{file.filename} has {file.size:,} bytes; a package may have {limits.ARCHIVE:,} at most")
        sink = _File(target, file)
        try:
            await self._from.fetch(f"{_folder(reference)}/{file.filename}", sink)
            sink.finish()
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        finally:
            sink.close()
        return target

    async def upload(self, reference: Reference, files: Mapping[str, Path]) -> bool:
        """Publish a version; whether it is new. The very same one may have got there in a try whose answer was lost.

        Args:
            files: by part: "manifest", "wheel", "source", and perhaps "signature" and "readme".

        Raises:
            HubError: the hub refuses it, and says why.
        """

        contents = {part: await asyncio.to_thread(path.read_bytes) for part, path in files.items()}

        def form() -> aiohttp.FormData:
            made = aiohttp.FormData()
            for part, path in files.items():
                kind = "application/json" if part in ("manifest", "signature") else "application/octet-stream"
                made.add_field(part, contents[part], filename=path.name, content_type=kind)
            return made

        try:
            await self._from.call("PUT", f"/api/environments{_folder(reference)}", form)
        except HubError as error:
            if error.status != 409 or not await self._has(reference, contents["manifest"]):
                raise
            return False
        return True

    async def yank(self, reference: Reference, reason: str | None) -> None:
        """Have a version chosen by nobody who does not name it; no reason takes that back."""
        path = f"/api/environments{_folder(reference)}/yank"
        if reason is None:
            await self._from.call("DELETE", path)
        else:
            await self._from.call("POST", path, lambda: {"reason": reason})

    async def push_run(self, reference: Reference, run: Mapping[str, Any]) -> None:
        """Publish what a run in a version came to."""
        await self._from.call("POST", f"/api/environments{_folder(reference)}/runs", lambda: dict(run))

    async def set_visibility(self, reference: Reference, visibility: str) -> None:
        """Make an environment "public" or "private"."""
        path = f"/api/environments/{reference.owner}/{reference.name}"
        await self._from.call("PUT", path, lambda: {"visibility": visibility})

    async def me(self) -> dict[str, Any]:
        """Whom the hub takes the token's bearer for: "owner" and "scopes"."""
        return await self._from.call("GET", "/api/me")

    async def _found(self, path: str, given: Mapping[str, Any]) -> tuple[list[Listed], int]:
        """What the hub itself finds."""
        if not path.startswith("/") or path.startswith("//"):
            raise HubError(f"{self.where}/index.json names '{path}' to search with; expected a path like {SEARCH}")
        answer = await self._from.call("GET", f"{path}?{urlencode(given)}")
        found = _converted(answer, _Found, f"{self.where}{path}")
        return found.environments, found.total

    async def _has(self, reference: Reference, manifest: bytes) -> bool:
        try:
            known = {one.version: one.manifest for one in (await self.releases(reference)).versions}
        except HubError:  # refused for another reason than that it is there
            return False
        return known.get(reference.version or "") == hashlib.sha256(manifest).hexdigest()

    async def _read(self, path: str, limit: int) -> bytes:
        sink = Text(path, limit)
        await self._from.fetch(path, sink)
        return bytes(sink.content)

    async def _optional(self, path: str, limit: int) -> bytes | None:
        try:
            return await self._read(path, limit)
        except AbsentError:
            return None


class _Found(msgspec.Struct):
    environments: list[Listed]
    total: int


class _Runs(msgspec.Struct):
    runs: list[dict[str, Any]] = []


class _File(Sink):
    """Writes a file and knows whether it is the right one."""

    def __init__(self, target: Path, expected: HubFile):
        self.expected, self._stream = expected, target.open("wb")
        self.restart()

    def restart(self) -> None:
        self._stream.seek(0)
        self._stream.truncate()
        self._digest, self._size = hashlib.sha256(), 0

    def write(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self.expected.size:
            raise TrustError(
                f"{self.expected.filename} has more than the {self.expected.size:,} bytes it is said to have"
            )
        self._digest.update(piece)
        self._stream.write(piece)

    def finish(self) -> None:
        self._stream.flush()
        _check_hash(self._digest.hexdigest(), self.expected.sha256, self.expected.filename, "the hub's index")

    def close(self) -> None:
        self._stream.close()


def _folder(reference: Reference) -> str:
    if reference.version is None:
        raise ConfigError(f"{reference} names no version; write {reference}@VERSION")
    owner, name = check_owner(reference.owner), check_name(reference.name)
    return f"/{owner}/{name}/{check_version(reference.version)}"


def _check_hash(found: str, expected: str, what: str, who: str) -> None:
    if found != expected:
        raise TrustError(
            f"{what} is not what {who} says: its SHA-256 is {found[:16]}…, expected {expected[:16]}…. It has been changed "
            "since it was published; nothing was installed. Tell the owner, and whoever keeps the hub"
        )


def _decoded(content: bytes, kind: type[T], where: str) -> T:
    try:
        return _known(msgspec.json.decode(content, type=kind), where)
    except msgspec.DecodeError as error:
        raise HubError(f"{where} is not what a hub has there: {error}") from None


def _converted(value: Any, kind: type[T], where: str) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise HubError(f"{where} is not what a hub answers: {error}") from None


def _known(value: T, where: str) -> T:
    schema = getattr(value, "schema", SCHEMA)
    if schema != SCHEMA:
        raise HubError(f"{where} has schema {schema}; this rove reads {SCHEMA}: upgrade rove")
    return value
