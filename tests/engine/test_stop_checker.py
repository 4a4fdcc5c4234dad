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


class SplitText:
    """A text as tokens: any split of its bytes, with one id per piece."""

    def __init__(self, text: str, cuts: Sequence[int] = ()):
        data = text.encode()
        self.pieces = [
            data[i:j]
            for i, j in pairwise(sorted({0, len(data), *(first_stop % (len(data) + 1) for first_stop in cuts)}))
        ]

    def __call__(self, ids: Sequence[int]) -> str:
        return b"".join(self.pieces[i] for i in ids).decode(errors="replace")


def run_checker(
    pieces: SplitText, sampling: SamplingParams, max_tokens: int = 1000, **fields: Any
) -> tuple[StopChecker, int, list[str]]:
    """Push tokens until the checker stops; return the checker, the number of tokens and the text streamed after each."""
    checker, streamed = StopChecker(sampling, max_tokens, decode=pieces, **fields), []
    for count in range(len(pieces.pieces)):
        reason = checker.push(count)
        assert reason == checker.reason
        streamed.append(checker.take_text())
        if reason:
            return checker, count + 1, streamed
    return checker, len(pieces.pieces), streamed


def first_stop(text: str, stops: list[str]) -> tuple[str, str] | None:
    """Return the text before the first complete stop string, and that stop string (the longest of several)."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end - len(stop)], stop
    return None


@settings(deadline=None, max_examples=400)
@given(TEXTS, STOPS, st.lists(st.integers(0, 100), max_size=20))
def test_the_stop_position_does_not_depend_on_the_split_into_tokens(text: str, stops: list[str], cuts: list[int]):
    pieces = SplitText(text, cuts)
    checker, count, streamed = run_checker(pieces, SamplingParams(stop=stops))
    expected = first_stop(text, stops)
    if expected is None:
        assert checker.reason is None
        return
    assert (checker.text, checker.stopped_by) == expected
    assert checker.reason == "stop"
    assert "".join(streamed) == checker.text
    # The generation ends with the token that completes the stop string.
    needed = "".join(expected).encode()
    lengths = [sum(map(len, pieces.pieces[:n])) for n in range(len(pieces.pieces) + 1)]
    assert lengths[count - 1] < len(needed) <= lengths[count]


@settings(deadline=None, max_examples=200)
@given(TEXTS, STOPS, st.lists(st.integers(0, 100), max_size=20), st.integers(1, 10))
def test_streamed_text_is_a_prefix_of_the_final_text(text: str, stops: list[str], cuts: list[int], max_tokens: int):
    checker, count, streamed = run_checker(SplitText(text, cuts), SamplingParams(stop=stops), max_tokens)
    if checker.reason:
        assert "".join(streamed) == checker.text
    assert checker.text.startswith("".join(streamed))
    assert checker.reason == "stop" or count < max_tokens or checker.reason == "length"


@settings(deadline=None)
@given(TEXTS, st.lists(st.integers(0, 100), max_size=20))
def test_the_text_of_a_generation_without_stop_strings_is_complete(text: str, cuts: list[int]):
    pieces = SplitText(text, cuts)
    checker, _, _ = run_checker(pieces, SamplingParams(), max_tokens=max(1, len(pieces.pieces)))
    assert checker.text == text
    assert checker.reason == ("length" if text else None)


@settings(deadline=None, max_examples=50)
@given(TEXTS, STOPS)
def test_long_generations_are_decoded_like_short_ones(text: str, stops: list[str]):
    """Every byte is a token, so only the last tokens are decoded again."""
    text = "x🌍é\ufffd" * 30 + text
    pieces = SplitText(text, range(4 * len(text)))
    checker, _, streamed = run_checker(pieces, SamplingParams(stop=stops), max_tokens=len(pieces.pieces))
    assert checker.text == "".join(streamed) == (first_stop(text, stops) or [text])[0]


def test_a_generation_cut_inside_a_character_ends_with_a_replacement_character():
    pieces = SplitText("a€", [2])
    checker = StopChecker(SamplingParams(), 1, decode=pieces)
    assert checker.push(0) == "length"
    assert checker.take_text() == "a\ufffd"


def test_text_that_may_start_a_stop_string_is_held_back():
    _, _, streamed = run_checker(SplitText("xENx END", range(8)), SamplingParams(stop=["END"]))
    assert streamed == ["x", "", "", "ENx", " ", "", "", ""]


def test_the_longest_of_several_stop_strings_with_the_same_end_is_used():
    checker, _, _ = run_checker(SplitText("one two"), SamplingParams(stop=["wo", " two", "o"]))
    assert (checker.text, checker.stopped_by) == ("", "o")
    checker, _, _ = run_checker(SplitText("ne two"), SamplingParams(stop=["wo", " two"]))
    assert (checker.text, checker.stopped_by) == ("ne", " two")


def test_a_stop_token_ends_the_generation_and_is_excluded_from_its_text():
    pieces = SplitText("ab", [1])
    checker, count, _ = run_checker(pieces, SamplingParams(stop_token_ids=[1]))
    assert (checker.reason, checker.stopped_by, checker.text, count) == ("stop", 1, "a", 2)
    checker, *_ = run_checker(pieces, SamplingParams(), stop_ids=frozenset([0]))
    assert (checker.reason, checker.stopped_by, checker.text) == ("stop", 0, "")


def test_before_min_tokens_only_max_tokens_ends_the_generation():
    pieces = SplitText("aXbXcX", range(6))
    checker, count, _ = run_checker(pieces, SamplingParams(stop=["X"], min_tokens=2))
    assert (count, checker.text) == (4, "aXb")
    checker, count, _ = run_checker(pieces, SamplingParams(stop_token_ids=[0, 2], min_tokens=2))
    assert (count, checker.text) == (3, "aX")
    checker, count, _ = run_checker(pieces, SamplingParams(stop=["X"], min_tokens=4), max_tokens=3)
    assert (count, checker.reason, checker.text) == (3, "length", "aXb")


def test_a_stop_string_may_start_before_min_tokens():
    checker, count, _ = run_checker(SplitText("aENDb", range(5)), SamplingParams(stop=["END"], min_tokens=2))
    assert (count, checker.text) == (4, "a")


def test_ignore_eos_ignores_the_models_end_token_but_not_stop_token_ids():
    assert end_token_ids(SamplingParams(stop_token_ids=[5]), frozenset([1])) == {1, 5}
    assert end_token_ids(SamplingParams(ignore_eos=True, stop_token_ids=[5]), frozenset([1])) == {5}
    checker, count, _ = run_checker(
        SplitText("abc", range(3)), SamplingParams(ignore_eos=True), max_tokens=3, stop_ids=frozenset([1])
    )
    assert (count, checker.reason) == (3, "length")


def test_no_text_is_decoded_without_a_decode_function():
    checker = StopChecker(SamplingParams(stop_token_ids=[7]), 5)
    assert [checker.push(3), checker.push(7)] == [None, "stop"]
    assert (checker.text, checker.take_text()) == ("", "")


def test_a_stop_string_takes_precedence_over_max_tokens():
    checker, *_ = run_checker(SplitText("aX", [1]), SamplingParams(stop=["X"]), max_tokens=2)
    assert checker.reason == "stop"


def test_tokens_that_decode_differently_at_the_start_of_a_text():
    def decode(ids: Sequence[int]) -> str:  # like sentencepiece, drops the space of the first word
        return "".join([" the", " end", "ing"][i] for i in ids).removeprefix(" ")

    checker = StopChecker(SamplingParams(), 1000, decode=decode)
    assert [(checker.push(i), checker.take_text())[1] for i in (0, 1, 2, 0)] == ["the", " end", "ing", " the"]
    assert [(checker.push(i), checker.take_text())[1] for i in (0, 1, 2) * 40] == [" the", " end", "ing"] * 40


def test_closing_tokens_are_streamed_only_if_text_follows_them():
    pieces = SplitText("aCbCS", range(5))  # token 1 and 3: a closing token, 4: the stop token
    sampling = SamplingParams(stop=["zzz"])
    _, _, streamed = run_checker(pieces, sampling, stop_ids=frozenset([4]), closing_ids={1, 3, 4})
    assert streamed == ["a", "", "Cb", "", ""]


def test_a_completion_is_decoded_as_the_continuation_of_its_prompt():
    def decode(ids: Sequence[int]) -> str:
        return "".join([" the", " end", "\ufffd"][i] for i in ids).removeprefix(" ")

    for prompt_ids, text in (([1] * 9, " the"), ([], "the"), ([1, 2], "the")):
        checker = StopChecker(SamplingParams(stop=["zzz"]), 1, decode=decode, prompt_ids=prompt_ids)
        checker.push(0)
        assert checker.text == text


class CompleteGrammar:
    """A grammar that is complete at once, with an optional error."""

    def __init__(self, error: str = ""):
        self.error, self.done = error, True


def test_the_end_of_the_grammar_ends_the_generation():
    form: Any = CompleteGrammar()
    checker = StopChecker(SamplingParams(min_tokens=3), 10, constraint=form)
    assert checker.push(4) == "stop"
    assert checker.stopped_by is None


def test_a_grammar_error_fails_the_generation():
    broken: Any = CompleteGrammar("too complex")
    with pytest.raises(ModelError, match="broke off: too complex"):
        StopChecker(SamplingParams(), 10, constraint=broken).push(4)
