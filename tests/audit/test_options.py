"""Questions with options: which options a prompt lists, and whether the right one can be told by its looks."""

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
    ],
)
def test_options_of_a_prompt(prompt: str, options: dict[str, str]) -> None:
    assert options_of(prompt) == options


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
        options = [f"{right} {rng.randint(100, 999)}", *(f"{wrong} {rng.randint(100, 999)}" for _ in range(3))]
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
