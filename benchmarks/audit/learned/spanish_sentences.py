"""Spanish sentences: translate a short sentence."""

from __future__ import annotations

import random
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Translate the sentence into Spanish. Answer <answer>Spanish sentence</answer>"
PERSONS = {"man": ("hombre", "m"), "woman": ("mujer", "f"), "boy": ("niño", "m"), "girl": ("niña", "f")}
VERBS = {"sees": "ve", "buys": "compra", "has": "tiene"}
THINGS = {
    "house": ("casa", "f"), "table": ("mesa", "f"), "apple": ("manzana", "f"), "book": ("libro", "m"), "dog": ("perro", "m"),
    "glass": ("vaso", "m"),
}  # fmt: skip
COLORS = {
    "red": ("rojo", "roja"),
    "white": ("blanco", "blanca"),
    "black": ("negro", "negra"),
    "new": ("nuevo", "nueva"),
}
ARTICLES = {("the", "m"): "el", ("the", "f"): "la", ("a", "m"): "un", ("a", "f"): "una"}
MAX_WORDS = 12


def translator(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Translate; confuse the gender of the first article in 10 % of the answers."""
    first, *others = state["answer"].split()
    wrong = {"el": "la", "la": "el", "un": "una", "una": "un"}[first]
    return f"<answer>{' '.join([wrong if rng.random() < 0.1 else first, *others])}</answer>"


def exact(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right translation."""
    return float((parser.parse_answer(completion) or "").split() == answer.split())


def overlap(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return the share of the words of the right translation that occur in the given one; 0 if it is too long."""
    given, right = (parser.parse_answer(completion) or "").split(), set(answer.split())
    return len(right & set(given)) / len(right) if len(given) <= MAX_WORDS else 0.0


def _row(rng: random.Random) -> dict[str, Any]:
    (person, (persona, gender)), (verb, verbo) = rng.choice(list(PERSONS.items())), rng.choice(list(VERBS.items()))
    (thing, (cosa, genero)), (color, colores) = rng.choice(list(THINGS.items())), rng.choice(list(COLORS.items()))
    first, second = rng.choice(("the", "a")), rng.choice(("the", "a"))
    article, articulo = ARTICLES[first, gender], ARTICLES[second, genero]
    question = f"{first} {person} {verb} {second} {color} {thing}"
    return {"question": question, "answer": f"{article} {persona} {verbo} {articulo} {cosa} {colores[genero == 'f']}"}


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        row = _row(rng)
        if (zlib.crc32(row["question"].encode()) % 2 == 1) == evaluation:
            rows.setdefault(row["question"], row)
    return list(rows.values())


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment with one sentence of six words per example.

    The reward is up to 0.75 for the words and 0.25 for the exact translation, 0 to 1 in all.

    Args:
        num_examples: Number of sentences, at most 500.
        seed: Random seed of the dataset; evaluation sentences differ from training sentences.
    """
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([overlap, exact], [0.75, 0.25], parser=parser),
        policies={"translator": translator},
    )
