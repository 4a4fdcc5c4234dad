"""Errors without secrets: they are shown, and their tracebacks kept in run folders."""

from __future__ import annotations

import html
import json
import re
import traceback
from collections.abc import Iterator, Mapping
from urllib.parse import quote

from rove.errors import InfraError

NO_KEY = "EMPTY"
"""Sent as the key where there is none: some servers want any."""
MASK = "***"
SECRET_LENGTH = 6
"""Shorter ones are not masked; nor is so little of a longer one that an excerpt begins and does not end."""


class Secrets:
    """Keeps a key (unless it is `NO_KEY`), and the values of a user's headers, out of what is told."""

    def __init__(self, key: str, headers: Mapping[str, str]):
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


def _forms(secret: str) -> Iterator[str]:
    """How a text may spell it, less backslashes: as it is, in JSON, a literal, HTML or a URL; and all that on one line."""
    spelt = [secret, repr(secret)[1:-1], repr(secret.encode(errors="replace"))[2:-1], json.dumps(secret)[1:-1]]
    for form in (*spelt, html.escape(secret), quote(secret, safe="", errors="replace")):
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
