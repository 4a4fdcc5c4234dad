"""How much of the right answer a wrong answer has, which is the partial credit that a sound grader may pay for it."""

from __future__ import annotations

import re
from collections import Counter
from difflib import SequenceMatcher

MIN_TEXT = 3
"""Shorter answers are options or labels, which are right or wrong as a whole."""
MAX_COMPARED_CHARS = 300
"""Characters of a long answer that are compared."""


def normalized(text: str) -> str:
    """Return a text in lower case without differences of white space."""
    return " ".join(text.casefold().split())


def similarity(candidate: str, answer: str) -> float:
    """Return the similarity of two answers, between 0 (nothing in common) and 1 (equal).

    The result is the highest of common measures, because the audit does not know which of them a grader uses: closeness of
    numbers, equal characters, and equal words in any order.
    """
    first, second = normalized(candidate), normalized(answer)
    if first == second:
        return 1.0
    numbers = _number(first), _number(second)
    if numbers[0] is not None and numbers[1] is not None:
        largest = max(abs(numbers[0]), abs(numbers[1]))
        return max(0.0, 1.0 - abs(numbers[0] - numbers[1]) / largest) if largest else 1.0
    if min(len(first), len(second)) < MIN_TEXT:
        return 0.0
    # With "autojunk", frequent characters of texts from 200 characters on are left out: one changed letter of 500 gave 0.5.
    matcher = SequenceMatcher(None, first[:MAX_COMPARED_CHARS], second[:MAX_COMPARED_CHARS], autojunk=False)
    return max(matcher.ratio(), _common_words(first, second))


def _common_words(first: str, second: str) -> float:
    """Return the F1 score of the words of two texts."""
    words, other_words = (Counter(re.findall(r"\w+", text)) for text in (first, second))
    num_words = words.total() + other_words.total()
    return 2 * (words & other_words).total() / num_words if num_words else 0.0


def _number(text: str) -> float | None:
    if not re.fullmatch(r"[-+]?\d+(\.\d+)?", text):
        return None
    return float(text)
