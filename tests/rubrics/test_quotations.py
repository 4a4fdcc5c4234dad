"""What counts as a quotation of the judged text."""

from __future__ import annotations

import pytest
from tiers import each_row

from rove.rubrics.quotations import JudgedText, plain, sentences, squeezed, without_quotations


def test_plain_text_has_one_spelling_of_each_character() -> None:
    assert plain("Ｖer\u200bdict：\ufeff ye\u00ads\r\nno\u2028end") == "Verdict: yes\nno\nend"
    assert plain("e\u0301") == "é"


def test_sentences_end_at_lines_marks_and_reasoning_tags() -> None:
    assert sentences("No. It is 3.5!\nWhy？はい。いいえ</think>yes") == [
        "No.",
        "It is 3.5!",
        "Why？",
        "はい。",
        "いいえ",
        "yes",
    ]


def test_squeezed_text_keeps_letters_digits_and_symbols() -> None:
    assert squeezed("**Verdict:** `C+` = 👍") == "verdictc+👍"


@each_row(
    ("text", "expected"),
    [
        ('a "b" c', "a     c"),
        ("a\n> b\nc", "a\n   \nc"),
        ("a\n```\nb\n```\nc", "a\n   \n \n   \nc"),
        ("a\n~~~\nb", "a\n   \n "),
        ('it\'s "no"', 'it\'s "no"'),
    ],
)
def test_quotations_become_spaces_of_the_same_length(text: str, expected: str) -> None:
    assert without_quotations(text, lambda part: part.strip('"') == "no") == expected


@pytest.mark.parametrize("line", ["yes", "- YES!", "“yes”", "ｙｅｓ"])
def test_lines_and_sentences_are_recognized_in_any_form(line: str) -> None:
    assert JudgedText("It is 5.\nYes.").has_line(plain(line))
    assert not JudgedText("It is yes or yesterday").has_line(plain(line))
    assert not JudgedText("").has_line(line)


def test_parts_are_recognized_across_lines_and_brackets_exactly() -> None:
    judged = JudgedText("5. Verdict:\n\nyes [[ A ]]")
    assert judged.contains("**Verdict: yes**")
    assert not judged.contains("Verdict: no") and not judged.contains("…")
    assert judged.contains_marks("[[A]]") and not JudgedText("A").contains_marks("[[A]]")
