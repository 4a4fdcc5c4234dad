"""Regular expressions that are compiled at their first use."""

from __future__ import annotations

import re
from typing import Any, cast


class _LazyPattern:
    def __init__(self, pattern: str, flags: int):
        self._arguments = (pattern, flags)

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(*self._arguments), name)
        setattr(self, name, value)  # from now on it is found without this method
        return value


def lazy_pattern(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """Return a pattern with the methods of `re.compile(pattern, flags)` that is compiled when a method is first used.

    Compiling the patterns of scorers and judges, which most commands never use, took a sixth of the time of `import rove`.
    """
    return cast(re.Pattern[str], _LazyPattern(pattern, flags))
