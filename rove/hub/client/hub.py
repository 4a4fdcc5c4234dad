"""Read from and publish to a hub: a folder, a static web server, or `rove hub serve`."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlencode

import aiohttp
import msgspec
from packaging.version import Version

from rove.core.errors import ConfigError, HubError, TrustError
from rove.core.plain import UNREADABLE, JsonObject
from rove.hub.client.settings import is_url, normalize_address, token_for
from rove.hub.client.transport import BytesSink, FolderTransport, HttpTransport, NotFoundError, Sink
from rove.hub.package import limits
from rove.hub.package.manifest import File
from rove.hub.package.names import Reference, check_name, check_owner, check_version


class EnvironmentEntry(msgspec.Struct, kw_only=True):
    """An entry in a hub's list of environments."""

    owner: str
    name: str
    version: str
    description: str = ""
    tags: list[str] = []
    compatibility: str = ""
    licence: str = ""
    updated: str = ""
    downloads: int = 0

    @property
    def reference(self) -> str:
        """OWNER/NAME."""
        return f"{self.owner}/{self.name}"


class Index(msgspec.Struct, kw_only=True):
    """A hub's list of environments."""

    schema: int
    hub: str = ""
    environments: list[EnvironmentEntry]


class HubFile(msgspec.Struct, kw_only=True, frozen=True):
    """A file of a published version."""

    filename: str
    sha256: str
    size: int


class Release(msgspec.Struct, kw_only=True):
    """A version in an environment's index; `manifest` is the SHA-256 of its manifest."""

    version: str
    uploaded: str = ""
    yanked: str | None = None
    manifest: str
    files: list[HubFile]


class Releases(msgspec.Struct, kw_only=True):
    """An environment's index: its versions, newest last, and its owner's public keys."""

    schema: int
    owner: str
    name: str
    versions: list[Release]
    keys: list[str] = []

    def choose(self, version: str | None, allow_yanked: bool = False) -> Release:
        """Return the given version or, if it is None, the newest version that is not yanked; final releases are preferred.

        Args:
            allow_yanked: Whether to return a yanked version if all are yanked; otherwise this is an error.
        """
        if version is not None:
            for release in self.versions:
                if release.version == version:
                    return release
            versions = ", ".join(release.version for release in self.versions[-10:]) or "none"
            raise HubError(f"{self.owner}/{self.name} has no version {version}; the hub has {versions}")
        available = [release for release in self.versions if release.yanked is None]
        if allow_yanked:
            available = available or self.versions
        if not available:
            raise HubError(
                f"{self.owner}/{self.name} has only yanked versions; name one explicitly: {self.owner}/{self.name}@VERSION"
            )
        final = [release for release in available if not Version(release.version).is_prerelease]
        return max(final or available, key=lambda release: Version(release.version))


def check_filename(name: str) -> str:
    """Check that the name of a file to write is neither a path nor hidden, and return it."""
    if (
        not name
        or name.startswith(".")
        or len(name) > limits.MAX_PATH_CHARS
        or not all(c.isalnum() or c in "-_.+!" for c in name)
    ):
        raise TrustError(f"{name[:80]!r} is not a valid name for a package file")
    return name


SCHEMA = 1
SEARCH = "/api/search"
HUB_REFUSAL_STATUSES = (400, 401)
"""HTTP statuses with which a hub rejects a query or a token; any other error status means that a static server has no search
API."""
MAX_INDEX_BYTES = 64 << 20
"""Maximum size of the list of environments."""
MAX_RELEASES_BYTES = 4 << 20
"""Maximum size of an environment's index."""

T = TypeVar("T")


