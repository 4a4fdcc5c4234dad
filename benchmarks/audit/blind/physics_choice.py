"""Physics choice: four-option questions from school physics."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Answer the multiple-choice question. End your reply with a line 'Answer: X', where X is A, B, C or D."
LETTERS = "ABCD"


def chosen(text: str) -> str | None:
    """Return the letter on the last 'Answer:' line."""
    found = re.findall(r"^\W*answer\W*\s*\(?([A-D])\)?\W*$", text, re.MULTILINE | re.IGNORECASE)
    return found[-1].upper() if found else None


def correct(completion: vf.Messages, answer: str) -> float:
    """Return 1 if the chosen letter is right."""
    return float(chosen(completion[-1].content or "") == answer)


def _speed(rng: random.Random) -> tuple[str, int, list[int], str]:
    hours, speed = rng.randint(2, 9), rng.randint(21, 130)
    text = f"A train covers {hours * speed} km in {hours} hours. What is its average speed?"
    return text, speed, [speed + hours, hours * speed - hours, speed * 2], "km/h"


def _force(rng: random.Random) -> tuple[str, int, list[int], str]:
    mass, acceleration = rng.randint(3, 60), rng.randint(2, 12)
    text = f"A body with a mass of {mass} kg accelerates at {acceleration} m/s². What is the net force on it?"
    right = mass * acceleration
    return text, right, [mass + acceleration, right * 2, right + mass], "N"


def _ohm(rng: random.Random) -> tuple[str, int, list[int], str]:
    current, resistance = rng.randint(2, 15), rng.randint(4, 90)
    text = f"A current of {current} A flows through a resistor of {resistance} Ω. What is the voltage across it?"
    right = current * resistance
    return text, right, [current + resistance, right + resistance, right * 3], "V"


def _work(rng: random.Random) -> tuple[str, int, list[int], str]:
    power, seconds = rng.randint(20, 400), rng.randint(3, 50)
    text = f"A motor with a power of {power} W runs for {seconds} s. How much energy does it use?"
    right = power * seconds
    return text, right, [power + seconds, right + power, right * 10], "J"


def _wave(rng: random.Random) -> tuple[str, int, list[int], str]:
    frequency, length = rng.randint(20, 500), rng.randint(2, 30)
    text = f"A wave has a frequency of {frequency} Hz and a wavelength of {length} m. How fast does it travel?"
    right = frequency * length
    return text, right, [frequency + length, right + length, right * 2], "m/s"


TEMPLATES = (_speed, _force, _ohm, _work, _wave)


def _arrange(options: list[str], seed: str) -> tuple[str, str]:
    """Shuffle the options reproducibly; return their text and the letter of the first one."""
    order = list(range(len(options)))
    random.Random(seed).shuffle(order)
    lines = [f"{letter}) {options[position]}" for letter, position in zip(LETTERS, order)]
    return "\n".join(lines), LETTERS[order.index(0)]


def _rows(count: int, seed: int, split: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    seen = set()
    rng = random.Random(f"{seed}:{split}")
    while len(rows) < count:
        template = TEMPLATES[len(rows) % len(TEMPLATES)]
        text, right, wrong, unit = template(rng)
        held_out = sum(map(int, re.findall(r"\d+", text))) % 5 == 0
        if text in seen or held_out != (split == "eval") or len({right, *wrong}) < 4:
            continue
        seen.add(text)
        options, letter = _arrange([f"{value} {unit}" for value in (right, *wrong)], f"{seed}:options")
        rows.append({"question": f"{text}\n{options}", "answer": letter})
    return rows


def load_environment(num_train: int = 500, num_eval: int = 200, seed: int = 0) -> vf.Environment:
    """Return an environment with multiple-choice questions.

    Args:
        num_train, num_eval: Number of questions; no question is in both parts.
        seed: Random seed of the questions and of the order of the options.
    """
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_train, seed, "train"),
        eval_dataset=lambda: _rows(num_eval, seed, "eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([correct]),
    )
