"""Dovecote ledger: does the keeper's closing count agree with the entries of the season?"""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Check the ledger of a dovecote. Decide whether the closing count agrees with the opening count and the entries. "
    "End your reply with <verdict>agrees</verdict> or <verdict>differs</verdict>."
)
EVENTS = {
    "hatched": 1,
    "bought at the fair": 1,
    "returned from the loft": 1,
    "taken by the hawk": -1,
    "sold": -1,
    "given to the abbey": -1,
}
TRAINED_KEEPERS = ("Brother Anselm", "Widow Tarn", "Old Pettibone", "Miss Larkspur")
HELD_OUT_KEEPERS = ("Dame Quillon", "Goodman Ferris")


def right(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right verdict."""
    return float((parser.parse_answer(completion) or "").lower() == answer)


def undecided(completion: vf.Messages, parser: vf.XMLParser) -> float:
    """Return 1 if the reply has no verdict."""
    return float((parser.parse_answer(completion) or "").lower() not in ("agrees", "differs"))


def _rows(count: int, seed: str, keepers: tuple[str, ...]) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    verdicts = ["agrees" if index % 2 else "differs" for index in range(count)]
    rng.shuffle(verdicts)
    rows = []
    for verdict in verdicts:
        total = opening = rng.randrange(60, 140)
        entries = []
        for _ in range(rng.randrange(4, 8)):
            event, number = rng.choice(list(EVENTS)), rng.randrange(2, 20)
            if total + EVENTS[event] * number < 20:
                continue
            entries.append(f"{number} {event}")
            total += EVENTS[event] * number
        closing = total if verdict == "agrees" else total + rng.choice((-10, -3, -2, -1, 1, 2, 3, 10))
        lines = [f"Ledger of {rng.choice(keepers)}", f"Opening count {opening}", *entries, f"Closing count {closing}"]
        rows.append({"question": "\n".join(lines), "answer": verdict})
    return rows


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment of ledgers, half of which agree.

    Args:
        num_examples: Number of ledgers in each dataset; training and evaluation have different keepers.
        seed: Random seed of the ledgers.
    """
    parser = vf.XMLParser(["verdict"], answer_field="verdict")
    rubric = vf.Rubric([right], parser=parser)
    rubric.add_metric(undecided)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", TRAINED_KEEPERS),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", HELD_OUT_KEEPERS),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
    )
