"""Renderings of a state as rows of cells, without HTML or code."""

from __future__ import annotations

import msgspec

from rove.core.errors import ConfigError

CELL_STYLES = ("", "free", "first", "second", "right", "near", "wrong")
"""Cell styles: plain, selectable, first player, second player, correct, nearly correct, wrong."""
MAX_SIZE = 40
"""Maximum number of rows, and of cells per row."""
MAX_CELL_CHARS = 12


class Rendering(msgspec.Struct, frozen=True):
    """A state as rows of cells from top to bottom; a cell is a short text and one of `CELL_STYLES`.

    On a person's turn, a click on a "free" cell sends its text as the move. Rows may differ in length.

    Example:
        >>> Rendering([[("X", "first"), ("2", "free")], [("O", "second"), ("4", "free")]])

    Raises:
        ConfigError: More than `MAX_SIZE` rows or cells, a text longer than `MAX_CELL_CHARS`, or an unknown style.
    """

    rows: list[list[tuple[str, str]]]

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Check the rows, which a state can still change after the rendering is made."""
        if len(self.rows) > MAX_SIZE:
            raise _too_large()
        for row in self.rows:
            if len(row) > MAX_SIZE:
                raise _too_large()
            for text, style in row:
                if style not in CELL_STYLES:
                    styles = ", ".join(map(repr, CELL_STYLES))
                    raise ConfigError(f"the style of a cell is {style!r}; expected one of {styles}")
                if not isinstance(text, str) or len(text) > MAX_CELL_CHARS:  # pyright: ignore[reportUnnecessaryIsInstance]
                    raise ConfigError(f"the text of a cell is {text!r}; expected at most {MAX_CELL_CHARS} characters")


def _too_large() -> ConfigError:
    return ConfigError(f"the rendering is too large; expected at most {MAX_SIZE} rows of {MAX_SIZE} cells")
