"""Claim check: decide whether a table supports or refutes a statement."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Read the table and decide whether it supports or refutes the claim. You may think first. The last line of your reply must "
    "be exactly one word in lowercase, without punctuation: supported or refuted."
)
ITEMS = "anvil barrel candle drum easel funnel goblet hammock incense jug kite ladder mallet net oar pulley quilt rudder saddle tripod".split()
COLUMNS = {"price": ("costs", "more expensive", "the most expensive"), "weight": ("weighs", "heavier", "the heaviest")}
VERDICTS = ("refuted", "supported")

Table = dict[str, dict[str, int]]


def value_claim(table: Table, column: str, truth: bool, rng: random.Random) -> str:
    item, other = rng.sample(sorted(table), 2)
    value = table[item if truth else other][column]
    return f"The {item} {COLUMNS[column][0]} {value}."


def order_claim(table: Table, column: str, truth: bool, rng: random.Random) -> str:
    low, high = sorted(rng.sample(sorted(table), 2), key=lambda item: table[item][column])
    first, second = (high, low) if truth else (low, high)
    return f"The {first} is {COLUMNS[column][1]} than the {second}."


def top_claim(table: Table, column: str, truth: bool, rng: random.Random) -> str:
    ranked = sorted(table, key=lambda item: -table[item][column])
    return f"The {ranked[0] if truth else rng.choice(ranked[1:4])} is {COLUMNS[column][2]} thing in the table."


def count_claim(table: Table, column: str, truth: bool, rng: random.Random) -> str:
    limit = rng.randint(25, 75)
    count = sum(values[column] > limit for values in table.values())
    numbers = [number for number in range(len(table) + 1) if number != count]
    shown = count if truth else min(numbers, key=lambda number: (abs(number - count), rng.random()))
    return f"The number of things with a {column} above {limit} is {shown}."


CLAIMS = [value_claim, order_claim, top_claim, count_claim]


def make_row(rng: random.Random) -> dict[str, Any]:
    items = rng.sample(ITEMS, 6)
    columns = {column: rng.sample(range(1, 100), len(items)) for column in COLUMNS}
    table = {item: {column: columns[column][index] for column in COLUMNS} for index, item in enumerate(items)}
    truth = rng.random() < 0.5
    make = rng.choice(CLAIMS)
    claim = make(table, rng.choice(sorted(COLUMNS)), truth, rng)
    lines = ["thing | price | weight", *(f"{item} | {row['price']} | {row['weight']}" for item, row in table.items())]
    return {
        "question": "\n".join([*lines, "", f"Claim: {claim}"]),
        "answer": VERDICTS[truth],
        "info": {"kind": make.__name__},
    }


def last_line(text: str) -> str:
    """Return the last line of a reply if it is a verdict, and otherwise an empty text."""
    line = text.strip().rsplit("\n", 1)[-1].strip()
    return line if line in VERDICTS else ""


def correct(completion: vf.Messages, answer: str, parser: vf.Parser) -> float:
    """1 for the right verdict."""
    return float(parser.parse_answer(completion) == answer)


def checker(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Gives the right verdict."""
    return f"I compare the claim with the table.\n{state['answer']}"


def optimist(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Believes every claim."""
    return "supported"


def load_environment(num_examples: int = 400, num_eval_examples: int = 120, seed: int = 0) -> vf.Environment:
    """Return an environment with claims about tables.

    Args:
        num_examples: Claims for training.
        num_eval_examples: Claims for evaluation.
        seed: Random seed of tables and claims.
    """
    parser = vf.MaybeThinkParser(last_line)
    return vf.SingleTurnEnv(
        dataset=lambda: [make_row(random.Random(f"{seed}:train:{index}")) for index in range(num_examples)],
        eval_dataset=lambda: [make_row(random.Random(f"{seed}:eval:{index}")) for index in range(num_eval_examples)],
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"checker": checker, "optimist": optimist},
    )