class Hub:
    """Client of a hub.

    Responses are checked for format and size and, where a hash is known, for content. `rove.hub.client.installing` verifies
    signatures and locked versions.

    Args:
        token: API token; "" sends none (default: the saved token, see `rove.hub.client.settings`).

    Example:
        >>> async with Hub("https://hub.example.org") as hub:
        ...     found, total = await hub.search("math", limit=10)
    """

    def __init__(self, address: str, token: str | None = None, **options: Any):
        self.address = normalize_address(address)
        if is_url(self.address):
            self._transport: HttpTransport | FolderTransport = HttpTransport(
                self.address, token_for(self.address) if token is None else token, **options
            )
        else:
            self._transport = FolderTransport(self.address)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._transport.close()

    async def index(self) -> Index:
        """Return the list of all environments."""
        try:
            content = await self._read("/index.json", MAX_INDEX_BYTES)
        except NotFoundError:
            raise HubError(
                f"{self.address} has no index.json; expected a hub or the output of `rove hub export`"
            ) from None
        return _decoded(content, Index, f"{self.address}/index.json")

    async def search(
        self, words: str = "", tag: str | None = None, limit: int = 50, offset: int = 0
    ) -> tuple[list[EnvironmentEntry], int]:
        """Search for environments whose texts contain all words; return at most `limit` results, starting at `offset`, and the
        total number.

        If the hub has a search API, it is used; otherwise the whole list is downloaded and filtered on this machine.
        """
        query = {"q": words, "tag": tag or "", "limit": limit, "offset": offset}
        if self._transport.has_api:
            try:
                return await self._search_server(query)
            except HubError as error:  # a static hub: download the whole list
                if error.status in HUB_REFUSAL_STATUSES:
                    raise
        index = await self.index()
        folded_words = words.casefold().split()  # as the server's search does

        def matches(entry: EnvironmentEntry) -> bool:
            if tag and tag not in entry.tags:
                return False
            text = " ".join([entry.owner, entry.name, entry.description, *entry.tags]).casefold()
            return all(word in text for word in folded_words)

        matching = [entry for entry in index.environments if matches(entry)]
        return matching[offset : offset + limit], len(matching)

    async def releases(self, reference: Reference) -> Releases:
        """Return the index of an environment."""
        path = f"/{check_owner(reference.owner)}/{check_name(reference.name)}/index.json"
        try:
            content = await self._read(path, MAX_RELEASES_BYTES)
        except NotFoundError:
            raise HubError(
                f"the hub {self.address} has no environment {reference.owner}/{reference.name}, or it is private; "
                f"search for others with `rove search {reference.name}`"
            ) from None
        releases = _decoded(content, Releases, f"{self.address}{path}")
        # A static hub can serve any file: it must not pass one owner's index off as another's.
        if (releases.owner, releases.name) != (reference.owner, reference.name):
            name = f"{releases.owner}/{releases.name}"[:100]
            raise TrustError(f"{self.address}{path} describes {name!r}; the hub is misconfigured or was tampered with")
        for release in releases.versions:
            check_version(release.version)
            for file in release.files:
                check_filename(file.filename)
        return releases

    async def manifest(self, reference: Reference, sha256: str) -> bytes:
        """Return the bytes of a version's manifest."""
        content = await self._read(f"{_folder(reference)}/manifest.json", limits.MAX_MANIFEST_BYTES)
        _check_hash(hashlib.sha256(content).hexdigest(), sha256, f"the manifest of {reference}")
        return content

    async def signature(self, reference: Reference) -> bytes | None:
        """Return the signature of a version's manifest; None if it is unsigned."""
        return await self._optional(f"{_folder(reference)}/manifest.sig", limits.MAX_SIGNATURE_BYTES)

    async def results(self, reference: Reference) -> list[JsonObject]:
        """Return the results pushed for a version."""
        content = await self._optional(f"{_folder(reference)}/runs/index.json", MAX_RELEASES_BYTES)
        if content is None:
            return []
        return _decoded(content, _Runs, f"{self.address}{_folder(reference)}/runs/index.json").runs

    async def download(self, reference: Reference, file: HubFile | File, folder: Path) -> Path:
        """Download a file of a version into a folder, checking its size and hash."""
        target = folder / check_filename(file.filename)
        if file.size > limits.MAX_ARCHIVE_BYTES:
            raise HubError(f"{file.filename} has {file.size:,} bytes; expected at most {limits.MAX_ARCHIVE_BYTES:,}")
        sink = _FileSink(target, file)
        try:
            await self._transport.fetch(f"{_folder(reference)}/{file.filename}", sink)
            sink.finish()
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        finally:
            sink.close()
        return target

    async def upload(self, reference: Reference, files: Mapping[str, Path]) -> bool:
        """Publish a version; return False if an identical version is already published, as after a lost response.

        Args:
            files: Files by part: "manifest", "wheel", "source", and optionally "signature" and "readme".
        """

        contents = {part: await asyncio.to_thread(path.read_bytes) for part, path in files.items()}

        def form() -> aiohttp.FormData:
            data = aiohttp.FormData()
            for part, path in files.items():
                kind = "application/json" if part in ("manifest", "signature") else "application/octet-stream"
                data.add_field(part, contents[part], filename=path.name, content_type=kind)
            return data

        try:
            await self._transport.call("PUT", f"/api/environments{_folder(reference)}", form)
        except HubError as error:
            # A retry after a lost response meets the version that the first attempt has published.
            if error.status != 409 or not await self._has_manifest(reference, contents["manifest"]):
                raise
            return False
        return True

    async def yank(self, reference: Reference, reason: str | None) -> None:
        """Yank a version, so that it is installed only if named explicitly; with the reason None, undo a yank."""
        path = f"/api/environments{_folder(reference)}/yank"
        if reason is None:
            await self._transport.call("DELETE", path)
        else:
            await self._transport.call("POST", path, lambda: {"reason": reason})

    async def push_run(self, reference: Reference, run: Mapping[str, object]) -> None:
        """Publish the results of a run for a version."""
        await self._transport.call("POST", f"/api/environments{_folder(reference)}/runs", lambda: dict(run))

    async def set_visibility(self, reference: Reference, visibility: str) -> None:
        """Make an environment "public" or "private"."""
        path = f"/api/environments/{reference.owner}/{reference.name}"
        await self._transport.call("PUT", path, lambda: {"visibility": visibility})

    async def me(self) -> JsonObject:
        """Return "owner" and "scopes" of the token."""
        return await self._transport.call("GET", "/api/me")

    async def _search_server(self, query: Mapping[str, object]) -> tuple[list[EnvironmentEntry], int]:
        """Query the hub's search API."""
        answer = await self._transport.call("GET", f"{SEARCH}?{urlencode(query)}")
        try:
            result = msgspec.convert(answer, _SearchResult)
        except msgspec.ValidationError as error:
            raise HubError(f"{self.address}{SEARCH} is not a valid hub response: {error}") from None
        return result.environments, result.total

    async def _has_manifest(self, reference: Reference, manifest: bytes) -> bool:
        try:
            manifests = {release.version: release.manifest for release in (await self.releases(reference)).versions}
        except HubError:  # the version was rejected for another reason
            return False
        return manifests.get(reference.version or "") == hashlib.sha256(manifest).hexdigest()

    async def _read(self, path: str, limit: int) -> bytes:
        sink = BytesSink(path, limit)
        await self._transport.fetch(path, sink)
        return bytes(sink.content)

    async def _optional(self, path: str, limit: int) -> bytes | None:
        try:
            return await self._read(path, limit)
        except NotFoundError:
            return None


