"""The console through which rove prints. It never interprets control characters or markup in a text."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from rove.utils.terminal_text import inert

MAX_COLUMNS = 100
"""Maximum width of a table that is printed as text, in columns."""


class SafeConsole(Console):
    """A rich console that shows every text as it is.

    Control characters appear as escapes such as \\x1b, and rich's markup ("[bold]") and emoji codes (":warning:") are not
    interpreted. Style rove's own words with `styled` or `style=`.
    """

    def __init__(self, **options: Any):
        defaults = {"markup": False, "highlight": False, "emoji": False}
        super().__init__(**{**defaults, **options})

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text for display, with escapes for control characters before rich measures widths for its tables."""
        return super().render_str(inert(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of an object to print; only rich's own control codes are kept."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(inert(segment.text), segment.style)


class TextTable(Table):
    """A table that `print` shows as plain text, and that a notebook and `rich.print` show with colors."""

    def __str__(self) -> str:
        text = io.StringIO()
        SafeConsole(file=text, width=MAX_COLUMNS, color_system=None).print(self)
        return text.getvalue()


def styled(*parts: str | tuple[str, str]) -> Text:
    """Return a text made of parts: each is a string, or a string with its style, such as ("failed", "red")."""
    pairs = [(part, "") if isinstance(part, str) else part for part in parts]
    return Text.assemble(*((inert(text), style) for text, style in pairs))
