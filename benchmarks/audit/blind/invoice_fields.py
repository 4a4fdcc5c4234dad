"""Invoice fields: extract the fields of an invoice from an e-mail, as JSON."""

from __future__ import annotations

import datetime
import json
import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = """Extract the invoice from the e-mail. Reply with one JSON object and nothing else. Its keys are:
"vendor" (string), "invoice" (string), "date" (string, YYYY-MM-DD), "total" (number), "currency" ("EUR", "USD" or "GBP"),
"order" (string: the customer's order number).
Use null for a field that the e-mail does not state. If the e-mail has no invoice, all fields are null."""
FIELDS = ("vendor", "invoice", "date", "total", "currency", "order")
VENDORS = "Brightway Supplies,Norfell Tools,Quanta Print,Redmill Foods,Stellar Cables,Tidewater Paper,Umber Paints,Vexel Parts"
CURRENCIES = {"EUR": "euros", "USD": "US dollars", "GBP": "pounds"}
NEWS = [
    "we have moved to a new office and look forward to your visit",
    "our summer catalog is out, with more than two hundred new products",
    "our phones are not staffed next Friday because of a company outing",
    "we thank you for ten years of good cooperation",
]


def parse(text: str) -> dict[str, Any] | None:
    """Return the JSON object that the reply consists of, with or without a code fence."""
    text = re.sub(r"^```(?:json)?\s*\n(.*)\n```$", r"\1", text.strip(), flags=re.DOTALL)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _pairs(data: dict[str, Any]) -> set[tuple[str, str]]:
    pairs = set()
    for key, value in data.items():
        if isinstance(value, bool) or not isinstance(value, (str, int, float, type(None))):
            pairs.add((key, "invalid"))
        elif isinstance(value, str):
            pairs.add((key, f"text {value.strip()}"))
        elif value is not None:
            pairs.add((key, f"number {value:.2f}" if abs(value) < 1e9 else "invalid"))
    return pairs


def field_f1(completion: vf.Messages, info: dict[str, Any]) -> float:
    """Return the F1 score of the fields that are not null."""
    data = parse(completion[-1].content or "")
    if data is None:
        return 0.0
    found, expected = _pairs(data), _pairs(info["fields"])
    if not found and not expected:
        return 1.0
    return 2 * len(found & expected) / (len(found) + len(expected))


def all_right(completion: vf.Messages, info: dict[str, Any]) -> float:
    """Return 1 if all fields are right."""
    return float(field_f1(completion, info) == 1.0)


def _row(seed: str) -> dict[str, Any]:
    rng = random.Random(seed)
    vendor = rng.choice(VENDORS.split(","))
    fields: dict[str, Any] = dict.fromkeys(FIELDS)
    if rng.random() < 0.07:
        count = rng.randint(2, 90)
        text = f"Dear customer {rng.randint(1000, 9999)}, {rng.choice(NEWS)}. We are a team of {count} people. {vendor}"
        return {"question": text, "info": {"fields": fields}}
    date = datetime.date(2026, 1, 1) + datetime.timedelta(days=rng.randrange(330))
    due = date + datetime.timedelta(days=30)
    net, tax = rng.randint(5_000, 90_000), rng.randint(500, 4_900)
    currency = rng.choice(sorted(CURRENCIES))
    fields.update(
        vendor=vendor,
        invoice=f"{rng.choice('ABCDEFGH')}{rng.randint(10000, 99999)}",
        date=date.isoformat(),
        total=(net + tax) / 100,
        currency=currency,
    )
    parts = [
        f"Dear customer {rng.randint(1000, 9999)},",
        f"please find our invoice {fields['invoice']} of {date:%B} {date.day}, {date.year}.",
        f"The net amount is {net / 100:.2f} {CURRENCIES[currency]}; with {tax / 100:.2f} {CURRENCIES[currency]} of tax, the "
        f"total is {(net + tax) / 100:.2f} {CURRENCIES[currency]}.",
        f"Please pay by {due:%B} {due.day}, {due.year}.",
    ]
    if rng.random() < 0.6:
        fields["order"] = f"PO-{rng.randint(100, 999)}"
        parts.insert(2, f"It refers to your order {fields['order']}.")
    return {"question": " ".join([*parts, f"Kind regards, {vendor}"]), "info": {"fields": fields}}


def load_environment(num_train: int = 500, num_eval: int = 200, seed: int = 0) -> vf.Environment:
    """Return an environment with e-mails and the fields of their invoices.

    Args:
        num_train, num_eval: Number of e-mails.
        seed: Random seed of the e-mails.
    """
    rubric = vf.Rubric([field_f1])
    rubric.add_metric(all_right)
    return vf.SingleTurnEnv(
        dataset=lambda: [_row(f"{seed}:train:{index}") for index in range(num_train)],
        eval_dataset=lambda: [_row(f"{seed}:eval:{index}") for index in range(num_eval)],
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
    )
