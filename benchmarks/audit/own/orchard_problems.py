"""Orchard problems: word problems about fruit that is picked, sold and packed."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Solve the problem. Answer <answer>number</answer>"
FRUIT = "apples apricots cherries figs lemons limes mangoes olives oranges peaches pears plums quinces".split()
NAMES = "Alma Ben Cora Daan Eva Finn Gail Hal Iris Joel Kai Lena Milo Nell Oren Pia Quinn Rhea Sven Tess".split()
PLACES = "on a farm, at the market, in the valley, near the coast, behind the house, by the lake".split(", ")
WORDINGS = (
    "{name} picks {trees} trees with {each} {fruit} each {place}, and sells {sold} of the {fruit}. How many {fruit} are left?",
    "{place_start}, {name} has {trees} trees. Every tree bears {each} {fruit}. After {sold} {fruit} were sold, how many of them "
    "does {name} still have?",
)


def solver(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Multiply and subtract; forget what was sold in 20 % of the answers."""
    info = state["info"]
    return f"<answer>{info['trees'] * info['each'] - (info['sold'] if rng.random() < 0.8 else 0)}</answer>"


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right number."""
    return float(parser.parse_answer(completion) == answer)


def _problems(rng: random.Random) -> list[dict[str, Any]]:
    """Return one problem in two wordings, about different people."""
    trees, each = rng.randint(4, 60), rng.randint(12, 240)
    info = {"trees": trees, "each": each, "sold": rng.randint(10, trees * each - 5)}
    fruit, place = rng.choice(FRUIT), rng.choice(PLACES)
    where = {"fruit": fruit, "place": place, "place_start": place[0].upper() + place[1:]}
    names = rng.sample(NAMES, len(WORDINGS))
    return [
        {
            "question": wording.format(name=name, **where, **info),
            "answer": str(trees * each - info["sold"]),
            "info": info,
        }
        for wording, name in zip(WORDINGS, names)
    ]


def _all_rows(count: int, seed: int) -> list[dict[str, Any]]:
    rng = random.Random(f"orchard:{seed}")
    rows = [row for _ in range(count) for row in _problems(rng)]
    rng.shuffle(rows)
    return rows


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with one problem per example.

    Args:
        num_examples: Number of problems in each dataset.
        seed: Random seed; the problems are shuffled, half are for training and half for evaluation.
    """
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=lambda: _all_rows(num_examples, seed)[:num_examples],
        eval_dataset=lambda: _all_rows(num_examples, seed)[num_examples:],
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"solver": solver},
    )
