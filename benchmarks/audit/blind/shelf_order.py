"""Shelf order: put a list of books into alphabetical order of their authors."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Put the books into alphabetical order of the authors' surnames. Write one book per line, exactly as given, and nothing "
    "else. You get part of the points if only some of the books are in the right place."
)
SURNAMES = """
    Abara Adler Almeida Anders Barlow Bauer Bell Bianchi Carver Castillo Chandra Cho Dahl Danvers Diaz Dumont Eberle Ekman
    Farrell Fischer Fontaine Garber Gomez Gray Haas Hansen Hirano Holm Ibarra Ito Jansen Jones Kaplan Keller Khan Kumar
    Lam Larsen Leone Lopez Maddox Marsh Meyer Mori Nagel Nakata Ngata Novak Okoye Olsen Otieno Park Patel Perez Quinn
    Ramos Reed Rossi Rowe Salas Sato Silva Stone Tanner Thorne Torres Ueda Ulrich Vance Vega Voss Wagner Walsh Weber Xu
    Yamada Young Zahn Zeller Zuniga
""".split()
FIRST = "Ada Boris Carla Dev Edna Felix Greta Hugo Ines Jonas Karin Leo Mira Nils Olga Pavel Rita Sven Tara Ulf".split()
ADJECTIVES = "silent last broken hidden distant golden winter crooked borrowed second".split()
NOUNS = "river garden clock bridge letter island mirror harvest staircase lantern".split()


def lines(completion: vf.Messages) -> list[str]:
    """Return the lines of the reply that are not empty."""
    return [line.strip() for line in str(completion[-1].content or "").splitlines() if line.strip()]


def in_place(completion: vf.Messages, info: dict[str, Any]) -> float:
    """Return the share of books in the right place, above what no sorting earns; 0 if the reply has other lines."""
    given, right, unsorted = lines(completion), info["sorted"], info["given"]
    if sorted(given) != sorted(right):
        return 0.0
    hits, start = (sum(a == b for a, b in zip(books, right)) for books in (given, unsorted))
    return max(0.0, (hits - start) / (len(right) - start))


def exact(completion: vf.Messages, info: dict[str, Any]) -> float:
    """Return 1 if all books are in the right place."""
    return float(lines(completion) == info["sorted"])


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        surnames = rng.sample(SURNAMES, rng.randint(4, 8))
        books = {
            surname: f"{rng.choice(FIRST)} {surname}: The {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"
            for surname in surnames
        }
        ordered = [books[surname] for surname in sorted(surnames)]
        given = list(books.values())
        while given == ordered:
            rng.shuffle(given)
        rows.append(
            {"question": "\n".join(given), "answer": "\n".join(ordered), "info": {"sorted": ordered, "given": given}}
        )
    return rows


def load_environment(num_examples: int = 500, seed: int = 0) -> vf.Environment:
    """Return an environment in which the model sorts four to eight books.

    Args:
        num_examples: Number of lists for training, and for evaluation.
        seed: Random seed of the lists.
    """
    rubric = vf.Rubric([in_place, exact], [0.5, 0.5])
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
    )
