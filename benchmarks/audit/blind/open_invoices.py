"""Open invoices: add up what a client still owes, with the ledger as a tool."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You keep the books. Look up the client's invoices and add up the open ones. End your reply with the total, written the "
    "way amounts are written in the ledger, for example: Total: $940"
)
CLIENTS = ["Arlow", "Bexley", "Cordwain", "Dunmore", "Eastlake", "Farrow", "Gilt & Co", "Holloway"]
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def make_row(rng: random.Random) -> dict[str, Any]:
    ledger = {}
    for client in rng.sample(CLIENTS, 4):
        invoices = []
        for _ in range(rng.randint(3, 6)):
            status = rng.choice(["open", "open", "paid"])
            invoices.append({"number": rng.randint(1000, 9999), "amount": rng.randrange(40, 2400, 5), "status": status})
        invoices[0]["status"] = "open"
        ledger[client] = invoices
    client = rng.choice(list(ledger))
    total = sum(invoice["amount"] for invoice in ledger[client] if invoice["status"] == "open")
    return {
        "question": f"Books no. {rng.randint(1000, 9999)}: how much does {client} still owe us?",
        "answer": str(total),
        "info": {"ledger": ledger},
    }


def rows(count: int, seed: str) -> list[dict[str, Any]]:
    return [make_row(random.Random(f"{seed}/{index}")) for index in range(count)]


def clients(ledger: dict[str, Any]) -> str:
    """List the clients in the ledger."""
    return ", ".join(ledger)


def invoices(client: str, ledger: dict[str, Any]) -> str:
    """List the invoices of a client: number, amount, and status.

    Args:
        client: Name of the client.
    """
    if client not in ledger:
        raise ValueError(f"no client {client}")
    return "\n".join(f"INV-{entry['number']} | ${entry['amount']:,} | {entry['status']}" for entry in ledger[client])


def last_number(text: str) -> float | None:
    """Return the last number of a text."""
    found = NUMBER.findall(text.replace("$", ""))
    return float(found[-1]) if found else None


def correct_total(completion: vf.Messages, answer: str) -> float:
    """Return 1 if the reply ends with the right total."""
    last = completion[-1]
    if last["role"] != "assistant":
        return 0.0
    return float(last_number(str(last["content"] or "")) == float(answer))


class LedgerEnv(vf.StatefulToolEnv):
    """An environment with a ledger per question."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, **kwargs)
        self.add_tool(clients, args_to_skip=["ledger"])
        self.add_tool(invoices, args_to_skip=["ledger"])

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "ledger": state["info"]["ledger"]}


def load_environment(num_examples: int = 300, num_eval_examples: int = 150, seed: int = 0) -> vf.Environment:
    """Return an environment with questions about ledgers.

    Args:
        num_examples: Number of training questions.
        num_eval_examples: Number of evaluation questions.
        seed: Random seed of the ledgers.
    """
    return LedgerEnv(
        dataset=lambda: rows(num_examples, f"{seed}/train"),
        eval_dataset=lambda: rows(num_eval_examples, f"{seed}/eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([correct_total]),
        max_turns=6,
    )