class _SearchResult(msgspec.Struct):
    environments: list[EnvironmentEntry]
    total: int


class _Runs(msgspec.Struct):
    runs: list[JsonObject] = []


class _FileSink(Sink):
    """Sink that writes a file and checks its size and hash."""

    def __init__(self, target: Path, expected: HubFile | File):
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
                f"{self.expected.filename} has more than {self.expected.size:,} bytes, the size in the hub's index"
            )
        self._digest.update(piece)
        self._stream.write(piece)

    def finish(self) -> None:
        self._stream.flush()
        _check_hash(self._digest.hexdigest(), self.expected.sha256, self.expected.filename)

    def close(self) -> None:
        self._stream.close()


def _folder(reference: Reference) -> str:
    if reference.version is None:
        raise ConfigError(f"{reference} has no version; write {reference}@VERSION")
    owner, name = check_owner(reference.owner), check_name(reference.name)
    return f"/{owner}/{name}/{check_version(reference.version)}"


def _check_hash(actual: str, expected: str, subject: str) -> None:
    if actual != expected:
        raise TrustError(
            f"{subject} does not match the hub's index: its SHA-256 is {actual[:16]}…, expected {expected[:16]}…. It was "
            "modified after it was published; installation was cancelled. Contact the owner and the hub's operator"
        )


def _decoded(content: bytes, kind: type[T], address: str) -> T:
    try:
        value = msgspec.json.decode(content, type=kind)
    except UNREADABLE as error:
        raise HubError(f"{address} is not a valid hub file: {error}") from None
    schema = getattr(value, "schema", SCHEMA)
    if schema != SCHEMA:
        raise HubError(f"{address} has schema {schema}, but this version of rove reads {SCHEMA}; upgrade rove")
    return value
