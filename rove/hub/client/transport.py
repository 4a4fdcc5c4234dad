"""Where a hub's files come from: a folder, or HTTP with retries, limits and errors as types."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import aiohttp
import msgspec

from rove.clients.masking import NO_KEY, Secrets
from rove.core.errors import ConfigError, HubError, InfraError

RETRIES = 3
"""Tries after the first one, where a failure may pass."""
CONNECT_SECONDS, QUIET_SECONDS, WHOLE_SECONDS = 10.0, 30.0, 1800.0
"""Until a connection stands; without a byte; for a whole answer, however slowly it comes."""
BACKOFF, MOST_BACKOFF = 0.5, 8.0
MOST_RETRY_AFTER = 60.0
PIECE = 1 << 18
ANSWER = 16 << 20
"""Bytes of an answer of the API."""
TEMPORARY = {408, 425, 429, 500, 502, 503, 504}
_HINTS = {
    401: "ask the hub's keeper for a token (rove hub token OWNER) and keep it here (rove hub login), or look at what is public "
    "without one (rove hub login HUB --no-token)",
    403: "make another token on the hub's machine (rove hub token OWNER --scope …)",
}


class AbsentError(HubError):
    """The hub has no such thing."""


class Sink(Protocol):
    """Takes an answer in pieces; an answer that breaks off is started again from its beginning."""

    def restart(self) -> None:
        """Forget what has come."""
        ...

    def write(self, piece: bytes) -> None:
        """Take more; raises where it is too much."""
        ...


class Text:
    """A sink that keeps what comes, up to a limit."""

    def __init__(self, path: str, limit: int):
        self.path, self.limit, self.content = path, limit, bytearray()

    def restart(self) -> None:
        """Forget it."""
        self.content.clear()

    def write(self, piece: bytes) -> None:
        """Keep more.

        Raises:
            HubError: more than the limit.
        """
        self.content += piece
        if len(self.content) > self.limit:
            raise HubError(f"{self.path} of this hub has more than {self.limit:,} bytes, the most that is read")


class Folder:
    """A hub that is a folder."""

    has_api = False

    def __init__(self, where: str):
        self.where = Path(where)

    async def fetch(self, path: str, sink: Sink) -> None:
        """Read a file.

        Raises:
            AbsentError: there is none.
            HubError: it cannot be read.
        """
        await asyncio.to_thread(self._read, path, sink)

    def _read(self, path: str, sink: Sink) -> None:
        if not self.where.is_dir():
            raise ConfigError(f"the hub {self.where} is no folder that exists")
        sink.restart()
        try:
            with (self.where / path.lstrip("/")).open("rb") as file:
                while piece := file.read(PIECE):
                    sink.write(piece)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise AbsentError(f"the hub {self.where} has no {path.lstrip('/')}") from None
        except OSError as error:
            raise HubError(f"{self.where / path} cannot be read: {error}") from error

    async def call(self, method: str, path: str, body: Callable[[], Any] | None = None) -> Any:
        """A folder answers no questions.

        Raises:
            HubError: always.
        """
        raise HubError(
            f"the hub {self.where} is a folder, which takes nothing: start `rove hub serve` and give its address with --hub"
        )

    async def close(self) -> None:
        """Nothing to free."""


class Web:
    """A hub behind HTTP, static or served.

    No connection, a broken one and the statuses of `TEMPORARY` are tried again, with exponential back-off and jitter, and
    not sooner than a Retry-After asks for. The token goes to this address only, and into no error.
    """

    has_api = True

    def __init__(self, where: str, token: str | None = None, retries: int = RETRIES, backoff: float = BACKOFF):
        self.where, self.retries, self.backoff = where, retries, backoff
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._secrets = Secrets(token or NO_KEY, {})
        self._session: aiohttp.ClientSession | None = None
        self._jitter = random.Random()

    async def fetch(self, path: str, sink: Sink) -> None:
        """Read what lies under a path.

        Raises:
            AbsentError: nothing does.
            HubError: the hub refuses.
            InfraError: no answer, after all tries.
        """

        async def once() -> None:
            sink.restart()
            async with self._asked().get(self._url(path)) as reply:
                if reply.status >= 300:
                    raise await self._refusal(path, reply)
                async for piece in reply.content.iter_chunked(PIECE):
                    sink.write(piece)

        await self._tried(path, once)

    async def call(self, method: str, path: str, body: Callable[[], Any] | None = None) -> Any:
        """The API's JSON answer. `body` makes what is sent, anew for every try: JSON values, or a form.

        Raises:
            As `fetch`.
        """

        async def once() -> Any:
            content = body() if body is not None else None
            sent: dict[str, Any] = {"data" if isinstance(content, aiohttp.FormData) else "json": content}
            async with self._asked().request(method, self._url(path), **sent) as reply:
                if reply.status >= 300:
                    raise await self._refusal(path, reply)
                sink = Text(path, ANSWER)
                async for piece in reply.content.iter_chunked(PIECE):
                    sink.write(piece)
            with suppress(msgspec.DecodeError):
                return msgspec.json.decode(sink.content) if sink.content else {}
            raise HubError(f"{self.where}{path} answers what is not JSON; is it a hub?")

        return await self._tried(path, once)

    async def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _tried(self, path: str, once: Callable[[], Awaitable[Any]]) -> Any:
        tries = 0
        while True:
            tries += 1
            wait = 0.0
            try:
                return await once()
            except _TemporaryError as error:
                said, wait = str(error), error.wait
            except TimeoutError:
                said = "no answer in time"
            except aiohttp.InvalidURL as error:
                raise ConfigError(f"{self.where} is not the address of a hub: {error}") from None
            except (aiohttp.ClientError, OSError) as error:
                said = self._secrets.masked_in(f"{type(error).__name__}: {error}")
            if tries > self.retries:
                raise InfraError(f"no answer from the hub {self.where} ({path}) in {tries} tries; the last one: {said}")
            pause = min(self.backoff * 2 ** (tries - 1), MOST_BACKOFF) * self._jitter.uniform(0.5, 1.0)
            await asyncio.sleep(max(pause, wait))

    def _asked(self) -> aiohttp.ClientSession:
        if self._session is None:
            limits = aiohttp.ClientTimeout(total=WHOLE_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=QUIET_SECONDS)
            self._session = aiohttp.ClientSession(headers=self._headers, timeout=limits, trust_env=True)
        return self._session

    def _url(self, path: str) -> str:
        return self.where + path if "?" in path else self.where + quote(path)

    async def _refusal(self, path: str, reply: aiohttp.ClientResponse) -> Exception:
        said = self._secrets.masked_in(_words(await reply.content.read(1 << 14)))
        what = f"HTTP {reply.status} from {self.where}{path}" + (f": {said}" if said else "")
        if reply.status in TEMPORARY:
            return _TemporaryError(what, _seconds(reply.headers))
        if reply.status in (404, 410):
            return AbsentError(what)
        hint = _HINTS.get(reply.status)
        error = HubError(f"{what} ({hint})" if hint else what)
        error.status = reply.status
        return error


class _TemporaryError(Exception):
    def __init__(self, said: str, wait: float):
        super().__init__(said)
        self.wait = wait


def _words(answer: bytes) -> str:
    """What a hub says of a refusal; nothing of pages that others put in its place."""
    try:
        told = msgspec.json.decode(answer)
    except msgspec.DecodeError:
        return ""
    said = str(told.get("error", ""))[:1000] if isinstance(told, dict) else ""
    return "".join(c if c.isprintable() else " " for c in said)


def _seconds(headers: Mapping[str, str]) -> float:
    try:
        return min(max(float(headers.get("Retry-After", "0")), 0.0), MOST_RETRY_AFTER)
    except ValueError:
        return 0.0
