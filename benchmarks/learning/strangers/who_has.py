"""Who has: read four to six sentences about people and things, and say who has one of the things."""

import random
import zlib

import rove as vf

NAMES = ["Mia", "Tom", "Lea", "Max", "Zoe", "Ben", "Ida", "Sam", "Eva", "Jan", "Kim", "Leo"]
COLOURS = ["red", "blue", "green", "black", "white", "grey"]
THINGS = ["key", "cup", "hat", "book", "ball", "bag", "pen", "kite"]
VERBS = ["has", "holds", "owns", "keeps"]


def make(rng):
    count = rng.randint(4, 6)
    names = rng.sample(NAMES, count)
    things = rng.sample([f"{colour} {thing}" for colour in COLOURS for thing in THINGS], count)
    target = rng.randrange(count)
    text = " ".join(f"{name} {rng.choice(VERBS)} the {thing}." for name, thing in zip(names, things))
    return {"question": f"{text} Who has the {things[target]}?", "answer": names[target]}


def rows(count, seed, held_out):
    """Return different rows; a quarter of all texts is only for evaluation."""
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
    """1 if the whole reply is the right name."""
    return float((completion[-1].content or "").strip() == answer)


def reader(messages, state, rng):
    """Always right."""
    return state["answer"]


def skimmer(messages, state, rng):
    """Any name of the text."""
    return rng.choice([word for word in messages[-1].content.split() if word in NAMES])


def load_environment(num_examples: int = 1000, seed: int = 0) -> vf.Environment:
    """Return an environment with four to six people and their things."""
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_examples, seed, False),
        eval_dataset=lambda: rows(num_examples, seed, True),
        system_prompt="Answer with the name only.",
        rubric=vf.Rubric([correct]),
        policies={"reader": reader, "skimmer": skimmer},
    )
