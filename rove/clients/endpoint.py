"""The base class of all HTTP clients: a session, a concurrency limit, retries, and typed errors. Each subclass translates to
one API.
"""

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
from typing import ClassVar, NamedTuple
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

from rove.clients.limiter import Limiter
from rove.core.checks import check_values, checked
from rove.core.errors import (
    ConfigError,
    InfraError,
    InvalidModelResponseError,
    MissingKeyError,
    ModelError,
    OverlongPromptError,
    cancelled_unanswered,
    excerpt,
)
from rove.core.masking import NO_KEY, Secrets
from rove.core.plain import UNREADABLE, Identity, JsonObject, JsonValue
from rove.core.protocols import Request, Response
from rove.core.ranges import NonNegativeInt, PositiveInt, Seconds, SecondsOrZero

MAX_BACKOFF_S = 8.0
MAX_DOUBLINGS = 64
"""Maximum number of times that the pause doubles: 2**1024 is too large for a float."""
MAX_RETRY_AFTER_S = 60.0
MAX_RESPONSE_BYTES = 64 << 20

OVERLOADED_STATUSES = (429, 503, 529)
"""HTTP statuses of a server that has too many requests."""
TIMEOUT_STATUSES = (502, 504, 522, 524)
"""HTTP statuses of a gateway that timed out on the server behind it."""

# Messages for a prompt that exceeds the context: OpenAI, vLLM, SGLang, llama.cpp, Anthropic, xAI, Gemini. A bare "too long" is
# not enough, because it also describes a stop list or the name of a tool; those are mistakes to report, not truncated rollouts.
_OVERLONG = re.compile(
    r"context[ _](length|window|size)|maximum (model|prompt) length|input token count[^.]{0,60}exceeds"
    r"|prompt[ _]too[ _]long|(prompt|input|messages?|content|conversation)\b[^.]{0,60}too long"
    r"|exceeds? (the )?context limit|`inputs` (tokens \+|must have less than)",
    re.IGNORECASE,
)
# The tokens of the prompt and of the context in such messages: vLLM; OpenAI and older vLLM; OpenRouter, which counts kinds of
# input; SGLang; Anthropic; text-generation-inference.
_COUNTS = (
    re.compile(r"context length is (?P<context>\d+) tokens and your request has (?P<prompt>\d+) input tokens"),
    re.compile(r"context length is (?P<context>\d+) tokens[^(]{0,80}\((?P<prompt>\d+) in the (messages|prompt)"),
    re.compile(
        r"context length is (?P<context>\d+) tokens[^(]{0,80}\((?P<prompt>\d+ of \w+ input(, \d+ of \w+ input)*)"
    ),
    re.compile(r"context length of (?P<context>\d+) tokens[^:]{0,60}: (?P<prompt>\d+) tokens from the input"),
    re.compile(r"context limit: (?P<prompt>\d+) \+ \d+ > (?P<context>\d+)"),
    re.compile(r"must be <= (?P<context>\d+)\. Given: (?P<prompt>\d+) `inputs` tokens"),
)
# Newer versions of vLLM do not count the whole prompt. Their messages state only the requested output.
_OUTPUT_COUNTS = (
    re.compile(r"context length is (?P<context>\d+) tokens\. However, you requested (?P<output>\d+) output tokens"),
    re.compile(r"requested (?P<output>\d+) output tokens\. However, .{0,40}length is only (?P<context>\d+) tokens"),
)
_HINTS = {
    401: "the API key was not accepted: check {api_key_var}",
    403: "the API key is not allowed to do this: check {api_key_var} and what it may use",
    404: "check the base URL (it usually ends in /v1) and the name of the model",
}


