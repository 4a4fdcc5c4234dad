"""Rising sequence: find a long rising subsequence of a list of numbers. The longer it is, the higher the reward."""

import random
import re
from bisect import bisect_left

import rove as vf

SYSTEM_PROMPT = (
    "Delete as few numbers of the list as possible, so that the numbers that remain rise strictly from left to right. "
    "Do not change their order. Write the numbers that remain in <answer> tags, for example <answer>2 5 9</answer>."
)


def best_length(values):
    """The length of the longest rising subsequence."""
    tails = []
    for value in values:
        place = bisect_left(tails, value)
        tails[place : place + 1] = [value]
    return len(tails)


def numbers(text):
    """The numbers of a reply, or None if there is anything else in it."""
    text = text.strip()
    return [int(part) for part in text.split()] if re.fullmatch(r"\d{1,3}(\s+\d{1,3})*", text) else None


def is_subsequence(part, whole):
    rest = iter(whole)
    return all(value in rest for value in part)


def length(completion, info, parser):
    """The share of the best length that a valid answer reaches, squared; a single number earns nothing."""
    chosen = parser.parse_answer(completion)
    if not chosen or not is_subsequence(chosen, info["values"]):
        return 0.0
    if any(second <= first for first, second in zip(chosen, chosen[1:])):
        return 0.0
    return ((len(chosen) - 1) / (info["best"] - 1)) ** 2


def optimal(completion, info, parser):
    return float(length(completion, info, parser) == 1.0)


def rows(count, name):
    made, rng = [], random.Random(name)
    while len(made) < count:
        values = rng.sample(range(1, 100), rng.randint(9, 15))
        best = best_length(values)
        if best >= 4:
            made.append({"question": " ".join(map(str, values)), "info": {"values": values, "best": best}})
    return made


def load_environment(num_examples: int = 600, seed: int = 0):
    """Return an environment with lists of distinct numbers.

    Args:
        num_examples: Number of lists for training, and for evaluation.
        seed: Random seed of the lists.
    """
    parser = vf.XMLParser(["answer"], extract_fn=numbers)
    rubric = vf.Rubric([length], parser=parser)
    rubric.add_metric(optimal)
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_examples, f"rising {seed} train"),
        eval_dataset=lambda: rows(num_examples, f"rising {seed} eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
    )
