"""`rove hub serve`: a hub over HTTP, laid out as a static one, with search and uploads besides."""

from __future__ import annotations

import asyncio
import logging
import signal
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from aiohttp import web

from rove.core.errors import ConfigError, in_json
from rove.hub.package.names import normalise_name
from rove.hub.server import catalogue, simple
from rove.hub.server.catalogue import Query
from rove.hub.server.checking import active
from rove.hub.server.errors import Refused
from rove.hub.server.handlers import ACCESS, ARCHIVE, decoded, doorkeeper, file_answer, json_answer, page, redirect
from rove.hub.server.pages.frame import KINDS, POLICY, static_files
from rove.hub.server.pages.site import Site
from rove.hub.server.results import LARGEST_RUN, read_run
from rove.hub.server.store import Store
from rove.hub.server.uploads import Pace, Uploads, patient

T = TypeVar("T")

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 5.0
"""Downloads of the last so many seconds are not counted when the server is killed."""
IDLE_SECONDS = 30.0
"""A connection that asks nothing, or does not come to the end of a request's head, is closed after so long."""
LINGER_SECONDS = 2.0
"""How long the rest of a body is thrown away that was refused, so that its sender hears why."""
GOODBYE_SECONDS = 10.0
"""For what runs when the server stops."""
REASON = 500
"""Characters of why a version was yanked."""


class _Yank(msgspec.Struct):
    reason: str = ""


class _Visibility(msgspec.Struct):
    visibility: str


def make_hub(store: Store, name: str = "", *, fallback: str | None = None, pace: Pace | None = None) -> web.Application:
    """The application; see docs/hub_server.md for what it answers.

    Args:
        store: what it serves; it is not closed.
        name: of the hub. Default: the folder's.
        fallback: address of a simple index where projects are sought that an owner does not have; None = nowhere.
        pace: of uploads.
    """
    hub = _Hub(store, name or store.folder.resolve().name, fallback, pace or Pace())
    app = web.Application(middlewares=[doorkeeper(store)], client_max_size=LARGEST_RUN)
    there = "/{owner}/{name}"
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
            web.get("/{owner}/simple", hub.with_slash),
            web.get("/{owner}/simple/", hub.projects),
            web.get("/{owner}/simple/{name}", hub.with_slash),
            web.get("/{owner}/simple/{name}/", hub.project),
            web.get("/static/{file}", hub.static),
            web.get(there, hub.with_slash),
            web.get(f"{there}/", hub.environment_page),
            web.get(f"{there}/index.json", hub.environment),
            web.get(f"{there}/{{version}}/runs/index.json", hub.runs),
            web.get(f"{there}/{{version}}/runs/{{id}}.json", hub.run),
            web.get(f"{there}/{{version}}/runs/{{id}}.html", hub.run_page),
            web.get(f"{there}/{{version}}/{{filename}}", hub.file),
        ]
    )
    app.cleanup_ctx.append(hub.working)
    return app


