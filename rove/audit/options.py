"""Questions with options: the options of a prompt, and replies that choose one of them by its looks."""

from __future__ import annotations

import random
import re
import statistics
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from itertools import pairwise

from rove.audit.replies import Form, last_message
from rove.audit.subject import Policy
from rove.core.messages import Messages
from rove.core.state import State

LABEL_OF_LINE = re.compile(r"(?m)^[ \t]*(?:\*\*)?[(\[]?([A-Ha-h1-8])[.):\]](?:\*\*)?[ \t]")
LABEL_IN_LINE = re.compile(r"(?:^|(?<=\s))[(\[]?([A-Ha-h1-8])[.):\]][ \t]")
"""The label of an option, as in "A. Paris", "(b) to stay" and "[1] red"."""
ABOUT_LOOKS = re.compile(
    r"\b(long|short|large|small|big|tall|high|low|most|least|few|more|less|many|count|number of|between|order"
    r"|median|length|size|similar|alike|odd one)|\bmiddle (number|value|option)",
    re.IGNORECASE,
)
"""Words that suggest that a question is about the size, the number, or the order of its options."""
MIN_SHARE = 0.5
"""Share of the prompts that have to list options and to lack these words."""
MAX_CHARS = 200
"""Maximum number of characters of an option that are compared with others."""
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def options_of(prompt: str) -> dict[str, str]:
    """Return the texts of the longest list of options in a prompt, by label; {} if it has fewer than two.

    Labels within a line count only if no line begins with one.
    """
    for pattern in (LABEL_OF_LINE, LABEL_IN_LINE):
        lists: list[dict[str, str]] = [{}]
        matches = [*pattern.finditer(prompt), None]
        for match, following in pairwise(matches):
            assert match is not None
            label = match[1]
            text = prompt[match.end() : following.start() if following else None].strip().partition("\n")[0]
            previous_label = next(reversed(lists[-1]), None)
            if label in "Aa1":
                lists.append({})
            elif previous_label is None or ord(label) != ord(previous_label) + 1:
                continue
            lists[-1][label] = text.strip()
        longest = max(reversed(lists), key=len)
        if len(longest) > 1:
            return longest
    return {}


def choices_by_looks(form: Form, prompts: Sequence[str], answers: Sequence[object]) -> dict[str, Policy]:
    """Return policies that choose an option without knowing anything about the question; {} if few prompts list options."""
    usable = [prompt for prompt in prompts if _options_unless_about_looks(prompt)]
    if len(usable) < max(1, MIN_SHARE * len(prompts)):
        return {}
    labels = {label.upper() for prompt in usable for label in options_of(prompt)}
    are_labels = all(str(answer).strip("(). ").upper() in labels for answer in answers)
    rules: dict[str, Callable[[list[str]], str | None]] = {
        "the longest option": lambda texts: None if _only_numbers_differ(texts) else max(texts, key=len),
        "the shortest option": lambda texts: None if _only_numbers_differ(texts) else min(texts, key=len),
        # Wrong options are often made by changing the right one.
        "the option most like the others": lambda texts: max(texts, key=lambda text: _likeness(text, texts)),
        "the option with the middle number": _with_middle_number,
    }
    return {name: _chooses(rule, form, are_labels) for name, rule in rules.items()}


def _options_unless_about_looks(prompt: str) -> dict[str, str]:
    """Return the options of a prompt that does not ask about their looks; else {}."""
    options = options_of(prompt)
    question = prompt
    for text in options.values():
        question = question.replace(text, "", 1)
    return {} if ABOUT_LOOKS.search(question) else options


def _chooses(rule: Callable[[list[str]], str | None], form: Form, are_labels: bool) -> Policy:
    def policy(messages: Messages, state: State, rng: random.Random) -> str:
        options = _options_unless_about_looks(last_message(messages))
        chosen = rule(list(options.values())) if options else None
        if chosen is None:
            return form("")
        return form(next(label for label, text in options.items() if text == chosen) if are_labels else chosen)

    return policy


def _only_numbers_differ(texts: Sequence[str]) -> bool:
    """Return whether options differ only in their numbers; the length of a number shows its size."""
    return len({NUMBER.sub("", text) for text in texts}) == 1


def _likeness(text: str, texts: Sequence[str]) -> float:
    ratios = [
        SequenceMatcher(None, text[:MAX_CHARS], other_text[:MAX_CHARS], autojunk=False).ratio() for other_text in texts
    ]
    return sum(ratios)


def _with_middle_number(texts: list[str]) -> str | None:
    numbers = {text: float(match[0]) for text in texts if (match := NUMBER.search(text))}
    if len(numbers) < len(texts):
        return None
    middle = statistics.median_low(numbers.values())
    return next(text for text, number in numbers.items() if number == middle)
