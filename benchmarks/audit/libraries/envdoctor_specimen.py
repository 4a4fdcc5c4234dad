"""A specimen of rl-envdoctor's zoo: its reward function and its rows, from the installed package (see others.py)."""

from __future__ import annotations

import inspect
from typing import Any

import rove as vf


def load_environment(specimen: str = "exact_match") -> vf.Environment:
    """Return a specimen as an environment of one dataset.

    Args:
        specimen: name of the specimen, such as "format_farm".
    """
    from envdoctor.zoo import SPECIMENS  # an optional library

    chosen = next(candidate for candidate in SPECIMENS if candidate.name == specimen)
    reads_answer = len(inspect.signature(chosen.reward).parameters) > 1

    def reward(completion: Any, answer: str) -> float:
        text = str(completion[-1]["content"] or "")
        return float(chosen.reward(text, answer) if reads_answer else chosen.reward(text))

    rows = [{"question": case.prompt, "answer": str(case.answer)} for case in chosen.cases]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([reward]))
