"""Numbers that texts give as their answers: decorations do not change a number, and other expressions are not numbers."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import each_row

from rove.rubrics.numbers import count_numbers, read_number

NUMBERS: dict[float, list[str]] = {
    5: [
        *(
            "5",
            "5.",
            "5,",
            "5!",
            "5?",
            "5...",
            "5.0",
            "+5",
            "(5)",
            "[5]",
            "{5}",
            "'5'",
            '"5"',
            "`5`",
            "**5**",
            "> 5",
            "| 5 |",
        ),
        *(
            "$5",
            "5$",
            "5 USD",
            "USD 5",
            "EUR5",
            "US$5",
            "5%",
            "5\\%",
            "5 percent",
            "#5",
            "No. 5",
            "No.5",
            "$5$",
            "\\text{5}",
        ),
        *(
            "5kg",
            "5 km/h",
            "5 m/s^2",
            "5m²",
            "5 m s⁻¹",
            "5°C",
            "5^\\circ",
            "5 pm",
            "5-year",
            "5 (five)",
            "5 dozen",
            "$5/hour",
        ),
        *("about 5", "~5", "≈5", "=> 5", "x = 5", "f(2) = 5", "2 + 3 = 5 apples", "10 minus 5 is 5", "5 or so", "—5"),
        *("It is 5, which is prime.", "probably 5", "5, but I am not sure", "So 5 children do not swim.", "Step 3: 5"),
        *(
            "5, not 6",
            "not 6 but 5",
            "It isn't 6, it's 5.",
            "It takes 5 hours (300 minutes).",
            "5 (4 + 1)",
            "The answer to part 2 is (5).",
            "5% (or 1/20)",
            "五: 5",
            "答案是5个",
            "５",
        ),
        *("Natalia has 2, 5 of them are", "25/5 = 5 days", "5 hours, or 5 h"),
    ],
    -5: [
        "-5",
        "- 5",
        "−5",
        "–5",
        "–  5",
        "-$5",
        "$-5",
        "- $5",
        "-US$5",
        "-€5",
        "minus 5",
        "-(5)",
        "negative 5",
        "x = -5",
        "\\(-5\\)",
    ],
    1234.5: [
        "1,234.50",
        "1 234.5",
        "1'234.5",
        "1_234.5",
        "1{,}234.5",
        "1\\,234.5",
        "1\u202f234.5",
        "$1,234.50",
        "1.2345e3",
    ],
    1500: [
        "1.5×10^3",
        "1.5 x 10^3",
        "1.5*10^3",
        "1.5 * 10**3",
        "1.5\\cdot10^{3}",
        "1.5 × 10³",
        "$1.5 \\times 10^{3}$ m",
    ],
    0.5: ["1/2", "1/2.", ".5", "½", "\\frac{1}{2}", "\\frac12", "50/100 of it"],
    2.5: ["2 1/2", "2½", "2\\frac{1}{2}", "2.5 liters"],
    500: ["5 hundred", "5 Hundred of them"],
    5e6: ["5 million", "$5 million.", "5,000,000", "500万", "0.05亿"],
}
NO_NUMBERS = [
    *("", "none", "five", "nan", "inf", "1e999", "9" * 400, "9" * 5000, "1/0"),
    *(
        "2^5",
        "2**5",
        "2⁵",
        "5²",
        "√5",
        "\\sqrt{5}",
        "\\sqrt[3]{5}",
        "log(5)",
        "f(5)",
        "2(5)",
        "5x",
        "5 x",
        "5\\pi",
        "5k",
        "\\frac{x}{5}",
    ),
    *(
        "4 + 5",
        "4-5",
        "4 - 5",
        "4×5",
        "4 * 5",
        "4 x 5",
        "4 times 5",
        "4 ÷ 5",
        "5 = 2 + 3",
        "± 5",
        "5 ± 1",
        "x > 5",
        "≥ 5",
        "2 < x < 5",
    ),
    *(
        "4–5",
        "4 to 5",
        "from 4 through 5",
        "between 4 and 5",
        "4:5",
        "3 out of 5",
        "3 of 5",
        "20% of 5",
        "1 in 5",
        "4 vs 5",
    ),
    *(
        "12:05",
        "7:05 pm",
        "2024-01-05",
        "05/01/2005",
        "5.1.2005",
        "January 4, 2005",
        "January 4th, 2005",
        "January 4, 2005 was a Tuesday",
        "4 January 2005",
        "4th of January 2005",
    ),
    *(
        "H2O5",
        "CO5",
        "A5",
        "B-5",
        "x_5",
        "x_{5}",
        "v5",
        "3.11.5",
        "192.168.0.5",
        "555-0005",
        "+1 555 123 0005",
        "0x5",
        "5th",
        "5'5\"",
    ),
    *(
        "4, 5",
        "4 and 5",
        "4 & 5",
        "4;5",
        "4 5",
        "4\n5",
        "(4, 5)",
        "[4, 5]",
        "3 pens, 4 pencils and 5 books",
        "2 hours and 5 minutes",
    ),
    *("4 or 5", "either 4 or 5", "4, maybe 5", "x = 4 or x = 5", "4? 5?", "4, or possibly 5"),
    *("3,5", "12,34", "1,00,5", "1.000.005"),
    *(
        "not 5",
        "certainly not 5",
        "It isn't 5.",
        "5 or maybe not",
        "5, or not",
        "5 not",
        "5? No.",
        "5. No, wait",
        "5 or something else",
    ),
    *("It is 5, but that is wrong.", "5, scratch that", "5 or more", "It is 5. It is not 5."),
]


@each_row("text", ["Minus 5", "NEGATIVE 5.", "Negative $5", "negative (5)", "It is minus **5**."])
def test_a_sign_in_words_belongs_to_the_number(text: str):
    assert read_number(text) == -5


@each_row(
    "text",
    ["log 2", "Sin 2", "sqrt 2", "the square root of 2", "factorial of 2", "twice 2", "2 squared", "2 cubed.", "1—2"],
)
def test_a_number_in_an_expression_of_words_is_no_number(text: str):
    assert read_number(text) is None


def test_an_expression_of_words_before_the_number_does_not_change_it():
    assert [read_number(text) for text in ("2 squared is 4", "The square root of 16 is 4", "Log: 4")] == [4, 4, 4]


@each_row(("number", "text"), [(number, text) for number, texts in NUMBERS.items() for text in texts])
def test_marks_units_and_words_do_not_change_a_number(number: float, text: str):
    assert read_number(text) == pytest.approx(number, rel=1e-12)


@each_row("text", NO_NUMBERS)
def test_a_part_of_another_expression_and_a_hedged_number_is_no_number(text: str):
    assert read_number(text) is None


def test_the_last_number_of_a_text_counts():
    assert read_number("It is 5. It is 6.") == 6
    assert read_number("He had 9, gave 2 away, so 7 remain.") == 7
    assert read_number("6 of the 7 days: 1/3 of it") == pytest.approx(1 / 3)


def test_a_number_of_several_words_counts_once():
    counts = {"5": 1, "1/2": 2, "2^10": 2, "6.02 × 10^23": 1, "25 m²": 1, "1,000,000": 1, "5 or 6": 2, "": 0}
    assert {text: count_numbers(text) for text in counts} == counts


@given(st.text(alphabet="0123456789,./e+-^*x×=()$% \n'√mnot", max_size=60))
def test_any_text_has_a_finite_number_or_none(text: str):
    number = read_number(text)
    assert number is None or abs(number) < float("inf")


@each_row("piece", ["1 ", "9", "not 5 ", "1,000", "- ", "5 (", "\\frac{", "no ", "\\text{"])
def test_long_texts_are_read_quickly(piece: str):
    started = time.process_time()
    read_number(piece * 20_000 + "5")
    assert time.process_time() - started < 2
