"""Texts that people write about packages, and that programs of others will show."""

from __future__ import annotations

import re

_ACTIVE = re.compile(
    r"<[\s/]*(script|style|iframe|object|embed|link|meta|img|svg|video|audio)\b|<[^<>]*\bon[a-z]+\s*=|javascript\s*:",
    re.IGNORECASE,
)
"""Takes time in proportion to the text, whatever that is."""


def active(text: str) -> str | None:
    """What of a text a browser might act on; None = nothing. Tags of other kinds, like <answer>, are text."""
    found = _ACTIVE.search(text.replace("\\", ""))
    return found.group() if found else None
