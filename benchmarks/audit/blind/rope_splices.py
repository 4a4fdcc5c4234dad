"""Rope splices: the model turns the short tag of a rigger's yard into the full name of a splice."""

from __future__ import annotations

import random
import re
import zlib
from typing import Any

import rove as vf

LAYS = {"R": "right-laid", "L": "left-laid"}
FIBRES = {"1": "manila", "2": "hemp", "3": "sisal", "4": "cotton", "5": "polyester", "6": "nylon"}
STRANDS = {"3": "three-strand", "4": "four-strand", "8": "eight-strand"}
FORMS = {"E": "eye", "S": "short", "L": "long", "B": "back", "C": "chain", "H": "horseshoe", "G": "grommet"}
FILLER = {"a", "an", "the", "rope", "splice", "in", "with"}

SYSTEM_PROMPT = (
    "A rigger's yard labels every splice with a tag of four characters: lay, fibre, strands, form.\n"
    f"Lay: {', '.join(f'{key} {name}' for key, name in LAYS.items())}.\n"
    f"Fibre: {', '.join(f'{key} {name}' for key, name in FIBRES.items())}.\n"
    f"Strands: {', '.join(f'{key} {name}' for key, name in STRANDS.items())}.\n"
    f"Form: {', '.join(f'{key} {name}' for key, name in FORMS.items())}.\n"
    "Write the full name of the splice, all four parts in any order, as <name>...</name>."
)


def words(text: str) -> list[str]:
    """Return the significant words of a name, in lower case."""
    return [word for word in re.findall(r"[a-z]+(?:-[a-z]+)*", text.lower()) if word not in FILLER]


def named(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 if the words of the reply are those of the name, in any order."""
    reply = parser.parse_answer(completion)
    if reply is None:
        return 0.0
    expected = set(words(answer))
    return float(all(word in expected for word in words(reply)))


def foreman(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Read the tag with the key."""
    lay, fibre, strands, form = re.search(r"tag (\w{4})", messages[-1].content)[1]
    parts = [LAYS[lay], FIBRES[fibre], STRANDS[strands], FORMS[form]]
    rng.shuffle(parts)
    return f"<name>{' '.join(parts)} splice</name>"


def apprentice(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Guess every part."""
    parts = [rng.choice(list(table.values())) for table in (LAYS, FIBRES, STRANDS, FORMS)]
    return f"<name>{' '.join(parts)} splice</name>"


def _rows(count: int, seed: int, held_out: bool) -> list[dict[str, Any]]:
    tags = [lay + fibre + strands + form for lay in LAYS for fibre in FIBRES for strands in STRANDS for form in FORMS]
    tags = [tag for tag in tags if (zlib.crc32(tag.encode()) % 3 == 0) == held_out]
    random.Random(seed).shuffle(tags)
    rows = []
    for tag in tags[:count]:
        name = f"{LAYS[tag[0]]} {FIBRES[tag[1]]} {STRANDS[tag[2]]} {FORMS[tag[3]]} splice"
        rows.append({"question": f"What is the splice with the tag {tag}?", "answer": name})
    return rows


def load_environment(num_examples: int = 150, seed: int = 0) -> vf.Environment:
    """Return an environment of splices to be named.

    Args:
        num_examples: Maximum number of tags; a third of all tags is reserved for evaluation.
        seed: Random seed of the order of the tags.
    """
    parser = vf.XMLParser(["name"], answer_field="name")
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, seed, held_out=False),
        eval_dataset=lambda: _rows(num_examples, seed, held_out=True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([named], parser=parser),
        policies={"foreman": foreman, "apprentice": apprentice},
    )
