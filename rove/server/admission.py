"""Refuse requests that web pages of other origins send to a server on this machine.

A browser sends requests of any page to any address. The same-origin policy hides the response from the page, but the server still
executes the request. With DNS rebinding (a host name of the page's owner that resolves to 127.0.0.1), the page can also read the
response. The headers `Host`, `Origin` and `Sec-Fetch-Site`, which a page cannot change, reveal both kinds of requests.
"""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler

from rove.core.errors import RejectedError
from rove.server.validation import refusal

HOST = web.AppKey("host", str)
"""The address or name that an application listens on; `rove.server.listen.listening` sets it. Default: 127.0.0.1."""
JSON = "application/json"
WITH_KEY = "; or start `rove serve` with --api-key-var"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server that listens on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def names_this_server(header: str, host: str) -> bool:
    """Return whether a `Host` header names a server that listens on `host`.

    Accepted are localhost, this machine's host name, `host` itself, loopback addresses, and any IP address if the server is
    reachable from other machines: an address, unlike a name, cannot be rebound.
    """
    try:
        name = urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return False
    if name in ("localhost", host.lower(), socket.gethostname().lower()):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or not is_loopback(host)


def foreign_origin(request: web.Request) -> str | None:
    """Return the origin of the web page that sent the request; None if the page is this server's own or there is no page."""
    origin = request.headers.get("Origin")
    if origin is not None and _netloc(origin) != request.headers.get("Host", "").lower():
        return origin
    # Browsers leave out `Origin` in GET requests of links and images, but not this header. Programs send neither.
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    return "another site" if site in ("cross-site", "same-site") else None


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def check_page(request: web.Request) -> None:
    """Refuse a request of a web page of another origin.

    On loopback, the `Host` header must name this server. On other addresses, programs may reach the server under names that it
    cannot know, so the check applies only to browsers, which send `Origin` with every POST request and WebSocket.
    """
    host, host_header = request.app.get(HOST, "127.0.0.1"), request.headers.get("Host", "")
    must_be_named = is_loopback(host) or "Origin" in request.headers
    if must_be_named and not names_this_server(host_header, host):
        raise RejectedError(
            403,
            f"the request's Host is '{host_header[:80]}'; expected localhost, an IP address of this server or the --host it was "
            "started with: without an API key any other name is refused, because web pages could reach the server through it; "
            f"use such an address{WITH_KEY}",
            "wrong_host",
        )
    origin = foreign_origin(request)
    if origin is not None:
        raise RejectedError(
            403,
            f"the request comes from a web page of '{origin[:80]}'; expected a program, or a page of this server: without an API "
            f"key web pages of other origins are refused; send the request from a program{WITH_KEY}",
            "wrong_origin",
        )


def check_content_type(request: web.Request) -> None:
    """Refuse a request whose body is not declared as JSON: forms of web pages can send other types to any server."""
    if request.can_read_body and request.content_type != JSON:
        raise RejectedError(
            415,
            f"the request's Content-Type is '{request.content_type[:80]}'; expected {JSON} "
            f"(curl: -H 'Content-Type: {JSON}')",
            "wrong_content_type",
        )


@web.middleware
async def own_pages_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Apply `check_page` and `check_content_type` to every request of a server without API keys."""
    try:
        check_page(request)
        check_content_type(request)
    except RejectedError as error:
        return refusal(error)
    return await handler(request)
