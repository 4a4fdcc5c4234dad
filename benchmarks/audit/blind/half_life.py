"""Half-life: how much of a radioactive sample is left after a given time?"""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Solve the problem. Write the result in milligrams in <answer> tags, for example <answer>12.5</answer>."
TOLERANCE = 0.01
ISOTOPES = {
    "iodine-131": (8.02, "days"),
    "phosphorus-32": (14.29, "days"),
    "cobalt-60": (5.27, "years"),
    "technetium-99m": (6.01, "hours"),
    "radon-222": (3.82, "days"),
    "tritium": (12.32, "years"),
    "strontium-90": (28.8, "years"),
    "fluorine-18": (1.83, "hours"),
}


def number(text: str) -> float | None:
    """Read a decimal number, optionally followed by mg."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:mg)?\s*", text)
    return float(match[1]) if match else None


def remaining(amount: float, half_life: float, time: float) -> float:
    return amount * 0.5 ** (time / half_life)


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 if the result is within one percent."""
    value = parser.parse_answer(completion)
    return float(value is not None and abs(value - float(answer)) <= TOLERANCE * float(answer))


def _numbers(messages: vf.Messages) -> tuple[float, float, float]:
    question = messages[-1]["content"]
    amount = float(re.search(r"([\d.]+) mg", question)[1])
    half_life = float(re.search(r"half-life of ([\d.]+)", question)[1])
    time = float(re.search(r"after ([\d.]+)", question)[1])
    return amount, half_life, time


def physicist(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Use the law of decay."""
    return f"<answer>{remaining(*_numbers(messages)):.4f}</answer>"


def linear(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Halve the sample for every whole half-life that has passed."""
    amount, half_life, time = _numbers(messages)
    return f"<answer>{amount / 2 ** int(time / half_life):.4f}</answer>"


def make_problem(seed: int) -> dict[str, Any]:
    """Return one problem."""
    rng = random.Random(seed)
    isotope = rng.choice(sorted(ISOTOPES))
    half_life, unit = ISOTOPES[isotope]
    amount = rng.randint(20, 900)
    time = round(rng.uniform(0.3, 4.0) * half_life, 1)
    question = (
        f"A sample contains {amount} mg of {isotope}, which has a half-life of {half_life} {unit}. "
        f"How many milligrams of it are left after {time} {unit}?"
    )
    return {
        "question": question,
        "answer": f"{remaining(amount, half_life, time):.6f}",
        "info": {"isotope": isotope},
    }


def make_problems(count: int, seed: int) -> list[dict[str, Any]]:
    return [make_problem(seed + index) for index in range(count)]


def load_environment(num_examples: int = 400, num_eval_examples: int = 200, seed: int = 7) -> vf.Environment:
    """Return an environment with problems about radioactive decay.

    Args:
        num_examples: Number of training problems.
        num_eval_examples: Number of evaluation problems.
        seed: Random seed of the problems.
    """
    parser = vf.XMLParser(["answer"], extract_fn=number)
    return vf.SingleTurnEnv(
        dataset=lambda: make_problems(num_examples, seed),
        eval_dataset=lambda: make_problems(num_eval_examples, seed + 1),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"physicist": physicist, "linear": linear},
    )
