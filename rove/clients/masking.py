"""Errors and answers without secrets: both are shown and kept in run folders."""

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
"""Sent as the key where there is none: some servers want any."""
MASK = "***"
SECRET_LENGTH = 6
"""Shorter ones are not masked; nor is so little of a longer one that an excerpt begins and does not end."""
ANSWER_SECRET_LENGTH = 12
"""Shorter keys are not masked in a model's answer: they may be words, like the "ollama" that a local server wants."""
_CREDENTIAL = re.compile("auth|cookie|credential|key|password|secret|token", re.IGNORECASE)
"""Headers that hold credentials; the values of others, such as a team's name, may be words of an answer."""
_URL_SAFE = str.maketrans("+/", "-_")
_URL_ENCODED = re.compile("%[0-9A-F]{2}")


class Secrets:
    """Keeps a key (unless it is `NO_KEY`), and the values of a user's headers, out of what is told."""

    def __init__(self, key: str, headers: Mapping[str, str]):
        credentials = {name: value for name, value in headers.items() if _CREDENTIAL.search(name)}
        known = {secret for secret in _secrets(key, credentials) if len(secret) >= ANSWER_SECRET_LENGTH}
        self._forms_in_answers = sorted(
            {form for secret in known for form in _spellings(secret)}, key=len, reverse=True
        )
        forms = {form for secret in _secrets(key, headers) for form in _forms(secret) if len(form) >= SECRET_LENGTH}
        self._forms = [
            (re.compile(r"\\*".join(map(re.escape, form[:SECRET_LENGTH]))), form)
            for form in sorted(forms, key=len, reverse=True)
        ]

    def masked_in(self, text: str) -> str:
        """The text without them, nor the beginning of one that was cut off; whatever was escaped, and how often."""
        # All of it first, in every spelling: the quote that seems to cut one spelling off may be part of another.
        for cut_off in (False, True):
            for head, form in self._forms:
                text = _masked(text, head, form[SECRET_LENGTH:], cut_off)
        return text

    def masked_response(self, response: Response) -> Response:
        """Return the response without the credentials that the endpoint repeated in its message.

        Masks keys and credential headers of at least `ANSWER_SECRET_LENGTH` characters, unescaped and in JSON, HTML, URL
        or base64 encoding. Short values stay: a model may write them for reasons of its own.
        """
        message = self._without_credentials(response.message)
        if message == response.message:
            return response
        return msgspec.structs.replace(response, message=AssistantMessage(**message))

    def _without_credentials(self, value: Any) -> Any:
        """Return a JSON value with every credential in its texts masked."""
        if isinstance(value, str):
            for form in self._forms_in_answers:
                value = value.replace(form, MASK)
            return value
        if isinstance(value, Mapping):
            return {self._without_credentials(name): self._without_credentials(item) for name, item in value.items()}
        return [self._without_credentials(item) for item in value] if isinstance(value, list | tuple) else value

    def taken_from(self, error: Exception) -> Exception:
        """The error without them in its message; without its causes, where those tell one; else another in its place."""
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
    """Where a secret ends in a text, of which `rest` may follow at `end`; and whether all of it does."""
    for character in rest:
        following = end
        while text[following : following + 1] == "\\":
            following += 1
        if text[following : following + 1] != character:
            return end, False
        end = following + 1
    return end, True


def _masked(text: str, head: re.Pattern[str], rest: str, cut_off: bool) -> str:
    """The text without a secret that begins with `head` and goes on with `rest`, or without the beginning of a cut one."""
    position = 0
    while found := head.search(text, position):
        position = found.start()
        end, is_whole = _extent(text, found.end(), rest)
        if is_whole or (cut_off and text[end:].lstrip("\\")[:1] in "…\n'\""):  # the end of the text, too
            text = text[:position] + MASK + text[end:]
            position += len(MASK)
        else:
            position += 1
    return text
