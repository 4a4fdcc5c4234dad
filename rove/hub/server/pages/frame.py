"""What all pages of a hub have in common: head, way back, addresses. They are read without JavaScript, from a disk, too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import resources
from typing import NamedTuple
from urllib.parse import quote, urlencode

from rove.hub.server.pages.html import tag, text

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
"""Nothing runs and nothing is loaded but the files of `static_files`."""
KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
STATIC = {
    "pieces.css": "rove.hub.server.pages.static",
    "icon.svg": "rove.viewer.static",
    "hub.css": "rove.hub.server.pages.static",
    "hub.js": "rove.hub.server.pages.static",
}
"""The files that pages load, and the packages that they are in."""


class Place(NamedTuple):
    """Where a page is: its links are relative, so that a hub may lie under any path or in a folder."""

    depth: int = 0
    """How many folders under the hub's address."""
    leaf: str = ""
    """What ends the address of a folder's page: "index.html" in an export, which is also read without a web server."""

    @property
    def root(self) -> str:
        """The hub's address."""
        return "../" * self.depth or "./"

    def front(self, **query: str | int) -> str:
        """Address of the list of environments, or of some of them."""
        chosen = {key: value for key, value in query.items() if value}
        return f"{self.root}{self.leaf}" + (f"?{urlencode(chosen)}" if chosen else "")

    def environment(self, owner: str, name: str) -> str:
        """Address of an environment's page."""
        return f"{self.root}{quote(owner)}/{quote(name)}/{self.leaf}"

    def file(self, *parts: str) -> str:
        """Address of a file of the hub."""
        return self.root + "/".join(map(quote, parts))


def frame(title: str, hub: str, place: Place, trail: Sequence[tuple[str, str]], body: Iterable[str]) -> bytes:
    """A whole page.

    Args:
        title: of the page.
        hub: the hub's name.
        place: where the page is.
        trail: where it is in words, from the hub down: texts and addresses, of the page itself "".
        body: HTML.
    """
    steps = [(hub, place.front() if trail else ""), *trail]
    way = "".join(tag("li", link(address, text(word)) if address else text(word)) for word, address in steps)
    policy = POLICY.rpartition("; ")[0]  # frame-ancestors is for a header alone
    content = "\n".join(body)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="{place.file("static", "icon.svg")}">
<link rel="stylesheet" href="{place.file("static", "pieces.css")}">
<link rel="stylesheet" href="{place.file("static", "hub.css")}">
<script defer src="{place.file("static", "hub.js")}"></script>
</head><body data-root="{place.root}">
<a class="skip" href="#main">Skip to the content</a>
<header><nav aria-label="Where you are"><ol>{way}</ol></nav></header>
<main id="main" tabindex="-1">
{content}
</main></body></html>
""".encode(errors="replace")


def link(address: str, content: str, kind: str = "") -> str:
    """A link around content that is HTML already."""
    return f'<a href="{text(address)}"{f""" class="{kind}" """ if kind else ""}>{content}</a>'


def static_files() -> dict[str, bytes]:
    """The files that pages load, by name."""
    return {name: (resources.files(package) / name).read_bytes() for name, package in STATIC.items()}