class _Hub:
    """The handlers."""

    def __init__(self, store: Store, name: str, fallback: str | None, pace: Pace):
        self.store, self.name, self.pace = store, name, pace
        self.fallback = fallback.rstrip("/") if fallback else None
        self.uploads = Uploads(store, pace)
        self.site, self.static_files = Site(store, name), static_files()
        self.downloads: Counter[tuple[str, str]] = Counter()

    async def working(self, app: web.Application) -> AsyncIterator[None]:
        """While the application runs: downloads are counted."""
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
            await asyncio.sleep(FLUSH_SECONDS)
            await self._flush()

    async def _flush(self) -> None:
        counted, self.downloads = self.downloads, Counter()
        if not counted:
            return
        try:
            await asyncio.to_thread(self.store.count, counted)
        except sqlite3.Error as error:  # a full disk, say; nobody is refused a download for that
            logger.warning("%d downloads are not counted yet: %s", counted.total(), error)
            self.downloads += counted

    # reading

    async def index(self, request: web.Request) -> web.StreamResponse:
        """All that is public."""
        return await self._told(request, lambda reader: catalogue.listing(self.store, self.name, "/api/search"))

    async def search(self, request: web.Request) -> web.StreamResponse:
        """What a query finds."""
        query = self._query(request)
        return await self._told(request, lambda reader: catalogue.search(self.store, query, reader))

    def _query(self, request: web.Request) -> Query:
        return decoded(lambda: msgspec.convert(dict(request.query), Query, strict=False), "the parameters")

    async def environment(self, request: web.Request) -> web.StreamResponse:
        """An environment's versions."""
        owner, name = _place(request)
        return await self._told(request, lambda reader: catalogue.environment(self.store, owner, name, reader))

    async def runs(self, request: web.Request) -> web.StreamResponse:
        """The results on a version."""
        place = *_place(request), request.match_info["version"]
        return await self._told(request, lambda reader: catalogue.runs(self.store, *place, reader))

    async def run(self, request: web.Request) -> web.StreamResponse:
        """One of them."""
        place = *_place(request), request.match_info["version"], request.match_info["id"]
        return await file_answer(request, lambda reader: catalogue.find_run(self.store, *place, reader))

    async def file(self, request: web.Request) -> web.StreamResponse:
        """A file of a version."""
        owner, name = _place(request)
        place = owner, name, request.match_info["version"], request.match_info["filename"]
        answer = await file_answer(request, lambda reader: catalogue.find(self.store, *place, reader))
        if request.method == "GET" and answer.content_type == ARCHIVE and "Range" not in request.headers:
            self.downloads[owner, name] += 1
        return answer

    async def _told(self, request: web.Request, tell: Callable[[str | None], Any]) -> web.StreamResponse:
        body = await asyncio.to_thread(lambda: msgspec.json.encode(tell(request[ACCESS].reads)))
        return page(request, body, "application/json")

    # for people

    async def front(self, request: web.Request) -> web.StreamResponse:
        """The list of environments, or what a query finds of it."""
        query = self._query(request)
        return await self._shown(request, lambda reader: self.site.found(query, reader))

    async def environment_page(self, request: web.Request) -> web.StreamResponse:
        """An environment's page."""
        place = _place(request)
        return await self._shown(request, lambda reader: self.site.environment(*place, reader))

    async def run_page(self, request: web.Request) -> web.StreamResponse:
        """The page of a run."""
        owner, name = _place(request)
        version, id = request.match_info["version"], request.match_info["id"]

        def show(reader: str | None) -> bytes:
            for row in self.site.rows(owner, name, version, reader):
                if row.id == id:
                    return self.site.run(owner, name, row)
            raise Refused(404, "there are no such results on this hub")

        return await self._shown(request, show)

    async def static(self, request: web.Request) -> web.StreamResponse:
        """A file that pages load."""
        name = request.match_info["file"]
        if name not in self.static_files:
            raise Refused(404, "there is no such file")
        return page(request, self.static_files[name], KINDS[name[name.rindex(".") :]])

    async def _shown(self, request: web.Request, show: Callable[[str | None], bytes]) -> web.StreamResponse:
        body = await asyncio.to_thread(lambda: show(request[ACCESS].reads))
        return page(request, body, "text/html", POLICY)

    # for installers

    async def with_slash(self, request: web.Request) -> web.StreamResponse:
        """The same with the slash that relative links need."""
        return redirect(quote(request.match_info.get("name", "simple"), safe="") + "/")

    async def projects(self, request: web.Request) -> web.StreamResponse:
        """The projects of an owner's index."""
        form, owner = _form(request), request.match_info["owner"]
        names = await asyncio.to_thread(catalogue.names, self.store, owner, request[ACCESS].reads)
        return page(request, simple.project_list(form, names), form)

    async def project(self, request: web.Request) -> web.StreamResponse:
        """The files of a project."""
        form, (owner, name) = _form(request), _place(request)
        proper = normalise_name(name)
        if proper != name:
            return redirect(f"../{proper}/")
        reader = request[ACCESS].reads
        try:
            found = await asyncio.to_thread(catalogue.releases, self.store, owner, name, reader)
        except Refused:
            if not await asyncio.to_thread(self._falls_back, owner, reader):
                raise
            return redirect(f"{self.fallback}/{name}/", 302)
        return page(request, simple.project(form, name, found), form)

    def _falls_back(self, owner: str, reader: str | None) -> bool:
        """Whether a project may be sought elsewhere: not where it may be a private one that this reader must not see, or
        somebody else's of the same name would be installed in its place."""
        return self.fallback is not None and (reader == owner or not catalogue.hides(self.store, owner))

    # changing

    async def me(self, request: web.Request) -> web.StreamResponse:
        """Whose the token is."""
        access = request[ACCESS]
        if access.owner is None:
            raise Refused(401, "to ask whose a token is takes one; send it as 'Authorization: Bearer rove_…'")
        return json_answer({"owner": access.owner, "scopes": list(access.scopes)})

    async def upload(self, request: web.Request) -> web.StreamResponse:
        """A new version."""
        owner, name, version = _allowed(request)
        told = await self.uploads.take(request, owner, name, version)
        logger.info("%s uploaded %s/%s %s", request[ACCESS].owner, owner, name, version)
        return json_answer(told, 201)

    async def yank(self, request: web.Request) -> web.StreamResponse:
        """Advise against a version."""
        place = _allowed(request)
        reason = (await self._body(request, _Yank)).reason
        if len(reason) > REASON or not (reason or " ").isprintable() or active(reason):
            raise Refused(400, f"a reason is one line of plain text of at most {REASON} characters")
        await asyncio.to_thread(self.store.yank, *place, reason)
        return json_answer({"yanked": reason})

    async def unyank(self, request: web.Request) -> web.StreamResponse:
        """Take that back."""
        await asyncio.to_thread(self.store.yank, *_allowed(request), None)
        return json_answer({"yanked": None})

    async def add_run(self, request: web.Request) -> web.StreamResponse:
        """A model's results on a version."""
        place = _allowed(request)
        run = await asyncio.to_thread(read_run, await self._read(request))
        await asyncio.to_thread(self.store.add_run, *place, run)
        return json_answer({"id": run.id, "sha256": run.sha256}, 201)

    async def set_visibility(self, request: web.Request) -> web.StreamResponse:
        """Hide an environment or show it."""
        owner, name = _place(request)
        if request[ACCESS].owner is None:
            request[ACCESS].check_upload(owner, name)
        visibility = (await self._body(request, _Visibility)).visibility
        if visibility not in ("public", "private"):
            raise Refused(400, f'visibility is {in_json(visibility[:80])}; expected "public" or "private"')
        await asyncio.to_thread(self.store.set_private, owner, name, visibility == "private", request[ACCESS])
        return json_answer({"owner": owner, "name": name, "visibility": visibility})

    async def _body(self, request: web.Request, kind: type[T]) -> T:
        content = await self._read(request)
        return decoded(lambda: msgspec.json.decode(content or b"{}", type=kind), "the body")

    async def _read(self, request: web.Request) -> bytes:
        async with patient(self.pace):
            return await request.read()


