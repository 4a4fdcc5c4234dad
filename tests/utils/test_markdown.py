"""Markdown for pull requests: untrusted text is escaped."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from tiers import each_row

from rove.utils.markdown import MAX_TEXT, code, plain

HOSTILE = [
    "a|b",
    "<script>alert(1)</script>",
    "![x](https://example.org/x.png)",
    "[x](javascript:alert(1))",
    "https://example.org",
    "www.example.org",
    "`a` | ``b``",
    "**a** _b_ ~~c~~",
    "a\n\n# b\n| c |",
    "a\r| b |",
    "&lt;b&gt;",
    "$x$",
    "\\|",
    "a\u2028b\x1b[2J",
    "\u202eabc",
    "`",
]


def tokens(text: str) -> list[str]:
    """Return the types of the Markdown tokens of a text, except paragraphs and plain text."""
    token_types: list[str] = []
    for token in MarkdownIt("gfm-like", {"linkify": False, "html": True}).parse(text):
        token_types += [child.type for child in token.children or [token]]
    return [name for name in token_types if name not in ("paragraph_open", "paragraph_close", "text", "text_special")]


@each_row("text", HOSTILE)
def test_hostile_text_is_escaped(text: str):
    assert tokens(f"a {plain(text)}") == []
    assert tokens(f"a {code(text)}") == ["code_inline"]
    table = f"| a | b |\n|---|---|\n| {code(text)} | {plain(text)} |\n"
    token_types = tokens(table)
    assert token_types.count("td_open") == 2
    assert {name for name in token_types if not name.startswith(("table", "thead", "tbody", "tr", "th", "td"))} == {
        "code_inline"
    }


@given(st.text(max_size=300))
def test_escaped_text_is_one_line_of_limited_length(text: str):
    for escaped in (plain(text), code(text)):
        assert len(escaped.splitlines()) <= 1
        assert len(escaped) <= 3 * MAX_TEXT + 10


def test_mentions_and_addresses_are_escaped_and_long_text_is_truncated():
    assert plain("@all") == "\\@\u2060all"
    assert plain("https://a") == "https\\://a"
    assert plain("WWW.a") == "WWW\\.a"
    assert len(plain("x" * 1_000)) == MAX_TEXT
