"""Options that texts choose: by letter or by text, in any marks, unless they are denied or offered with others."""

from __future__ import annotations

import time

import pytest
from tiers import each_row

from rove.rubrics.choices import read_choice

COLORS = ["red", "green", "blue", "black"]
CHOSEN = {
    "B": [
        *(
            "B",
            "b",
            "(b)",
            "B.",
            "B)",
            "[B]",
            "B!",
            "B?",
            '"B"',
            "`B`",
            "**B**",
            "$B$",
            "\\(B\\)",
            "\\text{B}",
            "\\boxed{B}",
            "Ｂ",
            "(Ｂ)",
        ),
        *("option b", "Option B", "choice (B)", "letter B", "\\textbf{(B)}", "**(B)**", "B\u200b", "$\\mathrm{B}$"),
        *("green", "Green.", "'green'", "“green”", "`green`", "$\\text{green}$", "GREEN!", "green (B)"),
        *(
            "B) green",
            "B. green",
            "B - green",
            "B – green",
            "B: green",
            "B (green)",
            "B green",
            "(B) green",
            "**B.** green",
            "b) green",
        ),
        *(
            "B) \\text{green}",
            "Option B: green",
            "B = green",
            "B, because grass is green",
            "B: it is the color of grass",
        ),
        *(
            "The answer is B",
            "The answer is (B).",
            "So the answer is **B**.",
            "the correct option is B",
            "The answer is green.",
            "Answer: B",
        ),
        *(
            "The correct answer is B) green because A) is wrong",
            "The answer is not A but B.",
            "The answer is B, not A.",
            "My choice is B",
        ),
        *(
            "I choose B",
            "I'd go with option B.",
            "I choose B over C",
            "B is correct.",
            "A is wrong, so option B is right",
            "It is B.",
            "It must be B, since it is green.",
            "maybe B",
        ),
        *("Option A is wrong, the answer is B", "So B is the right answer."),
    ],
    "A": ["A", "a", "(a)", "A. red", "The answer is A", "The answer is (a)", "A is correct"],
    "": [
        *(
            "",
            "E",
            "Error: rate limited",
            "I",
            "I don't know",
            "None of the above",
            "All of the above",
            "A cat",
            "A red one",
            "Vitamin C",
            "C++",
        ),
        *(
            "A or B",
            "B or C",
            "B/C",
            "B and C",
            "A, B",
            "A B",
            "ABC",
            "both B and C",
            "(B) and (C)",
            "The answer is B or C",
            "Either A or B",
        ),
        *("A) no B) yes", "A. B. C. are all wrong", "B) green C) blue", "Option A or option B", "a) yes, b) no"),
        *(
            "It is not option B",
            "not B",
            "Not B.",
            "neither B nor C",
            "everything except B",
            "B is not correct",
            "Option B is wrong",
        ),
        *(
            "The answer is not B",
            "The answer isn't B",
            "It can't be option B",
            "I would not choose B",
            "B or maybe not",
            "B? No.",
        ),
        *(
            "B) red",
            "B - red",
            "The answer is a red one",
            "Because it is green",
            "A is for apple",
            "the first option",
            "Compared to (A), (B) is darker",
        ),
    ],
}


@pytest.mark.parametrize(("letter", "text"), [(letter, text) for letter, texts in CHOSEN.items() for text in texts])
def test_a_text_chooses_the_option_that_it_names_and_no_other(letter: str, text: str):
    assert read_choice(text, COLORS) == letter


@each_row(
    "text",
    [
        *("I doubt option B", "Option B fails.", "I reject option B", "We can rule out option B.", "Without option B"),
        *("I can't see how it would be option B", "I do not think it is (B)", "Option B must be rejected", "Avoid (B)"),
        *("Option B is a mistake", "It would be wrong to choose option B", "It is false that it is option B"),
        *("A-D", "A – C", "B-C.", "A, maybe B", "A or maybe B", "red or maybe B", "It is A or maybe B.", "A / maybe B"),
    ],
)
def test_a_denied_option_a_range_and_an_alternative_are_no_choice(text: str):
    assert read_choice(text, COLORS) == ""


@each_row(
    "text",
    [
        *("It is not red, so option B", "It is not A but option B.", "No doubt option B", "Option B fits best."),
        *("Option B is correct, the others are wrong.", "B, I think.", "(B), I believe", "Answer: B, I'm sure."),
        *("(green)", "[green].", "{Green}", "'B'.", "“b”!"),
    ],
)
def test_a_denial_of_something_else_and_a_hedge_do_not_change_the_choice(text: str):
    assert read_choice(text, COLORS) == "B"


def test_an_option_after_z_is_chosen_by_its_text():
    options = [f"word {number}" for number in range(30)]
    assert [read_choice(text, options) for text in ("word 25", "word 26", "A. word 26", "A. word 3")] == [
        "Z",
        "AA",
        "",
        "",
    ]


def test_brackets_of_an_interval_are_no_marks():
    assert [read_choice(text, ["(0,1)", "x"]) for text in ("(0,1)", "[0,1]")] == ["A", ""]
    assert [read_choice(text, ["(a,b)", "x"]) for text in ("(a,b)", "[a,b]")] == ["A", ""]


def test_without_options_only_letters_count():
    texts = ["C) Light blue", "B", "(d)", "green", "Z"]
    assert [read_choice(text, []) for text in texts] == ["C", "B", "D", "", "Z"]


def test_options_that_differ_only_in_marks_are_told_apart_by_them():
    assert [read_choice(text, ["5!", "5"]) for text in ("5!", "5", "5?")] == ["A", "B", ""]
    assert read_choice("same", ["same", "same"]) == ""
    assert [read_choice(text, ["$x^2$", "x_2"]) for text in ("x^2", "\\(x^2\\)", "x_2")] == ["A", "A", "B"]


@each_row("piece", ["(B) ", "option ", "the answer is ", "A) ", "is ", "not ", "$", "\\text{", "**", " "])
def test_long_texts_are_read_quickly(piece: str):
    started = time.process_time()
    read_choice("B" + piece * 20_000 + "B", COLORS)
    assert time.process_time() - started < 2
