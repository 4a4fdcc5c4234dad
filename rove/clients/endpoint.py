"""What every HTTP endpoint needs: one session, admission, retries, errors as types. The API itself is a subclass's."""

from __future__ import annotations

import asyncio
import email.utils
import math
import os
import random
import re
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, ClassVar, NamedTuple
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

from rove.clients.limiter import Limiter
from rove.clients.masking import NO_KEY, Secrets
from rove.core.errors import (
    ConfigError,
    InfraError,
    InvalidModelResponseError,
    MissingKeyError,
    ModelError,
    OverlongPromptError,
)
from rove.core.protocols import Request, Response
from rove.wire.chat import excerpt

MAX_BACKOFF = 8.0
MAX_RETRY_AFTER = 60.0
MAX_ANSWER = 64 << 20
"""Bytes of one answer; whoever sends more is not answering the question."""

REFUSED = (429, 503, 529)
"""Statuses that say: not so many."""
UNANSWERED = (502, 504, 522, 524)
"""Statuses of a gateway that waited for the server in vain."""

# How servers say that a prompt does not fit: OpenAI, vLLM, SGLang, llama.cpp, Anthropic, xAI, Gemini. A bare "too
# long" is not enough: it is also said of a stop list or of a tool's name, and those are mistakes to report, not
# rollouts to cut.
_OVERLONG = re.compile(
    r"context[ _](length|window|size)|maximum (model|prompt) length|input token count[^.]{0,60}exceeds"
    r"|prompt[ _]too[ _]long|(prompt|input|messages?|content|conversation)\b[^.]{0,60}too long",
    re.IGNORECASE,
)
_HINTS = {
    401: "the API key was not accepted: check {key_var}",
    403: "the API key is not allowed to do this: check {key_var} and what it may use",
    404: "check the base URL (it usually ends in /v1) and the name of the model",
}


