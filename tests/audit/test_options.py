"""Questions with options: which options a prompt lists, and whether the form of the right one gives it away."""

from __future__ import annotations

import random
from typing import Any

import pytest

import rove as vf
from rove.audit.options import options_of
from rove.audit.reward_checks import check_blind_replies
from rove.core.findings import Severity
from tests.audit.test_checks import findings, text


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        ("Which?\nA. Paris\nB) Rome\n(C) Bern, a town", {"A": "Paris", "B": "Rome", "C": "Bern, a town"}),
        ("Which? (a) to go (b) to stay", {"a": "to go", "b": "to stay"}),
        ("1. Read.\n2. Choose.\n1) red\n2) blue\n3) green", {"1": "red", "2": "blue", "3": "green"}),
        ("A. Einstein was born in 1879. Where?", {}),
        ("What is 3 times 4?", {}),
        ("Which?\n**A.** red\n**B.** blue", {"A": "red", "B": "blue"}),
        ("Which?\n[A] red\n[B] blue", {"A": "red", "B": "blue"}),
        ("Which?\nA. Vitamin C. Good\nB. Vitamin D", {"A": "Vitamin C. Good", "B": "Vitamin D"}),
        ("Which?\nA. x\nB. y\nC. z\nThink in steps: 1. read 2. answer", {"A": "x", "B": "y", "C": "z"}),
        ("A. x" + " " * 100_000 + "y\nB. z", {"A": "x" + " " * 100_000 + "y", "B": "z"}),
    ],
)
def test_options_of_a_prompt(prompt: str, options: dict[str, str]) -> None:
    assert options_of(prompt) == options


def word(rng: random.Random) -> str:
    return "".join(rng.choices("abcdefgh", k=4))


@pytest.mark.parametrize("answer_is_label", [True, False])
@pytest.mark.parametrize(
    ("right", "wrong", "prompt", "severities"),
    [
        ("a long definition of the word", "short", "What does it mean?", [Severity.HIGH]),
        ("a long definition of the word", "short", "Which option is the longest?", []),
        ("equal", "equal", "What does it mean?", []),
    ],
)
async def test_the_longest_option_is_right(
    right: str, wrong: str, prompt: str, severities: list[Severity], answer_is_label: bool
) -> None:
    rows: list[dict[str, Any]] = []
    for number in range(60):
        rng = random.Random(number)
        options = [f"{right} {word(rng)}", *(f"{wrong} {word(rng)}" for _ in range(3))]
        answer = options[0]
        rng.shuffle(options)
        listed = "\n".join(f"{label}. {option}" for label, option in zip("ABCD", options, strict=True))
        label = "ABCD"[options.index(answer)]
        rows.append({"question": f"{prompt}\n{listed}", "answer": label if answer_is_label else answer})

    def is_right(completion: Any, answer: str) -> float:
        return float(text(completion).strip() == answer)

    env = vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([is_right]))
    reported = [finding for finding in await findings(check_blind_replies, env) if finding.severity > Severity.LOW]
    assert [finding.severity for finding in reported] == severities
    assert all("the longest option" in finding.text for finding in reported)


@pytest.mark.parametrize(
    "prompt",
    [
        "Which number is the largest?",
        "Which number lies between the two others?",
        "Which is the biggest?",
        "Which number is right?",  # the length of a number shows its size
    ],
)
async def test_sound_questions_about_numbers(prompt: str) -> None:
    rows: list[dict[str, Any]] = []
    for number in range(60):
        rng = random.Random(number)
        numbers = [rng.randint(1, 9), rng.randint(100, 999), rng.randint(10_000, 99_999)]
        answer = sorted(numbers)[1] if "between" in prompt else max(numbers)
        rng.shuffle(numbers)
        listed = "\n".join(f"{label}. {option}" for label, option in zip("ABC", numbers, strict=True))
        rows.append({"question": f"{prompt}\n{listed}", "answer": "ABC"[numbers.index(answer)]})

    def is_right(completion: Any, answer: str) -> float:
        return float(text(completion).strip() == answer)

    env = vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([is_right]))
    assert [
        finding.text for finding in await findings(check_blind_replies, env) if finding.severity > Severity.LOW
    ] == []
