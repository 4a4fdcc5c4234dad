"""Estimates and how sure they are: pure functions of plain numbers."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from rove.errors import ConfigError

POINTS = 0.02
"""The difference that planning is about: two points of a score between 0 and 1."""
Z_BOTH = 1.959963984540054 + 0.8416212335729143
"""Normal quantiles of a 95 % interval and of 80 % power, added up."""


class Estimate(NamedTuple):
    """A mean, and the half-width of its 95 % confidence interval (nan when it cannot be told)."""

    mean: float
    half_width: float


def mean(values: Sequence[float]) -> float:
    """The mean; nan of nothing."""
    return math.fsum(values) / len(values) if values else math.nan


@lru_cache(maxsize=256)
def t_quantile(p: float, df: int) -> float:
    """The value that a Student-t variable of `df` degrees of freedom stays below with probability `p`.

    Newton's method on the closed form of the distribution function. That function is concave above 0, so the steps from 0
    only ever rise towards the quantile.

    Raises:
        ConfigError: `p` is not between 0 and 1, or `df` below 1.
    """
    if not 0.0 < p < 1.0 or df < 1:
        raise ConfigError(f"no t quantile of p = {p}, df = {df}; expected 0 < p < 1 and df of 1 or more")
    if p < 0.5:
        return -t_quantile(1.0 - p, df)
    peak = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df * math.pi)
    t = 0.0
    for _ in range(100):
        density = peak * (1.0 + t * t / df) ** (-(df + 1) / 2)
        step = (p - 0.5 - _t_below(t, df)) / density
        t += step
        if step <= 1e-8 * t:  # the error after a step is of the order of its square
            break
    return t


def _t_below(t: float, df: int) -> float:
    """Probability that a t variable lies between 0 and `t` (Abramowitz & Stegun, 26.7.3 and 26.7.4, halved)."""
    odd = df % 2
    cosine2 = df / (df + t * t)
    term = total = math.sqrt(cosine2) if odd else 1.0
    for k in range(2 + odd, df - 1, 2):
        term *= cosine2 * (k - 1) / k
        total += term
    part = math.sqrt(1.0 - cosine2) * total
    if not odd:
        return part / 2
    return (math.atan(t / math.sqrt(df)) + (part if df > 1 else 0.0)) / math.pi


def clustered_mean(values: Iterable[tuple[str, float]]) -> Estimate:
    """Mean of (cluster, value) pairs; see `clustered_estimate`. Clusters are examples, values their rollouts."""
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    for cluster, value in values:
        sums[cluster] = sums.get(cluster, 0.0) + value
        counts[cluster] = counts.get(cluster, 0) + 1
    return clustered_estimate(list(sums.values()), list(counts.values()))


def clustered_estimate(sums: Sequence[float], counts: Sequence[int]) -> Estimate:
    """Mean of all values with a 95 % interval that knows values of one cluster are not independent.

    The variance is the sandwich estimate over clusters (as for a regression on a constant, with the factor n / (n − 1));
    the quantile is Student's with clusters − 1 degrees of freedom. With one value in each cluster it is the ordinary t interval.
    As that one it is too narrow where nearly all values are equal (below about ten clusters that differ from the rest).

    Args:
        sums: of the values of each cluster.
        counts: how many values each cluster has; those without any do not count.

    Returns:
        the estimate; its half-width is nan below two clusters.
    """
    values = sum(counts)
    if not values:
        return Estimate(math.nan, math.nan)
    centre = math.fsum(sums) / values
    clusters = sum(count > 0 for count in counts)
    if clusters < 2:
        return Estimate(centre, math.nan)
    squares = math.fsum((total - count * centre) ** 2 for total, count in zip(sums, counts))
    error = math.sqrt(squares * clusters / (clusters - 1)) / values
    return Estimate(centre, t_quantile(0.975, clusters - 1) * error)


def example_variance(estimate: Estimate, examples: int) -> float:
    """The variance of one example's mean over its rollouts, as an estimate over `examples` tells it; nan below two."""
    if examples < 2:
        return math.nan
    return examples * (estimate.half_width / t_quantile(0.975, examples - 1)) ** 2


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
        the number; None when the variance is nan.

    Raises:
        ConfigError: the difference is not above 0.
    """
    if not difference > 0.0:
        raise ConfigError(f"difference is {difference}; expected more than 0")
    if math.isnan(variance):
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
