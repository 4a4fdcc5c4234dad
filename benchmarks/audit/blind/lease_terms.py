"""Lease terms: does a lease allow what the tenant wants to do?"""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Read the lease and decide about the tenant's plan. Your whole reply is one lower-case word, without punctuation:\n"
    "allowed\nor\nforbidden"
)
STREETS = ["Quay Street", "Mill Lane", "Orchard Road", "Station Square", "Castle Hill", "Abbey Row", "Harbor View"]
TENANTS = ["Mr. Okafor", "Ms. Brandt", "Mrs. Rossi", "Mr. Dubois", "Ms. Lindqvist", "Mr. Patel", "Mrs. Kowalska"]


def _lease(rng: random.Random) -> dict[str, int]:
    return {
        "pets": rng.randint(0, 3),
        "kilos": rng.randint(5, 40),
        "weeks": rng.randint(2, 20),
        "quiet": rng.randint(19, 23),
        "guests": rng.randint(3, 14),
        "holes": rng.randint(2, 30),
    }


def _text(lease: dict[str, int], street: str, number: int) -> str:
    pets = (
        "No pets may be kept."
        if lease["pets"] == 0
        else f"Up to {lease['pets']} pets of at most {lease['kilos']} kg each may be kept."
    )
    return (
        f"Lease of the flat at {number} {street}. {pets} The flat may be sublet for at most {lease['weeks']} weeks in a year. "
        f"Musical instruments must not be played after {lease['quiet']}:00. Guests may stay for up to {lease['guests']} nights in a "
        f"row. The tenant may drill at most {lease['holes']} holes into the walls."
    )


def _plan(rng: random.Random, lease: dict[str, int], allowed: bool) -> str:
    def amount(limit: int, spread: int) -> int:
        return rng.randint(max(1, limit - spread), limit) if allowed else rng.randint(limit + 1, limit + spread)

    kinds = ["sublet", "music", "guest", "holes", "pets"]
    kind = rng.choice(kinds[:4] if allowed and lease["pets"] == 0 else kinds)
    if kind == "sublet":
        return f"sublet the flat for {amount(lease['weeks'], 6)} weeks this year, and for no other time"
    if kind == "music":
        end = lease["quiet"] - rng.randint(1, 3) if allowed else lease["quiet"]
        return f"practice the cello every day from {end}:{rng.choice(['05', '15', '30'])} for {rng.randint(10, 25)} minutes"
    if kind == "guest":
        return f"let a cousin stay for {amount(lease['guests'], 5)} nights in a row"
    if kind == "holes":
        return f"drill {amount(lease['holes'], 6)} holes for shelves, the first ones in this flat"
    if lease["pets"] == 0:
        return f"keep a cat of {rng.randint(3, 6)} kg"
    return f"keep {rng.choice(['a dog', 'a cat', 'a rabbit'])} of {amount(lease['kilos'], 5)} kg and no other animal"


def _rows(count: int, seed: str, taken: frozenset[str] = frozenset()) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    seen, rows = set(taken), []
    while len(rows) < count:
        allowed = len(rows) % 2 == 0
        lease = _lease(rng)
        text = _text(lease, rng.choice(STREETS), rng.randint(1, 99))
        question = f"{text}\n\n{rng.choice(TENANTS)} wants to {_plan(rng, lease, allowed)}."
        if question not in seen:
            seen.add(question)
            rows.append({"question": question, "answer": "allowed" if allowed else "forbidden"})
    rng.shuffle(rows)
    return rows


def correct(completion: vf.Messages, answer: str) -> float:
    """Return 1 if the reply is the right word."""
    return float(str(completion[-1].content or "").strip() == answer)


def load_environment(num_examples: int = 600, seed: int = 0) -> vf.Environment:
    """Return an environment with decisions about leases; half of the plans are allowed.

    Args:
        num_examples: Number of leases for training and for evaluation.
        seed: Random seed of the leases.
    """
    train = _rows(num_examples, f"{seed}:train")
    taken = frozenset(row["question"] for row in train)
    return vf.SingleTurnEnv(
        dataset=train,
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", taken),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([correct]),
    )
