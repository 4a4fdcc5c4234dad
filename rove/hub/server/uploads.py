"""Receive uploads: stream them to disk within limits, check them in a worker process, publish them atomically."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

from aiohttp import BodyPartReader, ClientPayloadError, MultipartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from rove.core.checks import Settings
from rove.core.errors import RejectedError
from rove.core.plain import JsonObject
from rove.core.ranges import PositiveInt, Seconds
from rove.hub.package import limits
from rove.hub.package.archives import MANIFEST
from rove.hub.package.manifest import read_manifest
from rove.hub.server import catalogue
from rove.hub.server.checkers import Checkers
from rove.hub.server.store import Store

T = TypeVar("T")

MAX_PART_BYTES = {
    "manifest": limits.MAX_MANIFEST_BYTES,
    "wheel": limits.MAX_ARCHIVE_BYTES,
    "source": limits.MAX_ARCHIVE_BYTES,
    "signature": limits.MAX_SIGNATURE_BYTES,
    "readme": limits.MAX_METADATA_BYTES,
}
"""Maximum size of each part of an upload."""
MAX_UPLOAD_BYTES = sum(MAX_PART_BYTES.values()) + (64 << 10)
"""Maximum size of an upload, including part headers."""
MALFORMED_BODY = (ValueError, RuntimeError, EOFError, AssertionError, HttpProcessingError, ClientPayloadError)
"""Exceptions that aiohttp raises for malformed bodies."""
CHUNK_BYTES = 256 << 10


class UploadLimits(Settings, frozen=True, kw_only=True):
    """Limits of concurrent and slow uploads.

    Each owner may have a quarter of the concurrent uploads and half of the waiting uploads, so a client that stalls all of its
    uploads does not stop other publishers.
    """

    uploads: limits.ConcurrentUploads = 8
    """Maximum number of uploads that are read concurrently; further uploads wait."""
    waiting: PositiveInt = 256
    """Maximum number of uploads that wait; further uploads are rejected."""
    seconds: Seconds = 300.0
    """Time limit for the body of a request."""
    idle_seconds: Seconds = 20.0
    """Time limit for the next bytes of a body."""

    @property
    def uploads_per_owner(self) -> int:
        """Maximum number of uploads of one owner that are read concurrently."""
        return max(1, self.uploads // 4)

    @property
    def waiting_per_owner(self) -> int:
        """Maximum number of uploads of one owner that wait."""
        return max(1, self.waiting // 2)


class Uploads:
    """Receives and checks uploads, and publishes them in a store."""

    def __init__(self, store: Store, pace: UploadLimits):
        self.store, self.pace = store, pace
        self._slots = asyncio.Semaphore(pace.uploads)
        self._waiting: Counter[str] = Counter()
        """Number of waiting uploads by owner."""
        self._owner_slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._threads = ThreadPoolExecutor(pace.uploads, thread_name_prefix="rove-upload")
        self._checkers = Checkers()

    async def close(self) -> None:
        """Stop the worker processes and threads."""
        await self._checkers.close()
        await asyncio.to_thread(self._threads.shutdown)

    async def receive(self, request: web.Request, owner: str, name: str, version: str) -> JsonObject:
        """Read an authorized upload, check and publish it; return its description."""
        _check_head(request)
        await self._in_thread(lambda: self.store.check_new(owner, name, version))
        async with self._slot(owner):
            draft = await self._in_thread(self.store.new_draft)
            try:
                await self._read_parts(request, draft)
                keys = await self._in_thread(lambda: catalogue.keys(self.store, owner))
                files = await self._checkers.check(draft, owner, name, version, keys)
                manifest = await self._in_thread(lambda: read_manifest((draft / MANIFEST).read_bytes()))
            except BaseException:
                await self._in_thread(lambda: shutil.rmtree(draft, ignore_errors=True))
                raise
            # From here on the store owns the draft: a cancelled request must not delete it while the store moves it.
            await self._in_thread(lambda: self.store.add(owner, manifest, draft, files))
        return {"owner": owner, "name": name, "version": version, "files": files}

    @asynccontextmanager
    async def _slot(self, owner: str) -> AsyncIterator[None]:
        waiting, waiting_of_owner = self._waiting.total(), self._waiting[owner]
        if waiting >= self.pace.waiting or waiting_of_owner >= self.pace.waiting_per_owner:
            raise RejectedError(
                503,
                f"{waiting} uploads are already waiting, {waiting_of_owner} of them of '{owner}'; try again in a minute",
            )
        owner_slots = self._owner_slots.setdefault(owner, asyncio.Semaphore(self.pace.uploads_per_owner))
        self._waiting[owner] += 1
        async with AsyncExitStack() as held:
            try:
                await held.enter_async_context(owner_slots)
                await held.enter_async_context(self._slots)
            finally:
                self._waiting[owner] -= 1
                self._waiting += Counter()  # removes zeros
            yield

    async def _read_parts(self, request: web.Request, draft: Path) -> None:
        received: set[str] = set()
        try:
            async with body_timeout(self.pace):
                parts = MultipartReader(request.headers, request.content)
                while (part := await self._read_in_time(parts.next)) is not None:
                    if not isinstance(part, BodyPartReader) or part.name not in MAX_PART_BYTES or part.name in received:
                        part_name = getattr(part, "name", None)
                        raise RejectedError(
                            400,
                            f"unexpected part {part_name!r}; expected at most one each of {', '.join(MAX_PART_BYTES)}",
                        )
                    received.add(part.name)
                    await self._save_part(part, draft / part.name, MAX_PART_BYTES[part.name])
                await self._read_in_time(request.content.readany)
        except MALFORMED_BODY as error:
            raise RejectedError(400, f"the body cannot be read as multipart/form-data: {error}") from error
        if missing := {"manifest", "wheel"} - received:
            raise RejectedError(400, f"this upload lacks the part {' and the part '.join(sorted(missing))}")

    async def _save_part(self, part: BodyPartReader, file: Path, max_bytes: int) -> None:
        size, pieces = 0, bytearray()
        with await self._in_thread(lambda: file.open("wb")) as stream:
            while piece := await self._read_in_time(lambda: part.read_chunk(CHUNK_BYTES)):
                size += len(piece)
                if size > max_bytes:
                    raise RejectedError(413, f"the part {part.name} has more than {max_bytes:,} bytes, the maximum")
                pieces += piece
                if len(pieces) >= CHUNK_BYTES:
                    await self._in_thread(partial(stream.write, bytes(pieces)))
                    pieces.clear()
            await self._in_thread(partial(stream.write, bytes(pieces)))

    async def _read_in_time(self, read: Callable[[], Awaitable[T]]) -> T:
        """Await a read within the idle time limit."""
        async with asyncio.timeout(self.pace.idle_seconds):
            return await read()

    async def _in_thread(self, call: Callable[[], T]) -> T:
        """Run a blocking call in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def _check_head(request: web.Request) -> None:
    """Check the request's headers before its body is read."""
    if request.content_type != "multipart/form-data":
        raise RejectedError(415, f"the content type is {request.content_type[:80]}; expected multipart/form-data")
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise RejectedError(415, "uploads must not be compressed; remove Content-Encoding")
    if request.content_length is None:
        raise RejectedError(411, "the length of the upload is unknown; send Content-Length")
    if request.content_length > MAX_UPLOAD_BYTES:
        raise RejectedError(
            413, f"this upload has {request.content_length:,} bytes; the maximum is {MAX_UPLOAD_BYTES:,}"
        )


@asynccontextmanager
async def body_timeout(pace: UploadLimits) -> AsyncIterator[None]:
    """Limit the time for reading a body."""
    try:
        async with asyncio.timeout(pace.seconds):
            yield
    except TimeoutError as error:
        raise RejectedError(
            408,
            f"the body was too slow; expected it within {pace.seconds:g} s, with pauses of at most {pace.idle_seconds:g} s",
        ) from error
