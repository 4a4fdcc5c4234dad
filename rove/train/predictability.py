"""Measure how well a model can predict the teacher's responses from what it sees: hidden state, merged symbols, relations."""

# Many functions of torch have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec
import torch

from rove.core.records import RolloutRecord
from rove.train.sequences import TrainingSequence

MIN_COMPARABLE_TURNS = 20
"""Minimum number of pairs of turns that `hidden_share` compares."""
MIN_STANDARD_ERRORS = 4.0
"""Minimum number of standard errors by which agreement within examples must exceed agreement across examples."""
FEW_SYMBOLS, MAX_SYMBOLS = 4, 10
"""Words of one length look like merged symbols if several of them together have at most `FEW_SYMBOLS` distinct letters, or most
of them together have at most `MAX_SYMBOLS`."""
MIN_RESPONSES = 500
"""Minimum number of responses for which the absence of a relation counts as evidence."""
MIN_OCCURRENCES = 20
"""Minimum number of occurrences of a feature for its relations to be tested."""
MAX_FEATURES, MAX_OUTCOMES = 3000, 64
"""Maximum numbers of features of prompts and of responses that are tested, the most frequent features first."""
NEAR_TOKENS, FIRST_TOKENS = 48, 8
"""Numbers of tokens before a response, and of first tokens of a response, whose positions are features."""
MAX_CHANCE = 0.001
"""A relation counts as real if the probability that any test finds it by chance is below this value."""


def hidden_share(records: Iterable[RolloutRecord]) -> float | None:
    """Return how much a policy's responses depend on something that the conversation does not show (0 to 1).

    The function compares rollouts with the same conversation before a turn. If responses depend on something hidden in the
    example, two rollouts of one example agree more often than rollouts of two examples. Every conversation has the same weight.
    In a plain sum over all pairs, most pairs across examples come from a first turn with random ties, and many pairs within
    examples come from forced later turns, so the sum indicated a hidden state where none was (Simpson's paradox, seen with the
    teacher of tictactoe).

    Returns: The excess of agreement within examples, as a share of the possible excess; 0 if chance explains it; None
        if fewer than `MIN_COMPARABLE_TURNS` pairs can be compared.
    """
    turns: dict[bytes, dict[str, list[bytes]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        for step in record.steps:
            turns[msgspec.json.encode(step.prompt)][record.example_key].append(msgspec.json.encode(step.completion))
    agreements = [_agreement(by_example.values()) for by_example in turns.values()]
    comparable = [agreement for agreement in agreements if agreement.within and agreement.across]
    within = sum(agreement.within for agreement in comparable)
    if within < MIN_COMPARABLE_TURNS:
        return None
    inside = statistics.fmean(agreement.within_agree / agreement.within for agreement in comparable)
    outside = statistics.fmean(agreement.across_agree / agreement.across for agreement in comparable)
    # The variances of one pair; few pairs that all agree do not make the agreement certain.
    variance_inside = max(inside * (1 - inside), 1 / within)
    variance_outside = outside * (1 - outside)
    variances = [variance_inside / agreement.within + variance_outside / agreement.across for agreement in comparable]
    error = math.sqrt(sum(variances)) / len(comparable)
    excess = inside - outside
    return excess / (1 - outside) if excess > MIN_STANDARD_ERRORS * error else 0.0


class _Agreement(NamedTuple):
    """Counts of pairs of responses to one conversation."""

    within_agree: int
    within: int
    """Number of pairs of rollouts of one example."""
    across_agree: int
    across: int
    """Number of pairs of rollouts of two examples."""


def _agreement(responses_by_example: Collection[Sequence[bytes]]) -> _Agreement:
    """Return the number of pairs of responses to a conversation, and the number of pairs with equal responses."""
    counts = [Counter(responses) for responses in responses_by_example]
    all_counts = sum(counts, Counter[bytes]())
    within_agree = sum(_equal_pairs(count) for count in counts)
    within = sum(math.comb(count.total(), 2) for count in counts)
    across_agree = _equal_pairs(all_counts) - within_agree
    return _Agreement(within_agree, within, across_agree, math.comb(all_counts.total(), 2) - within)


def _equal_pairs(counts: Counter[bytes]) -> int:
    return sum(math.comb(count, 2) for count in counts.values())


def merged_symbols(words: Iterable[str]) -> list[str]:
    """Return words that look like several symbols in one token, such as "RGB", "GBR", "BRG": many words of one length with few
    letters.

    Args:
        words: Words of an environment's texts, or tokens of a vocabulary.
    """
    by_length: dict[int, set[str]] = defaultdict(set)
    for word in {word.strip() for word in words}:
        if len(word) > 1 and word.isalnum():
            by_length[len(word)].add(word)
    merged: set[str] = set()
    for equally_long in by_length.values():
        letters = [letter for letter, _ in Counter("".join(equally_long)).most_common()]
        for size in range(2, MAX_SYMBOLS + 1):
            symbols = set(letters[:size])
            spelled = [word for word in equally_long if set(word) <= symbols]
            # With more letters, ordinary words fit too, but only a small part of them.
            is_typical = size <= FEW_SYMBOLS or 2 * len(spelled) > len(equally_long)
            if len(spelled) > 2 * size and is_typical:
                merged.update(spelled)
    return sorted(merged)


def prompts_are_related(sequences: Iterable[TrainingSequence]) -> bool | None:
    """Return whether any token before a response is related to a token of the response; None for fewer than `MIN_RESPONSES`
    responses.

    The features of a prompt are its tokens, and its last tokens by their distance from the response. A chi-squared test
    compares each feature with each of the first tokens of the response. A task whose answer depends on several words together,
    such as a sum modulo 7, may show no relation.
    """
    prompts: list[set[tuple[int, int]]] = []
    responses: list[set[tuple[int, int]]] = []
    for sequence in sequences:
        ids, mask = sequence.ids, sequence.mask
        for start in range(1, len(ids)):
            starts_response = mask[start] and not mask[start - 1]
            if starts_response:
                nearest_first = reversed(ids[max(0, start - NEAR_TOKENS) : start])
                prompts.append({(0, token) for token in ids[:start]} | set(enumerate(nearest_first, start=1)))
                responses.append(set(enumerate(ids[start : start + FIRST_TOKENS])))
    if len(prompts) < MIN_RESPONSES:
        return None
    features, outcomes = _indicators(prompts, MAX_FEATURES), _indicators(responses, MAX_OUTCOMES)
    tests = features.shape[1] * outcomes.shape[1]
    if not tests:
        return None
    for values in (features, outcomes):
        values -= values.mean(0)
        values /= torch.linalg.vector_norm(values, dim=0)
    correlation = (features.T @ outcomes).abs().max().item()
    # Chi-squared of two 0-or-1 values is the square of their correlation times the number of observations.
    chance = math.erfc(correlation * math.sqrt(len(prompts) / 2))
    # Bonferroni's correction: with so many tests, some are significant by chance.
    return chance * tests < MAX_CHANCE


def _indicators(observations: Sequence[set[tuple[int, int]]], limit: int) -> torch.Tensor:
    """Return which of the most frequent features each observation has, as 0 or 1; features that nearly all observations have
    are left out.
    """
    counts = Counter(chain.from_iterable(observations))
    highest = len(observations) - MIN_OCCURRENCES
    tested = [feature for feature, count in counts.most_common() if MIN_OCCURRENCES <= count <= highest][:limit]
    columns = {feature: column for column, feature in enumerate(tested)}
    values = torch.zeros(len(observations), len(tested))
    for row, features in enumerate(observations):
        values[row, [columns[feature] for feature in features if feature in columns]] = 1.0
    return values
