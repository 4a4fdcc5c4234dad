"""Scorers for questions with a known answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import each_row

from rove.core.errors import ConfigError, Error
from rove.rubrics.scorers import RegexRubric, choice, choice_letter, exact, has_answer_tag, numeric


def test_an_answer_tag_is_a_tag_or_a_box():
    replies = ["<answer>1</answer>", "<Answer >1</answer>", r"\boxed{1}", "1", "<answer>1", "<think><answer>1</answer>"]
    assert [has_answer_tag(text) for text in replies] == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]


@each_row(
    ("reply", "answer", "score"),
    [
        ("  New\n york", "new York", 0.0),
        ("<answer>New\n YORK</answer>", "new  york", 1.0),
        ("Paris.", "Paris", 0.0),
        ("<Answer>Paris</Answer>", "**Paris**", 1.0),
        ("<answer>\\boxed{Paris}</answer>", "Paris", 1.0),
        ("<answer>cafe\u0301\u200b</answer>", "Caf\u00e9", 1.0),
        ("", "", 0.0),
        ("", " \u200b ", 0.0),
    ],
)
def test_exact_ignores_case_white_space_formatting_and_unicode_form(reply: str, answer: str, score: float):
    assert exact(reply, answer) == score


@each_row(
    ("reply", "answer", "score"),
    [
        ("1,234.50", "1234.5", 1.0),
        ("$1.2345e3 in total", "1,234.5", 1.0),
        ("\u22125", "-5", 1.0),
        ("between 3-4", "4", 0.0),
        ("x = -4", "4", 0.0),
        ("3 of 12.", "12", 0.0),
        ("The total is 12.", "12", 1.0),
        (".5", "0.5", 1.0),
        ("1'000\u2009000", "1000000", 1.0),
        ("none", "0", 0.0),
        ("1e999", "1e300", 0.0),
        ("", "0", 0.0),
        ("<think>maybe it is 42", "42", 0.0),
        ("<think>It could be <answer>4</answer> but let me", "4", 0.0),
        ("22 or maybe not", "22", 0.0),
    ],
)
def test_numeric_compares_the_last_number_if_it_stands_alone(reply: str, answer: str, score: float):
    assert numeric(reply, answer) == score


def test_numeric_has_a_relative_tolerance_and_reads_right_answers_after_hashes():
    assert [numeric(reply, "1000", 0.01) for reply in ("1010", "1011", "990")] == [1.0, 0.0, 1.0]
    assert [numeric(reply, "-0.1", 0.01) for reply in ("-0.1009", "-0.102", "0.1")] == [1.0, 0.0, 0.0]
    assert [numeric(reply, "6.6e-34") for reply in ("6.6e-34", "0", "6.7e-34")] == [1.0, 0.0, 0.0]
    assert [numeric(reply, "0") for reply in ("0", "-0.0", "1e-300")] == [1.0, 1.0, 0.0]
    assert numeric("so 42", "6 * 7 = 42\n#### 42") == 1.0


@pytest.mark.parametrize(
    ("answer", "description"), [("many", "no number"), ("1/2", "2 numbers"), ("2^10", "2 numbers"), ("", "no number")]
)
def test_numeric_rejects_a_right_answer_that_is_not_one_number(answer: str, description: str):
    with pytest.raises(Error, match=f"has {description}; the scorer 'numeric' expects one. Use the scorer 'math'"):
        numeric("1", answer)


@given(st.text(alphabet="0123456789,.e+-' x", max_size=60))
def test_numeric_accepts_any_text(text: str):
    assert numeric(text, "7") in (0.0, 1.0)


COLORS = ["red", "green", "Light blue"]


@each_row(
    ("reply", "letter"),
    [
        ("B", "B"),
        ("(b)", "B"),
        ("<answer>C) Light blue</answer>", "C"),
        ("light  Blue", "C"),
        ("I think the answer is (A)", "A"),
        ("Answer: B.", "B"),
        ("**B**", "B"),
        ("A cat", ""),
        ("The answer is a red one", ""),
        ("Option B is wrong, the answer is C", "C"),
        ("Because it is green", ""),
        ("$B$", "B"),
        ("\\boxed{\\text{B}}", "B"),
        ("<answer>C - light blue</answer>", "C"),
        ("It is not option B", ""),
        ("A) no B) yes", ""),
        ("<think>B", ""),
        ("", ""),
    ],
)
def test_a_choice_is_a_letter_or_the_text_of_an_option(reply: str, letter: str):
    assert [right for right in "ABC" if choice(reply, right, COLORS)] == [*letter]


def test_no_reply_chooses_an_option_without_a_letter():
    assert choice("", "") == choice("none", " ", COLORS) == 0.0


def test_the_right_option_is_its_letter_its_text_or_its_position():
    answers = ["b", "GREEN", 1, "1", "B"]
    assert {choice_letter(answer, COLORS) for answer in answers} == {"B"}
    assert choice_letter("2", ["1", "2", "3"]) == "B"  # the text of an option comes first
    for wrong in ("D", 3, -1, "gray", ""):
        with pytest.raises(ValueError, match="is none of the choices"):
            choice_letter(wrong, COLORS)


async def test_a_regex_is_searched_in_the_answer_and_bounded_in_time():
    rubric = RegexRubric(timeout_seconds=1.0)
    try:
        assert await rubric.regex("the year 1984?", r"\b19\d\d\b") == 1.0
        assert await rubric.regex("<answer>1984</answer>", "^198$") == 0.0
        assert await rubric.regex("a" * 40 + "!", r"^(a+)+$") == 0.0
        assert await rubric.regex("again", "again") == 1.0
        assert await rubric.regex("<think>1984", "1984") == 0.0
        with pytest.raises(Error, match=r"'\(' is not a regular expression"):
            await rubric.regex("x", "(")
        with pytest.raises(Error, match=r"' ' is not a regular expression"):
            await rubric.regex("any reply", " ")
    finally:
        await rubric.teardown()
    with pytest.raises(ConfigError, match="timeout_seconds is 0"):
        RegexRubric(timeout_seconds=0)
