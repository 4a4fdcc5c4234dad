from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rove.core.errors import ModelError
from rove.core.protocols import SamplingParams
from rove.engine.stop_checker import StopChecker, end_token_ids

TEXTS = st.text(alphabet="abA é€🌍\ufffd\n", max_size=30)
STOPS = st.lists(st.text(alphabet="abA é€\n", min_size=1, max_size=4), min_size=1, max_size=3)


class Pieces:
    """A text as tokens: any split of its bytes, each piece with an id of its own."""

    def __init__(self, text: str, cuts: Sequence[int] = ()):
        data = text.encode()
        self.pieces = [data[i:j] for i, j in pairwise(sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)}))]

    def __call__(self, ids: Sequence[int]) -> str:
        return b"".join(self.pieces[i] for i in ids).decode(errors="replace")


def play(
    pieces: Pieces, sampling: SamplingParams, max_tokens: int = 1000, **fields: Any
) -> tuple[StopChecker, int, list[str]]:
    """Push tokens until the end; the ending, how many there were, and what could be streamed after each."""
    ending, told = StopChecker(sampling, max_tokens, decode=pieces, **fields), []
    for count in range(len(pieces.pieces)):
        reason = ending.push(count)
        assert reason == ending.reason
        told.append(ending.take_text())
        if reason:
            return ending, count + 1, told
    return ending, len(pieces.pieces), told


