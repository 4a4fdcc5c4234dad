"""Questions with options: the options of a prompt, and replies that choose one of them by its looks."""

from __future__ import annotations

import random
import re
import statistics
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher

from rove.audit.replies import Form, last_message
from rove.audit.subject import Policy
from rove.core.messages import Messages
from rove.core.state import State

LABELED = re.compile(r"(?:^|(?<=\s))\(?([A-Ha-h1-8])[.):]\s+(\S.*?)(?=\s+\(?[A-Ha-h1-8][.):]\s|\n|\Z)")
"""An option such as "A. Paris", on a line of its own or beside others."""
ABOUT_LOOKS = re.compile(r"longest|shortest|length|how long|letters|median|middle", re.IGNORECASE)
"""Words of prompts whose task may be to choose by looks."""
MIN_SHARE = 0.5
"""Share of the prompts that have to list options."""
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def options_of(prompt: str) -> dict[str, str]:
    """Return the texts of the options that a prompt lists last, by label; {} if it lists fewer than two."""
    options: dict[str, str] = {}
    for label, text in LABELED.findall(prompt):
        if label in "Aa1":
            options = {}
        elif not options or ord(label) != ord(list(options)[-1]) + 1:
            continue
        options[label] = text.strip()
    return options if len(options) > 1 else {}


def choices_by_looks(form: Form, prompts: Sequence[str]) -> dict[str, Policy]:
    """Return policies that choose an option without knowing anything about the question; {} if few prompts list options."""
    with_options = [prompt for prompt in prompts if options_of(prompt)]
    if len(with_options) < max(1, MIN_SHARE * len(prompts)) or any(map(ABOUT_LOOKS.search, with_options)):
        return {}
    rules: dict[str, Callable[[list[str]], str]] = {
        "the longest option": lambda texts: max(texts, key=len),
        "the shortest option": lambda texts: min(texts, key=len),
        # Wrong options are often made by changing the right one.
        "the option most like the others": lambda texts: max(texts, key=lambda text: _likeness(text, texts)),
        "the option with the middle number": _with_middle_number,
    }
    return {name: _chooses(rule, form) for name, rule in rules.items()}


def _chooses(rule: Callable[[list[str]], str], form: Form) -> Policy:
    def policy(messages: Messages, state: State, rng: random.Random) -> str:
        options = options_of(last_message(messages))
        if not options:
            return form("")
        text = rule(list(options.values()))
        label = next(label for label, other in options.items() if other == text)
        # The row's answer only shows whether a label or the text of an option is expected.
        answer = str(state.get("answer")).strip("(). ")
        return form(label if answer.upper() in map(str.upper, options) else text)

    return policy


def _likeness(text: str, texts: Sequence[str]) -> float:
    return sum(SequenceMatcher(None, text[:200], other[:200], autojunk=False).ratio() for other in texts)


def _with_middle_number(texts: list[str]) -> str:
    numbers = {text: float(match[0]) for text in texts if (match := NUMBER.search(text))}
    if len(numbers) < len(texts):
        return texts[0]
    middle = statistics.median_low(numbers.values())
    return next(text for text, number in numbers.items() if number == middle)
