"""HTML building blocks of the hub's pages. Every value that is shown is escaped by `text`."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from importlib import resources
from typing import NamedTuple
from urllib.parse import quote, urlencode

from markdown_it import MarkdownIt
from markdown_it.token import Token

from rove.core.plain import JsonMapping
from rove.hub.package.manifest import WEB
from rove.utils.units import counted


def text(value: object) -> str:
    """Return a value as escaped text."""
    return html.escape(str(value))


def tag(name: str, content: str, kind: str = "") -> str:
    """Wrap HTML content in an element `name`; `kind` is its CSS class."""
    class_attribute = f' class="{kind}"' if kind else ""
    return f"<{name}{class_attribute}>{content}</{name}>"


def block(value: str) -> str:
    """Return a text as an HTML block of preformatted text."""
    return tag("pre", text(value))


def collapsible(title: str, content: str) -> str:
    """Return content that a click on its title shows or hides; title and content are HTML."""
    return f"<details><summary>{title}</summary>{content}</details>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Return an HTML table; its cells are HTML, too."""
    titles = "".join(tag("th", text(title)) for title in head)
    body = ""
    for row in rows:
        cells = "".join(tag("td", cell) for cell in row)
        body += f"<tr>{cells}</tr>\n"
    element = tag("table", f"<thead><tr>{titles}</tr></thead><tbody>\n{body}</tbody>", kind)
    return f'<div class="wide" tabindex="0">{element}</div>'  # a box that scrolls must be reachable by keyboard


POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
"""Content security policy: pages run and load only the files of `static_files`."""
KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
STATIC = {
    "icon.svg": "rove.viewer.static",
    "hub.css": "rove.hub.server.pages.static",
    "hub.js": "rove.hub.server.pages.static",
}
"""Files that pages load, each with the package that contains it."""


class PageLocation(NamedTuple):
    """Location of a page. Its links are relative, so a hub works under any path and from a local folder."""

    depth: int = 0
    """Number of folders below the hub's root."""
    leaf: str = ""
    """File name that ends links to folders: "index.html" in an export, because an export must work without a web server."""

    @property
    def root(self) -> str:
        """Relative address of the hub's root."""
        return "../" * self.depth or "./"

    def front(self, **query: str | int) -> str:
        """Return the address of the list of environments, filtered by `query`."""
        chosen = {key: value for key, value in query.items() if value}
        suffix = f"?{urlencode(chosen)}" if chosen else ""
        return f"{self.root}{self.leaf}{suffix}"

    def environment(self, owner: str, name: str) -> str:
        """Return the address of an environment's page."""
        return f"{self.root}{quote(owner)}/{quote(name)}/{self.leaf}"

    def file(self, *parts: str) -> str:
        """Return the address of a file of the hub."""
        return self.root + "/".join(map(quote, parts))


def frame(title: str, hub: str, location: PageLocation, trail: Sequence[tuple[str, str]], body: Iterable[str]) -> bytes:
    """Render a whole page.

    `trail` has the text and address of each breadcrumb below the hub, with the address "" for the page itself; `body` is HTML.
    """
    breadcrumbs = ""
    for word, address in [(hub, location.front() if trail else ""), *trail]:
        breadcrumbs += tag("li", link(address, text(word)) if address else text(word))
    policy = POLICY.rpartition("; ")[0]  # browsers accept frame-ancestors only in a header
    content = "\n".join(body)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="{location.file("static", "icon.svg")}">
<link rel="stylesheet" href="{location.file("static", "hub.css")}">
<script defer src="{location.file("static", "hub.js")}"></script>
</head><body data-root="{location.root}">
<a class="skip" href="#main">Skip to the content</a>
<header><nav aria-label="Breadcrumb"><ol>{breadcrumbs}</ol></nav></header>
<main id="main" tabindex="-1">
{content}
</main></body></html>
""".encode(errors="replace")


def link(address: str, content: str, kind: str = "") -> str:
    """Return a link around HTML content."""
    class_attribute = f' class="{kind}"' if kind else ""
    return f'<a href="{text(address)}"{class_attribute}>{content}</a>'


def entry_facts(entry: JsonMapping, location: PageLocation) -> Iterator[str]:
    """Yield an environment's tags, then its API, license, date and downloads."""
    for name in entry["tags"]:
        yield link(location.front(tag=name), text(name), "chip") + " "
    count = entry["downloads"]
    items = (
        f"for {entry['compatibility']}",
        entry["licence"],
        f"updated {entry['updated'][:10]}",
        counted(count, "download"),
    )
    yield tag("span", text(" · ".join(filter(None, items))))


def static_files() -> dict[str, bytes]:
    """Return the files that pages load, by name."""
    return {name: (resources.files(package) / name).read_bytes() for name, package in STATIC.items()}


MAX_README_CHARS = 50_000
"""Maximum number of characters rendered: the time to parse Markdown can grow quadratically."""
HEADING_SHIFT = 2
"""Number of levels by which headings are lowered, because the page has headings above them."""

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


@lru_cache(maxsize=256)
def readme_html(source: str) -> str:
    """Render a README (CommonMark with tables), truncated to `MAX_README_CHARS`, without active content.

    Embedded HTML is shown as text, images as their description.
    """
    tokens = _MARKDOWN.parse(source[:MAX_README_CHARS])
    for token in tokens:
        if token.tag in ("h1", "h2", "h3", "h4", "h5", "h6"):
            token.tag = f"h{min(6, int(token.tag[1]) + HEADING_SHIFT)}"
        token.attrs.pop("style", None)  # of table cells; the content security policy blocks inline styles
        if token.children is not None:
            token.children = list(_without_active_parts(token.children))
    return _MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {})


def _without_active_parts(tokens: Sequence[Token]) -> Iterator[Token]:
    """Replace links that are not web links by their text, and images by their description."""
    is_web_link: list[bool] = []
    for token in tokens:
        if token.type == "link_open":
            is_web_link.append(str(token.attrs.get("href", "")).lower().startswith(WEB))
            token.attrSet("rel", "nofollow noopener noreferrer")
        if token.type == "image":
            yield Token("text", "", 0, content=f"[{token.content or 'image'}]")
        elif not token.type.startswith("link_") or is_web_link[-1]:
            yield token
        if token.type == "link_close":
            is_web_link.pop()
