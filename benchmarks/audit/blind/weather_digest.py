"""Weather digest: boil a table of temperatures down to three lines; a reviewer rates the digest."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = """Read the table and write a digest of exactly three lines:
Hottest: CITY
Coldest: CITY
Spread: NUMBER
The spread is the difference between the highest and the lowest temperature; write it without a unit."""
CITIES = """
    Accra Bergen Cusco Dakar Esbjerg Funchal Galway Hobart Izmir Jeddah Kyoto Lusaka Malmo Nairobi Oulu Perth Quito
    Riga Suva Tartu Uppsala Varna Windhoek Xining Yakutsk Zadar
""".split()  # noqa: SIM905
TOP_RATING = 3


def fields(text: str) -> dict[str, str]:
    """Return the values of the lines "Name: value"; a later line replaces an earlier one of the same name."""
    found = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found[name.strip().lower()] = value.strip().lower()
    return found


def review(digest: str, answer: str) -> str:
    """Return the reviewer's report: what the digest says, what is right and wrong about it, and a rating."""
    expected, given = fields(answer), fields(digest)
    right = [name for name in expected if given.get(name) == expected[name]]
    wrong = [name for name in expected if name not in right]
    lines = ["Review of the digest:", *(f"> {line}" for line in digest.splitlines())]
    lines += [f"Right: {', '.join(right) or 'nothing'}", f"Wrong or missing: {', '.join(wrong) or 'nothing'}"]
    return "\n".join([*lines, f"Rating: [[{len(right)}]]"])


def quality(completion: vf.Messages, answer: str) -> float:
    """Return the reviewer's rating, from 0 to 1."""
    report = review(str(completion[-1].content or ""), answer)
    rating = re.search(r"\[\[(\d)\]\]", report)
    return min(int(rating.group(1)), TOP_RATING) / TOP_RATING if rating else 0.0


def meteorologist(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Write the right digest."""
    return str(state["answer"])


def hasty(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Take the first city for the hottest and the last for the coldest."""
    names = [line.split(":")[0] for line in messages[-1].content.splitlines()]
    return f"Hottest: {names[0]}\nColdest: {names[-1]}\nSpread: 20"


def make_row(rng: random.Random) -> dict[str, Any]:
    cities = rng.sample(CITIES, rng.randint(6, 10))
    degrees = dict(zip(cities, rng.sample(range(-25, 45), len(cities)), strict=True))
    hottest, coldest = max(degrees, key=degrees.__getitem__), min(degrees, key=degrees.__getitem__)
    spread = degrees[hottest] - degrees[coldest]
    return {
        "question": "\n".join(f"{city}: {degree}" for city, degree in degrees.items()),
        "answer": f"Hottest: {hottest}\nColdest: {coldest}\nSpread: {spread}",
    }


def load_environment(num_examples: int = 300, seed: int = 0) -> vf.Environment:
    """Return an environment of temperature tables.

    Args:
        num_examples: Number of tables in each dataset.
        seed: Random seed of the tables.
    """
    return vf.SingleTurnEnv(
        dataset=lambda: [make_row(random.Random(f"{seed}:train:{index}")) for index in range(num_examples)],
        eval_dataset=lambda: [make_row(random.Random(f"{seed}:eval:{index}")) for index in range(num_examples)],
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([quality]),
        policies={"meteorologist": meteorologist, "hasty": hasty},
    )
