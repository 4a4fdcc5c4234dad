"""Transports of a hub client: a local folder, or HTTP with retries and limits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import aiohttp
import msgspec

from rove.clients.endpoint import TemporaryError, requested_pause, retry_delay
from rove.core.errors import ConfigError, HubError, InfraError
from rove.core.masking import NO_KEY, Secrets
from rove.core.plain import UNREADABLE, JsonValue

RETRIES = 3
"""Maximum number of retries of a request after temporary failures."""
CONNECT_TIMEOUT_S, READ_TIMEOUT_S, TOTAL_TIMEOUT_S = 10.0, 30.0, 1800.0
"""Time limits in seconds for connecting, for waiting for the next byte, and for a whole response."""
BACKOFF_S = 0.5
CHUNK_BYTES = 1 << 18
MAX_RESPONSE_BYTES = 16 << 20
"""Maximum size of an API response."""
RETRYABLE_STATUSES = {408, 425, 429, 500, 502, 503, 504}
_HINTS = {
    401: "get a token from the hub's operator (rove hub token OWNER) and save it with rove hub login, or read public "
    "environments without a token (rove hub login HUB --no-token)",
    403: "create a token with the required scope on the hub's machine (rove hub token OWNER --scope …)",
}


class NotFoundError(HubError):
    """The hub does not have the requested file."""


class Sink(Protocol):
    """Receives a response in pieces; an interrupted response restarts from the beginning."""

    def restart(self) -> None:
        """Discard the content received so far."""
        ...

    def write(self, piece: bytes) -> None:
        """Receive a piece; raise if the content is too large."""
        ...


class BytesSink:
    """A sink that collects the content in memory, up to a limit."""

    def __init__(self, path: str, limit: int):
        self.path, self.limit, self.content = path, limit, bytearray()

    def restart(self) -> None:
        """Discard the content."""
        self.content.clear()

    def write(self, piece: bytes) -> None:
        """Append a piece; raise HubError if the content exceeds the limit."""
        self.content += piece
        if len(self.content) > self.limit:
            raise HubError(f"{self.path} of this hub has more than {self.limit:,} bytes, the maximum")


class FolderTransport:
    """Reads a hub from a local folder."""

    has_api = False

    def __init__(self, folder: str):
        self.folder = Path(folder)

    async def fetch(self, path: str, sink: Sink) -> None:
        """Read the file at a path; raises the same errors as `HttpTransport.fetch`."""
        await asyncio.to_thread(self._read, path, sink)

    def _read(self, path: str, sink: Sink) -> None:
        if not self.folder.is_dir():
            raise ConfigError(f"the hub {self.folder} is not an existing folder")
        sink.restart()
        relative_path = path.lstrip("/")
        file = self.folder / relative_path
        try:
            with file.open("rb") as stream:
                while piece := stream.read(CHUNK_BYTES):
                    sink.write(piece)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise NotFoundError(f"the hub {self.folder} has no {relative_path}") from None
        except OSError as error:
            raise HubError(f"{file} cannot be read: {error}") from error

    async def call(self, method: str, path: str, body: Callable[[], JsonValue] | None = None) -> JsonValue:
        """Raise HubError: a folder has no API."""
        raise HubError(
            f"the hub {self.folder} is a read-only folder; start `rove hub serve` and give its address with --hub"
        )

    async def close(self) -> None:
        """Close no connections, because a folder has none."""


class HttpTransport:
    """Accesses a hub over HTTP, either a static web server or `rove hub serve`.

    Connection errors and `RETRYABLE_STATUSES` are retried with exponential backoff and jitter, respecting Retry-After. The
    token is sent to this address only and never appears in errors.
    """

    has_api = True

    def __init__(self, address: str, token: str | None = None, retries: int = RETRIES, backoff: float = BACKOFF_S):
        self.address, self.retries, self.backoff = address, retries, backoff
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._secrets = Secrets(token or NO_KEY, {})
        self._session: aiohttp.ClientSession | None = None
        self._jitter = random.Random()

    async def fetch(self, path: str, sink: Sink) -> None:
        """Download the file at a path."""

        async def attempt() -> None:
            sink.restart()
            await self._receive("GET", path, sink)

        await self._with_retries(path, attempt)

    async def call(self, method: str, path: str, body: Callable[[], JsonValue] | None = None) -> JsonValue:
        """Call the API and return its JSON response; raises the same errors as `fetch`.

        `body` creates the request body (JSON or a form) for each attempt.
        """

        async def attempt() -> object:
            content = body() if body is not None else None
            sink = BytesSink(path, MAX_RESPONSE_BYTES)
            is_form = isinstance(content, aiohttp.FormData)
            body_argument = {"data": content} if is_form else {"json": content}
            await self._receive(method, path, sink, **body_argument)
            if not sink.content:
                return {}
            try:
                return msgspec.json.decode(sink.content)
            except UNREADABLE:
                raise HubError(f"{self.address}{path} does not respond with JSON; check that it is a hub") from None

        return await self._with_retries(path, attempt)

    async def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _receive(self, method: str, path: str, sink: Sink, **sent: Any) -> None:
        """Send a request once and write the response to a sink."""
        async with self._open_session().request(method, self._url(path), **sent) as reply:
            if reply.status >= 300:
                raise await self._error_for(path, reply)
            async for piece in reply.content.iter_chunked(CHUNK_BYTES):
                sink.write(piece)

    async def _with_retries(self, path: str, attempt: Callable[[], Awaitable[object]]) -> object:
        attempts = 0
        while True:
            attempts += 1
            retry_after = 0.0
            try:
                return await attempt()
            except TemporaryError as error:
                message, retry_after = str(error), error.retry_after
            except TimeoutError:
                message = "no response in time"
            except aiohttp.InvalidURL as error:
                raise ConfigError(f"{self.address} is not the address of a hub: {error}") from None
            except (aiohttp.ClientError, OSError) as error:
                message = self._secrets.mask_text(f"{type(error).__name__}: {error}")
            if attempts > self.retries:
                raise InfraError(
                    f"no response from the hub {self.address} ({path}) after {attempts} attempts; last error: {message}"
                )
            await asyncio.sleep(retry_delay(attempts, self.backoff, retry_after, self._jitter))

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            limits = aiohttp.ClientTimeout(
                total=TOTAL_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S, sock_read=READ_TIMEOUT_S
            )
            # trust_env: proxies are named by environment variables.
            self._session = aiohttp.ClientSession(headers=self._headers, timeout=limits, trust_env=True)
        return self._session

    def _url(self, path: str) -> str:
        return self.address + path if "?" in path else self.address + quote(path)

    async def _error_for(self, path: str, reply: aiohttp.ClientResponse) -> Exception:
        # The beginning is enough, and a server may send an error page of any length.
        message = self._secrets.mask_text(_error_text(await reply.content.read(1 << 14)))
        description = f"HTTP {reply.status} from {self.address}{path}" + (f": {message}" if message else "")
        if reply.status in RETRYABLE_STATUSES:
            return TemporaryError(description, requested_pause(reply.headers))
        if reply.status in (404, 410):
            return NotFoundError(description)
        hint = _HINTS.get(reply.status)
        error = HubError(f"{description} ({hint})" if hint else description)
        error.status = reply.status
        return error


def _error_text(answer: bytes) -> str:
    """Return the error message of a hub's response; "" for responses that are not a hub's JSON."""
    try:
        body = msgspec.json.decode(answer)
    except UNREADABLE:
        return ""
    message = str(body.get("error", ""))[:1000] if isinstance(body, dict) else ""
    # Control characters of a server must not reach the terminal.
    return "".join(c if c.isprintable() else " " for c in message)
