"""Simple repository API for Python installers: PEP 503 (HTML), PEP 691 (JSON), with PEP 592, 629, 658 and 700."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from urllib.parse import quote

import msgspec

from rove.hub.server.catalogue import ARCHIVES, StoredRelease
from rove.hub.server.store import StoredFile

API = "1.1"
HTML, HTML_V1, JSON_V1 = "text/html", "application/vnd.pypi.simple.v1+html", "application/vnd.pypi.simple.v1+json"
ALIASES = {
    "application/vnd.pypi.simple.latest+html": HTML_V1,
    "application/vnd.pypi.simple.latest+json": JSON_V1,
    "*/*": HTML,
    "text/*": HTML,
    "application/*": JSON_V1,
    "application/json": JSON_V1,
}
"""Other content types that clients may request, and the type that they then receive."""


def negotiate(accept: str) -> str | None:
    """Return the content type for an Accept header (HTML without a header); None if no available type is acceptable."""
    best, form = 0.0, None
    for part in (accept or "*/*").split(","):
        kind, *parameters = (word.strip().lower() for word in part.split(";"))
        kind = ALIASES.get(kind, kind)
        weight = next((_weight(word[2:]) for word in parameters if word.startswith("q=")), 1.0)
        if kind in (HTML, HTML_V1, JSON_V1) and weight > best:
            best, form = weight, kind
    return form


def _weight(text: str) -> float:
    try:
        return min(1.0, max(0.0, float(text)))
    except ValueError:
        return 0.0


def project_list(form: str, names: Sequence[str]) -> bytes:
    """Render the list of projects; `form` is the content type HTML, HTML_V1 or JSON_V1."""
    if form == JSON_V1:
        return msgspec.json.encode({"meta": {"api-version": API}, "projects": [{"name": name} for name in names]})
    return _page("Simple index", [f'<a href="{quote(name)}/">{escape(name)}</a>' for name in names])


def project(form: str, name: str, releases: Sequence[StoredRelease]) -> bytes:
    """Render the files of a project; their addresses are relative to OWNER/simple/NAME/."""
    files: list[tuple[StoredRelease, StoredFile]] = []
    for release in releases:
        files += [(release, file) for file in release.files if file.kind in ARCHIVES]
    if form == JSON_V1:
        listing = {
            "meta": {"api-version": API},
            "name": name,
            "versions": [release.version for release in releases],
            "files": [
                {
                    "filename": file.filename,
                    "url": _url(name, release.version, file.filename),
                    "hashes": {"sha256": file.sha256},
                    "size": file.size,
                    "upload-time": release.uploaded,
                    # A reason or true (PEP 691): an empty reason would mean "not yanked".
                    "yanked": False if release.yanked is None else release.yanked or True,
                    **({"requires-python": release.requires_python} if release.requires_python else {}),
                }
                for release, file in files
            ],
        }
        return msgspec.json.encode(listing)
    lines = []
    for release, file in files:
        address = f"{_url(name, release.version, file.filename)}#sha256={file.sha256}"
        values = {"data-requires-python": release.requires_python or None, "data-yanked": release.yanked}
        attributes = ""
        for key, value in values.items():
            attributes += "" if value is None else f' {key}="{escape(value)}"'
        lines.append(f'<a href="{escape(address)}"{attributes}>{escape(file.filename)}</a>')
    return _page(f"Links for {name}", lines)


def _url(name: str, version: str, filename: str) -> str:
    return f"../../{quote(name)}/{quote(version)}/{quote(filename)}"


def _page(title: str, links: Sequence[str]) -> bytes:
    body = "".join(f"    {link}<br>\n" for link in links)
    meta = f'<meta charset="utf-8">\n    <meta name="pypi:repository-version" content="{API}">'
    head = f"  <head>\n    {meta}\n    <title>{escape(title)}</title>\n  </head>"
    return (
        f"<!DOCTYPE html>\n<html>\n{head}\n  <body>\n    <h1>{escape(title)}</h1>\n{body}  </body>\n</html>\n"
    ).encode()