def _place(request: web.Request) -> tuple[str, str]:
    return request.match_info["owner"], request.match_info["name"]


def _allowed(request: web.Request) -> tuple[str, str, str]:
    """Owner, name and version that a request changes, as it may."""
    owner, name = _place(request)
    request[ACCESS].check_upload(owner, name)
    return owner, name, request.match_info["version"]


def _form(request: web.Request) -> str:
    form = simple.chosen(request.headers.get("Accept", ""))
    if form is None:
        raise Refused(406, f"this index is text/html or {simple.JSON_V1}; ask for one of these in Accept")
    return form


@asynccontextmanager
async def serving(app: web.Application, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """The application at work; gives its address.

    Args:
        app: of `make_hub`.
        host: where to listen.
        port: 0 = any that is free.

    Raises:
        ConfigError: nobody can listen there.
    """
    runner = web.AppRunner(
        app,
        access_log=None,
        keepalive_timeout=IDLE_SECONDS,
        lingering_time=LINGER_SECONDS,
        shutdown_timeout=GOODBYE_SECONDS,
        auto_decompress=False,
    )
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port, backlog=1024).start()
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"cannot listen on {host}:{port} ({error}); give another --port (0 = a free one)"
            ) from error
        address, opened = runner.addresses[0][:2]
        yield f"http://[{address}]:{opened}" if ":" in address else f"http://{address}:{opened}"
    finally:
        await runner.cleanup()


async def serve_hub(app: web.Application, host: str, port: int, on_start: Callable[[str], None]) -> None:
    """Serve until SIGTERM, or until cancelled; what runs then may end.

    Args:
        app: of `make_hub`.
        host: where to listen.
        port: 0 = any that is free.
        on_start: told the address once it answers.

    Raises:
        ConfigError: nobody can listen there.
    """
    stop = asyncio.Event()
    with suppress(NotImplementedError):  # Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with serving(app, host, port) as url:
        on_start(url)
        await stop.wait()
