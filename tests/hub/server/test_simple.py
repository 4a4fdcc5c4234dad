"""The simple index for installers: content negotiation, equal content and escaping."""

from __future__ import annotations

import html.parser
import json

from hypothesis import given
from hypothesis import strategies as st
from tiers import each_row

from rove.hub.server import simple
from rove.hub.server.catalogue import StoredRelease
from rove.hub.server.simple import HTML, HTML_V1, JSON_V1, negotiate
from rove.hub.server.store import StoredFile

PIP = f"{JSON_V1}, {HTML_V1}; q=0.1, text/html; q=0.01"


@each_row(
    ("accept", "form"),
    [
        ("", HTML),
        ("*/*", HTML),
        (PIP, JSON_V1),
        ("text/html", HTML),
        (f"{HTML_V1};q=0.2, text/html;q=0.9", HTML),
        ("text/html, application/xhtml+xml, application/xml;q=0.9, */*;q=0.8", HTML),
        ("application/vnd.pypi.simple.latest+json", JSON_V1),
        ("image/png", None),
        ("application/vnd.pypi.simple.v2+json", None),
        (f"{JSON_V1};q=0", None),
        (f"{JSON_V1};q=nonsense, text/html;q=0.1", HTML),
        (",;q=,;;", None),
    ],
)
def test_the_content_type_follows_the_accept_header(accept: str, form: str | None):
    assert negotiate(accept) == form


class Links(html.parser.HTMLParser):
    def __init__(self, page: bytes):
        super().__init__()
        self.tags: list[str] = []
        self.links: list[dict[str, str | None]] = []
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]):
        self.tags.append(tag)
        if tag == "a":
            self.links.append(dict(attrs))


def release(yanked: str | None, requires: str) -> StoredRelease:
    files = [
        StoredFile("a_b-1!2.0-py3-none-any.whl", "wheel", "0" * 64, 5),
        StoredFile("manifest.json", "manifest", "1" * 64, 5),
    ]
    return StoredRelease("1!2.0", requires, "2026-01-01T00:00:00Z", yanked, files)


@given(st.none() | st.text(max_size=30), st.sampled_from(["", ">=3.11", "<4,>=3.11"]))
def test_html_and_json_have_the_same_content(yanked: str | None, requires: str):
    [link] = Links(simple.project(HTML, "a-b", [release(yanked, requires)])).links
    [file] = json.loads(simple.project(JSON_V1, "a-b", [release(yanked, requires)]))["files"]
    assert link["href"] == f"{file['url']}#sha256={file['hashes']['sha256']}"
    assert file["url"] == "../../a-b/1%212.0/a_b-1%212.0-py3-none-any.whl"
    assert link.get("data-requires-python") == file.get("requires-python") == (requires or None)
    assert file["yanked"] == (False if yanked is None else yanked or True)
    if yanked is None:
        assert "data-yanked" not in link
    elif "\r" not in yanked and "\0" not in yanked:  # An HTML parser replaces these characters.
        assert (link["data-yanked"] or "") == yanked


def test_names_and_reasons_are_escaped_in_pages():
    page = Links(simple.project(HTML, "a-b", [release('"><script>alert(1)</script>', "")]))
    assert "script" not in page.tags
    assert [link["href"] for link in Links(simple.project_list(HTML_V1, ["a", "b-c"])).links] == ["a/", "b-c/"]
