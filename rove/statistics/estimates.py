"""Estimates and how sure they are: pure functions of plain numbers."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

from rove.core.errors import ConfigError

POINTS = 0.02
"""The difference that planning is about: two points of a score between 0 and 1."""
Z_BOTH = 1.959963984540054 + 0.8416212335729143
"""Normal quantiles of a 95 % interval and of 80 % power, added up."""


def mean(values: Sequence[float]) -> float:
    """Return the mean; nan of no values, or if the sum exceeds the largest float."""
    try:
        return math.fsum(values) / len(values) if values else math.nan
    except OverflowError:
        return math.nan


def needed_examples(variance: float, difference: float = POINTS) -> int | None:
    """Examples after which the 95 % interval of a difference between two runs excludes zero, with 80 % power.

    n = (z₀.₉₇₅ + z₀.₈₀)² · variance / difference², Miller 2024, "Adding Error Bars to Evals", arXiv:2411.00640.
    Which design it plans is decided by the variance. Values of no spread at all would need no examples; then it is the
    number among which a deviation in 2 of 100 examples would have shown (the rule of three, 3 / difference).

    Args:
        variance: of one example's difference. Paired (both runs have the same examples): the variance of b − a over the
            examples, each a mean over rollouts. Unpaired: that of a plus that of b, and n is for each run.
        difference: the true difference of the means that is to be found.

    Returns:
        the number; None when the variance is not finite.

    Raises:
        ConfigError: the difference is not above 0.
    """
    if not difference > 0.0:
        raise ConfigError(f"difference is {difference}; expected more than 0")
    if not math.isfinite(variance):
        return None
    if variance < 1e-18:  # what rounding leaves of equal values
        return math.ceil(3 / difference)
    return max(2, math.ceil(Z_BOTH**2 * variance / difference**2))


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate of the probability that at least one of `k` rollouts passes: 1 − C(n−c, k) / C(n, k).

    Chen et al. 2021, "Evaluating Large Language Models Trained on Code", arXiv:2107.03374.

    Args:
        n: rollouts there are.
        c: how many of them passed.
        k: how many are tried, 1 … n.

    Raises:
        ConfigError: not 0 ≤ c ≤ n and 1 ≤ k ≤ n.
    """
    return 1.0 - pass_hat_k(n, n - c, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate of the probability that all of `k` rollouts pass: C(c, k) / C(n, k); arguments as in `pass_at_k`.

    Yao et al. 2024, "τ-bench", arXiv:2406.12045. As a product, so that no factorial overflows.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ConfigError(f"n = {n}, c = {c}, k = {k}: expected 0 ≤ c ≤ n passes and 1 ≤ k ≤ n tries")
    return math.prod((c - i) / (n - i) for i in range(k)) if c >= k else 0.0


def percentiles(counts: Mapping[float, int], shares: Sequence[float] = (0.5, 0.9, 0.99)) -> list[float]:
    """The values below which the given shares lie, interpolated linearly between neighbours as numpy does.

    Args:
        counts: how often each value occurs; `collections.Counter(values)` makes it of plain values.
        shares: between 0 and 1.

    Returns:
        one value per share; nan of nothing.
    """
    ordered = sorted(counts)
    up_to = list(accumulate(counts[value] for value in ordered))
    if not up_to:
        return [math.nan] * len(shares)
    found: list[float] = []
    for share in shares:
        place = share * (up_to[-1] - 1)
        low, high = (ordered[bisect_right(up_to, rank)] for rank in (math.floor(place), math.ceil(place)))
        found.append(low + (place - math.floor(place)) * (high - low))
    return found
