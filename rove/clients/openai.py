"""Any server that speaks OpenAI's chat completions; the transport is our own, the `openai` package is not needed."""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

from rove.errors import (
    ConfigError,
    InfraError,
    InvalidModelResponseError,
    MissingKeyError,
    ModelError,
    OverlongPromptError,
)
from rove.protocols import Client, Request, Response
from rove.wire.chat import excerpt, read_response, request_body

OPENAI_URL = "https://api.openai.com/v1"
MAX_BACKOFF = 8.0
MAX_RETRY_AFTER = 60.0

# How servers say that a prompt does not fit: OpenAI, vLLM, SGLang, llama.cpp, Anthropic, xAI, Gemini. A bare "too
# long" is not enough: it is also said of a stop list or of a tool's name, and those are mistakes to report, not
# rollouts to cut.
_OVERLONG = re.compile(
    r"context[ _](length|window|size)|maximum (model|prompt) length|input token count[^.]{0,60}exceeds"
    r"|prompt[ _]too[ _]long|(prompt|input|messages?|content|conversation)\b[^.]{0,60}too long",
    re.IGNORECASE,
)
_HINTS = {
    401: "the API key was not accepted: check api_key or OPENAI_API_KEY",
    403: "the API key is not allowed to do this: check api_key or OPENAI_API_KEY, and what it may use",
    404: "check the base URL (it usually ends in /v1) and the name of the model",
}
_SDK_HEADERS = re.compile(r"accept|authorization|content-type|user-agent|x-stainless-.*", re.IGNORECASE)


class OpenAIClient:
    """An OpenAI-compatible endpoint.

    Failures that may pass (no connection, no answer in time, HTTP 408, 409, 429 and 5xx, answers that are no chat
    completion or an empty one) are tried again up to `max_retries` times, with exponential back-off and full jitter,
    never sooner than a `Retry-After` in seconds asks for (at most 60 s). No other layer needs to retry. Proxies are
    taken from the environment, as other programs do it. A client serves one event loop at a time; when that loop has
    ended, the next.

    Args:
        base_url: what comes before `/chat/completions`; default: `OPENAI_BASE_URL`, else OpenAI itself.
        api_key: default: `OPENAI_API_KEY`. Only OpenAI itself insists on one.
        max_concurrent: most requests under way at once; a request that backs off does not count.
        timeout: seconds one try may take, from sending to the last byte of the answer.
        connect_timeout: seconds until a connection must stand.
        max_retries: tries after the first one.
        headers: sent with every request; they win over our own.
        backoff: upper bound of the first pause, in seconds; it doubles with each further one, up to 8 s.

    Raises:
        MissingKeyError: no key for OpenAI itself.
        ConfigError: a setting is out of range.
    """

    _connection: _Connection | None = None

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        max_concurrent: int = 32,
        timeout: float = 600.0,
        connect_timeout: float = 5.0,
        max_retries: int = 4,
        headers: Mapping[str, str] | None = None,
        backoff: float = 0.5,
    ):
        self.base_url = (base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL).strip().rstrip("/")
        self._url = _checked_url(self.base_url)
        self._is_openai = self._url.host == URL(OPENAI_URL).host
        key = (api_key or os.environ.get("OPENAI_API_KEY") or "").strip()
        if not key and self._is_openai:
            raise MissingKeyError(
                f"no API key for {self.base_url}: set OPENAI_API_KEY or pass api_key, "
                "or name another endpoint with base_url (on the command line: -b)"
            )
        self._key = key or "EMPTY"
        self.max_concurrent = max_concurrent
        self.timeout = timeout
        self.connect_timeout = connect_timeout
        self.max_retries = max_retries
        self.backoff = backoff
        _check("max_concurrent", max_concurrent, max_concurrent >= 1, "1 or more")
        _check("timeout", timeout, timeout > 0, "seconds, more than 0")
        _check("connect_timeout", connect_timeout, connect_timeout > 0, "seconds, more than 0")
        _check("max_retries", max_retries, max_retries >= 0, "0 or more")
        _check("backoff", backoff, backoff >= 0, "seconds, 0 or more")
        self._headers = CIMultiDict({"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"})
        self._headers.update(headers or {})
        # Its own stream: retrying must not disturb the random numbers of anything else.
        self._jitter = random.Random()

    @classmethod
    def from_sdk(cls, sdk: Any) -> OpenAIClient:
        """A client with an `openai.AsyncOpenAI`'s base URL, key, headers, retries and (where it is a number) timeout.

        Raises:
            ConfigError: it has what has no counterpart here: a default query (as for Azure) or a function as its key.
        """
        if getattr(sdk, "default_query", None) or callable(getattr(sdk, "_api_key_provider", None)):
            raise ConfigError(
                f"cannot take over this {type(sdk).__name__}: it has a default_query or a function as api_key; "
                "expected plain base_url and api_key: build a rove OpenAIClient(base_url, api_key, headers=…) instead"
            )
        timeout = getattr(sdk, "timeout", None)
        # The SDK describes itself in some headers, and marks absent ones with objects of its own.
        headers = {
            name: value
            for name, value in (getattr(sdk, "default_headers", None) or {}).items()
            if isinstance(value, str) and not _SDK_HEADERS.fullmatch(name)
        }
        return cls(
            str(sdk.base_url),
            sdk.api_key or "EMPTY",
            timeout=timeout if isinstance(timeout, (int, float)) else 600.0,
            max_retries=getattr(sdk, "max_retries", 4),
            headers=headers,
        )

    async def respond(self, request: Request) -> Response:
        """Answer one request.

        Every error raised here carries `attempts`: one line per failed try, oldest first.

        Raises:
            OverlongPromptError: the prompt does not fit the model's context.
            InvalidModelResponseError: the last try brought no chat completion, or an empty one.
            ModelError: the endpoint refused the request (any other 4xx).
            InfraError: the last try brought no answer at all, or a 408, 409, 429 or 5xx.
        """
        body = msgspec.json.encode(self._body(request))
        attempts: list[str] = []
        while True:
            retries_left = self.max_retries - len(attempts)
            asked_to_wait = 0.0
            try:
                return await self._try(body)
            except _TemporaryError as error:
                attempts.append(str(error))
                if not retries_left:
                    message = f"no answer from {self._url} in {len(attempts)} tries; the last one: {error}"
                    raise InfraError(message, attempts) from error.__cause__
                asked_to_wait = error.retry_after
            except ModelError as error:
                attempts.append(str(error))
                if not retries_left or not isinstance(error, InvalidModelResponseError):
                    error.attempts = attempts
                    raise
            await asyncio.sleep(retry_delay(len(attempts), self.backoff, asked_to_wait, self._jitter))

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

    def _body(self, request: Request) -> dict[str, Any]:
        body = request_body(request)
        if self._is_openai and "max_tokens" in body:
            # OpenAI's reasoning models refuse the old name; all its models know the new one.
            body.setdefault("max_completion_tokens", body.pop("max_tokens"))
        return body

    async def _try(self, body: bytes) -> Response:
        connection = await self._connect()
        async with connection.slots:
            status, retry_after, answer = await self._post(connection.session, body)
        if status >= 300:
            raise self._refusal(status, answer.decode(errors="replace"), retry_after)
        try:
            decoded = msgspec.json.decode(answer)
        except msgspec.DecodeError as error:
            raise InvalidModelResponseError(f"not JSON ({error}): {excerpt(answer)}") from error
        return read_response(decoded)

    async def _post(self, session: aiohttp.ClientSession, body: bytes) -> tuple[int, str | None, bytes]:
        try:
            async with session.post(self._url, data=body) as reply:
                return reply.status, reply.headers.get("Retry-After"), await reply.read()
        except aiohttp.ConnectionTimeoutError as error:
            raise _TemporaryError(f"no connection within {self.connect_timeout:g} s") from error
        except TimeoutError as error:
            raise _TemporaryError(f"no answer within {self.timeout:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise _TemporaryError(f"{type(error).__name__}: {error}") from error

    def _refusal(self, status: int, text: str, retry_after: str | None) -> Exception:
        """The error for an HTTP status that is not a success. The key never shows, even where the server repeats it."""
        said = excerpt(text if self._key == "EMPTY" else text.replace(self._key, "***"))
        if status in (408, 409, 429) or status >= 500:
            return _TemporaryError(f"HTTP {status}: {said}", _seconds(retry_after))
        if _OVERLONG.search(text) and status not in _HINTS:
            return OverlongPromptError(f"HTTP {status}: {said}")
        hint = f" ({_HINTS[status]})" if status in _HINTS else ""
        return ModelError(f"HTTP {status} from {self._url}: {said}{hint}")

    async def _connect(self) -> _Connection:
        loop, previous = asyncio.get_running_loop(), self._connection
        if previous and previous.loop is loop:
            return previous
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),  # max_concurrent is the limit
            timeout=aiohttp.ClientTimeout(total=self.timeout, sock_connect=self.connect_timeout),
            headers=self._headers,
            proxy=_proxy(self._url),
        )
        connection = self._connection = _Connection(loop, session, asyncio.Semaphore(self.max_concurrent))
        if previous:
            await previous.session.close()
        return connection


