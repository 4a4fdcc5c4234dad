"""The environments in rove's package, for tests that compare rewards in other libraries with those of `rove eval`."""

from __future__ import annotations

from typing import Any

ENVIRONMENTS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "double_check": (["oracle", "doubter"], {}),
    "lookup": (["solver", "novice"], {}),
    "math_python": (["solver", "guesser"], {}),
    "needle": (["solver", "novice"], {"length": 2000}),
    "reverse_text": (["oracle", "copycat"], {}),
    "short_sentences": (["plain", "ornate"], {}),
    "sql_agent": (["solver", "novice"], {}),
    "sums": (["careless"], {}),
    "tictactoe": (["teacher", "optimal"], {}),
    "wiki_search": (["solver", "first_hit"], {"num_articles": 500}),
    "word_game": (["solver", "novice"], {}),
}
"""Name → scripted policies, which alternate by row, and arguments."""
