"""Measure how well a model can predict the teacher's responses from what it sees: hidden state, merged symbols, relations."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import msgspec
import torch

from rove.core.records import RolloutRecord
from rove.train.sequences import TrainingSequence

MIN_COMPARABLE_TURNS = 20
"""Minimum number of pairs of turns that `hidden_share` compares."""
MIN_STANDARD_ERRORS = 4.0
"""Standard errors by which agreement within examples must exceed that across examples."""
FEW_SYMBOLS, MAX_SYMBOLS = 4, 10
"""Numbers of different letters up to which several words of one length, or most of them, look like merged symbols."""
MIN_RESPONSES = 500
"""Number of responses from which the absence of a relation means something."""
MIN_OCCURRENCES = 20
"""Occurrences of a feature from which its relations are tested."""
MAX_FEATURES, MAX_OUTCOMES = 3000, 64
"""Features of prompts and of responses that are tested, the most frequent ones first."""
NEAR_TOKENS, FIRST_TOKENS = 48, 8
"""Tokens before a response, and first tokens of a response, whose positions are features."""
MAX_CHANCE = 0.001
"""Probability up to which a relation is no chance, over all tests together."""


def hidden_share(records: Iterable[RolloutRecord]) -> float | None:
    """Return how much a policy's responses depend on something that the conversation does not show (0 to 1).

    Compares rollouts with the same conversation before a turn. If they depend on something hidden in the example, two rollouts of
    one example agree more often than rollouts of two examples.

    Returns:
        The excess of agreement within examples, as a share of the possible excess, or 0 where chance explains it; None if fewer
        than `MIN_COMPARABLE_TURNS` pairs can be compared.
    """
    turns: dict[bytes, dict[str, list[bytes]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        for step in record.steps:
            turns[msgspec.json.encode(step.prompt)][record.example_key].append(msgspec.json.encode(step.completion))
    within_agree = within = across_agree = across = 0
    for by_example in turns.values():
        if len(by_example) < 2:
            continue
        counts = [Counter(responses) for responses in by_example.values()]
        whole = sum(counts, Counter[bytes]())
        agree, pairs = sum(map(_equal_pairs, counts)), sum(math.comb(count.total(), 2) for count in counts)
        within_agree, within = within_agree + agree, within + pairs
        across_agree += _equal_pairs(whole) - agree
        across += math.comb(whole.total(), 2) - pairs
    if within < MIN_COMPARABLE_TURNS or not across:
        return None
    inside, outside = within_agree / within, across_agree / across
    error = math.sqrt(max(inside * (1 - inside), 1 / within) / within)
    return (inside - outside) / (1 - outside) if inside - outside > MIN_STANDARD_ERRORS * error else 0.0


def _equal_pairs(counts: Counter[bytes]) -> int:
    return sum(math.comb(count, 2) for count in counts.values())


def merged_symbols(words: Iterable[str]) -> list[str]:
    """Return words that look like several symbols in one token, such as "RGB", "GBR", "BRG": many of one length over few letters.

    Args:
        words: Words of an environment's texts, or tokens of a vocabulary.
    """
    by_length: dict[int, set[str]] = defaultdict(set)
    for word in {word.strip() for word in words}:
        if len(word) > 1 and word.isalnum():
            by_length[len(word)].add(word)
    found: set[str] = set()
    for some in by_length.values():
        letters = [letter for letter, _ in Counter("".join(some)).most_common()]
        for size in range(2, MAX_SYMBOLS + 1):
            inside = [word for word in some if set(word) <= set(letters[:size])]
            # with more letters, ordinary words fit too, but only a small part of them
            if len(inside) > 2 * size and (size <= FEW_SYMBOLS or 2 * len(inside) > len(some)):
                found.update(inside)
    return sorted(found)


def prompts_are_related(sequences: Iterable[TrainingSequence]) -> bool | None:
    """Return whether any token before a response is related to a token of the response; None with fewer than `MIN_RESPONSES`.

    Features of a prompt are the tokens in it, and the last tokens by their distance from the response. Each is compared with each
    of the first tokens of the response by a chi-squared test. A task whose answer takes several words at once may show no
    relation, such as a sum modulo 7.
    """
    prompts: list[set[tuple[int, int]]] = []
    responses: list[set[tuple[int, int]]] = []
    for one in sequences:
        for start in range(1, len(one.ids)):
            if one.mask[start] and not one.mask[start - 1]:
                near = list(enumerate(reversed(one.ids[max(0, start - NEAR_TOKENS) : start]), start=1))
                prompts.append({(0, token) for token in one.ids[:start]} | set(near))
                responses.append(set(enumerate(one.ids[start : start + FIRST_TOKENS])))
    if len(prompts) < MIN_RESPONSES:
        return None
    before, after = _indicators(prompts, MAX_FEATURES), _indicators(responses, MAX_OUTCOMES)
    tests = before.shape[1] * after.shape[1]
    if not tests:
        return None
    for values in (before, after):
        values -= values.mean(0)
        values /= values.norm(dim=0)
    correlation = (
        (before.T @ after).abs().max().item()
    )  # of 0-or-1 values: chi-squared is its square times their number
    return math.erfc(correlation * math.sqrt(len(prompts) / 2)) * tests < MAX_CHANCE


def _indicators(observations: Sequence[set[tuple[int, int]]], limit: int) -> torch.Tensor:
    """Return which of the most frequent features each observation has, as 0 or 1; those that nearly all have are left out."""
    counts = Counter(feature for one in observations for feature in one)
    highest = len(observations) - MIN_OCCURRENCES
    kept = [feature for feature, count in counts.most_common() if MIN_OCCURRENCES <= count <= highest][:limit]
    columns = {feature: column for column, feature in enumerate(kept)}
    values = torch.zeros(len(observations), len(kept))
    for row, one in enumerate(observations):
        values[row, [columns[feature] for feature in one if feature in columns]] = 1.0
    return values
