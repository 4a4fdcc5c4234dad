"""A README as HTML in which nothing acts: no HTML of its author, no scripts, no images, links to web pages only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from markdown_it import MarkdownIt
from markdown_it.token import Token

from rove.hub.package.manifest import WEB

LONGEST = 50_000
"""Characters that are shown; what Markdown takes to read may grow with the square of its length."""
DEEPER = 2
"""Levels that its headings are moved down, as there are other headings above it on a page."""

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


@lru_cache(maxsize=256)
def readme_html(source: str) -> str:
    """A README as HTML; HTML in it is shown as text.

    Args:
        source: in Markdown (CommonMark, with tables); of a longer one than `LONGEST` the beginning is shown.
    """
    tokens = _MARKDOWN.parse(source[:LONGEST])
    for token in tokens:
        if token.tag in ("h1", "h2", "h3", "h4", "h5", "h6"):
            token.tag = f"h{min(6, int(token.tag[1]) + DEEPER)}"
        token.attrs.pop("style", None)  # of a table's cells; the pages' policy takes no styles but their own
        if token.children is not None:
            token.children = list(_inert(token.children))
    return _MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {})


def _inert(tokens: Sequence[Token]) -> Iterator[Token]:
    """The parts of a line: links to elsewhere than the web become their text, images what they are said to show."""
    kept: list[bool] = []
    for token in tokens:
        if token.type == "link_open":
            kept.append(str(token.attrs.get("href", "")).lower().startswith(WEB))
            token.attrSet("rel", "nofollow noopener noreferrer")
        if token.type == "image":
            yield Token("text", "", 0, content=f"[{token.content or 'image'}]")
        elif not token.type.startswith("link_") or kept[-1]:
            yield token
        if token.type == "link_close":
            kept.pop()
