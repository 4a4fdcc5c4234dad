"""Ticket router: name the department for a message to a shop. The messages are in ticket_router.csv."""

import csv
import random
import zlib
from pathlib import Path

import rove as vf

FILE = Path(__file__).with_name("ticket_router.csv")
LABELS = ["account", "advice", "delivery", "praise", "refund", "repair"]


def rows(count, seed, held_out):
    """Return at most `count` rows of the file; a quarter of the messages is only for evaluation."""
    with FILE.open(newline="", encoding="utf-8") as file:
        found = [row for row in csv.DictReader(file) if (zlib.crc32(row["question"].encode()) % 4 == 0) == held_out]
    return random.Random(seed).sample(found, min(count, len(found)))


def correct(completion, answer):
    """1 if the whole reply is the right department."""
    return float((completion[-1].content or "").strip() == answer)


def expert(messages, state, rng):
    """Always right."""
    return state["answer"]


def guesser(messages, state, rng):
    """A random department."""
    return rng.choice(LABELS)


def load_environment(num_examples: int = 1000, seed: int = 0) -> vf.Environment:
    """Return an environment with the messages of the file."""
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_examples, seed, False),
        eval_dataset=lambda: rows(num_examples, seed, True),
        system_prompt=f"Which department? Answer with one word: {', '.join(LABELS)}.",
        rubric=vf.Rubric([correct]),
        policies={"expert": expert, "guesser": guesser},
    )
