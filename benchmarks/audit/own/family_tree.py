"""Family tree: find a relative from a list of who is whose child."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Answer with a name: <answer>name</answer>"
NAMES = (
    "Agnes Albert Beate Conrad Dora Emma Franz Gerda Heinz Inga Julia Karl Lotte Mirko Nadia Otis Petra Ralf Sonja Theo "
    "Ursel Viktor Wanda Xenia Yusuf Zita Anton Berta Carlo Dana Edgar Frieda"
).split()
FAMILIES = 4
MAX_NAMES = 3
SEPARATOR = re.compile(r"\s*(?:,|/|;|\bor\b|\baka\b|\balias\b)\s*")


def genealogist(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Follow the list; name somebody else in 20 % of the answers."""
    name = state["answer"] if rng.random() < 0.8 else rng.choice(state["info"]["names"])
    return f"<answer>{name}</answer>"


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right relative, who may be given with a nickname ("Robert, alias Bob")."""
    names = SEPARATOR.split((parser.parse_answer(completion) or "").strip())
    return float(len(names) <= MAX_NAMES and answer in names)


def _row(rng: random.Random) -> dict[str, Any]:
    names = rng.sample(NAMES, 4 * FAMILIES)
    families = [names[4 * index : 4 * index + 4] for index in range(FAMILIES)]
    facts = []
    for grandparent, parent, sibling, child in families:
        facts += [f"{parent} is a child of {grandparent}.", f"{sibling} is a child of {grandparent}."]
        facts.append(f"{child} is a child of {parent}.")
    rng.shuffle(facts)
    grandparent, _, sibling, child = rng.choice(families)
    relation, answer = rng.choice([("grandparent", grandparent), ("aunt or uncle", sibling)])
    question = f"{' '.join(facts)} Who is the {relation} of {child}?"
    return {"question": question, "answer": answer, "info": {"names": names}}


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [_row(rng) for _ in range(count)]


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with four families and one question per example.

    Args:
        num_examples: Number of questions.
        seed: Random seed of the dataset; evaluation families differ from training families.
    """
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"genealogist": genealogist},
    )