def cut(text: str, stops: list[str]) -> tuple[str, str] | None:
    """Read character by character: the first complete stop text, the longest if there are several."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end - len(stop)], stop
    return None


@settings(deadline=None, max_examples=400)
@given(TEXTS, STOPS, st.lists(st.integers(0, 100), max_size=20))
def test_the_cut_does_not_depend_on_the_split_into_tokens(text: str, stops: list[str], cuts: list[int]):
    pieces = Pieces(text, cuts)
    ending, count, told = play(pieces, SamplingParams(stop=stops))
    expected = cut(text, stops)
    if expected is None:
        assert ending.reason is None
        return
    assert (ending.text, ending.stopped_by) == expected
    assert ending.reason == "stop"
    assert "".join(told) == ending.text
    # The tokens that count are those up to the one in which the stop text is complete.
    needed = "".join(expected).encode()
    lengths = [sum(map(len, pieces.pieces[:n])) for n in range(len(pieces.pieces) + 1)]
    assert lengths[count - 1] < len(needed) <= lengths[count]


@settings(deadline=None, max_examples=200)
@given(TEXTS, STOPS, st.lists(st.integers(0, 100), max_size=20), st.integers(1, 10))
def test_what_was_streamed_is_never_taken_back(text: str, stops: list[str], cuts: list[int], max_tokens: int):
    ending, count, told = play(Pieces(text, cuts), SamplingParams(stop=stops), max_tokens)
    if ending.reason:
        assert "".join(told) == ending.text
    assert ending.text.startswith("".join(told))
    assert ending.reason == "stop" or count < max_tokens or ending.reason == "length"


@settings(deadline=None)
@given(TEXTS, st.lists(st.integers(0, 100), max_size=20))
def test_the_text_of_a_whole_answer_is_the_text(text: str, cuts: list[int]):
    pieces = Pieces(text, cuts)
    ending, _, _ = play(pieces, SamplingParams(), max_tokens=max(1, len(pieces.pieces)))
    assert ending.text == text
    assert ending.reason == ("length" if text else None)


@settings(deadline=None, max_examples=50)
@given(TEXTS, STOPS)
def test_long_answers_are_read_as_short_ones(text: str, stops: list[str]):
    """Every byte a token, so that only the last tokens are decoded again."""
    text = "x🌍é\ufffd" * 30 + text
    pieces = Pieces(text, range(4 * len(text)))
    ending, _, told = play(pieces, SamplingParams(stop=stops), max_tokens=len(pieces.pieces))
    assert ending.text == "".join(told) == (cut(text, stops) or [text])[0]


def test_an_answer_cut_inside_a_character_says_so():
    pieces = Pieces("a€", [2])
    ending = StopChecker(SamplingParams(), 1, decode=pieces)
    assert ending.push(0) == "length"
    assert ending.take_text() == "a\ufffd"


def test_text_that_may_begin_a_stop_text_is_held_back():
    _, _, told = play(Pieces("xENx END", range(8)), SamplingParams(stop=["END"]))
    assert told == ["x", "", "", "ENx", " ", "", "", ""]


def test_the_longest_of_the_stop_texts_that_end_together_counts():
    ending, _, _ = play(Pieces("one two"), SamplingParams(stop=["wo", " two", "o"]))
    assert (ending.text, ending.stopped_by) == ("", "o")
    ending, _, _ = play(Pieces("ne two"), SamplingParams(stop=["wo", " two"]))
    assert (ending.text, ending.stopped_by) == ("ne", " two")


def test_a_stop_token_ends_the_answer_and_is_not_in_its_text():
    pieces = Pieces("ab", [1])
    ending, count, _ = play(pieces, SamplingParams(stop_token_ids=[1]))
    assert (ending.reason, ending.stopped_by, ending.text, count) == ("stop", 1, "a", 2)
    ending, *_ = play(pieces, SamplingParams(), stop_ids=frozenset([0]))
    assert (ending.reason, ending.stopped_by, ending.text) == ("stop", 0, "")


def test_nothing_but_the_limit_counts_before_min_tokens():
    pieces = Pieces("aXbXcX", range(6))
    ending, count, _ = play(pieces, SamplingParams(stop=["X"], min_tokens=2))
    assert (count, ending.text) == (4, "aXb")
    ending, count, _ = play(pieces, SamplingParams(stop_token_ids=[0, 2], min_tokens=2))
    assert (count, ending.text) == (3, "aX")
    ending, count, _ = play(pieces, SamplingParams(stop=["X"], min_tokens=4), max_tokens=3)
    assert (count, ending.reason, ending.text) == (3, "length", "aXb")


def test_a_stop_text_may_begin_before_min_tokens():
    ending, count, _ = play(Pieces("aENDb", range(5)), SamplingParams(stop=["END"], min_tokens=2))
    assert (count, ending.text) == (4, "a")


def test_the_models_end_may_be_ignored_but_not_the_requests():
    assert end_token_ids(SamplingParams(stop_token_ids=[5]), frozenset([1])) == {1, 5}
    assert end_token_ids(SamplingParams(ignore_eos=True, stop_token_ids=[5]), frozenset([1])) == {5}
    ending, count, _ = play(
        Pieces("abc", range(3)), SamplingParams(ignore_eos=True), max_tokens=3, stop_ids=frozenset([1])
    )
    assert (count, ending.reason) == (3, "length")


def test_no_text_is_read_where_nobody_asks_for_it():
    ending = StopChecker(SamplingParams(stop_token_ids=[7]), 5)
    assert [ending.push(3), ending.push(7)] == [None, "stop"]
    assert (ending.text, ending.take_text()) == ("", "")


def test_a_stop_beats_the_limit():
    ending, *_ = play(Pieces("aX", [1]), SamplingParams(stop=["X"]), max_tokens=2)
    assert ending.reason == "stop"


def test_text_of_tokens_that_are_written_differently_at_the_beginning():
    def decode(ids: Sequence[int]) -> str:  # as sentencepiece does: the first word's space is dropped
        return "".join([" the", " end", "ing"][i] for i in ids).removeprefix(" ")

    ending = StopChecker(SamplingParams(), 1000, decode=decode)
    assert [(ending.push(i), ending.take_text())[1] for i in (0, 1, 2, 0)] == ["the", " end", "ing", " the"]
    assert [(ending.push(i), ending.take_text())[1] for i in (0, 1, 2) * 40] == [" the", " end", "ing"] * 40


class Form:
    """A grammar of one token, or of none."""

    def __init__(self, error: str = ""):
        self.error, self.done = error, True


def test_the_end_of_the_grammar_ends_the_answer():
    form: Any = Form()
    ending = StopChecker(SamplingParams(min_tokens=3), 10, constraint=form)
    assert ending.push(4) == "stop"
    assert ending.stopped_by is None


def test_a_grammar_that_breaks_off_fails_the_answer():
    broken: Any = Form("too complex")
    with pytest.raises(ModelError, match="broke off: too complex"):
        StopChecker(SamplingParams(), 10, constraint=broken).push(4)
