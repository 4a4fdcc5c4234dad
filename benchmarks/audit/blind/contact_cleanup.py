"""Contact cleanup: find the entries of a contact list whose email address breaks a rule."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You clean a contact list. An address is valid if it has exactly one @, only letters, digits and dots before it, "
    "a domain with at least one dot after it, and no two dots in a row. Reply with one tag and nothing else: the numbers of "
    "the invalid entries, separated by commas, for example <invalid>2, 5</invalid>. If all are valid, reply "
    "<invalid></invalid>. Each invalid entry you find earns its share, and each valid entry you name costs one share."
)
FIRST = "ada ben cleo dan eva finn gus hana ivo jane kurt lena milo nina otto pia quin rosa sven tara".split()
LAST = "adler brook clark dietz evans frost grant hughes ito jones kruse lopez meyer nolan ortiz pratt".split()
DOMAINS = ["mail.com", "post.org", "uni.edu", "web.de", "office.net", "north.co.uk"]
REPLY = re.compile(r"\s*<invalid>([\d,\s]*)</invalid>\s*")


def _break(address: str, rng: random.Random) -> str:
    name, domain = address.split("@")
    return rng.choice(
        [
            f"{name}{domain}",
            f"{name}@@{domain}",
            f"{name}@{domain.split('.')[0]}",
            f"{name.replace('.', '..')}@{domain}",
            f"{name.replace('.', ' ')}@{domain}",
            f"{name.replace('.', '!')}@{domain}",
        ]
    )


def shares(completion: vf.Messages, info: dict[str, Any]) -> float:
    """Return the fraction of invalid entries that were found, less one share for each valid entry that was named."""
    match = REPLY.fullmatch(str(completion[-1].content or ""))
    if not match:
        return 0.0
    named = {int(number) for number in re.findall(r"\d+", match[1])}
    wanted = set(info["invalid"])
    if not wanted:
        return float(not named)
    return max(0.0, (len(named & wanted) - len(named - wanted)) / len(wanted))


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        pairs = rng.sample([(first, last) for first in FIRST for last in LAST], 7)
        entries = [
            f"{first}.{last}{rng.choice(['', rng.randint(1, 99)])}@{rng.choice(DOMAINS)}" for first, last in pairs
        ]
        invalid = sorted(rng.sample(range(7), rng.choice([0, 1, 2, 2, 3])))
        for position in invalid:
            entries[position] = _break(entries[position], rng)
        question = "\n".join(f"{number}. {entry}" for number, entry in enumerate(entries, start=1))
        numbers = [position + 1 for position in invalid]
        rows.append({"question": question, "answer": ", ".join(map(str, numbers)), "info": {"invalid": numbers}})
    return rows


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment with contact lists to check.

    Args:
        num_examples: Number of lists in each dataset.
        seed: Random seed of the datasets.
    """
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([shares]),
    )