class EndpointClient(ABC):
    """A client for an HTTP endpoint with one JSON reply per JSON request. Subclass it for each API.

    Temporary failures are retried up to `max_retries` times with exponential backoff and full jitter: no connection, timeout,
    HTTP 408, 409, 429 and 5xx, and empty or malformed replies. A pause is never shorter than `Retry-After` (at most 60 s). No
    other layer needs to retry. Proxies come from the environment variables. A client serves one event loop at a time.

    Error messages never contain the key or the value of one of `headers` (6 characters or more), even if the server repeats
    them. In replies, `***` replaces the key and the values of headers that hold credentials (12 characters or more).

    Args:
        base_url: URL before the API's own path. Default: the environment variable of the subclass, then `default_base_url`.
        api_key: API key. Default: the environment variable of the subclass. Only the official API requires a key.
        max_concurrent: maximum number of concurrent requests; None adapts the number while running (see `Limiter`). A request
            that waits for its next try does not count.
        timeout: maximum seconds per attempt, from sending to the last byte of the reply.
        connect_timeout: maximum seconds to connect.
        max_retries: maximum number of attempts after the first one.
        headers: headers that are sent with every request; they override the client's own headers.
        backoff: upper bound of the first pause in seconds; it doubles with every further pause, up to 8 s.

    Raises:
        MissingKeyError: no key for the official API.
        ConfigError: a setting is out of range.
    """

    default_base_url: ClassVar[str]
    """URL of the official API."""
    base_url_var: ClassVar[str]
    api_key_var: str

    forces_tool_calls = True
    """Whether the API supports `Request.tool_choice`."""
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
        self.base_url = (base_url or os.environ.get(self.base_url_var) or self.default_base_url).strip().rstrip("/")
        self._url = _checked_url(self.base_url, self.default_base_url)
        self._urls: dict[str, URL] = {}
        self.is_official = self._url.host == URL(self.default_base_url).host
        key = (api_key or os.environ.get(self.api_key_var) or "").strip()
        if not key and self.is_official:
            raise MissingKeyError(
                f"no API key for {self.base_url}: set {self.api_key_var} or pass api_key, "
                "or name another endpoint with base_url (on the command line: -b)"
            )
        self._secrets = Secrets(key or NO_KEY, headers or {})
        self.timeout = timeout
        self.connect_timeout = connect_timeout
        self.max_retries = max_retries
        self.backoff = backoff
        checked("max_concurrent", max_concurrent, PositiveInt | None)
        check_values(self, timeout=Seconds, connect_timeout=Seconds, max_retries=NonNegativeInt, backoff=SecondsOrZero)
        self._limiter = Limiter(adaptive=True) if max_concurrent is None else Limiter(max_concurrent)
        self._limiter_loop: asyncio.AbstractEventLoop | None = None
        self._headers = CIMultiDict({**self.auth_headers(key or NO_KEY), "Content-Type": "application/json"})
        self._headers.update(headers or {})
        # A separate generator: retries must not change the random numbers of anything else.
        self._jitter = random.Random()

    @abstractmethod
    def auth_headers(self, key: str) -> dict[str, str]:
        """Return the headers that authenticate a request."""

    @abstractmethod
    def translate(self, request: Request) -> tuple[str, JsonObject]:
        """Return the path below the base URL and the JSON body of a request.

        Raises:
            ConfigError: the API does not support a part of the request.
        """

    @abstractmethod
    def read(self, request: Request, answer: object) -> Response:
        """Read a decoded reply.

        Raises:
            InvalidModelResponseError: the reply holds no response.
        """

    def _require_messages(self, request: Request, api: str) -> None:
        if request.text is not None:
            raise ConfigError(
                f"{api} cannot continue a raw text; expected messages: "
                "use an environment with message_type='chat', or an endpoint that has /completions"
            )

    @property
    def identity(self) -> Identity:
        """Values that distinguish this client's responses from those of other clients."""
        return {"api": type(self).__name__, "base_url": self.base_url}

    @property
    def limiter_now(self) -> Limiter:
        """The concurrency limiter, also outside of an event loop."""
        return self._limiter

    @property
    def limiter(self) -> Limiter:
        """The concurrency limiter of the running event loop."""
        loop = asyncio.get_running_loop()
        if self._limiter_loop is not loop:
            self._limiter_loop = loop
            self._limiter.restart()
        return self._limiter

    @property
    def max_concurrent(self) -> int:
        """The upper limit of concurrent requests."""
        return self._limiter.maximum

    async def respond(self, request: Request) -> Response:
        """Send one request, with retries.

        The response and every error raised here list the failed tries in `attempts`, oldest first. If a request is
        cancelled after failed tries or while it waits for the limiter, the `CancelledError` lists them.

        Raises:
            OverlongPromptError: the prompt exceeds the model's context.
            InvalidModelResponseError: the reply to the last attempt was empty or malformed.
            ModelError: the endpoint rejected the request (any other 4xx).
            InfraError: the last attempt failed with no reply or with HTTP 408, 409, 429 or 5xx; its `status` is the HTTP status.
        """
        attempts: list[str] = []
        try:
            return await self._respond(request, attempts)
        except asyncio.CancelledError as cancelled:
            if attempts:
                raise cancelled_unanswered(attempts) from cancelled
            raise
        except Exception as error:
            masked = self._secrets.mask_error(error)
            if masked is not error:
                raise masked from None
            raise

    async def _respond(self, request: Request, attempts: list[str]) -> Response:
        path, content = self.translate(request)
        if path not in self._urls:
            self._urls[path] = self._url / path
        url = self._urls[path]
        body = msgspec.json.encode(content)
        while True:
            retries_left = self.max_retries - len(attempts)
            retry_after = 0.0
            try:
                answer = await self._try(url, body)
                response = self._secrets.mask_response(self.read(request, answer))
                return msgspec.structs.replace(response, attempts=attempts) if attempts else response
            except TemporaryError as error:
                attempts.append(self._secrets.mask_text(str(error)))
                if not retries_left:
                    message = f"no answer from {url} in {len(attempts)} tries; last error: {attempts[-1]}"
                    failure = InfraError(message, attempts)
                    failure.status = error.status
                    raise failure from error.__cause__
                retry_after = error.retry_after
            except ModelError as error:
                attempts.append(self._secrets.mask_text(str(error)))
                if not retries_left or not isinstance(error, InvalidModelResponseError):
                    error.attempts = attempts
                    raise
            await asyncio.sleep(retry_delay(len(attempts), self.backoff, retry_after, self._jitter))

    @asynccontextmanager
    async def open_stream(
        self, path: str, content: Mapping[str, object] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open a streaming reply with a single attempt, outside of the limiter. `path` is relative to the base URL; without
        `content`, the request is a GET.

        Raises:
            ModelError, InfraError: as for `respond`.
        """
        try:
            session, url = await self._connect(), self._url / path
            method = "GET" if content is None else "POST"
            body = None if content is None else msgspec.json.encode(content)
            async with session.request(method, url, data=body, allow_redirects=False) as reply:
                if reply.status >= 300:
                    text = (await _read(reply)).decode(errors="replace")
                    raise self._refusal(url, reply.status, text, retry_after=0.0)
                yield reply
        except (TemporaryError, aiohttp.ClientError, OSError) as error:
            message = str(error) if isinstance(error, TemporaryError) else f"{type(error).__name__}: {error}"
            raise InfraError(self._secrets.mask_text(message)) from None
        except ModelError as error:
            raise self._secrets.mask_error(error) from None

    async def close(self) -> None:
        """Close the connections. The client opens new ones if it is used again."""
        connection, self._connection = self._connection, None
        if connection:
            await connection.session.close()

    def __del__(self) -> None:
        # After asyncio.run, close() cannot be awaited. One step then completes it, so that aiohttp does not print "Unclosed
        # client session" at the end of every script.
        if self._connection and self._connection.loop.is_closed():
            with suppress(StopIteration):
                self._connection.session.close().send(None)

    async def _try(self, url: URL, body: bytes) -> object:
        session, limiter = await self._connect(), self.limiter
        try:
            admitted = await limiter.acquire()
        except asyncio.CancelledError as cancelled:
            raise cancelled_unanswered(["waited for admission"]) from cancelled
        outcome, pause = "failed", 0.0
        try:
            status, headers, answer = await self._post(session, url, body)
            if status < 300:
                outcome = "answered"
            elif status in OVERLOADED_STATUSES:
                outcome, pause = "refused", requested_pause(headers)
            elif status in TIMEOUT_STATUSES:
                outcome = "unanswered"
        except TemporaryError as error:
            if isinstance(error.__cause__, TimeoutError):
                outcome = "unanswered"
            raise
        finally:
            limiter.release(admitted, outcome, pause)
        if status >= 300:
            raise self._refusal(url, status, answer.decode(errors="replace"), requested_pause(headers))
        return decoded_body(answer)

    async def _post(
        self, session: aiohttp.ClientSession, url: URL, body: bytes
    ) -> tuple[int, Mapping[str, str], bytes]:
        try:
            # A redirect would send the key to another host.
            async with session.post(url, data=body, allow_redirects=False) as reply:
                return reply.status, reply.headers, await _read(reply)
        except aiohttp.ConnectionTimeoutError as error:
            raise TemporaryError(f"no connection within {self.connect_timeout:g} s") from error
        except TimeoutError as error:
            raise TemporaryError(f"no answer within {self.timeout:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            # Not its subclasses: a wrong name or certificate needs another fix.
            hint = f"; is the server running at {url.origin()}?" if type(error) is aiohttp.ClientConnectorError else ""
            raise TemporaryError(f"{type(error).__name__}: {error}{hint}") from error

    def _refusal(self, url: URL, status: int, text: str, retry_after: float) -> Exception:
        """Return the exception for an HTTP status of 300 or more."""
        quoted = excerpt(text)
        if status in (408, 409, 429) or status >= 500:
            return TemporaryError(f"HTTP {status}: {quoted}", retry_after, status)
        if status in _HINTS:
            hint = _HINTS[status].format(api_key_var=self.api_key_var)
            return ModelError(f"HTTP {status} from {url}: {quoted} ({hint})")
        if (advice := _max_tokens_advice(text)) is not None:
            return ModelError(f"HTTP {status} from {url}: {quoted} ({advice})")
        if _OVERLONG.search(text):
            return OverlongPromptError(f"HTTP {status}: {quoted}")
        return ModelError(f"HTTP {status} from {url}: {quoted}")

    async def _connect(self) -> aiohttp.ClientSession:
        # An aiohttp session belongs to one event loop; `asyncio.run` in a loop gives a client a new one each time.
        loop, previous = asyncio.get_running_loop(), self._connection
        if previous and previous.loop is loop:
            return previous.session
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),  # `Limiter` limits the requests
            timeout=aiohttp.ClientTimeout(total=self.timeout, sock_connect=self.connect_timeout),
            headers=self._headers,
            proxy=_proxy(self._url),
        )
        self._connection = _Connection(loop, session)
        if previous:
            await previous.session.close()
        return session


def _max_tokens_advice(text: str) -> str | None:
    """Return advice to lower `max_tokens` if it leaves less than half of the context for the prompt, or if the refused prompt
    takes less than half of it; else None.
    """
    for pattern in _COUNTS:
        match = pattern.search(text)
        if match is None:
            continue
        prompt_tokens = sum(int(number) for number in re.findall(r"\d+", match["prompt"]))
        if 2 * prompt_tokens < int(match["context"]):
            return f"the prompt has {prompt_tokens} of the context's {match['context']} tokens: lower max_tokens"
    for pattern in _OUTPUT_COUNTS:
        match = pattern.search(text)
        if match is None:
            continue
        tokens_left = max(0, int(match["context"]) - int(match["output"]))
        if 2 * tokens_left < int(match["context"]):
            return f"max_tokens leaves {tokens_left} of the context's {match['context']} tokens: lower max_tokens"
    return None


async def _read(reply: aiohttp.ClientResponse) -> bytes:
    parts: list[bytes] = []
    size = 0
    # In parts, because `reply.read()` has no limit: a broken server could fill the memory.
    async for part in reply.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > MAX_RESPONSE_BYTES:
            raise InvalidModelResponseError(f"a reply of more than {MAX_RESPONSE_BYTES >> 20} MiB: {excerpt(parts[0])}")
    return b"".join(parts) if len(parts) != 1 else parts[0]


def decoded_body(answer: bytes) -> JsonValue:
    """Return the JSON value of a response's body."""
    try:
        return msgspec.json.decode(answer)
    except UNREADABLE as error:
        raise InvalidModelResponseError(f"not JSON ({error}): {excerpt(answer)}") from error


def retry_delay(failures: int, backoff: float, retry_after: float, jitter: random.Random) -> float:
    """Return the seconds to pause after `failures` failed tries.

    The pause is `retry_after` plus a random part up to min(8, backoff * 2**(failures - 1)), because an overloaded
    server requests the same pause from many clients, and they must not all return at the same time.
    """
    doublings = min(failures - 1, MAX_DOUBLINGS)
    longest = min(MAX_BACKOFF_S, backoff * 2**doublings)
    return retry_after + jitter.uniform(0.0, longest)


class _Connection(NamedTuple):
    loop: asyncio.AbstractEventLoop
    session: aiohttp.ClientSession


class TemporaryError(Exception):
    """An attempt failed, but another one may succeed; `retry_after` is the pause in seconds that the server requested."""

    def __init__(self, message: str, retry_after: float = 0.0, status: int | None = None):
        super().__init__(message)
        self.retry_after = retry_after
        self.status = status


def _checked_url(base_url: str, example: str) -> URL:
    try:
        url = URL(base_url)
    except ValueError:
        url = URL()  # has no scheme, so that the error below reports it
    if url.scheme not in ("http", "https") or not url.host or url.user or url.query_string:
        raise ConfigError(
            f"base_url is {base_url!r}; expected http(s)://host[:port]/path without user or query, like {example}"
        )
    return url


def requested_pause(headers: Mapping[str, str]) -> float:
    """Return the pause in seconds that a reply requests: 0 to 60; 0 without a readable `Retry-After`."""
    text = headers.get("Retry-After") or "0"
    try:
        seconds = float(text)
    except ValueError:
        seconds = _seconds_until(text)
    return min(seconds, MAX_RETRY_AFTER_S) if seconds > 0 else 0.0


def _seconds_until(date: str) -> float:
    """Return the seconds until an HTTP date; 0 if it is not a date, infinity if its year overflows the C library."""
    try:
        fields = email.utils.parsedate_tz(date)
        return email.utils.mktime_tz(fields) - time.time() if fields else 0.0
    except OverflowError:
        return math.inf
    except (ValueError, TypeError):
        return 0.0


def _proxy(url: URL) -> str | None:
    """Return the proxy for a URL. (`trust_env` of aiohttp would also read ~/.netrc, which overrides the key.)"""
    host = url.host or ""
    if host in ("localhost", "127.0.0.1", "::1") or proxy_bypass(host):
        return None
    return getproxies().get(url.scheme)
