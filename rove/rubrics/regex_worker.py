"""The worker program of `RegexRubric`. It imports only the standard library."""

from __future__ import annotations

import re


class Session:
    """Searches for patterns."""

    def search(self, pattern: str, text: str) -> bool | None:
        """Return whether the pattern is found; None if the pattern is not a regular expression."""
        try:
            return re.search(pattern, text) is not None
        except (re.error, OverflowError, RecursionError):
            return None


def setup() -> None:
    """Prepare nothing."""
