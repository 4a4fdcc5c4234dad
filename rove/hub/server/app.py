"""The web application of `rove hub serve`: the layout of a static hub, plus search and uploads."""

from __future__ import annotations

import asyncio
import logging
import signal
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from typing import TypeVar
from urllib.parse import quote

import msgspec
from aiohttp import web

from rove.core.errors import RejectedError, as_json
from rove.hub.package.manifest import find_markup
from rove.hub.package.names import normalize_name
from rove.hub.server import catalogue, simple
from rove.hub.server.catalogue import Query
from rove.hub.server.pages.html import KINDS, POLICY, static_files
from rove.hub.server.pages.run import RUN_POLICY
from rove.hub.server.pages.site import Site
from rove.hub.server.responses import (
    ACCESS,
    ARCHIVE_TYPE,
    auth_middleware,
    cached_response,
    decode_or_refuse,
    file_response,
    redirect,
)
from rove.hub.server.shadowing import check_not_shadowing
from rove.hub.server.store import MAX_RUN_BYTES, Store, read_run
from rove.hub.server.uploads import UploadLimits, Uploads, body_timeout
from rove.server import base_url_of, listening
from rove.server.validation import json_response
from rove.utils.systems import on_signals

T = TypeVar("T")

logger = logging.getLogger(__name__)

FLUSH_INTERVAL_S = 5.0
"""Interval in seconds at which download counts are saved; unsaved counts are lost if the server is killed."""
KEEPALIVE_TIMEOUT_S = 30.0
"""Seconds after which a connection is closed if it is idle or has not completed a request header."""
LINGERING_TIME_S = 2.0
"""Seconds for which the rest of a rejected body is read and discarded, so that the client receives the response."""
SHUTDOWN_TIMEOUT_S = 10.0
"""Maximum seconds to wait for running requests when the server stops."""
MAX_REASON_CHARS = 500


class _Yank(msgspec.Struct):
    reason: str = ""


class _Visibility(msgspec.Struct):
    visibility: str


def make_app(
    store: Store,
    name: str = "",
    *,
    fallback: str | None = None,
    allow_shadow: Collection[str] = (),
    pace: UploadLimits | None = None,
) -> web.Application:
    """Create the web application of a hub; docs/hub_server.md describes its API.

    Args:
        store: The store to serve; the caller closes it.
        name: Name of the hub (default: name of the data folder).
        fallback: Address of a simple index to which requests for unknown projects are redirected; None redirects no requests.
    """
    hub = _Hub(store, name or store.folder.resolve().name, fallback, allow_shadow, pace or UploadLimits())
    app = web.Application(middlewares=[auth_middleware(store)], client_max_size=MAX_RUN_BYTES)
    root = "/{owner}/{name}"
    app.add_routes(
        [
            web.get("/", hub.front),
            web.get("/index.json", hub.index),
            web.get("/api/search", hub.search),
            web.get("/api/me", hub.me),
            web.put("/api/environments/{owner}/{name}", hub.set_visibility),
            web.put("/api/environments/{owner}/{name}/{version}", hub.upload),
            web.post("/api/environments/{owner}/{name}/{version}/yank", hub.yank),
            web.delete("/api/environments/{owner}/{name}/{version}/yank", hub.unyank),
            web.post("/api/environments/{owner}/{name}/{version}/runs", hub.add_run),
            web.get("/{owner}/simple", hub.add_slash),
            web.get("/{owner}/simple/", hub.projects),
            web.get("/{owner}/simple/{name}", hub.add_slash),
            web.get("/{owner}/simple/{name}/", hub.project),
            web.get("/static/{file}", hub.static),
            web.get(root, hub.add_slash),
            web.get(f"{root}/", hub.environment_page),
            web.get(f"{root}/index.json", hub.environment),
            web.get(f"{root}/{{version}}/runs/index.json", hub.runs),
            web.get(f"{root}/{{version}}/runs/{{id}}.json", hub.run),
            web.get(f"{root}/{{version}}/runs/{{id}}.html", hub.run_page),
            web.get(f"{root}/{{version}}/{{filename}}", hub.file),
        ]
    )
    app.cleanup_ctx.append(hub.run_background)
    return app


