"""What of a text a browser might act on."""

from __future__ import annotations

import pytest
from tiers import first_quick

from rove.hub.package.manifest import find_markup

LONG = 250_000


@pytest.mark.parametrize(
    "text",
    [
        "<script>", "</SCRIPT >", "< / script", "<\\script>", "<img src=x>", "<b onclick=x>", "<b class='a' ONload = x",
        "<svg/onload=x>", "javascript:x", "JavaScript :x", "<meta http-equiv=refresh>", "<iframe", "<link rel=stylesheet>",
    ],
)  # fmt: skip
def test_what_acts_is_found(text: str):
    assert find_markup(f"words {text} words")


@pytest.mark.parametrize(
    "text",
    [
        "", "Answer <answer>42</answer>, think in <think>…</think>.", "x < y and y > z", "Jane <jane@example.org>", ">=3.11,<4",
        "<b>bold</b>", "on = 1", "a script", "JavaScript", "<scripted>", "one<two",
    ],
)  # fmt: skip
def test_what_is_text_is_left_alone(text: str):
    assert find_markup(text) is None


@pytest.mark.parametrize(
    "piece", first_quick(["<", "< ", "<\t/", "< on", "<on", "on ", "<ona ", "javascript ", "\\", "<a"], 3)
)
def test_no_text_takes_long(piece: str):
    """Where the time grew with the square of the length, one of these would take minutes."""
    assert find_markup(piece * (LONG // len(piece))) is None
    assert find_markup("<" + piece.strip("<") * (LONG // len(piece))) is None
    assert find_markup("<" + " " * LONG) is None
