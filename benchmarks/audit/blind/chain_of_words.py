"""Word chain: order some of the given words so that each word begins with the last letter of the word before it."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Build a chain from the given words: each word begins with the last letter of the word before it. Use each word at most "
    "once and only the given words. The longer the chain, the better; an invalid chain or a single word scores 0. "
    "Reply with <chain>word word word</chain>."
)
WORDS = """
    apple area basket bench cactus candle carrot delta dragon eagle echo edge elbow engine fabric falcon garden glove
    hammer honey idea insect island jacket jungle kernel kitten lemon ladder magnet marble mirror needle night noodle
    ocean olive orange otter paper planet pocket quartz rabbit ribbon river rocket salad sailor shadow silver table
    tiger tunnel turtle umbrella uncle valley velvet walnut window yacht yellow zebra zigzag
""".split()


def longest_chain(words: list[str]) -> list[str]:
    """Return one of the longest chains."""
    best: list[str] = []

    def extend(chain: list[str]) -> None:
        nonlocal best
        if len(chain) > len(best):
            best = list(chain)
        for word in words:
            if word not in chain and (not chain or word[0] == chain[-1][-1]):
                extend([*chain, word])

    extend([])
    return best


def is_chain(chain: list[str], words: list[str]) -> bool:
    """Return whether a list of words follows the rules."""
    fits = all(second[0] == first[-1] for first, second in zip(chain, chain[1:], strict=False))
    return fits and len(set(chain)) == len(chain) and set(chain) <= set(words)


def _rows(count: int, seed: int) -> list[dict[str, Any]]:
    rng = random.Random(f"chain:{seed}")
    found: dict[frozenset[str], dict[str, Any]] = {}
    while len(found) < count:
        words = rng.sample(WORDS, 10)
        best = longest_chain(words)
        if 5 <= len(best) <= 9 and frozenset(words) not in found:
            found[frozenset(words)] = {"question": " ".join(words), "info": {"words": words, "best": len(best)}}
    return list(found.values())


def chain_length(completion: vf.Messages, info: dict[str, Any], parser: vf.XMLParser) -> float:
    """The length of the chain, as a share of the longest possible length."""
    chain = (parser.parse_answer(completion) or "").lower().replace(",", " ").split()
    if len(chain) < 2 or not is_chain(chain, info["words"]):
        return 0.0
    return len(chain) / info["best"]


def longest(completion: vf.Messages, info: dict[str, Any], parser: vf.XMLParser) -> float:
    return float(chain_length(completion, info, parser) == 1)


def load_environment(num_examples: int = 300, num_eval_examples: int = 80, seed: int = 0) -> vf.Environment:
    """Return an environment with word chains.

    Args:
        num_examples: Sets of words for training.
        num_eval_examples: Sets of words for evaluation.
        seed: Random seed of the sets.
    """
    rows = _rows(num_examples + num_eval_examples, seed)
    parser = vf.XMLParser(["chain"], answer_field="chain")
    rubric = vf.Rubric([chain_length], parser=parser)
    rubric.add_metric(longest)
    return vf.SingleTurnEnv(
        dataset=rows[:num_examples],
        eval_dataset=rows[num_examples:],
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
    )