class _Hub:
    """Request handlers of a hub."""

    def __init__(
        self, store: Store, name: str, fallback: str | None, allow_shadow: Collection[str], pace: UploadLimits
    ):
        self.store, self.name, self.pace = store, name, pace
        self.fallback = fallback.rstrip("/") if fallback else None
        self.allow_shadow = frozenset(allow_shadow)
        self.uploads = Uploads(store, pace)
        self.site, self.static_files = Site(store, name), static_files()
        self.downloads: Counter[tuple[str, str]] = Counter()

    async def run_background(self, app: web.Application) -> AsyncIterator[None]:
        """Save download counts while the application runs (a cleanup context of aiohttp)."""
        task = asyncio.create_task(self._count())
        yield
        task.cancel()
        try:
            with suppress(asyncio.CancelledError):
                await task
            await self._flush()
        finally:
            await self.uploads.close()

    async def _count(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_INTERVAL_S)
            await self._flush()

    async def _flush(self) -> None:
        counted, self.downloads = self.downloads, Counter()
        if not counted:
            return
        try:
            await asyncio.to_thread(self.store.add_downloads, counted)
        except sqlite3.Error as error:  # for example a full disk; downloads still work
            logger.warning("%d downloads are not counted yet: %s", counted.total(), error)
            self.downloads += counted

    async def index(self, request: web.Request) -> web.StreamResponse:
        return await self._json(request, lambda reader: catalogue.listing(self.store, self.name, "/api/search"))

    async def search(self, request: web.Request) -> web.StreamResponse:
        query = self._query(request)
        return await self._json(request, lambda reader: catalogue.search(self.store, query, reader))

    def _query(self, request: web.Request) -> Query:
        return decode_or_refuse(lambda: msgspec.convert(dict(request.query), Query, strict=False), "the parameters")

    async def environment(self, request: web.Request) -> web.StreamResponse:
        return await self._json(request, self._with_path(request, catalogue.environment))

    async def runs(self, request: web.Request) -> web.StreamResponse:
        return await self._json(request, self._with_path(request, catalogue.runs))

    async def run(self, request: web.Request) -> web.StreamResponse:
        return await file_response(request, self._with_path(request, catalogue.find_run))

    async def file(self, request: web.Request) -> web.StreamResponse:
        """Return a file of a version and count the download."""
        answer = await file_response(request, self._with_path(request, catalogue.find_file))
        # Installers may read the metadata of a wheel with range requests first; that is no download.
        if request.method == "GET" and answer.content_type == ARCHIVE_TYPE and "Range" not in request.headers:
            self.downloads[_owner_and_name(request)] += 1
        return answer

    def _with_path(self, request: web.Request, find: Callable[..., T]) -> Callable[[str | None], T]:
        """Return a function of the reader that queries the catalogue about the environment or version in the request's path."""
        return lambda reader: find(self.store, **request.match_info, reader=reader)

    async def _json(self, request: web.Request, build: Callable[[str | None], object]) -> web.StreamResponse:
        body = await asyncio.to_thread(lambda: msgspec.json.encode(build(request[ACCESS].reads)))
        return cached_response(request, body, "application/json")

    async def front(self, request: web.Request) -> web.StreamResponse:
        query = self._query(request)
        return await self._html(request, lambda reader: self.site.search_page(query, reader))

    async def environment_page(self, request: web.Request) -> web.StreamResponse:
        reference = _owner_and_name(request)
        return await self._html(request, lambda reader: self.site.environment(*reference, reader))

    async def run_page(self, request: web.Request) -> web.StreamResponse:
        reference = request.match_info
        return await self._html(request, lambda reader: self.site.run_page(**reference, reader=reader), RUN_POLICY)

    async def static(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["file"]
        if name not in self.static_files:
            raise RejectedError(404, "this hub has no such file")
        return cached_response(request, self.static_files[name], KINDS[name[name.rindex(".") :]])

    async def _html(
        self, request: web.Request, show: Callable[[str | None], bytes], policy: str = POLICY
    ) -> web.StreamResponse:
        body = await asyncio.to_thread(lambda: show(request[ACCESS].reads))
        return cached_response(request, body, "text/html", policy)

    async def add_slash(self, request: web.Request) -> web.StreamResponse:
        """Redirect to the address with a trailing slash, which relative links need."""
        return redirect(quote(request.match_info.get("name", "simple"), safe="") + "/")

    async def projects(self, request: web.Request) -> web.StreamResponse:
        form, owner = _negotiated_type(request), request.match_info["owner"]
        names = await asyncio.to_thread(catalogue.names, self.store, owner, request[ACCESS].reads)
        return cached_response(request, simple.project_list(form, names), form)

    async def project(self, request: web.Request) -> web.StreamResponse:
        form, (owner, name) = _negotiated_type(request), _owner_and_name(request)
        normalized = normalize_name(name)
        if normalized != name:
            return redirect(f"../{normalized}/")
        reader = request[ACCESS].reads
        try:
            releases = await asyncio.to_thread(catalogue.releases, self.store, owner, name, reader)
        except RejectedError:
            if not await asyncio.to_thread(self._falls_back, owner, reader):
                raise
            return redirect(f"{self.fallback}/{name}/", 302)
        return cached_response(request, simple.project(form, name, releases), form)

    def _falls_back(self, owner: str, reader: str | None) -> bool:
        """Return whether to redirect to the fallback index.

        It does not redirect if the owner has private projects that this reader cannot see: a public project of the same
        name would be installed instead (dependency confusion).
        """
        return self.fallback is not None and (reader == owner or not catalogue.has_private(self.store, owner))

    async def me(self, request: web.Request) -> web.StreamResponse:
        access = request[ACCESS]
        if access.owner is None:
            raise RejectedError(401, "no token was sent; send one as 'Authorization: Bearer rove_…'")
        return json_response({"owner": access.owner, "scopes": list(access.scopes)})

    async def upload(self, request: web.Request) -> web.StreamResponse:
        owner, name, version = _authorized_target(request)
        if self.fallback is not None and not await asyncio.to_thread(self.store.has_environment, owner, name):
            await check_not_shadowing(name, self.fallback, self.allow_shadow)
        published = await self.uploads.receive(request, owner, name, version)
        logger.info("%s uploaded %s/%s %s", request[ACCESS].owner, owner, name, version)
        return json_response(published, 201)

    async def yank(self, request: web.Request) -> web.StreamResponse:
        target = _authorized_target(request)
        reason = (await self._body(request, _Yank)).reason
        if len(reason) > MAX_REASON_CHARS or not reason.isprintable() or find_markup(reason):
            raise RejectedError(
                400, f"the reason must be one line of plain text of at most {MAX_REASON_CHARS} characters"
            )
        await asyncio.to_thread(self.store.yank, *target, reason)
        return json_response({"yanked": reason})

    async def unyank(self, request: web.Request) -> web.StreamResponse:
        await asyncio.to_thread(self.store.yank, *_authorized_target(request), None)
        return json_response({"yanked": None})

    async def add_run(self, request: web.Request) -> web.StreamResponse:
        target = _authorized_target(request)
        run = await asyncio.to_thread(read_run, await self._read(request))
        await asyncio.to_thread(self.store.add_run, *target, run)
        return json_response({"id": run.id, "sha256": run.sha256}, 201)

    async def set_visibility(self, request: web.Request) -> web.StreamResponse:
        owner, name = _owner_and_name(request)
        if request[ACCESS].owner is None:  # before the body is read; `set_private` checks every other token
            request[ACCESS].check_upload(owner, name)
        visibility = (await self._body(request, _Visibility)).visibility
        if visibility not in ("public", "private"):
            raise RejectedError(400, f'visibility is {as_json(visibility[:80])}; expected "public" or "private"')
        await asyncio.to_thread(self.store.set_private, owner, name, visibility == "private", request[ACCESS])
        return json_response({"owner": owner, "name": name, "visibility": visibility})

    async def _body(self, request: web.Request, kind: type[T]) -> T:
        content = await self._read(request)
        return decode_or_refuse(lambda: msgspec.json.decode(content or b"{}", type=kind), "the body")

    async def _read(self, request: web.Request) -> bytes:
        async with body_timeout(self.pace):
            return await request.read()


def _owner_and_name(request: web.Request) -> tuple[str, str]:
    return request.match_info["owner"], request.match_info["name"]


def _authorized_target(request: web.Request) -> tuple[str, str, str]:
    """Return the owner, name and version that a request changes; raise if its token does not allow it."""
    owner, name = _owner_and_name(request)
    request[ACCESS].check_upload(owner, name)
    return owner, name, request.match_info["version"]


def _negotiated_type(request: web.Request) -> str:
    form = simple.negotiate(request.headers.get("Accept", ""))
    if form is None:
        raise RejectedError(
            406, f"this index is available as text/html or {simple.JSON_V1}; request one of these in Accept"
        )
    return form


@asynccontextmanager
async def serving(app: web.Application, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Run the application of `make_app`; yield its address. Port 0 chooses a free one."""
    options = {
        "handler_cancellation": False,
        "keepalive_timeout": KEEPALIVE_TIMEOUT_S,
        "lingering_time": LINGERING_TIME_S,
        "shutdown_timeout": SHUTDOWN_TIMEOUT_S,
        "auto_decompress": False,
    }
    async with listening(app, host, port, **options) as runner:
        yield base_url_of(runner).removesuffix("/v1")


async def serve_hub(app: web.Application, host: str, port: int, on_start: Callable[[str], None]) -> None:
    """Serve the application of `make_app` until SIGTERM or cancellation, then let running requests finish.

    `on_start` is called with the address once the server is running; see `serving`.
    """
    stop = asyncio.Event()
    on_signals(stop.set, signal.SIGTERM)
    async with serving(app, host, port) as url:
        on_start(url)
        await stop.wait()
