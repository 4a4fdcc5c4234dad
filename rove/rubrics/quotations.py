"""Distinguish a judge's own statements from quotations of the text that it judges."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from itertools import accumulate

from rove.utils.patterns import lazy_pattern

_TAG_PATTERN = r"<{end}\s*(?:think|thinking|reasoning)\s*>|\[{end}THINK\]"
OPENING_TAG = lazy_pattern(_TAG_PATTERN.format(end=""), re.IGNORECASE)
CLOSING_TAG = lazy_pattern(_TAG_PATTERN.format(end="/"), re.IGNORECASE)
REASONING_TAG = lazy_pattern(_TAG_PATTERN.format(end="/?"), re.IGNORECASE)
"""A tag that opens or closes the reasoning of a model."""
_LINE_ENDS = lazy_pattern(r"\r\n?|[\v\f\x1c-\x1e\x85\u2028\u2029]")
_INVISIBLE = lazy_pattern("[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u3164\ufe00-\ufe0f\uffa0]")
_SENTENCE_END = lazy_pattern(r"\n|(?<=[.!?])[ \t]+|(?<=[。！？])|" + _TAG_PATTERN.format(end="/?"), re.IGNORECASE)
_QUOTE_START = lazy_pattern(r"[\"“„«「`]|(?<!\w)['‘]")
_QUOTE_ENDS = {'"': '"', "“": "”", "„": "“”", "«": "»", "「": "」", "`": "`", "'": "'", "‘": "’"}
_FENCE = lazy_pattern(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
_BLOCK_QUOTE = lazy_pattern(r"^[ \t]*>.*$", re.MULTILINE)


def plain(text: str) -> str:
    """Return a text with one spelling of each character (NFKC), one kind of line end, and no invisible characters."""
    text = _LINE_ENDS.sub("\n", unicodedata.normalize("NFKC", text))
    visible = "".join(char for char in text if unicodedata.category(char) != "Cf")
    return _INVISIBLE.sub("", visible)


def sentences(text: str) -> list[str]:
    """Return the sentences of a text that are not empty; a line end also ends a sentence."""
    return [part for part in _SENTENCE_END.split(text) if part.strip()]


def squeezed(text: str) -> str:
    """Return the letters, digits and symbols of a text in lower case, to compare a quotation with its source."""
    characters = [char for char in text if unicodedata.category(char)[0] not in "ZCP"]
    return "".join(char for char in characters if char not in "`^~=|<>$").casefold()


def without_quotations(text: str, is_kept: Callable[[str], bool]) -> str:
    """Return a text of the same length, with spaces in place of the contents of quotation marks, fences and block quotes.

    Args:
        is_kept: returns whether to keep a quotation on one line, such as a verdict in quotation marks.
    """

    def blank(match: re.Match[str]) -> str:
        if "\n" not in match[0] and is_kept(match[0]):
            return match[0]
        return re.sub(r"[^\n]", " ", match[0])

    for pattern in (_FENCE, _BLOCK_QUOTE):
        text = pattern.sub(blank, text)
    return "\n".join(_without_quotation_marks(line, is_kept) for line in text.split("\n"))


def _without_quotation_marks(line: str, is_kept: Callable[[str], bool]) -> str:
    parts: list[str] = []
    copied = 0
    next_ends: dict[str, int] = {}  # by opening mark, so that a line of many marks is not searched from each of them
    for opening in _QUOTE_START.finditer(line):
        start, mark = opening.start(), opening[0]
        if start < copied:
            continue
        end = next_ends.get(mark, 0)
        if end <= start:
            end_positions = [line.find(end_mark, start + 1) for end_mark in _QUOTE_ENDS[mark]]
            end = next_ends[mark] = min((position for position in end_positions if position >= 0), default=len(line))
        is_empty_code = mark == "`" and end == start + 1
        is_apostrophe = mark in "'‘" and re.match(r"\w", line[end + 1 : end + 2]) is not None
        if end == len(line) or is_empty_code or is_apostrophe:
            continue
        quotation = line[start : end + 1]
        parts += [line[copied:start], quotation if is_kept(quotation) else " " * len(quotation)]
        copied = end + 1
    return "".join([*parts, line[copied:]])


class SqueezedText:
    """The letters, digits and symbols of a text (see `squeezed`), of which parts can be taken by their place in the text."""

    def __init__(self, text: str):
        pieces = list(map(squeezed, text))
        self._all = "".join(pieces)
        self._ends = [0, *accumulate(map(len, pieces))]

    def part(self, start: int, end: int) -> str:
        """Return what is left of the text from one position to another."""
        return self._all[self._ends[start] : self._ends[end]]


class JudgedText:
    """The text that a judge has read, to recognize quotations of it.

    Case, white space, punctuation, invisible characters and the width of letters are ignored, so that a quotation is
    recognized even if the judge changes its formatting.
    """

    def __init__(self, text: str):
        text = plain(text)
        lines = [*text.split("\n"), *sentences(text), text]
        self._lines = {line for line in map(squeezed, lines) if line}
        self._all = squeezed(text)
        self.has_reasoning_tag = REASONING_TAG.search(text) is not None
        self._with_marks = _without_spaces(text)

    def has_line(self, line: str) -> bool:
        """Return whether a line or a sentence is also a line or a sentence of the text."""
        return squeezed(line) in self._lines

    def contains(self, part: str) -> bool:
        """Return whether the text contains a part, within a line or across lines."""
        return self.contains_squeezed(squeezed(part))

    def contains_squeezed(self, part: str) -> bool:
        """Return whether the text contains a part that is squeezed already."""
        return bool(part) and part in self._all

    def contains_marks(self, part: str) -> bool:
        """Return whether the text contains a part with its brackets and punctuation, at any white space and case."""
        return _without_spaces(part) in self._with_marks


def _without_spaces(text: str) -> str:
    return re.sub(r"\s+", "", text).casefold()
