"""Positions as people see them: what an environment may say of how its state looks. Data, never HTML or code."""

from __future__ import annotations

import msgspec

from rove.core.errors import ConfigError

LOOKS = ("", "free", "first", "second", "right", "near", "wrong")
"""How a cell may look: plain, to be taken, a piece of the first or the second side, right, nearly so, or wrong."""
SIZE = 40
"""Most rows, and most cells of a row."""
TEXT = 12
"""Most characters of a cell."""


class Rendering(msgspec.Struct, frozen=True):
    """Rows of cells from top to bottom, each cell a short text and one of `LOOKS`.

    A cell that looks "free" may be clicked where somebody is to move; its text is then the move. Rows may differ in length.

    Raises:
        ConfigError: it is larger than `SIZE` and `TEXT` allow, or has a look that there is not.
    """

    rows: list[list[tuple[str, str]]]

    def __post_init__(self) -> None:
        if len(self.rows) > SIZE or any(len(row) > SIZE for row in self.rows):
            raise ConfigError(f"a board has at most {SIZE} rows of {SIZE} cells; draw the part that matters")
        for row in self.rows:
            for text, look in row:
                if look not in LOOKS:
                    raise ConfigError(
                        f"a cell of a board looks {look!r}; expected one of {', '.join(map(repr, LOOKS))}"
                    )
                if len(text) > TEXT:
                    raise ConfigError(f"a cell of a board says {text!r}; expected at most {TEXT} characters")