class EndpointClient(ABC):
    """An HTTP endpoint that answers one JSON request with one JSON answer; subclasses say in which words.

    Failures that may pass (no connection, no answer in time, HTTP 408, 409, 429 and 5xx, answers that are not what the
    API promises, or empty) are tried again up to `max_retries` times, with exponential back-off and full jitter, never
    sooner than a `Retry-After` asks for (at most 60 s). No other layer needs to retry. Proxies are taken from the
    environment, as other programs do it. A client serves one event loop at a time; when that loop has ended, the next.
    Errors never contain the key or the value of one of the `headers` (of 6 characters or more), even if the server
    repeats them. In answers, the key and the values of headers that hold credentials (of 12 characters or more) are
    replaced by `***`.

    Args:
        base_url: what comes before the API's own path; default: the subclass's variable, else its maker's address.
        api_key: default: the subclass's variable. Only the API's maker itself insists on one.
        max_concurrent: most requests under way at once; None = found out while running (see `Limiter`). A request that
            backs off does not count.
        timeout: seconds one try may take, from sending to the last byte of the answer.
        connect_timeout: seconds until a connection must stand.
        max_retries: tries after the first one.
        headers: sent with every request; they win over our own.
        backoff: upper bound of the first pause, in seconds; it doubles with each further one, up to 8 s.

    Raises:
        MissingKeyError: no key for the API's maker itself.
        ConfigError: a setting is out of range.
    """

    maker_url: ClassVar[str]
    """Where the API's maker serves it."""
    url_var: ClassVar[str]
    key_var: ClassVar[str]

    forces_tool_calls = True
    """Whether it honors `Request.tool_choice`."""
    _connection: _Connection | None = None

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        max_concurrent: int | None = None,
        timeout: float = 600.0,
        connect_timeout: float = 5.0,
        max_retries: int = 4,
        headers: Mapping[str, str] | None = None,
        backoff: float = 0.5,
    ):
        self.base_url = (base_url or os.environ.get(self.url_var) or self.maker_url).strip().rstrip("/")
        self._url = _checked_url(self.base_url, self.maker_url)
        self._urls: dict[str, URL] = {}
        self.is_maker = self._url.host == URL(self.maker_url).host
        key = (api_key or os.environ.get(self.key_var) or "").strip()
        if not key and self.is_maker:
            raise MissingKeyError(
                f"no API key for {self.base_url}: set {self.key_var} or pass api_key, "
                "or name another endpoint with base_url (on the command line: -b)"
            )
        self._secrets = Secrets(key or NO_KEY, headers or {})
        self.timeout = timeout
        self.connect_timeout = connect_timeout
        self.max_retries = max_retries
        self.backoff = backoff
        _check("max_concurrent", max_concurrent, max_concurrent is None or max_concurrent >= 1, "1 or more, or None")
        _check("timeout", timeout, timeout > 0, "seconds, more than 0")
        _check("connect_timeout", connect_timeout, connect_timeout > 0, "seconds, more than 0")
        _check("max_retries", max_retries, max_retries >= 0, "0 or more")
        _check("backoff", backoff, backoff >= 0, "seconds, 0 or more")
        self._limiter = Limiter(adaptive=True) if max_concurrent is None else Limiter(max_concurrent)
        self._limiter_loop: asyncio.AbstractEventLoop | None = None
        self._headers = CIMultiDict({**self.auth_headers(key or NO_KEY), "Content-Type": "application/json"})
        self._headers.update(headers or {})
        # Its own stream: retrying must not disturb the random numbers of anything else.
        self._jitter = random.Random()

    @abstractmethod
    def auth_headers(self, key: str) -> dict[str, str]:
        """The headers that say who asks."""

    @abstractmethod
    def translate(self, request: Request) -> tuple[str, dict[str, Any]]:
        """The path under the base URL and the JSON body of a request."""

    @abstractmethod
    def read(self, request: Request, answer: Any) -> Response:
        """The response in a decoded answer; raises `InvalidModelResponseError` when there is none."""

    @property
    def identity(self) -> dict[str, Any]:
        """What tells the answers of this client from those of another."""
        return {"api": type(self).__name__, "base_url": self.base_url}

    @property
    def limiter_now(self) -> Limiter:
        """The same outside of an event loop, to look at."""
        return self._limiter

    @property
    def limiter(self) -> Limiter:
        """Who admits the requests of this client, on the running event loop."""
        loop = asyncio.get_running_loop()
        if self._limiter_loop is not loop:
            self._limiter_loop = loop
            self._limiter.restart()
        return self._limiter

    @property
    def max_concurrent(self) -> int:
        """Most requests that may ever be under way at once."""
        return self._limiter.maximum

    async def respond(self, request: Request) -> Response:
        """Answer one request.

        Every error raised here carries `attempts`, and so does an answer that took several tries: one line per failed
        try, oldest first. An `InfraError` after an HTTP status has that as `status`. A request that is cancelled while
        it waits to be admitted, or after failed tries, leaves those lines in `rove_unanswered` of its `CancelledError`;
        one whose first try is still being answered does not.

        Raises:
            OverlongPromptError: the prompt does not fit the model's context.
            InvalidModelResponseError: the last try brought nothing of what the API promises, or nothing at all.
            ModelError: the endpoint refused the request (any other 4xx).
            InfraError: the last try brought no answer at all, or a 408, 409, 429 or 5xx.
        """
        attempts: list[str] = []
        try:
            return await self._respond(request, attempts)
        except asyncio.CancelledError as cancelled:
            if attempts:
                cancelled.rove_unanswered = list(attempts)  # pyright: ignore[reportAttributeAccessIssue]
            raise
        except Exception as error:
            told = self._secrets.taken_from(error)
            if told is not error:
                raise told from None
            raise

    async def _respond(self, request: Request, attempts: list[str]) -> Response:
        path, content = self.translate(request)
        url = self._urls.get(path) or self._urls.setdefault(path, self._url / path)
        body = msgspec.json.encode(content)
        while True:
            retries_left = self.max_retries - len(attempts)
            asked_to_wait = 0.0
            try:
                response = self._secrets.masked_response(self.read(request, await self._try(url, body)))
                return msgspec.structs.replace(response, attempts=attempts) if attempts else response
            except _TemporaryError as error:
                attempts.append(self._secrets.masked_in(str(error)))
                if not retries_left:
                    message = f"no answer from {url} in {len(attempts)} tries; the last one: {attempts[-1]}"
                    failure = InfraError(message, attempts)
                    failure.status = error.status  # pyright: ignore[reportAttributeAccessIssue]
                    raise failure from error.__cause__
                asked_to_wait = error.retry_after
            except ModelError as error:
                attempts.append(self._secrets.masked_in(str(error)))
                if not retries_left or not isinstance(error, InvalidModelResponseError):
                    error.attempts = attempts
                    raise
            await asyncio.sleep(retry_delay(len(attempts), self.backoff, asked_to_wait, self._jitter))

    @asynccontextmanager
    async def opened(
        self, path: str, content: Mapping[str, Any] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """What the API answers under a path, to be read as it comes: one try, of which the limiter does not know.

        Args:
            path: under the base URL.
            content: JSON to POST; None = GET.

        Raises:
            ModelError, InfraError: as `respond` does, an `InfraError` for what may pass.
        """
        try:
            session, url, method = await self._connect(), self._url / path, "GET" if content is None else "POST"
            body = None if content is None else msgspec.json.encode(content)
            async with session.request(method, url, data=body, allow_redirects=False) as reply:
                if reply.status >= 300:
                    raise self._refusal(url, reply.status, (await _read(reply)).decode(errors="replace"), 0.0)
                yield reply
        except (_TemporaryError, aiohttp.ClientError, OSError) as error:
            said = str(error) if isinstance(error, _TemporaryError) else f"{type(error).__name__}: {error}"
            raise InfraError(self._secrets.masked_in(said)) from None
        except ModelError as error:
            raise self._secrets.taken_from(error) from None

    async def close(self) -> None:
        """Close the connections. The client opens new ones if it is used again."""
        connection, self._connection = self._connection, None
        if connection:
            await connection.session.close()

    def __del__(self) -> None:
        # After asyncio.run nobody can await close() any more. It then has nothing to wait for and ends at its first
        # step, and aiohttp has no reason to print "Unclosed client session" at the end of every script.
        if self._connection and self._connection.loop.is_closed():
            with suppress(StopIteration):
                self._connection.session.close().send(None)

    async def _try(self, url: URL, body: bytes) -> Any:
        session, limiter = await self._connect(), self.limiter
        try:
            admitted = await limiter.acquire()
        except asyncio.CancelledError as cancelled:
            cancelled.rove_unanswered = ["waited for admission"]  # pyright: ignore[reportAttributeAccessIssue]
            raise
        outcome, pause = "failed", 0.0
        try:
            status, headers, answer = await self._post(session, url, body)
            if status < 300:
                outcome = "answered"
            elif status in REFUSED:
                outcome, pause = "refused", _seconds(headers)
            elif status in UNANSWERED:
                outcome = "unanswered"
        except _TemporaryError as error:
            if isinstance(error.__cause__, TimeoutError):
                outcome = "unanswered"
            raise
        finally:
            limiter.release(admitted, outcome, pause)
        if status >= 300:
            raise self._refusal(url, status, answer.decode(errors="replace"), _seconds(headers))
        try:
            return msgspec.json.decode(answer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidModelResponseError(f"not JSON ({error}): {excerpt(answer)}") from error

    async def _post(
        self, session: aiohttp.ClientSession, url: URL, body: bytes
    ) -> tuple[int, Mapping[str, str], bytes]:
        try:
            async with session.post(url, data=body, allow_redirects=False) as reply:
                return reply.status, reply.headers, await _read(reply)
        except aiohttp.ConnectionTimeoutError as error:
            raise _TemporaryError(f"no connection within {self.connect_timeout:g} s") from error
        except TimeoutError as error:
            raise _TemporaryError(f"no answer within {self.timeout:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise _TemporaryError(f"{type(error).__name__}: {error}") from error

    def _refusal(self, url: URL, status: int, text: str, retry_after: float) -> Exception:
        """The error for an HTTP status that is not a success."""
        said = excerpt(text)
        if status in (408, 409, 429) or status >= 500:
            return _TemporaryError(f"HTTP {status}: {said}", retry_after, status)
        if _OVERLONG.search(text) and status not in _HINTS:
            return OverlongPromptError(f"HTTP {status}: {said}")
        hint = f" ({_HINTS[status].format(key_var=self.key_var)})" if status in _HINTS else ""
        return ModelError(f"HTTP {status} from {url}: {said}{hint}")

    async def _connect(self) -> aiohttp.ClientSession:
        loop, previous = asyncio.get_running_loop(), self._connection
        if previous and previous.loop is loop:
            return previous.session
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),  # the limiter is the limit
            timeout=aiohttp.ClientTimeout(total=self.timeout, sock_connect=self.connect_timeout),
            headers=self._headers,
            proxy=_proxy(self._url),
        )
        self._connection = _Connection(loop, session)
        if previous:
            await previous.session.close()
        return session


async def _read(reply: aiohttp.ClientResponse) -> bytes:
    """The answer's body, unless it is larger than any answer."""
    parts: list[bytes] = []
    size = 0
    async for part in reply.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > MAX_ANSWER:
            raise InvalidModelResponseError(f"an answer of more than {MAX_ANSWER >> 20} MiB: {excerpt(parts[0])}")
    return b"".join(parts) if len(parts) != 1 else parts[0]


def retry_delay(failures: int, backoff: float, asked: float, jitter: random.Random) -> float:
    """Seconds to pause after so many failed tries (1 = the first).

    What the server asked for, plus a random part between 0 and min(8, backoff * 2**(failures - 1)): all those it
    turned away at once were asked for the same pause, and must not come back at the same moment.
    """
    return asked + jitter.uniform(0.0, min(MAX_BACKOFF, backoff * 2 ** (failures - 1)))


class _Connection(NamedTuple):
    """What belongs to one event loop."""

    loop: asyncio.AbstractEventLoop
    session: aiohttp.ClientSession


class _TemporaryError(Exception):
    """A try failed in a way that may pass; `retry_after` is how many seconds the server asked for."""

    def __init__(self, message: str, retry_after: float = 0.0, status: int | None = None):
        super().__init__(message)
        self.retry_after = retry_after
        self.status = status


def _checked_url(base_url: str, example: str) -> URL:
    try:
        url = URL(base_url)
    except ValueError:
        url = URL()
    if url.scheme not in ("http", "https") or not url.host or url.user or url.query_string:
        raise ConfigError(
            f"base_url is {base_url!r}; expected http(s)://host[:port]/path without user or query, like {example}"
        )
    return url


def _check(name: str, value: float | None, good: bool, expected: str) -> None:
    if not good:
        raise ConfigError(f"{name} is {value!r}; expected {expected}")


def _seconds(headers: Mapping[str, str]) -> float:
    """The pause that an answer asks for, in seconds between 0 and 60; 0 when it asks for none that can be read."""
    asked = headers.get("Retry-After") or "0"
    try:
        seconds = float(asked)
    except ValueError:
        seconds = _seconds_until(asked)
    return min(seconds, MAX_RETRY_AFTER) if seconds > 0 else 0.0


def _seconds_until(date: str) -> float:
    """Seconds until an HTTP date; 0 if it is not a date, infinity if its year is too large for the C library."""
    try:
        fields = email.utils.parsedate_tz(date)
        return email.utils.mktime_tz(fields) - time.time() if fields else 0.0
    except OverflowError:
        return math.inf
    except (ValueError, TypeError):
        return 0.0


def _proxy(url: URL) -> str | None:
    """The environment's proxy for this URL. (aiohttp's `trust_env` also reads ~/.netrc, which then fights our key.)"""
    host = url.host or ""
    if host in ("localhost", "127.0.0.1", "::1") or proxy_bypass(host):
        return None
    return getproxies().get(url.scheme)
