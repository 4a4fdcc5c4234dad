"""Find JSON objects with a verdict in a judge's reply."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from rove.utils.patterns import lazy_pattern

MAX_BRACES = 100
"""Maximum number of opening braces, counted from the end, at which an object is searched for."""
MAX_DEPTH = 100
_OTHER_KEYS = ("grade", "score", "rating", "judgment", "judgement")
_STRING = r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'"
_TOKEN = lazy_pattern(
    rf"(?P<text>{_STRING})|(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<brace>[{{}}\[\]])|(?P<word>[A-Za-z_]\w*)", re.DOTALL
)
_LITERALS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}


class VerdictObject(NamedTuple):
    """A JSON object in a text."""

    start: int
    end: int
    verdict: str | None
    """The verdict as text; "" if it has several, None if it has none."""


def object_at(text: str, start: int) -> VerdictObject | None:
    """Return the JSON object that begins at an index of a text; None if there is no object.

    Line ends in texts, comments, single quotation marks, keys without marks and a comma before a closing brace are accepted.
    """
    end = _end_of_object(text, start) if text.startswith("{", start) else None
    if end is None:
        return None
    try:
        pairs = json.loads(_as_json(text[start:end]), strict=False, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        return None
    return VerdictObject(start, end, _verdict_of(pairs))


def objects_in(text: str) -> Iterator[VerdictObject]:
    """Yield the JSON objects of a text in order, without those inside others."""
    starts = [brace.start() for brace in re.finditer(r"\{", text)]
    if len(starts) > MAX_BRACES:
        starts = [starts[0], *starts[-MAX_BRACES:]]  # the first one may open a reply that is one object
    end = 0
    for start in starts:
        if start < end:  # inside of the object before it
            continue
        parsed = object_at(text, start)
        if parsed is not None:
            end = parsed.end
            yield parsed


class _Pairs(list[tuple[str, Any]]):
    """The keys and values of an object, with repeated keys."""


def _verdict_of(pairs: _Pairs) -> str | None:
    """Return the value of "verdict", or else of the only other key that can name a verdict."""
    named = [value for key, value in pairs if key.casefold() == "verdict"]
    named = named or [value for key, value in pairs if key.casefold() in _OTHER_KEYS]
    if not named:
        return None
    value = named[0]
    if len(named) > 1:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value)


def _end_of_object(text: str, start: int) -> int | None:
    """Return the index after the brace that closes the one at `start`."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        if token["brace"] in ("{", "["):
            depth += 1
        elif token["brace"]:
            depth -= 1
        if depth == 0:
            return token.end()
        if depth > MAX_DEPTH:
            return None
    return None


def _as_json(text: str) -> str:
    """Return the strict form of a JSON object: without comments, with double quotation marks, without a last comma."""

    def strict(token: re.Match[str]) -> str:
        if token["comment"]:
            return " "
        if token["word"]:
            return _LITERALS.get(token["word"], json.dumps(token["word"]))
        if token["text"] and token["text"].startswith("'"):
            return json.dumps(token["text"][1:-1].replace("\\'", "'"))
        return token[0]

    without_comments = _TOKEN.sub(strict, text)
    return re.sub(rf"({_STRING})|,(?=\s*[}}\]])", lambda token: token[1] or "", without_comments, flags=re.DOTALL)
