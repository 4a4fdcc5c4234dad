"""The viewer as a web application: static files, JSON API and access control."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import socket
import sys
from collections.abc import Callable
from contextlib import suppress

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from rove.core.errors import ConfigError, RejectedError, RunError
from rove.core.plain import JsonObject
from rove.server import listening
from rove.server.admission import foreign_origin, names_this_server
from rove.server.validation import json_response
from rove.viewer.api import ENDPOINTS, QueryParams, ReadOnly, annotate
from rove.viewer.html import static_files, utf8_text
from rove.viewer.run_store import RunStore
from rove.viewer.search import Query

logger = logging.getLogger(__name__)

COOKIE = "rove_view"
CONTENT_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
SEARCH_TIMEOUT_S = 60.0
"""Maximum time for a search to process one line."""


def make_viewer(store: RunStore, *, host: str = "127.0.0.1", token: str | None = None) -> web.Application:
    """Return the application. It writes only indexes and, with `RunStore.annotate`, tags and notes.

    Args:
        host: Address that the application will listen on; requests with another `Host` are refused, because other sites
            could send them.
        token: Token that the first requested URL must contain; None = no token.
    """
    app = web.Application(middlewares=[access_middleware(host, token)], client_max_size=1 << 16)
    files = page_files()

    async def page(request: web.Request) -> web.Response:
        return file_response(files, "index.html")

    async def static(request: web.Request) -> web.Response:
        return file_response(files, request.match_info["name"])

    async def answer(request: web.Request) -> web.Response:
        function = ENDPOINTS.get(request.match_info["name"])
        if function is None:
            raise RejectedError(404, f"no route {request.path[:100]}; expected one of {', '.join(sorted(ENDPOINTS))}")
        params = QueryParams(list(request.query.items()))
        result = await asyncio.to_thread(function, store, params)
        return json_response(result)

    async def search(request: web.Request) -> web.StreamResponse:
        return await _search(request, store)

    async def write(request: web.Request) -> web.Response:
        result = await asyncio.to_thread(annotate, store, await json_body(request))
        return json_response(result)

    async def close(_: web.Application) -> None:
        store.close()

    app.add_routes([web.get("/", page), web.get("/static/{name:.+}", static), web.get("/api/search", search)])
    app.add_routes([web.get("/api/{name}", answer), web.post("/api/annotate", write)])
    app.on_cleanup.append(close)
    return app


def page_files() -> dict[str, bytes]:
    """Return the static files by name; no other file is served."""
    return {name: content for name, content in static_files().items() if name.endswith(tuple(CONTENT_TYPES))}


def file_response(files: dict[str, bytes], name: str) -> web.Response:
    """Return a static file."""
    if name not in files:
        raise RejectedError(404, "there is no such file")
    kind = CONTENT_TYPES[name[name.rindex(".") :]]
    return web.Response(body=files[name], content_type=kind, charset="utf-8")


async def _search(request: web.Request, store: RunStore) -> web.StreamResponse:
    """Stream hits as lines of JSON; the search ends when the browser disconnects."""
    params = QueryParams(list(request.query.items()))
    folder = store.run(params.text("run"))
    query = Query(params.text("text"), params.text("regex", "") == "1", params.text("case", "") == "1")
    query.pattern()
    file = folder.path / "rollouts.jsonl"
    if not file.is_file():
        raise ConfigError("this run has no rollouts to search")
    # In a separate process: Python's regular expressions hold the interpreter's lock, and some searches never end
    # (docs/decisions/viewer.md). -P: a module in the current folder must not replace one of Python's.
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
        with suppress(ConnectionError):  # the browser has disconnected
            while line := await asyncio.wait_for(process.stdout.readline(), SEARCH_TIMEOUT_S):
                await reply.write(line)
            await reply.write_eof()
        return reply
    except TimeoutError:
        message = f"the search of one line took more than {SEARCH_TIMEOUT_S:.0f} s; try a simpler pattern"
        await reply.write(msgspec.json.encode({"error": message}))
        return reply
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def json_body(request: web.Request) -> bytes:
    """Return the body of a request; refuse it if it is not declared as JSON, which forms of other sites cannot do."""
    if request.content_type != "application/json":
        raise RejectedError(415, "the body is not declared as JSON; send Content-Type: application/json")
    return await request.read()


def access_middleware(host: str, token: str | None) -> Middleware:
    """Check the origin and the token of requests, and turn errors into JSON responses; for the arguments, see `make_viewer`."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            _check_origin(request, host)
            if token is not None and (redirect := _check_token(request, token)) is not None:
                return redirect
            response = await handler(request)
        except Exception as error:
            response = refusal(error)
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    return middleware


def _check_origin(request: web.Request, host: str) -> None:
    """Refuse requests from pages of other sites, including sites whose host name resolves to this machine."""
    named = request.headers.get("Host", "")
    if not names_this_server(named, host):
        raise RejectedError(
            403, f"the request's Host is '{named[:80]}', not this server; open the address that `rove view` printed"
        )
    origin = foreign_origin(request)
    if origin is not None and ("Origin" in request.headers or request.path != "/"):
        raise RejectedError(403, f"the request comes from a page of '{origin[:80]}'; expected a page of this server")


def _check_token(request: web.Request, token: str) -> web.Response | None:
    """If the URL has the token, return a redirect that stores it as a cookie."""

    def is_correct(key: str) -> bool:
        return hmac.compare_digest(key.encode(errors="replace"), token.encode())  # in the same time for every key

    if is_correct(request.query.get("token", "")):
        answer = web.Response(status=303, headers={"Location": "/", **HEADERS})
        # A cookie instead of the address, which stays in the browser's history.
        answer.set_cookie(COOKIE, token, httponly=True, samesite="Strict")
        return answer
    if not is_correct(request.cookies.get(COOKIE, "")):
        raise RejectedError(401, "the token is missing or wrong; open the address that `rove view` printed")
    return None


def refusal(error: Exception) -> web.Response:
    """Return an error as a JSON response: {"error": message}."""
    status, message, headers = _error_of(error)
    return json_response({"error": utf8_text(message)}, status, headers)


def _error_of(error: Exception) -> tuple[int, str, JsonObject]:
    if isinstance(error, RejectedError):
        return error.status, str(error), {}
    if isinstance(error, web.HTTPException):
        allowed = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
        return error.status, error.reason, allowed
    if isinstance(error, ReadOnly):
        return 403, str(error), {}
    if isinstance(error, ConfigError):
        return 400, str(error), {}
    if isinstance(error, RunError):
        return 404, str(error), {}
    if isinstance(error, OSError):
        return 404, f"a file of the run cannot be read: {error.strerror}", {}
    if isinstance(error, (OverflowError, RecursionError, MemoryError)):
        return 404, f"this run holds values that are too large or nested too deep to show ({type(error).__name__})", {}
    logger.error("a request failed", exc_info=error)
    return 500, f"{type(error).__name__}: {str(error)[:500]}", {}


async def serve_viewer(
    store: RunStore, host: str, port: int, token: str | None, on_start: Callable[[str], None] = lambda url: None
) -> None:
    """Serve until cancelled.

    Args:
        port: Port; 0 chooses a free port.
    """
    app = make_viewer(store, host=host, token=token)
    async with listening(app, host, port) as runner:
        address, opened = runner.addresses[0][:2]
        address = socket.gethostname() if ipaddress.ip_address(address).is_unspecified else address
        name = f"[{address}]" if ":" in address else address
        on_start(f"http://{name}:{opened}/" + (f"?token={token}" if token else ""))
        await asyncio.Event().wait()
