"""Invoice total: add up the lines of an invoice, apply the discount and write the amount due."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You are a bookkeeper. Work out the amount due of the invoice and end your reply with one line such as\n"
    "Total: $1,020.40"
)
ITEMS = {
    "desk": (180, 900),
    "office chair": (90, 450),
    "monitor": (120, 700),
    "standing lamp": (30, 150),
    "bookshelf": (80, 400),
    "printer": (150, 1200),
    "whiteboard": (60, 300),
    "meeting table": (400, 2200),
    "filing cabinet": (110, 380),
}
TOTAL = re.compile(r"^Total:\s*\$?(\d+(?:\.\d{1,2})?)", re.MULTILINE)


def money(cents: int) -> str:
    return f"${cents // 100:,}.{cents % 100:02d}"


def correct(completion: vf.Messages, answer: str) -> float:
    """Return 1 if the last total in the reply is the amount due."""
    found = TOTAL.findall(str(completion[-1].content or ""))
    return float(bool(found) and abs(float(found[-1]) - float(answer)) < 0.005)


def bookkeeper(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Give the right amount."""
    return f"I added the lines and took off the discount.\nTotal: ${state['answer']}"


def hasty(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Forget the discount in half of the replies."""
    amount = float(state["answer"]) if rng.random() < 0.5 else state["info"]["gross"] / 100
    return f"Total: ${amount:.2f}"


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        gross, lines = 0, []
        for item in rng.sample(sorted(ITEMS), rng.randint(2, 4)):
            low, high = ITEMS[item]
            price, pieces = rng.randint(low, high) * 100, rng.randint(1, 6)
            gross += price * pieces
            lines.append(f"{pieces} x {item} at {money(price)}")
        percent = rng.choice([5, 10, 20, 25])
        due = gross - gross * percent // 100
        question = f"Invoice {rng.randint(10_000, 99_999)}\n" + "\n".join(lines)
        question += f"\nDiscount on everything: {percent}%\nHow much is due?"
        answer = f"{due // 100}.{due % 100:02d}"
        rows.append({"question": question, "answer": answer, "info": {"gross": gross}})
    return rows


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment with invoices to add up.

    Args:
        num_examples: Number of invoices in each dataset.
        seed: Random seed of the datasets.
    """
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([correct]),
        policies={"bookkeeper": bookkeeper, "hasty": hasty},
    )
