"""Text streamed while its tokens are sampled."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rove.core.protocols import Token
from rove.rendering.renderer import Renderer
from rove.rendering.streaming import IncrementalDetokenizer
from tests.rendering.test_renderer import END, RENDERER, TOKENIZER, of_pieces

ids = st.lists(st.integers(0, len(TOKENIZER) - 1), max_size=12) | st.text(max_size=12).map(RENDERER.encode)
PIECES = of_pieces()


def stream(renderer: Renderer, sampled: list[int], earlier_ids: list[int] | None = None) -> list[str]:
    pieces: list[str] = []
    detokenizer = IncrementalDetokenizer(renderer, pieces.append, earlier_ids or [])
    for token in sampled:
        detokenizer(Token(token, -1.0))
    return pieces


@settings(deadline=None, max_examples=300)
@given(ids, st.booleans())
def test_streamed_text_is_a_prefix_of_the_response(sampled: list[int], ends: bool):
    sampled = [*sampled, END] if ends else sampled
    pieces = stream(RENDERER, sampled)
    content = RENDERER.read(sampled).content
    streamed = "".join(pieces)
    assert content.startswith(streamed) and "" not in pieces
    withheld = content[len(streamed) :].removesuffix(RENDERER.decode([END]) * 12).rstrip("\ufffd")
    # Only text that may still change is withheld.
    assert set(withheld.replace(RENDERER.decode([END]), "")) <= {"\ufffd"}


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=20))
def test_a_text_is_streamed_completely(text: str):
    pieces = stream(RENDERER, [*RENDERER.encode(text), END])
    assert "".join(pieces) == text.removesuffix("\ufffd") or text.endswith("\ufffd")


def test_each_word_is_streamed_when_complete():
    assert stream(RENDERER, RENDERER.encode("hello world, say é")) == ["hel", "lo", " wor", "ld", ",", " say", " ", "é"]


@settings(deadline=None)
@given(st.lists(st.integers(0, len(PIECES.tokenizer) - 1), min_size=1, max_size=6), st.data())  # pyright: ignore[reportArgumentType]
def test_a_continuation_is_streamed_with_its_leading_space(earlier_ids: list[int], data: st.DataObject):
    sampled = data.draw(st.lists(st.integers(0, len(PIECES.tokenizer) - 1), max_size=6))  # pyright: ignore[reportArgumentType]
    streamed = "".join(stream(PIECES, sampled, earlier_ids))
    assert PIECES.read_text(earlier_ids, sampled).content.startswith(streamed)
