"""Color mix: name the colours that three pairs of paints make."""

import random
import zlib

import rove as vf

PAINTS = ["red", "blue", "yellow", "white", "black", "green"]
MIXED = {
    "red blue": "purple",
    "red yellow": "orange",
    "red white": "pink",
    "red black": "maroon",
    "red green": "brown",
    "blue yellow": "green",
    "blue white": "sky",
    "blue black": "navy",
    "blue green": "teal",
    "yellow white": "cream",
    "yellow black": "olive",
    "yellow green": "lime",
    "white black": "grey",
    "white green": "mint",
    "black green": "forest",
}
NAMES = sorted({*MIXED.values(), *PAINTS})


def mix(one, two):
    return one if one == two else MIXED.get(f"{one} {two}") or MIXED[f"{two} {one}"]


def make(rng):
    pairs = [(rng.choice(PAINTS), rng.choice(PAINTS)) for _ in range(3)]
    question = "; ".join(f"{one} and {two}" for one, two in pairs)
    return {"question": question, "answer": " ".join(mix(*pair) for pair in pairs)}


def rows(count, seed, held_out):
    """Return different rows; a quarter of all questions is only for evaluation."""
    rng, made, seen = random.Random(f"{seed}:{held_out}"), [], set()
    for _ in range(30 * count):
        row = make(rng)
        key = row["question"]
        if key not in seen and (zlib.crc32(key.encode()) % 4 == 0) == held_out:
            seen.add(key)
            made.append(row)
        if len(made) == count:
            break
    return made


def correct(completion, answer):
    """The share of the three colours that are right."""
    said, right = (completion[-1].content or "").split(), answer.split()
    return sum(a == b for a, b in zip(said, right)) / 3 if len(said) == 3 else 0.0


def painter(messages, state, rng):
    """Always right."""
    return state["answer"]


def guesser(messages, state, rng):
    """Three random colours."""
    return " ".join(rng.choice(NAMES) for _ in range(3))


def load_environment(num_examples: int = 1000, seed: int = 0) -> vf.Environment:
    """Return an environment with three pairs of paints per question."""
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_examples, seed, False),
        eval_dataset=lambda: rows(num_examples, seed, True),
        system_prompt="Which colours do the pairs make? Answer with three words.",
        rubric=vf.Rubric([correct]),
        policies={"painter": painter, "guesser": guesser},
    )
