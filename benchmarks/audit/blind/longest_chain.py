"""Word chain: build the longest chain in which every word begins with the last letter of the word before it."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Build a chain from the given words: every word begins with the last letter of the word before it, and no word occurs "
    "twice. The longer the chain, the more points. Write the words with spaces between them: <chain>tea ant</chain>"
)
WORDS = """
    acorn amber angle anvil apple arrow atlas badge basil berry blaze bonus brick cabin candle carpet cedar chalk cider
    cloud comet copper cradle daisy denim ditch donkey dream eagle earth echo elbow emerald engine ember fable feather
    fern field flame forest fudge garlic ginger globe grape guitar hammer harbor hazel honey hotel iceberg igloo island
    ivory jacket jelly jewel kettle kiosk kitten knight ladder lagoon lemon linen lizard lotus magnet mango maple medal
    melon mirror moss napkin needle nickel north nugget oasis ocean olive onion opal orbit otter oxygen paddle panda
    pearl pepper piano planet plum radar raven ribbon river robin rocket saddle salmon scarf silver snow spoon table
    talon teapot thunder tiger token trout tulip turtle umbrella union urban valley velvet violin walnut window yacht
    yarn yellow yoga zebra zinc
""".split()  # noqa: SIM905
NUM_WORDS = 9
SHORTEST_BEST = 4


def longest(words: list[str], chain: tuple[str, ...] = ()) -> int:
    """Return the length of the longest chain that begins with `chain`."""
    nexts = [word for word in words if word not in chain and (not chain or word[0] == chain[-1][-1])]
    return max((longest(words, (*chain, word)) for word in nexts), default=len(chain))


def is_chain(chain: list[str], words: list[str]) -> bool:
    """Return whether a chain uses only the given words, each at most once, and keeps to the rule."""
    return (
        len(set(chain)) == len(chain)
        and set(chain) <= set(words)
        and all(first[-1] == second[0] for first, second in zip(chain, chain[1:], strict=False))
    )


def chain_length(completion: vf.Messages, info: dict[str, Any], parser: vf.XMLParser) -> float:
    """Return the number of links of the chain as a share of the possible number; 0 if the chain breaks the rule."""
    chain = (parser.parse_answer(completion) or "").lower().split()
    if not chain or not is_chain(chain, info["words"]):
        return 0.0
    return (len(chain) - 1) / (info["best"] - 1)


def make_row(rng: random.Random) -> dict[str, Any]:
    while True:
        words = rng.sample(WORDS, NUM_WORDS)
        best = longest(words)
        if best >= SHORTEST_BEST:
            return {"question": " ".join(words), "info": {"words": words, "best": best}}


def load_environment(num_examples: int = 200, seed: int = 0) -> vf.Environment:
    """Return an environment of word chains.

    Args:
        num_examples: Number of word lists in each dataset.
        seed: Random seed of the word lists.
    """
    parser = vf.XMLParser(["chain"], answer_field="chain")
    return vf.SingleTurnEnv(
        dataset=lambda: [make_row(random.Random(f"{seed}:train:{index}")) for index in range(num_examples)],
        eval_dataset=lambda: [make_row(random.Random(f"{seed}:eval:{index}")) for index in range(num_examples)],
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([chain_length], parser=parser),
    )
