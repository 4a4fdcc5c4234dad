"""Tile words: from a list of words, pick those that can be laid with the given letter tiles; more words score more."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import rove as vf

GOAL = 6
SYSTEM_PROMPT = (
    f"Pick up to {GOAL} words of the list that can be laid with the tiles; each tile may be used once per word. Every right "
    "word earns a point, every wrong one costs a point. Answer <words>word word word</words>"
)
LEXICON = """
acorn alert angle apron arena arrow badge baker barge beard bench berry birch blade board bread brick cabin cable camel
canoe cedar chain chalk charm chest cider clerk cliff cloud coast coral crane crate cream crown curls daisy dance delta
diner dough drain dream eagle earth ember fable feast fence ferry field flame flint flour forge frost fruit glade glass
globe grain grape gravy hazel heart hedge honey horse hotel inlet ivory jelly kayak ladle larch lemon lilac linen lunar
maize mango maple march medal melon metal miner mirth moose motel noble north notes ocean olive onion opera orbit otter
paint panda paper pearl pedal petal piano plaid plain plate plume polar prism quail quilt radio ranch raven relay river
robin rogue salad satin scarf shale shark sheep shell shore skate slate slope smile solar spade spice spoon stair steam
stone storm straw sugar table tiger tides toast torch tower trail train trout tulip uncle urban valve vapor viola wagon
waltz water whale wheat yacht zebra
""".split()


def fits(word: str, tiles: str) -> bool:
    """Return whether a word can be laid."""
    return not Counter(word) - Counter(tiles)


def make_row(rng: random.Random) -> dict[str, Any]:
    while True:
        base = "".join(rng.sample(LEXICON, 2))
        tiles = "".join(sorted(base + rng.choice("aeiou")))
        good = [word for word in LEXICON if fits(word, tiles)]
        if len(good) >= GOAL:
            break
    bad = [word for word in LEXICON if word not in good]
    words = rng.sample(good, GOAL) + rng.sample(bad, 18)
    rng.shuffle(words)
    right = sorted(word for word in words if fits(word, tiles))
    question = f"Tiles: {' '.join(tiles)}\nWords: {' '.join(words)}"
    return {"question": question, "answer": " ".join(right), "info": {"tiles": tiles, "words": words}}


def rows(count: int, seed: str) -> list[dict[str, Any]]:
    return [make_row(random.Random(f"{seed}:{index}")) for index in range(count)]


def points(completion: vf.Messages, info: dict[str, Any], parser: vf.XMLParser) -> float:
    """Return the right words minus the wrong ones, as a share of the goal, not below 0."""
    picked = set((parser.parse_answer(completion) or "").lower().replace(",", " ").split())
    right = {word for word in picked if word in info["words"] and fits(word, info["tiles"])}
    score = len(right) - len(picked - right)
    return max(0, min(GOAL, score)) / GOAL


def speller(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Pick all words that fit."""
    info = state["info"]
    return f"<words>{' '.join(word for word in info['words'] if fits(word, info['tiles']))}</words>"


def skimmer(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Pick three words whose first letter is among the tiles."""
    info = state["info"]
    likely = [word for word in info["words"] if word[0] in info["tiles"]]
    return f"<words>{' '.join(rng.sample(likely, min(3, len(likely))))}</words>"


def load_environment(num_examples: int = 400, num_eval_examples: int = 200, seed: int = 0) -> vf.Environment:
    """Return an environment in which words are picked that fit a set of tiles.

    Args:
        num_examples: Number of training questions.
        num_eval_examples: Number of evaluation questions.
        seed: Random seed of the questions.
    """
    parser = vf.XMLParser(["words"], answer_field="words")
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: rows(num_eval_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([points], parser=parser),
        policies={"speller": speller, "skimmer": skimmer},
    )
