"""Same letters: do two strings consist of the same letters, each as often?"""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Two strings have the same letters if one can be made from the other by changing the order of its letters alone. Think "
    "first if you like, then answer <answer>yes</answer> or <answer>no</answer>"
)


def decision(text: str) -> str | None:
    """Return "yes" or "no", None for anything else."""
    word = text.strip().strip(".").lower()
    return word if word in ("yes", "no") else None


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right decision."""
    return float(parser.parse_answer(completion) == answer)


def decided(completion: vf.Messages, parser: vf.XMLParser) -> float:
    """Return 1 if there is a decision."""
    return float(parser.parse_answer(completion) is not None)


def solver(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Sort both strings and compare them."""
    first, second = state["info"]["strings"]
    return f"<answer>{'yes' if sorted(first) == sorted(second) else 'no'}</answer>"


def coin(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Toss a coin."""
    return f"<answer>{rng.choice(('yes', 'no'))}</answer>"


def _pair(rng: random.Random, same: bool) -> tuple[str, str]:
    """Return two strings of six to ten letters; if they are not the same, one letter is another one."""
    used = rng.sample("abcdeilmnorstu", rng.randint(4, 6))
    letters = used + rng.choices(used, k=rng.randint(2, 4))
    rng.shuffle(letters)
    others = rng.sample(letters, len(letters))
    if not same:
        position = rng.randrange(len(others))
        others[position] = rng.choice([letter for letter in used if letter != others[position]])
    return "".join(letters), "".join(others)


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        same = rng.random() < 0.5
        first, second = _pair(rng, same)
        row = {"question": f"{first} and {second}: the same letters?", "answer": "yes" if same else "no"}
        rows.append({**row, "info": {"strings": [first, second]}})
    return rows


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with pairs of strings, about half of which have the same letters.

    Args:
        num_examples: Number of pairs in each dataset.
        seed: Random seed; the pairs for evaluation are drawn apart from those for training.
    """
    parser = vf.XMLParser(["answer"], extract_fn=decision)
    rubric = vf.Rubric([correct], parser=parser)
    rubric.add_metric(decided)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"solver": solver, "coin": coin},
    )
