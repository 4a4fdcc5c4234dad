"""Appliance manual: multiple-choice questions about the manuals of household appliances."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Read the page of the manual and choose the right option. Answer <answer>letter</answer>"
LETTERS = "ABCD"
MAKERS = ["Norvik", "Haldane", "Tessora", "Blumen", "Okada", "Perrin", "Castell", "Ravel"]
KINDS = ["washing machine", "dishwasher", "tumble dryer", "steam oven", "coffee machine", "dehumidifier"]
PARTS = ["filter", "door seal", "water tank", "drip tray", "lint screen", "spray arm"]
CODES = ["E1", "E4", "F2", "F7", "H3", "P9", "U5", "C6"]
CAUSES = [
    "the door is open",
    "the pump is blocked",
    "the water supply is closed",
    "the motor is too hot",
    "a sensor is dirty",
]
LIGHTS = ["a steady red light", "a blinking red light", "a blinking blue light", "a steady green light", "no light"]


def _manual(number: int) -> dict[str, Any]:
    rng = random.Random(f"manual:{number}")
    facts = {
        "part": rng.choice(PARTS),
        "weeks": str(rng.choice([2, 3, 4, 6, 8, 10, 12])),
        "code": rng.choice(CODES),
        "cause": rng.choice(CAUSES),
        "light": rng.choice(LIGHTS),
        "minutes": str(rng.choice([5, 10, 15, 20, 25, 30, 45])),
        "years": str(rng.randint(2, 7)),
    }
    name = f"{MAKERS[number % len(MAKERS)]} {KINDS[number % len(KINDS)]} {100 + 7 * number}"
    page = (
        f"{name}. Clean the {facts['part']} every {facts['weeks']} weeks. The display shows {facts['code']} when {facts['cause']}. "
        f"Standby is indicated by {facts['light']}. Let the appliance cool for {facts['minutes']} minutes before you open the "
        f"service panel. The guarantee is {facts['years']} years."
    )
    return {"name": name, "page": page, "facts": facts}


def _questions(manual: dict[str, Any]) -> list[tuple[str, str, list[str]]]:
    name, facts = manual["name"], manual["facts"]
    return [
        (f"Which part of the {name} needs regular cleaning?", facts["part"], PARTS),
        (
            f"How many weeks may pass between two cleanings of the {name}?",
            facts["weeks"],
            ["2", "3", "4", "6", "8", "10", "12"],
        ),
        (f"What does the {name} report with its error code?", facts["cause"], CAUSES),
        (f"Which code does the display of the {name} show for that error?", facts["code"], CODES),
        (f"How can you see that the {name} is on standby?", facts["light"], LIGHTS),
        (f"How many minutes must the {name} cool?", facts["minutes"], ["5", "10", "15", "20", "25", "30", "45"]),
        (f"How many years is the guarantee of the {name}?", facts["years"], ["2", "3", "4", "5", "6", "7"]),
    ]


def _pool(manuals: int) -> list[tuple[str, str, str, list[str]]]:
    return [(manual["page"], *question) for manual in map(_manual, range(manuals)) for question in _questions(manual)]


def _rows(count: int, seed: str, manuals: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    pool = _pool(manuals)
    rows = []
    for page, question, right, values in rng.sample(pool, min(count, len(pool))):
        options = [right, *rng.sample([value for value in values if value != right], 3)]
        rng.shuffle(options)
        lines = "\n".join(f"{letter}) {option}" for letter, option in zip(LETTERS, options))
        rows.append({"question": f"{page}\n\n{question}\n{lines}", "answer": LETTERS[options.index(right)]})
    return rows


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the letter of the right option."""
    return float((parser.parse_answer(completion) or "").strip().upper() == answer)


def reader(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Choose the right option."""
    return f"<answer>{state['answer']}</answer>"


def guesser(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Choose any option."""
    return f"<answer>{rng.choice(LETTERS)}</answer>"


def load_environment(num_examples: int = 200, seed: int = 0, manuals: int = 40) -> vf.Environment:
    """Return an environment with questions about manuals.

    Args:
        num_examples: Number of questions for training and for evaluation.
        seed: Random seed that chooses the questions and the order of the options.
        manuals: Number of manuals; each has seven questions.
    """
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", manuals),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", manuals),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"reader": reader, "guesser": guesser},
    )
