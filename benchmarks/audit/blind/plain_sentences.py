"""Plain sentences: remove the filler words of a sentence and keep everything that matters."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Shorten the sentence: leave out words that add nothing, and keep all facts. Reply with the shortened sentence only."
FILLERS = [
    "basically",
    "actually",
    "really",
    "simply",
    "of course",
    "more or less",
    "kind of",
    "in a way",
    "obviously",
    "as a matter of fact",
    "needless to say",
    "at the end of the day",
    "it goes without saying that",
    "quite",
    "honestly",
    "to be fair",
    "at this point in time",
    "for all intents and purposes",
]
PEOPLE = [
    "the mayor",
    "our neighbor",
    "a nurse",
    "the conductor",
    "my aunt",
    "the baker",
    "a diver",
    "the clerk",
    "the goalkeeper",
    "a beekeeper",
    "the librarian",
    "a locksmith",
]
DEEDS = ["sold", "repaired", "painted", "found", "bought", "hid", "borrowed", "measured", "photographed", "returned"]
THINGS = [
    "a violin",
    "two ladders",
    "the old ferry",
    "a silver coin",
    "three lamps",
    "the garden gate",
    "a fishing net",
    "the blue tent",
    "a globe",
    "four chairs",
    "the church bell",
    "a sewing machine",
]
PLACES = [
    "in Lisbon",
    "at the harbor",
    "behind the school",
    "near the bridge",
    "in the cellar",
    "on the island",
    "at the station",
    "in Oslo",
]
TIMES = ["on Monday", "last night", "in March", "before lunch", "after the storm", "on Friday"]


def words(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return re.findall(r"[a-z]+", text.lower())


def keeps_facts(completion: vf.Messages, info: dict[str, Any]) -> float:
    """Return the share of the facts that the reply keeps, word for word."""
    reply = " ".join(words(str(completion[-1].content or "")))
    return sum(fact in reply for fact in info["facts"]) / len(info["facts"])


def brevity(question: str, answer: str) -> float:
    """Return the share of the words of the sentence that were left out."""
    return 1 - len(words(answer)) / len(words(question))


def reply_words(completion: vf.Messages) -> float:
    """Return the number of words of the reply."""
    return float(len(words(str(completion[-1].content or ""))))


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        facts = [rng.choice(part) for part in (PEOPLE, DEEDS, THINGS, PLACES, TIMES)]
        fillers = rng.sample(FILLERS, rng.randint(3, 5))
        mixed = list(facts)
        for filler in fillers:
            mixed.insert(rng.randint(0, len(mixed)), filler)
        sentence, short = " ".join(mixed) + ".", " ".join(facts) + "."
        rows.append(
            {
                "question": sentence[0].upper() + sentence[1:],
                "answer": short[0].upper() + short[1:],
                "info": {"facts": [fact.lower() for fact in facts]},
            }
        )
    return rows


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment in which the model shortens sentences.

    Args:
        num_examples: Number of sentences for training, and for evaluation.
        seed: Random seed of the sentences.
    """
    rubric = vf.Rubric([keeps_facts, brevity], [1.0, 1.0])
    rubric.add_metric(reply_words)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
    )
