"""The viewer as a web application: its files, its answers, and who is let in."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import resources
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from rove.core.errors import ConfigError, RunError
from rove.server import listening
from rove.server.admission import foreign_origin, names_this_server
from rove.viewer.api import ENDPOINTS, Asked, ReadOnly, annotate
from rove.viewer.html import utf8_text
from rove.viewer.run_store import RunStore
from rove.viewer.search import Query

logger = logging.getLogger(__name__)

COOKIE = "rove_view"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
LONGEST = 60.0
"""Seconds a search may take between two lines."""


class Refused(Exception):
    """A request that is not answered."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


def make_viewer(shelf: RunStore, *, host: str = "127.0.0.1", token: str | None = None) -> web.Application:
    """The application; it reads and never writes, but for indexes and, where the shelf lets people annotate, tags and notes.

    Args:
        shelf: the runs.
        host: where it will listen; requests for other names are refused, as those come from pages of other sites.
        token: what whoever opens it must bring in the address once; None = nothing.
    """
    app = web.Application(middlewares=[doorkeeper(host, token)], client_max_size=1 << 16)
    files = page_files()

    async def page(request: web.Request) -> web.Response:
        return file_answer(files, "index.html")

    async def static(request: web.Request) -> web.Response:
        return file_answer(files, request.match_info["name"])

    async def answer(request: web.Request) -> web.Response:
        function = ENDPOINTS.get(request.match_info["name"])
        if function is None:
            raise Refused(404, f"nothing at {request.path[:100]}; expected one of {', '.join(sorted(ENDPOINTS))}")
        asked = Asked(list(request.query.items()))
        found = await asyncio.to_thread(function, shelf, asked)
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    async def search(request: web.Request) -> web.StreamResponse:
        return await _search(request, shelf)

    async def write(request: web.Request) -> web.Response:
        if request.content_type != "application/json":  # what a form of another site cannot send
            raise Refused(415, "send JSON")
        said = await asyncio.to_thread(annotate, shelf, await request.read())
        return web.Response(body=msgspec.json.encode(said), content_type="application/json")

    async def close(_: web.Application) -> None:
        shelf.close()

    app.add_routes([web.get("/", page), web.get("/static/{name}", static), web.get("/api/search", search)])
    app.add_routes([web.get("/api/{name}", answer), web.post("/api/annotate", write)])
    app.on_cleanup.append(close)
    return app


def page_files() -> dict[str, bytes]:
    """The pages' files by name: nothing else is ever served."""
    folder = resources.files("rove.viewer") / "static"
    kinds = tuple(KINDS)
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name.endswith(kinds)}


def file_answer(files: dict[str, bytes], name: str) -> web.Response:
    """One of the pages' files.

    Raises:
        Refused: there is no such file.
    """
    if name not in files:
        raise Refused(404, "there is no such file")
    kind = KINDS[name[name.rindex(".") :]]
    return web.Response(body=files[name], content_type=kind, charset="utf-8")


async def _search(request: web.Request, shelf: RunStore) -> web.StreamResponse:
    """Hits as lines of JSON while they are found; the search ends when nobody listens any more."""
    asked = Asked(list(request.query.items()))
    folder = shelf.run(asked.text("run"))
    query = Query(asked.text("text"), asked.text("regex", "") == "1", asked.text("case", "") == "1")
    query.pattern()
    file = folder.path / "rollouts.jsonl"
    if not file.is_file():
        raise ConfigError("this run has no rollouts to look through")
    command = (sys.executable, "-P", "-m", "rove.viewer.search", str(file))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=1 << 20)
    reply = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", **HEADERS})
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(msgspec.json.encode(query))
        process.stdin.write_eof()
        await reply.prepare(request)
        with suppress(ConnectionError):  # nobody listens any more
            while line := await asyncio.wait_for(process.stdout.readline(), LONGEST):
                await reply.write(line)
            await reply.write_eof()
        return reply
    except TimeoutError:
        await reply.write(
            msgspec.json.encode({"error": f"no line was looked through in {LONGEST:.0f} s; try a simpler pattern"})
        )
        return reply
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


# Who is let in


def doorkeeper(host: str, token: str | None) -> Middleware:
    """Lets in who may ask, and turns errors into answers; arguments as those of `make_viewer`."""

    @web.middleware
    async def keeper(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            _check_origin(request, host)
            if token is not None and (welcome := _check_token(request, token)) is not None:
                return welcome
            response = await handler(request)
        except Exception as error:
            response = refusal(error)
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    return keeper


def _check_origin(request: web.Request, host: str) -> None:
    """Refuse what pages of other sites ask for, whatever name they have given to this machine's address.

    Raises:
        Refused: it is not for us, or not from us.
    """
    named = request.headers.get("Host", "")
    if not names_this_server(named, host):
        raise Refused(
            403, f"requests for '{named[:80]}' are not answered here; open the address that rove view has printed"
        )
    origin = foreign_origin(request)
    if origin is not None and ("Origin" in request.headers or request.path != "/"):
        raise Refused(403, f"requests from '{origin[:80]}' are not answered")


def _check_token(request: web.Request, token: str) -> web.Response | None:
    """Where the token stands in the address: a cookie in its place.

    Raises:
        Refused: it is nowhere, or another one.
    """

    def right(given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), token.encode())

    if right(request.query.get("token", "")):
        answer = web.Response(status=303, headers={"Location": "/", **HEADERS})
        answer.set_cookie(COOKIE, token, httponly=True, samesite="Strict")
        return answer
    if not right(request.cookies.get(COOKIE, "")):
        raise Refused(401, "open the address that rove view has printed, with its token")
    return None


def refusal(error: Exception) -> web.Response:
    """An error as an answer in JSON: {"error": why}."""
    status, message, headers = _told(error)
    body = msgspec.json.encode({"error": utf8_text(message)})
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


def _told(error: Exception) -> tuple[int, str, dict[str, Any]]:
    if isinstance(error, Refused):
        return error.status, str(error), {}
    if isinstance(error, web.HTTPException):
        allowed = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
        return error.status, error.reason, allowed
    if isinstance(error, ReadOnly):
        return 403, str(error), {}
    if isinstance(error, ConfigError):
        return 400, str(error), {}
    if isinstance(error, (RunError, OSError)):
        return (
            404,
            str(error) if isinstance(error, RunError) else f"a file of the run cannot be read: {error.strerror}",
            {},
        )
    if isinstance(error, (OverflowError, RecursionError, MemoryError)):
        return 404, f"this run holds values that are too large or nested too deep to show ({type(error).__name__})", {}
    logger.error("a request failed", exc_info=error)
    return 500, f"{type(error).__name__}: {str(error)[:500]}", {}


async def serve_viewer(
    store: RunStore, host: str, port: int, token: str | None, on_start: Callable[[str], None] = lambda url: None
) -> None:
    """Serve until cancelled.

    Args:
        shelf: the runs.
        host: where to listen.
        port: 0 = any that is free.
        token: see `make_viewer`.
        on_start: told the address to open once it answers.

    Raises:
        ConfigError: nobody can listen there.
    """
    app = make_viewer(store, host=host, token=token)
    async with listening(app, host, port) as runner:
        address, opened = runner.addresses[0][:2]
        address = socket.gethostname() if ipaddress.ip_address(address).is_unspecified else address
        name = f"[{address}]" if ":" in address else address
        on_start(f"http://{name}:{opened}/" + (f"?token={token}" if token else ""))
        await asyncio.Event().wait()
