"""Receipt dates: read the purchase date and the total from a shop receipt."""

from __future__ import annotations

import random
import re
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Read the receipt. Receipts in EUR write dates with the day first and use a decimal comma; receipts in USD write dates "
    "with the month first and use a decimal point. Answer with the date in ISO format and the total without currency:\n"
    "<answer>2024-05-31 | 1234.50</answer>"
)
EUR_SHOPS = [
    "Bäckerei Lindner",
    "Drogerie Falk",
    "Papelería Sol",
    "Caffè Brera",
    "Gartenhaus Moll",
    "Librairie du Pont",
]
USD_SHOPS = [
    "Hank's Hardware",
    "Blue Door Deli",
    "Maple Street Books",
    "Corner Pharmacy",
    "Prairie Pets",
    "Lakeside Bikes",
]
GOODS = [
    "paint brush",
    "notebook",
    "coffee beans",
    "bread",
    "hand soap",
    "garden hose",
    "desk lamp",
    "cat food",
    "umbrella",
    "batteries",
    "bicycle bell",
    "tea towel",
    "picture frame",
    "candles",
    "sponge",
    "map of the city",
]
DATE = re.compile(r"\b(\d{1,2})[./](\d{1,2})[./](\d{4})\b")
TOTAL = re.compile(r"TOTAL\s+(\S+) (EUR|USD)")


def normalize_date(text: str) -> str | None:
    """Return the first date of a text in ISO format."""
    match = DATE.search(text)
    if match is None:
        return None
    first, second, year = map(int, match.groups())
    month, day = (second, first) if first > 12 else (first, second)
    return f"{year:04}-{month:02}-{day:02}"


def parse_amount(text: str, currency: str) -> float:
    """Return an amount as it is printed on receipts in a currency."""
    if currency == "EUR":
        text = text.replace(".", "").replace(",", ".")
    return float(text.replace(",", ""))


def label(receipt: str) -> str:
    """Return the expected answer for a receipt."""
    amount, currency = TOTAL.search(receipt).groups()
    return f"{normalize_date(receipt)} | {parse_amount(amount, currency):.2f}"


def _money(cents: int, currency: str) -> str:
    text = f"{cents / 100:,.2f}"
    return text.translate(str.maketrans(",.", ".,")) if currency == "EUR" else text


def _receipt(rng: random.Random) -> str:
    currency = rng.choice(["EUR", "USD"])
    day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(2019, 2025)
    printed = f"{day:02}.{month:02}.{year}" if currency == "EUR" else f"{month:02}/{day:02}/{year}"
    lines = [
        rng.choice(EUR_SHOPS if currency == "EUR" else USD_SHOPS),
        f"{printed}   {rng.randint(8, 19):02}:{rng.randint(0, 59):02}",
    ]
    total = 0
    for name in rng.sample(GOODS, rng.randint(2, 5)):
        count, cents = rng.randint(1, 12), rng.randint(99, 24999)
        total += count * cents
        lines.append(f"{count} x {name}  {_money(count * cents, currency)}")
    lines.append(f"TOTAL  {_money(total, currency)} {currency}")
    lines.append(f"PAID   {_money((total // 1000 + 1) * 1000, currency)} {currency}")
    return "\n".join(lines)


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 if date and total are right."""
    date, _, total = (parser.parse_answer(completion) or "").partition("|")
    right_date, _, right_total = answer.partition("|")
    try:
        return float(date.strip() == right_date.strip() and abs(float(total) - float(right_total)) < 0.005)
    except ValueError:
        return 0.0


def _rows(count: int, seed: str, held_out: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        receipt = _receipt(rng)
        if (zlib.crc32(receipt.encode()) % 5 == 0) == held_out:
            rows.append({"question": receipt, "answer": label(receipt)})
    return rows


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment that asks for the date and the total of receipts.

    Args:
        num_examples: Number of receipts for training and for evaluation.
        seed: Random seed of the receipts.
    """
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", held_out=False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", held_out=True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
    )
