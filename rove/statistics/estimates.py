"""Means, pass@k, percentiles and sample sizes: pure functions of plain numbers."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

from rove.core.errors import ConfigError

POINTS = 0.02
"""Difference that sample sizes are planned for: two points of a score between 0 and 1."""
Z_BOTH = 1.959963984540054 + 0.8416212335729143
"""Normal quantiles of a 95 % interval and of 80 % power, summed."""


def mean(values: Sequence[float]) -> float:
    """Return the mean; nan if there are no values or the sum exceeds the largest float."""
    try:
        return math.fsum(values) / len(values) if values else math.nan
    except OverflowError:
        return math.nan


def needed_examples(variance: float, difference: float = POINTS) -> int | None:
    """Return how many examples make the 95 % interval of a difference between two runs exclude zero, with 80 % power.

    n = (z₀.₉₇₅ + z₀.₈₀)² · variance / difference², Miller 2024, "Adding Error Bars to Evals", arXiv:2411.00640.
    The variance determines the design (paired or unpaired). If it is 0, the result is the number of examples that would
    reveal a deviation in 2 of 100 examples (the rule of three, 3 / difference).

    Args:
        variance: Variance of the difference of one example. Paired (both runs have the same examples): the variance of
            b − a over the example means. Unpaired: the variance of a plus that of b; n is then per run.
        difference: True difference of the means to detect.

    Returns:
        The number; None if the variance is not finite.

    Raises:
        ConfigError: The difference is not positive.
    """
    if not difference > 0.0:
        raise ConfigError(f"difference is {difference}; expected a positive number")
    if not math.isfinite(variance):
        return None
    if variance < 1e-18:  # rounding error of equal values
        return math.ceil(3 / difference)
    return max(2, math.ceil(Z_BOTH**2 * variance / difference**2))


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return an unbiased estimate of the probability that at least one of `k` rollouts passes: 1 − C(n−c, k) / C(n, k).

    Chen et al. 2021, "Evaluating Large Language Models Trained on Code", arXiv:2107.03374.

    Args:
        n: Number of rollouts.
        c: Number of passing rollouts.
        k: Number of attempts, 1 … n.

    Raises:
        ConfigError: Not 0 ≤ c ≤ n and 1 ≤ k ≤ n.
    """
    return 1.0 - pass_hat_k(n, n - c, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Return an unbiased estimate of the probability that all of `k` rollouts pass: C(c, k) / C(n, k).

    Yao et al. 2024, "τ-bench", arXiv:2406.12045. Arguments as in `pass_at_k`; a product avoids overflow of factorials.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ConfigError(f"n = {n}, c = {c}, k = {k}: expected 0 ≤ c ≤ n passes and 1 ≤ k ≤ n tries")
    return math.prod((c - i) / (n - i) for i in range(k)) if c >= k else 0.0


def percentiles(counts: Mapping[float, int], shares: Sequence[float] = (0.5, 0.9, 0.99)) -> list[float]:
    """Return percentiles with linear interpolation, as numpy does.

    Args:
        counts: Number of occurrences by value, such as `collections.Counter(values)`.
        shares: Fractions between 0 and 1.

    Returns:
        One value per share; nan if there are no values.
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
