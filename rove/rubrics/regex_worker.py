"""What a regex worker does: it searches for a pattern. It imports the standard library alone."""

from __future__ import annotations

import re


class Session:
    """Searches for one pattern after another."""

    def search(self, pattern: str, text: str) -> bool | None:
        """Return whether the pattern is found; None if it is not a regular expression."""
        try:
            return re.search(pattern, text) is not None
        except (re.error, OverflowError, RecursionError):
            return None


def setup() -> None:
    """Prepare nothing."""
