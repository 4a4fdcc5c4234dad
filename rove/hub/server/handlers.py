"""The hub's answers over HTTP, and who is let in."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from rove.core.errors import ConfigError
from rove.hub.server.catalogue import Found
from rove.hub.server.errors import Refused
from rove.hub.server.results import LARGEST_RUN
from rove.hub.server.store import Store
from rove.hub.server.tokens import Access, access_of

T = TypeVar("T")

logger = logging.getLogger(__name__)

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
ARCHIVE = "application/octet-stream"
KINDS = {"wheel": ARCHIVE, "source": ARCHIVE, "readme": "text/plain; charset=utf-8"}
"""Content types by kind of file; the others are JSON."""
SMALL = 1 << 20
"""A file up to so many bytes is sent in one piece."""

ACCESS = web.RequestKey("access", Access)


def decoded(decode: Callable[[], T], what: str) -> T:
    """What a request says.

    Raises:
        Refused: it cannot be read.
    """
    try:
        return decode()
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Refused(400, f"{what} cannot be read: {error}") from error


def json_answer(told: Any, status: int = 200) -> web.Response:
    """JSON."""
    return web.Response(status=status, body=msgspec.json.encode(told), content_type="application/json")


def redirect(where: str, status: int = 301) -> web.Response:
    """It is elsewhere."""
    return web.Response(status=status, headers={"Location": where})


def page(request: web.Request, body: bytes, kind: str, policy: str = "") -> web.Response:
    """What changes with every upload: asked for again each time, sent again only if it is another.

    Args:
        request: what is answered.
        body: the page.
        kind: its content type.
        policy: what a browser may do with it. Default: nothing.
    """
    tag = hashlib.blake2b(body, digest_size=16).hexdigest()
    headers = {
        "Content-Type": f"{kind}; charset=utf-8" if kind.startswith("text/") else kind,
        "Cache-Control": "no-cache" if request[ACCESS].owner is None else "private, no-cache",
        "Vary": "Accept, Authorization",
        "ETag": f'"{tag}"',
        **({"Content-Security-Policy": policy} if policy else {}),
    }
    if tag in {known.value for known in request.if_none_match or ()}:
        return web.Response(status=304, headers=headers)
    return web.Response(body=body, headers=headers)


async def file_answer(request: web.Request, find: Callable[[str | None], Found]) -> web.StreamResponse:
    """A file, which never changes."""

    def look() -> tuple[Found, bytes | None]:
        found = find(request[ACCESS].reads)
        small = found.path.stat().st_size <= SMALL and "Range" not in request.headers
        return found, found.path.read_bytes() if small else None

    found, content = await asyncio.to_thread(look)
    lasting = "private, no-cache" if found.private else "public, max-age=31536000, immutable"
    kind = KINDS.get(found.kind, "application/json")
    headers = {"Content-Type": kind, "Cache-Control": lasting, "ETag": f'"{found.sha256}"'}
    if content is None:
        return web.FileResponse(found.path, headers=headers)
    return web.Response(body=content, headers=headers)


def doorkeeper(store: Store) -> Middleware:
    """Finds out what whoever asks may do, and turns errors into answers."""

    @web.middleware
    async def keeper(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            token = token_of(request)
            request[ACCESS] = await asyncio.to_thread(access_of, store.database, token) if token else Access()
            answer = await handler(request)
        except Exception as error:
            answer = refusal(request, error)
        if not answer.prepared:
            for name, value in HEADERS.items():
                answer.headers.setdefault(name, value)
        return answer

    return keeper


def token_of(request: web.Request) -> str | None:
    """The token that a request brings: as a bearer, or where it only reads as the password of the user `__token__`.

    Raises:
        Refused: there is something else in its place.
    """
    header = request.headers.get("Authorization")
    if header is None:
        return None
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip() or "none"
    if scheme.lower() == "basic" and request.method in ("GET", "HEAD"):
        with suppress(binascii.Error, UnicodeDecodeError):
            user, _, password = base64.b64decode(value, validate=True).decode().partition(":")
            if user == "__token__" and password:
                return password
        raise Refused(
            401, "the user is '__token__' and the password a token: http://__token__:rove_…@HOST/OWNER/simple/"
        )
    raise Refused(401, f"this hub takes 'Authorization: Bearer rove_…', not {scheme[:20]!r}")


def refusal(request: web.Request, error: Exception) -> web.Response:
    """An error as an answer in JSON: {"error": why}."""
    status, message, headers = _told(error)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer" if request.path.startswith("/api/") else 'Basic realm="rove hub"'
    if status == 503:
        headers["Retry-After"] = "10"
    headers["Cache-Control"] = "no-store"
    answer = json_answer({"error": message}, status)
    answer.headers.update(headers)
    return answer


def _told(error: Exception) -> tuple[int, str, dict[str, str]]:
    if isinstance(error, Refused):
        return error.status, str(error), {}
    if isinstance(error, ConnectionError):
        return 400, "the connection broke off", {}  # nobody hears that
    if isinstance(error, ConfigError):
        return 400, str(error), {}
    if isinstance(error, web.HTTPException):
        allowed = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
        return error.status, _HTTP.get(error.status, error.reason), allowed
    logger.error("a request failed", exc_info=error)
    return 500, "the hub failed at this request; its log says why", {}


_HTTP: Mapping[int, str] = {
    404: "there is nothing at this address; /index.json lists the environments",
    405: "this address does not take this method",
    413: f"the body is too large; it may have {LARGEST_RUN:,} bytes",
}
