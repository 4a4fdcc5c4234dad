"""Mask secrets in errors and responses, which are shown and stored in run folders."""

from __future__ import annotations

import base64
import html
import json
import re
import traceback
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec

from rove.core.errors import InfraError
from rove.core.messages import AssistantMessage
from rove.core.protocols import Response

NO_KEY = "EMPTY"
"""Sent if there is no key: some servers require one."""
MASK = "***"
MIN_SECRET_CHARS = 6
"""Shorter secrets are not masked, nor are shorter beginnings of a truncated secret."""
MIN_RESPONSE_SECRET_CHARS = 12
"""Shorter secrets are not masked in responses: they may be ordinary words, like the "ollama" that a local server expects."""
_CREDENTIAL = re.compile("auth|cookie|credential|key|password|secret|token", re.IGNORECASE)
"""Names of headers that hold credentials. Values of other headers, such as a team name, may be ordinary words."""
_URL_SAFE = str.maketrans("+/", "-_")
_URL_ENCODED = re.compile("%[0-9A-F]{2}")


class Secrets:
    """Masks an API key (unless it is `NO_KEY`) and the values of headers."""

    def __init__(self, key: str, headers: Mapping[str, str]):
        credentials = {name: value for name, value in headers.items() if _CREDENTIAL.search(name)}
        known = {secret for secret in _secrets(key, credentials) if len(secret) >= MIN_RESPONSE_SECRET_CHARS}
        self._response_forms = sorted({form for secret in known for form in _spellings(secret)}, key=len, reverse=True)
        forms = {form for secret in _secrets(key, headers) for form in _forms(secret) if len(form) >= MIN_SECRET_CHARS}
        self._forms = [
            (re.compile(r"\\*".join(map(re.escape, form[:MIN_SECRET_CHARS]))), form)
            for form in sorted(forms, key=len, reverse=True)
        ]

    def masked_in(self, text: str) -> str:
        """Return the text with secrets masked: escaped any number of times, in any encoding, and truncated at the end."""
        # Complete secrets first, in all spellings: a quote that seems to truncate one spelling may be part of another.
        for truncated in (False, True):
            for head, form in self._forms:
                text = _masked(text, head, form[MIN_SECRET_CHARS:], truncated)
        return text

    def mask_response(self, response: Response) -> Response:
        """Return the response with the credentials masked that the endpoint repeated in its message.

        Keys and credential headers of at least `MIN_RESPONSE_SECRET_CHARS` characters are masked, unescaped and in
        JSON, HTML, URL or base64 encoding.
        """
        message = self._without_credentials(response.message)
        if message == response.message:
            return response
        return msgspec.structs.replace(response, message=AssistantMessage(**message))

    def _without_credentials(self, value: Any) -> Any:
        """Return the value with credentials in its texts masked."""
        if isinstance(value, str):
            for form in self._response_forms:
                value = value.replace(form, MASK)
            return value
        if isinstance(value, Mapping):
            return {self._without_credentials(name): self._without_credentials(item) for name, item in value.items()}
        return [self._without_credentials(item) for item in value] if isinstance(value, list | tuple) else value

    def mask_error(self, error: Exception) -> Exception:
        """Return the error with its message masked, without causes that contain a secret; an `InfraError` if the class
        adds a secret.
        """
        error.args = tuple(self.masked_in(part) if isinstance(part, str) else part for part in error.args)
        trace = "".join(traceback.format_exception(error))
        if self.masked_in(trace) != trace:
            error.__cause__ = error.__context__ = None
        if self.masked_in(str(error)) == str(error):
            return error
        return InfraError(self.masked_in(f"{type(error).__name__}: {error}"))


def _secrets(key: str, headers: Mapping[str, str]) -> Iterator[str]:
    if key != NO_KEY:
        yield key
    for value in headers.values():
        yield value
        yield from (pair.partition("=")[2] for pair in value.split(";"))  # cookies
        scheme_and_secret = value.split()
        if len(scheme_and_secret) == 2:
            yield scheme_and_secret[1]


def _spellings(secret: str) -> Iterator[str]:
    """Yield a secret as it is and in the encodings of JSON, Python literals, HTML, URLs and base64."""
    content = secret.encode(errors="replace")
    yield from (secret, repr(secret)[1:-1], repr(content)[2:-1], json.dumps(secret)[1:-1], html.escape(secret))
    for encode in (partial(quote, safe=""), quote, quote_plus):
        encoded = encode(secret, errors="replace")
        yield from (encoded, _URL_ENCODED.sub(lambda found: found[0].lower(), encoded))
    for offset in range(3):
        # The characters that depend on the secret alone, wherever it is in the encoded bytes ("Basic user:secret").
        encoded = base64.b64encode(bytes(offset) + content).decode()
        core = encoded[(0, 2, 3)[offset] : (offset + len(content)) * 8 // 6]
        yield from (core, core.translate(_URL_SAFE))


def _forms(secret: str) -> Iterator[str]:
    """Yield the spellings of a secret without backslashes, and those on one line."""
    for form in _spellings(secret):
        plain = form.replace("\\", "")
        yield from (plain, " ".join(plain.split()))


def _extent(text: str, end: int, rest: str) -> tuple[int, bool]:
    """Return the index after the part of `rest` that follows at `end`, and whether all of `rest` does. Skips backslashes."""
    for character in rest:
        following = end
        while text[following : following + 1] == "\\":
            following += 1
        if text[following : following + 1] != character:
            return end, False
        end = following + 1
    return end, True


def _masked(text: str, head: re.Pattern[str], rest: str, truncated: bool) -> str:
    """Mask every secret that begins with `head` and continues with `rest`; with `truncated`, also one cut off at a line
    end or quote.
    """
    position = 0
    while found := head.search(text, position):
        position = found.start()
        end, is_whole = _extent(text, found.end(), rest)
        if is_whole or (truncated and text[end:].lstrip("\\")[:1] in "…\n'\""):  # "" at the end of the text
            text = text[:position] + MASK + text[end:]
            position += len(MASK)
        else:
            position += 1
    return text
