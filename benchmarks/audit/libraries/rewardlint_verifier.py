"""A reference verifier of rewardlint, from the installed package, on products of two numbers (see others.py)."""

from __future__ import annotations

import random
from typing import Any

import rove as vf


def load_environment(verifier: str = "robust_match", num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return products as an environment that is graded by a verifier.

    Args:
        verifier: name of the verifier, such as "last_number".
    """
    from rewardlint import reference  # an optional library

    verify = getattr(reference, verifier)
    rng = random.Random(seed)
    rows: list[dict[str, str]] = []
    for _ in range(num_examples):
        first, second = rng.randint(12, 99), rng.randint(12, 99)
        rows.append({"question": f"What is {first} times {second}?", "answer": str(first * second)})

    def correct(completion: Any, answer: str) -> float:
        return float(verify(str(completion[-1]["content"] or ""), answer))

    prompt = "Answer with the number in \\boxed{}." if verifier == "boxed_exact" else None
    return vf.SingleTurnEnv(dataset=rows, system_prompt=prompt, rubric=vf.Rubric([correct]))
