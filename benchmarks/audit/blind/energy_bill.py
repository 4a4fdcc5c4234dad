"""Energy bill: compute what a household pays for a year of electricity and gas."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Compute the total of the energy bill. You may show your work. "
    "End with the amount as it is printed on a bill, for example: Total: 1,284.50"
)
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def amount(text: str) -> float | None:
    """Return the last number of a text."""
    numbers = NUMBER.findall(text)
    return float(numbers[-1]) if numbers else None


def correct(completion: vf.Messages, answer: str, parser: vf.Parser) -> float:
    """Return 1 if the amount is right to the cent."""
    value = parser.parse_answer(completion)
    return float(value is not None and abs(value - amount(answer)) < 0.005)


def accountant(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Give the right amount."""
    return f"Total: {state['answer']}"


def forgetful(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Forget the standing charge."""
    bill = state["info"]
    return f"Total: {(bill['kwh'] * bill['rate'] + bill['gas_kwh'] * bill['gas_rate']) / 100:,.2f}"


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        kwh, gas_kwh = rng.randrange(900, 9800, 10), rng.randrange(2000, 19000, 10)
        rate, gas_rate, standing = rng.randint(18, 39), rng.randint(5, 13), rng.randint(21, 68)
        cents = kwh * rate + gas_kwh * gas_rate + 365 * standing
        question = (
            f"Electricity: {kwh:,} kWh at {rate} cents. Gas: {gas_kwh:,} kWh at {gas_rate} cents. "
            f"Standing charge: {standing} cents a day for 365 days. What is the total for the year?"
        )
        info = {"kwh": kwh, "gas_kwh": gas_kwh, "rate": rate, "gas_rate": gas_rate, "standing": standing}
        rows.append({"question": question, "answer": f"{cents / 100:,.2f}", "info": info})
    return rows


def load_environment(num_examples: int = 500, seed: int = 0) -> vf.Environment:
    """Return an environment with yearly energy bills.

    Args:
        num_examples: Number of bills in each dataset.
        seed: Random seed of the bills; evaluation bills are drawn separately.
    """
    parser = vf.Parser(extract_fn=amount)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"accountant": accountant, "forgetful": forgetful},
    )
