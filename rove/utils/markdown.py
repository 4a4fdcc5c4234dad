"""Tables and text in Markdown."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from rove.utils.terminal_text import ESCAPED_CATEGORIES

MAX_TEXT = 200
"""Default maximum of the characters that `plain` and `code` return; longer texts are cut and end with "…"."""


def cell(text: str) -> str:
    """Return a text escaped for a table cell."""
    return " ".join(text.replace("|", "\\|").split())


def table_lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return lines + [f"| {' | '.join(map(cell, row))} |" for row in rows]


def plain(text: str, max_chars: int = MAX_TEXT) -> str:
    """Escape text so that Markdown shows it as it is, on one line, and GitHub makes no links or notifications."""
    escaped = re.sub(r"([\\`*_{}\[\]<>()#!|~&@:$^])", r"\\\1", _one_line(text, max_chars))
    escaped = re.sub(r"(www)\.", r"\1\\.", escaped, flags=re.IGNORECASE)
    return escaped.replace("@", "@\u2060")  # GitHub links names after "@" even in rendered text


def code(text: str, max_chars: int = MAX_TEXT) -> str:
    """Return text as inline code that is also safe in a table cell; GitHub interprets no markup, links or names in code."""
    line = _one_line(text, max_chars).replace("|", "\u2502") or " "  # a "|" would end the cell
    longest_run = max(map(len, re.findall("`+", line)), default=0)
    fence = "`" * (longest_run + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def _one_line(text: str, max_chars: int) -> str:
    """Return text without line ends, control and formatting characters, cut off after `max_chars` characters."""
    cut = text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"
    visible = (" " if unicodedata.category(char) in ESCAPED_CATEGORIES else char for char in cut)
    return " ".join("".join(visible).split())
