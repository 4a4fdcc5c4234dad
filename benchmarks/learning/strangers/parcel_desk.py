"""Parcel desk: to which of seven desks does a parcel go?"""

import random
import zlib

import rove as vf

NEAR = ["France", "Spain", "Italy", "Poland", "Norway", "Greece", "Ireland", "Austria"]
FAR = ["Peru", "Japan", "Kenya", "Chile", "India", "Canada", "Brazil", "Vietnam"]
GOODS = ["books", "shoes", "lamps", "toys", "plates", "tools", "tea", "coats"]


def desk(weight, country, fragile, express):
    if fragile:
        return 1 if weight <= 5 else 2
    if express:
        return 3 if country in NEAR else 4
    if weight > 20:
        return 5
    return 6 if country in NEAR else 7


def make(rng):
    weight = rng.randint(1, 9) if rng.random() < 0.5 else rng.randint(10, 40)
    country, goods = rng.choice(NEAR + FAR), rng.choice(GOODS)
    fragile, express = rng.random() < 0.4, rng.random() < 0.4
    question = f"{weight} kg of {goods} to {country}, {'fragile' if fragile else 'solid'}, {'express' if express else 'normal'}"
    return {"question": question, "answer": f"desk {desk(weight, country, fragile, express)}"}


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
    """1 if the whole reply is the right desk."""
    return float((completion[-1].content or "").strip() == answer)


def clerk(messages, state, rng):
    """Always right."""
    return state["answer"]


def guesser(messages, state, rng):
    """A random desk."""
    return f"desk {rng.randint(1, 7)}"


def load_environment(num_examples: int = 1000, seed: int = 0) -> vf.Environment:
    """Return an environment with parcels for seven desks."""
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_examples, seed, False),
        eval_dataset=lambda: rows(num_examples, seed, True),
        system_prompt="Choose the desk for the parcel. Answer: desk NUMBER",
        rubric=vf.Rubric([correct]),
        policies={"clerk": clerk, "guesser": guesser},
    )