def as_client(client: Client | Any) -> Client:
    """A rove client as it is, or one with the settings of an `openai.AsyncOpenAI` object.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(client, Client):
        return client
    speaks_chat = hasattr(getattr(client, "chat", None), "completions")
    if speaks_chat and hasattr(client, "base_url") and hasattr(client, "api_key"):
        return OpenAIClient.from_sdk(client)
    raise ConfigError(
        f"not a client: {client!r}; expected a rove client (something with respond(), close() and max_concurrent, "
        "such as OpenAIClient(base_url, api_key)) or an openai.AsyncOpenAI object"
    )


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
    slots: asyncio.Semaphore


class _TemporaryError(Exception):
    """A try failed in a way that may pass; `retry_after` is how many seconds the server asked for."""

    def __init__(self, message: str, retry_after: float = 0.0):
        super().__init__(message)
        self.retry_after = retry_after


def _checked_url(base_url: str) -> URL:
    try:
        url = URL(base_url)
    except ValueError:
        url = URL()
    if url.scheme not in ("http", "https") or not url.host or url.user or url.query_string:
        raise ConfigError(
            f"base_url is {base_url!r}; expected http(s)://host[:port]/path without user or query, like {OPENAI_URL}"
        )
    return url / "chat" / "completions"


def _check(name: str, value: float, good: bool, expected: str) -> None:
    if not good:
        raise ConfigError(f"{name} is {value!r}; expected {expected}")


def _seconds(retry_after: str | None) -> float:
    """The header as seconds, between 0 and 60; 0 when it is missing or a date."""
    try:
        seconds = float(retry_after or 0)
    except ValueError:
        return 0.0
    return min(seconds, MAX_RETRY_AFTER) if seconds > 0 else 0.0


def _proxy(url: URL) -> str | None:
    """The environment's proxy for this URL. (aiohttp's `trust_env` also reads ~/.netrc, which then fights our key.)"""
    host = url.host or ""
    if host in ("localhost", "127.0.0.1", "::1") or proxy_bypass(host):
        return None
    return getproxies().get(url.scheme)
