"""Seat order: put three or four people in order from clues about neighbours."""

import random
import zlib

import rove as vf

NAMES = ["Ana", "Bo", "Cy", "Dee", "Eli", "Fay", "Gus", "Hal", "Ivy", "Joe"]


def make(rng):
    people = rng.sample(NAMES, rng.choice([3, 4]))
    clues = []
    for left, right in zip(people, people[1:]):
        clues.append(f"{left} is left of {right}." if rng.random() < 0.7 else f"{right} is right of {left}.")
    rng.shuffle(clues)
    return {"question": " ".join(clues), "answer": " ".join(people)}


def rows(count, seed, held_out):
    """Return different rows; a quarter of all orders is only for evaluation."""
    rng, made, seen = random.Random(f"{seed}:{held_out}"), [], set()
    for _ in range(30 * count):
        row = make(rng)
        key = row["question"]
        if key not in seen and (zlib.crc32(row["answer"].encode()) % 4 == 0) == held_out:
            seen.add(key)
            made.append(row)
        if len(made) == count:
            break
    return made


def order(completion, answer):
    """1 for the right order; otherwise up to 0.2 for people in the right seat."""
    said, right = (completion[-1].content or "").split(), answer.split()
    if said == right:
        return 1.0
    if sorted(said) != sorted(right):
        return 0.0
    return 0.2 * sum(a == b for a, b in zip(said, right)) / len(right)


def usher(messages, state, rng):
    """Always right."""
    return state["answer"]


def shuffler(messages, state, rng):
    """The people in a random order."""
    people = sorted(set(messages[-1].content.replace(".", "").split()) & set(NAMES))
    rng.shuffle(people)
    return " ".join(people)


def load_environment(num_examples: int = 1000, seed: int = 0) -> vf.Environment:
    """Return an environment with rows of three or four people."""
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_examples, seed, False),
        eval_dataset=lambda: rows(num_examples, seed, True),
        system_prompt="Neighbours sit side by side. Write all names from left to right.",
        rubric=vf.Rubric([order]),
        policies={"usher": usher, "shuffler": shuffler},
    )
