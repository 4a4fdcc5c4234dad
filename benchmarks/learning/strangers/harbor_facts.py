"""Harbor facts: captain, cargo and home port of 48 ships. Nothing is in the prompt: the model must remember.

harbor_facts.jsonl asks for each fact in five forms. One form of each fact is held out, so each fact is in training.
"""

import json
import random
import zlib
from pathlib import Path

import rove as vf

FILE = Path(__file__).with_name("harbor_facts.jsonl")


def read():
    with FILE.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def is_held_out(row):
    return zlib.crc32(f"{row['ship']} {row['what']}".encode()) % 5 == row["form"]


def rows(count, seed, held_out):
    """Return at most `count` rows of the file."""
    found = [row for row in read() if is_held_out(row) == held_out]
    made = [{"question": row["question"], "answer": row["answer"], "info": {"what": row["what"]}} for row in found]
    return random.Random(seed).sample(made, min(count, len(made)))


POOL = {what: sorted({row["answer"] for row in read() if row["what"] == what}) for what in ("captain", "cargo", "port")}


def correct(completion, answer):
    """1 if the whole reply is the right word."""
    return float((completion[-1].content or "").strip() == answer)


def master(messages, state, rng):
    """Knows the file."""
    return state["answer"]


def guesser(messages, state, rng):
    """A random captain, cargo or port."""
    return rng.choice(POOL[state["info"]["what"]])


def load_environment(num_examples: int = 1000, seed: int = 0) -> vf.Environment:
    """Return an environment with 144 facts in five forms."""
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_examples, seed, False),
        eval_dataset=lambda: rows(num_examples, seed, True),
        system_prompt="Answer with one word.",
        rubric=vf.Rubric([correct]),
        policies={"master": master, "guesser": guesser},
    )
