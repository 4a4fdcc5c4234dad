"""HTTP responses of the hub, and its authentication middleware."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from rove.core.errors import ConfigError, RejectedError
from rove.core.plain import UNREADABLE
from rove.hub.server.catalogue import FoundFile
from rove.hub.server.store import MAX_RUN_BYTES, Store
from rove.hub.server.tokens import Access, access_of
from rove.server.validation import json_response

T = TypeVar("T")

logger = logging.getLogger(__name__)

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
ARCHIVE_TYPE = "application/octet-stream"
CONTENT_TYPES = {"wheel": ARCHIVE_TYPE, "source": ARCHIVE_TYPE, "readme": "text/plain; charset=utf-8"}
"""Content types by kind of file; all other kinds are JSON."""
MAX_INLINE_BYTES = 1 << 20
"""Maximum size of a file that is sent in one piece."""

ACCESS = web.RequestKey("access", Access)


def decode_or_refuse(decode: Callable[[], T], subject: str) -> T:
    """Run a decoder on part of a request; raise RejectedError if it fails."""
    try:
        return decode()
    except UNREADABLE as error:
        raise RejectedError(400, f"{subject} cannot be decoded: {error}") from error


def redirect(address: str, status: int = 301) -> web.Response:
    """Return a redirect."""
    return web.Response(status=status, headers={"Location": address})


def cached_response(request: web.Request, body: bytes, kind: str, policy: str = "") -> web.Response:
    """Return content of type `kind` that can change at any time: clients revalidate it by its ETag.

    `policy` is the content security policy (default: allow nothing).
    """
    tag = hashlib.blake2b(body, digest_size=16).hexdigest()
    headers = {
        "Content-Type": f"{kind}; charset=utf-8" if kind.startswith("text/") else kind,
        "Cache-Control": "no-cache" if request[ACCESS].owner is None else "private, no-cache",
        "Vary": "Accept, Authorization",  # a cache must not show an owner's private environments to others
        "ETag": f'"{tag}"',
        **({"Content-Security-Policy": policy} if policy else {}),
    }
    if tag in {match.value for match in request.if_none_match or ()}:
        return web.Response(status=304, headers=headers)
    return web.Response(body=body, headers=headers)


async def file_response(request: web.Request, find: Callable[[str | None], FoundFile]) -> web.StreamResponse:
    """Return an immutable file."""

    def read() -> tuple[FoundFile, bytes | None]:
        file = find(request[ACCESS].reads)
        small = file.path.stat().st_size <= MAX_INLINE_BYTES and "Range" not in request.headers
        return file, file.path.read_bytes() if small else None

    file, content = await asyncio.to_thread(read)
    lasting = "private, no-cache" if file.private else "public, max-age=31536000, immutable"
    kind = CONTENT_TYPES.get(file.kind, "application/json")
    headers = {"Content-Type": kind, "Cache-Control": lasting, "ETag": f'"{file.sha256}"'}
    if content is None:
        return web.FileResponse(file.path, headers=headers)
    return web.Response(body=content, headers=headers)


def auth_middleware(store: Store) -> Middleware:
    """Return middleware that authenticates requests, converts errors to responses and sets security headers."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            token = token_of(request)
            request[ACCESS] = await asyncio.to_thread(access_of, store.database, token) if token else Access()
            response = await handler(request)
        except Exception as error:
            response = error_response(request, error)
        if not response.prepared:
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
        return response

    return middleware


def token_of(request: web.Request) -> str | None:
    """Return the token of a request: a bearer token or, for reading, the password of the user `__token__`."""
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
        raise RejectedError(
            401,
            "expected the user '__token__' with a token as the password: http://__token__:rove_…@HOST/OWNER/simple/",
        )
    raise RejectedError(401, f"the authorization scheme is {scheme[:20]!r}; expected 'Authorization: Bearer rove_…'")


def error_response(request: web.Request, error: Exception) -> web.Response:
    """Return an error as a JSON response: {"error": message}."""
    status, message, headers = _error_parts(error)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer" if request.path.startswith("/api/") else 'Basic realm="rove hub"'
    if status == 503:
        headers["Retry-After"] = "10"
    headers["Cache-Control"] = "no-store"
    return json_response({"error": message}, status, headers)


def _error_parts(error: Exception) -> tuple[int, str, dict[str, str]]:
    if isinstance(error, RejectedError):
        return error.status, str(error), {}
    if isinstance(error, ConnectionError):
        return 400, "the connection was closed", {}  # the client cannot receive this
    if isinstance(error, ConfigError):
        return 400, str(error), {}
    if isinstance(error, web.HTTPException):
        allowed = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
        return error.status, _HTTP.get(error.status, error.reason), allowed
    logger.error("a request failed", exc_info=error)
    return 500, "internal error; see the hub's log", {}


_HTTP: Mapping[int, str] = {
    404: "not found; /index.json lists the environments",
    405: "method not allowed at this address",
    413: f"the body is too large; expected at most {MAX_RUN_BYTES:,} bytes",
}
