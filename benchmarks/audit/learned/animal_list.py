"""Animal list: find the animals among ten words."""

from __future__ import annotations

import random
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = "List the animals, and nothing else: <answer>word, word, word</answer>"
ANIMALS = "bear bird cat cow deer dog duck fish fox goat hen horse mouse pig sheep wolf".split()
OTHERS = "bag bed bell boat book box cake chair clock coat cup door hat key lamp shoe".split()
SHOWN, MAX_WORDS, COST = 5, 9, 0.15


def keeper(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """List the animals in their order; miss the last one in 10 % of the answers."""
    animals = state["answer"].split(", ")
    return f"<answer>{', '.join(animals[:-1] if rng.random() < 0.1 else animals)}</answer>"


def found(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return the share of the animals that are listed, less a cost for other text; 0 for a list that is too long."""
    given, right = (parser.parse_answer(completion) or "").replace(",", " ").split(), set(answer.split(", "))
    if len(given) > MAX_WORDS:
        return 0.0
    strange = sum(word not in ANIMALS and word not in OTHERS for word in given)
    return max(0.0, len(right & set(given)) / len(right) - COST * strange)


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        words = rng.sample(ANIMALS, SHOWN) + rng.sample(OTHERS, SHOWN)
        rng.shuffle(words)
        text = " ".join(words)
        if (zlib.crc32(text.encode()) % 2 == 1) == evaluation:
            rows[text] = {"question": text, "answer": ", ".join(word for word in words if word in ANIMALS)}
    return list(rows.values())


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment with ten words per example, five of them animals. The reward is 0 to 1.

    Args:
        num_examples: Number of lists.
        seed: Random seed of the dataset; evaluation lists differ from training lists.
    """
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([found], parser=parser),
        policies={"keeper": keeper},
    )
