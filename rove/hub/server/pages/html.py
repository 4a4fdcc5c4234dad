"""Pieces of HTML. Whatever is shown passes through `text`, which escapes it; nothing else may."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any


def text(value: Any) -> str:
    """A value as harmless text."""
    return html.escape(str(value))


def short(value: float) -> str:
    """One measured value, in four digits and no more than it needs."""
    return f"{value:.4g}"


def tag(name: str, content: str, kind: str = "") -> str:
    """An element around content that is HTML already."""
    return f'<{name} class="{kind}">{content}</{name}>' if kind else f"<{name}>{content}</{name}>"


def block(value: str) -> str:
    """A text as it stands, spaces and lines kept."""
    return tag("pre", text(value))


def fold(title: str, content: str, kind: str = "") -> str:
    """HTML that is shown when its title, HTML too, is clicked."""
    return f'<details class="{kind}"><summary>{title}</summary>{content}</details>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table of cells that are HTML already; columns after the first are numbers."""
    titles = "".join(tag("th", text(title)) for title in head)
    body = "\n".join(tag("tr", "".join(tag("td", cell) for cell in row)) for row in rows)
    return tag("div", tag("table", f"<thead><tr>{titles}</tr></thead><tbody>\n{body}\n</tbody>", kind), "wide")
