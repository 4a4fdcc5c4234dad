"""Shop bills: add up what a customer pays."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Work out the bill. Show your work, then answer <answer>amount in euros</answer>"
GOODS = {
    "notebook": (120, 380),
    "pen": (45, 195),
    "eraser": (30, 90),
    "ruler": (70, 210),
    "folder": (90, 320),
    "stapler": (450, 990),
    "calendar": (640, 1490),
    "envelope": (10, 45),
    "pencil case": (390, 1250),
    "glue stick": (85, 240),
}
"""Lowest and highest price in cents."""
UNITS = {"euro", "euros", "eur"}


def plural(thing: str, count: int) -> str:
    return thing if count == 1 else f"{thing}s"


def money(cents: int) -> str:
    return f"{cents / 100:.2f}"


def same_number(word: str) -> str:
    """Return a number in one form, and any other word as it is."""
    try:
        return str(float(word))
    except ValueError:
        return word


def normalize(text: str) -> str:
    """Return a text in lower case, without punctuation, currency and spare white space, with numbers in one form."""
    text = re.sub(r"[^\w\s]", "", text.lower())
    return " ".join(same_number(word) for word in text.split() if word not in UNITS)


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right amount."""
    given = parser.parse_answer(completion)
    return float(given is not None and normalize(given) == normalize(answer))


def answered(completion: vf.Messages, parser: vf.XMLParser) -> float:
    """Return 1 if there is an answer in its tags."""
    return float(parser.parse_answer(completion) is not None)


def cashier(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Add up correctly."""
    return f"Adding it all up gives {state['answer']}.\n<answer>{state['answer']}</answer>"


def hasty(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Forget something in half of all bills."""
    cents = round(float(state["answer"]) * 100) - rng.choice((0, 50))
    return f"<answer>{money(cents)}</answer>"


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        bought, total = [], 0
        for thing in rng.sample(sorted(GOODS), rng.randint(2, 4)):
            number, cents = rng.randint(1, 6), rng.randrange(*GOODS[thing], 5)
            bought.append(f"{number} {plural(thing, number)} at {money(cents)} each")
            total += number * cents
        listed = f"{', '.join(bought[:-1])} and {bought[-1]}"
        voucher = rng.choice((0, 0, 50, 100))
        question = f"A customer buys {listed}."
        if voucher:
            question += f" A voucher takes {money(voucher)} off the bill."
        rows.append({"question": f"{question} How much is the bill, in euros?", "answer": money(total - voucher)})
    return rows


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with bills of two to four kinds of goods.

    Args:
        num_examples: Number of bills in each dataset.
        seed: Random seed; the bills for evaluation are drawn apart from those for training.
    """
    parser = vf.XMLParser(["answer"])
    rubric = vf.Rubric([correct], parser=parser)
    rubric.add_metric(answered)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"cashier": cashier, "hasty": hasty},
    )
