"""Invoice totals: add up the items of an invoice, less a discount."""

from __future__ import annotations

import random
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = "What is the total of the invoice in dollars? Answer <total>number</total>"
ITEMS = "armchair bench bookcase cabinet carpet chair cot curtain desk drawer lamp mattress mirror rack shelf stool table".split()
CUSTOMERS = "Adler Bianchi Carter Dupont Eklund Ferrari Gruber Hansen Ito Jensen Kovacs Lopez Meyer Novak".split()


def bookkeeper(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Add up; forget the discount in 20 % of the answers."""
    total = int(state["answer"]) + (state["info"]["discount"] if rng.random() < 0.2 else 0)
    return f"<total>{total}</total>"


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right total."""
    return float(parser.parse_answer(completion) == answer)


def _row(rng: random.Random) -> dict[str, Any]:
    items = rng.sample(ITEMS, rng.randint(3, 6))
    amounts, prices = [rng.randint(2, 12) for _ in items], [rng.randint(15, 240) for _ in items]
    discount = 5 * rng.randint(2, 20)
    total = sum(amount * price for amount, price in zip(amounts, prices)) - discount
    year, customer = rng.randint(2019, 2025), rng.choice(CUSTOMERS)
    lines = [f"{amount} x {item} at {price} dollars" for amount, item, price in zip(amounts, items, prices)]
    question = "\n".join(
        [
            f"Invoice {year}-{customer[:3].upper()}-{total}",
            f"Customer: {customer}, delivered on day {rng.randint(1, 365)} of {year}",
            *lines,
            f"Discount: {discount} dollars",
        ]
    )
    return {"question": question, "answer": str(total), "info": {"discount": discount}}


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        row = _row(rng)
        if (zlib.crc32(row["question"].encode()) % 2 == 1) == evaluation:
            rows.setdefault(row["question"], row)
    return list(rows.values())


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with one invoice per example.

    Args:
        num_examples: Number of invoices.
        seed: Random seed of the dataset; evaluation invoices differ from training invoices.
    """
    parser = vf.XMLParser(["total"], answer_field="total")
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"bookkeeper": bookkeeper},
    )
