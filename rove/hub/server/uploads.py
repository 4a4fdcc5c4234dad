"""Taking uploads: streamed to disk within limits, checked beside the server, put on the hub whole or not at all."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from aiohttp import BodyPartReader, ClientPayloadError, MultipartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from rove.hub.package import limits
from rove.hub.package.folder import MANIFEST
from rove.hub.package.manifest import read_manifest
from rove.hub.server import catalogue
from rove.hub.server.checkers import Checkers
from rove.hub.server.errors import Refused
from rove.hub.server.store import Store

T = TypeVar("T")

SIZES = {
    "manifest": limits.MANIFEST,
    "wheel": limits.ARCHIVE,
    "source": limits.ARCHIVE,
    "signature": limits.SIGNATURE,
    "readme": limits.METADATA,
}
"""Bytes of each part of an upload."""
LARGEST = sum(SIZES.values()) + (64 << 10)
"""Bytes of an upload, with what stands between its parts."""
BROKEN = (ValueError, RuntimeError, EOFError, AssertionError, HttpProcessingError, ClientPayloadError)
"""What aiohttp raises of a body that is not well formed."""
CHUNK = 256 << 10


class Pace(msgspec.Struct, frozen=True):
    """How much at once, and how slowly."""

    uploads: int = 8
    """Uploads that are read at once; nothing is read of the others meanwhile."""
    waiting: int = 256
    """Uploads that may wait; beyond that they are turned away."""
    seconds: float = 300.0
    """For the body of a request."""
    idle_seconds: float = 20.0
    """Without a byte of it."""


class Uploads:
    """The door through which packages come in.

    Args:
        store: where they go.
        pace: how many at once, and how slowly.
    """

    def __init__(self, store: Store, pace: Pace):
        self.store, self.pace = store, pace
        self._slots = asyncio.Semaphore(pace.uploads)
        self._waiting = 0
        self._threads = ThreadPoolExecutor(pace.uploads, thread_name_prefix="rove-upload")
        self._checkers = Checkers()

    async def close(self) -> None:
        """End the checkers."""
        await self._checkers.close()
        await asyncio.to_thread(self._threads.shutdown)

    async def take(self, request: web.Request, owner: str, name: str, version: str) -> dict[str, Any]:
        """Read an upload that is allowed, check it and put it on the hub; what is told of it.

        Raises:
            Refused: it is too large, too slow, not what it should be, or there already.
        """
        _check_head(request)
        await self._run(lambda: self.store.check_new(owner, name, version))
        async with self._turn():
            draft = await self._run(self.store.draft)
            try:
                await self._receive(request, draft)
                keys = await self._run(lambda: catalogue.keys(self.store, owner))
                kept = await self._checkers.check(draft, owner, name, version, keys)
                manifest = await self._run(lambda: read_manifest((draft / MANIFEST).read_bytes()))
            except BaseException:
                await self._run(lambda: shutil.rmtree(draft, ignore_errors=True))
                raise
            # From here on the draft is the store's: nobody else may touch what it is moving, also not who is cancelled.
            await self._run(lambda: self.store.add(owner, manifest, draft, kept))
        return {"owner": owner, "name": name, "version": version, "files": kept}

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        if self._waiting >= self.pace.waiting:
            raise Refused(503, f"{self._waiting} uploads wait already; try again in a minute")
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._slots.release()

    async def _receive(self, request: web.Request, draft: Path) -> None:
        seen: set[str] = set()
        try:
            async with patient(self.pace):
                parts = MultipartReader(request.headers, request.content)
                while (part := await self._soon(parts.next)) is not None:
                    if not isinstance(part, BodyPartReader) or part.name not in SIZES or part.name in seen:
                        what = getattr(part, "name", None)
                        raise Refused(
                            400, f"a part of this upload is {what!r}; expected one each of {', '.join(SIZES)}"
                        )
                    seen.add(part.name)
                    await self._keep(part, draft / part.name, SIZES[part.name])
                await self._soon(request.content.readany)
        except BROKEN as error:
            raise Refused(400, f"the body cannot be read as multipart/form-data: {error}") from error
        missing = {"manifest", "wheel"} - seen
        if missing:
            raise Refused(400, f"this upload has no part {' and no part '.join(sorted(missing))}")

    async def _keep(self, part: BodyPartReader, file: Path, most: int) -> None:
        size, pieces = 0, bytearray()
        with await self._run(lambda: file.open("wb")) as stream:
            while piece := await self._soon(lambda: part.read_chunk(CHUNK)):
                size += len(piece)
                if size > most:
                    raise Refused(413, f"the part {part.name} has more than {most:,} bytes, which is the most")
                pieces += piece
                if len(pieces) >= CHUNK:
                    await self._run(partial(stream.write, bytes(pieces)))
                    pieces.clear()
            await self._run(partial(stream.write, bytes(pieces)))

    async def _soon(self, read: Callable[[], Any]) -> Any:
        """What is read, if some of it comes soon enough."""
        async with asyncio.timeout(self.pace.idle_seconds):
            return await read()

    async def _run(self, call: Callable[[], T]) -> T:
        """A call beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def _check_head(request: web.Request) -> None:
    """What can be refused before a byte of the body is read."""
    if request.content_type != "multipart/form-data":
        raise Refused(415, f"an upload is multipart/form-data, not {request.content_type[:80]}")
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise Refused(415, "an upload is not to be compressed once more; leave Content-Encoding out")
    if request.content_length is None:
        raise Refused(411, "an upload has to say how long it is; send Content-Length")
    if request.content_length > LARGEST:
        raise Refused(413, f"this upload has {request.content_length:,} bytes; the most is {LARGEST:,}")


@asynccontextmanager
async def patient(pace: Pace) -> AsyncIterator[None]:
    """Reading a body, for as long as it may take.

    Raises:
        Refused: it takes longer.
    """
    try:
        async with asyncio.timeout(pace.seconds):
            yield
    except TimeoutError as error:
        raise Refused(
            408,
            f"the body came too slowly; it may take {pace.seconds:g} s, and {pace.idle_seconds:g} s without a byte",
        ) from error
