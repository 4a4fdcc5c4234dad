"""Prime check: is a number prime? Half of the numbers are."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Is the number prime? Reply <answer>yes</answer> or <answer>no</answer>."


def is_prime(number: int) -> bool:
    """Return whether a number is prime."""
    if number < 2:
        return False
    divisor = 2
    while divisor * divisor <= number:
        if number % divisor == 0:
            return False
        divisor += 1
    return True


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right answer."""
    return float((parser.parse_answer(completion) or "").lower() == answer)


def divider(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Try all divisors."""
    return f"<answer>{'yes' if is_prime(int(messages[-1].content)) else 'no'}</answer>"


def small_divisors(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Try only the divisors 3 and 7."""
    number = int(messages[-1].content)
    return f"<answer>{'no' if number % 3 == 0 or number % 7 == 0 else 'yes'}</answer>"


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    numbers = [number for number in range(101, 9_999, 2) if number % 5 and (number // 10 % 5 == 0) == evaluation]
    rng = random.Random(seed)
    prime = rng.sample([number for number in numbers if is_prime(number)], count // 2)
    other = rng.sample([number for number in numbers if not is_prime(number)], count - count // 2)
    rows = [{"question": str(number), "answer": "yes"} for number in prime]
    rows += [{"question": str(number), "answer": "no"} for number in other]
    rng.shuffle(rows)
    return rows


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment with odd numbers below 10,000.

    Args:
        num_examples: Number of questions for training, and for evaluation; at most 400.
        seed: Random seed of the selection.
    """
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(min(num_examples, 400), f"{seed}:train", False),
        eval_dataset=lambda: _rows(min(num_examples, 400), f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"divider": divider, "small_divisors": small_divisors},
    )
