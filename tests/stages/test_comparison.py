"""Markdown for pull requests: untrusted text is escaped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from rove.core.records import RolloutRecord, Scores
from rove.stages.comparison import MAX_TEXT, code, comparison_markdown, plain
from rove.statistics import compare
from tests.runs.test_serialization import make_record

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
    found: list[str] = []
    for token in MarkdownIt("gfm-like", {"linkify": False, "html": True}).parse(text):
        found += [child.type for child in token.children or [token]]
    return [one for one in found if one not in ("paragraph_open", "paragraph_close", "text", "text_special")]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_escaped(text: str):
    assert tokens(f"a {plain(text)}") == []
    assert tokens(f"a {code(text)}") == ["code_inline"]
    table = f"| a | b |\n|---|---|\n| {code(text)} | {plain(text)} |\n"
    found = tokens(table)
    assert found.count("td_open") == 2
    assert {one for one in found if not one.startswith(("table", "thead", "tbody", "tr", "th", "td"))} == {
        "code_inline"
    }


@given(st.text(max_size=300))
def test_escaped_text_is_one_line_of_limited_length(text: str):
    for shown in (plain(text), code(text)):
        assert len(shown.splitlines()) <= 1
        assert len(shown) <= 3 * MAX_TEXT + 10


def test_mentions_and_addresses_are_escaped_and_long_text_is_truncated():
    assert plain("@all") == "\\@\u2060all"
    assert plain("https://a") == "https\\://a"
    assert plain("WWW.a") == "WWW\\.a"
    assert len(plain("x" * 1_000)) == MAX_TEXT


def record(example: int, reward: float, name: str) -> RolloutRecord:
    scores = Scores(reward, {name: reward}, {name: 1.0}, {})
    return make_record(example_key=f"key{example}", example_id=example, rollout_index=0, scores=scores)


def test_a_comparison_is_a_table_with_every_value():
    name = "win|<b>"
    a = [record(i, 0.0, name) for i in range(20)]
    b = [record(i, float(i > 4), name) for i in range(20)]
    markdown = comparison_markdown(compare(a, b, names=("old", "ne`w|")), {"temperature": [0.0, None]})
    lines = markdown.splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert {line.count("|") for line in table} == {7}
    assert table[0].startswith("| value | `old` | ``ne`w\u2502`` |")
    assert table[2].startswith("| `reward` | 0 | 0.750 | +0.750 |") and table[2].endswith("| higher |")
    assert table[3].startswith("| `win\u2502<b>` |")
    assert lines[0].startswith("**ne\\`w\\| is better than old\\: reward +0.750")
    assert "higher on 15, equal on 5, lower on 0 examples" in markdown
    assert lines[-1] == "- `temperature`: `0.0` → not set"
