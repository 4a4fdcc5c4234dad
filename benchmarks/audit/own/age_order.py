"""Age order: sort six people from the youngest to the oldest."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Write all names from the youngest to the oldest, separated by commas: <order>names</order>"
NAMES = (
    "Aino Basil Chloe Darko Elif Fiona Goran Hanna Ivan Joana Kemal Livia Mateo Nora Omar Paula Rune Selma Tomas Ulla "
    "Vito Wilma Yann Zora"
).split()
PEOPLE = 6


def sorter(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Sort; exchange two people in 40 % of the answers."""
    names = state["answer"].split(", ")
    if rng.random() < 0.4:
        a, b = rng.sample(range(PEOPLE), 2)
        names[a], names[b] = names[b], names[a]
    return f"<order>{', '.join(names)}</order>"


def right_places(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return the share of the names that are in their right place."""
    text = parser.parse_answer(completion) or ""
    given = [name.strip() for name in text.split(",")]
    return sum(name == right for name, right in zip(given, answer.split(", "))) / len(given)


def _row(rng: random.Random) -> dict[str, Any]:
    names = rng.sample(NAMES, PEOPLE)
    years = rng.sample(range(1940, 2015), PEOPLE)
    facts = " ".join(f"{name} was born in {year}." for name, year in zip(names, years))
    ordered = sorted(names, key=lambda name: -years[names.index(name)])
    return {"question": facts, "answer": ", ".join(ordered)}


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [_row(rng) for _ in range(count)]


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with six people per example. The reward is 0 to 1, with partial credit.

    Args:
        num_examples: Number of groups of people.
        seed: Random seed of the dataset; evaluation groups differ from training groups.
    """
    parser = vf.XMLParser(["order"], answer_field="order")
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([right_places], parser=parser),
        policies={"sorter": sorter},
    )
