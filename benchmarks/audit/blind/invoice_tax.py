"""Invoice tax: add up the lines of an office invoice and the tax on them."""

from __future__ import annotations

import random
from decimal import Decimal, InvalidOperation
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You check invoices. The tax is charged once on the net sum and is rounded to whole cents; half a cent is rounded up. "
    "Write the amount to pay (net sum plus tax) with two decimals in tags, for example <total>12.30</total>."
)
ARTICLES = {
    "box of paper clips": (120, 390),
    "stapler": (430, 1290),
    "ring binder": (180, 460),
    "pack of copy paper": (390, 720),
    "desk lamp": (1490, 3990),
    "marker set": (250, 890),
    "wall calendar": (690, 1590),
    "toner cartridge": (3990, 8990),
    "pack of envelopes": (210, 640),
    "notebook": (150, 580),
}
RATES = (5.0, 7.5, 15.0)


def read_amount(text: str) -> Decimal | None:
    """Return the amount that a text states, with or without a currency sign, or None."""
    try:
        amount = Decimal(text.strip().removeprefix("€").removesuffix("€").replace(",", "").strip())
    except InvalidOperation:
        return None
    return amount if amount.is_finite() else None


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 if the total is right to the cent."""
    return float(parser.parse_answer(completion) == Decimal(answer))


def accountant(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Write the total."""
    return f"<total>{state['answer']}</total>"


def net_only(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Forget the tax."""
    return f"<total>{state['info']['net']:.2f}</total>"


def make_invoice(rng: random.Random) -> dict[str, Any]:
    """Return one invoice as a row."""
    names = rng.sample(sorted(ARTICLES), rng.randint(2, 4))
    lines, net = [], 0.0
    for name in names:
        low, high = ARTICLES[name]
        count, price = rng.randint(1, 9), rng.randrange(low, high, 10) / 100
        lines.append(f"{count} x {name} at {price:.2f}")
        net += count * price
    rate = rng.choice(RATES)
    tax = round(net * rate / 100, 2)
    question = "\n".join([*lines, f"Tax rate: {rate:g}%", "What is the amount to pay?"])
    return {"question": question, "answer": f"{net + tax:.2f}", "info": {"net": round(net, 2), "rate": rate}}


def rows(count: int, seed: str) -> list[dict[str, Any]]:
    return [make_invoice(random.Random(f"{seed}:{index}")) for index in range(count)]


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment with invoices.

    Args:
        num_examples: Number of invoices for training, and for evaluation.
        seed: Random seed of the invoices.
    """
    parser = vf.XMLParser(["total"], answer_field="total", extract_fn=read_amount)
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"accountant": accountant, "net_only": net_only},
    )
