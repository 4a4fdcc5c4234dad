"""95% confidence intervals of means: exact for two-valued results, Student's t for other results."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate

import msgspec

from rove.core.errors import ConfigError

POINTS = 0.02
"""Difference for which sample sizes are planned: two points of a score between 0 and 1."""
Z = 1.959963984540054
"""Normal quantile of a 95% interval."""
Z_BOTH = Z + 0.8416212335729143
"""Sum of the normal quantiles of a 95% interval and of 80% power."""
NO_VARIANCE = 1e-18
"""A variance below this value is only the rounding error of equal values."""


def mean(values: Sequence[float]) -> float:
    """Return the mean; nan if there are no values or the sum exceeds the largest float."""
    if not values:
        return math.nan
    try:  # fsum: the result does not depend on the order in which rollouts ended
        return math.fsum(values) / len(values)
    except OverflowError:
        return math.nan


def needed_examples(variance: float, difference: float = POINTS) -> int | None:
    """Return the number of examples with which the 95% interval of a difference between two runs excludes zero, with 80% power.

    n = (z₀.₉₇₅ + z₀.₈₀)² · variance / difference², Miller 2024, "Adding Error Bars to Evals", arXiv:2411.00640.
    The meaning of `variance` depends on the design (paired or unpaired). If it is 0, the result is the number of
    examples that would reveal a deviation in 2 of 100 examples (the rule of three, 3 / difference).

    Args:
        variance: Variance of the difference of one example. Paired (both runs have the same examples): the variance of
            b − a over the example means. Unpaired: the variance of a plus the variance of b; n is then the number of
            examples per run.
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
    if variance < NO_VARIANCE:
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
    if c < k:
        return 0.0
    return math.prod((c - i) / (n - i) for i in range(k))


def percentiles(counts: Mapping[float, int], shares: Sequence[float] = (0.5, 0.9, 0.99)) -> list[float]:
    """Return percentiles with linear interpolation, as numpy does.

    Args:
        counts: Number of occurrences by value, such as `collections.Counter(values)`.
        shares: Fractions between 0 and 1.

    Returns:
        One value per share; nan if there are no values.
    """
    ordered = sorted(counts)
    cumulative = list(accumulate(counts[value] for value in ordered))
    if not cumulative:
        return [math.nan] * len(shares)
    results: list[float] = []
    for share in shares:
        position = share * (cumulative[-1] - 1)  # between two ranks of the sorted values
        rank = math.floor(position)
        low = ordered[bisect_right(cumulative, rank)]
        high = ordered[bisect_right(cumulative, math.ceil(position))]
        results.append(low + (position - rank) * (high - low))
    return results


FEWEST_EXAMPLES = 30
"""With fewer examples, a t interval has a caveat."""
FEWEST_TWO_VALUED = 10
"""Minimum number of examples for two observed values (0 and another value, or −c and c) to count as the only possible values."""
FEWEST_MIXED = 10
"""Minimum number of examples with a success, and with a failure, for estimating the design effect of several rollouts
per example."""
MAX_SKEW = 0.02
"""Largest skewness² / examples for which a t interval has no caveat; simulated by `benchmarks/interval_coverage.py`."""
SKEWNESS_FACTOR = 1.5
"""Factor by which `widened_t` multiplies the skewness of a sample."""
DIGITS = 9
"""Number of decimal digits to which values are compared."""
FEW = f"interval may be too narrow: fewer than {FEWEST_EXAMPLES} examples"
SKEWED = "interval may be too narrow: skewed values"
EQUAL = "no interval: all values are equal"
ONE = "no interval: fewer than 2 examples"
LARGEST = 1e100
"""Largest absolute value for which a variance and a skewness are computed; squares and cubes of larger values may overflow."""
HUGE = f"no interval: a value exceeds {LARGEST:g}"
TINY = 1e-300
"""Value that Lentz's method uses in place of a denominator of 0."""


class Estimate(msgspec.Struct, frozen=True):
    """A mean with its 95% confidence interval."""

    mean: float
    low: float
    """Lower limit; nan without an interval."""
    high: float
    """Upper limit; nan without an interval."""
    caveat: str | None = None
    """Reason why the interval may be invalid or is missing; None for a valid interval."""


def no_interval(center: float, caveat: str) -> Estimate:
    """Return an estimate without limits."""
    return Estimate(center, math.nan, math.nan, caveat)


def mean_estimate(
    values: Sequence[float], levels: Collection[float] | None = None, observations: int | None = None
) -> Estimate:
    """Estimate a mean from one value per example.

    The interval comes from `proportion_interval` if every rollout scored 0 or 1, otherwise from `graded_estimate`.

    Args:
        values: One value per example, the mean over its rollouts.
        levels: Distinct values of the single rollouts; three values suffice even if there are more. Default: the distinct
            `values`.
        observations: Number of rollouts. Default: one per example.
    """
    levels = _rounded_levels(values if levels is None else levels)
    # Known from the rollouts: a mean of 0.5 may come from 0 and 1, or from a graded reward.
    if len(values) >= 2 and levels <= {0.0, 1.0}:
        return Estimate(math.fsum(values) / len(values), *proportion_interval(values, observations))
    return graded_estimate(values, levels, observations)


def _rounded_levels(levels: Collection[float]) -> set[float]:
    """Return the distinct values; values that differ only by rounding errors of weighted sums count as one."""
    return {round(level, DIGITS) for level in levels}


def graded_estimate(
    values: Sequence[float], levels: Collection[float] | None = None, observations: int | None = None
) -> Estimate:
    """Estimate a mean from one value per example; values may be any numbers.

    The interval comes from `proportion_interval` if there are only two values, 0 and c or −c and c, in at least
    `FEWEST_TWO_VALUED` examples, and at least two examples have each value. Otherwise, it is Student's t, with a caveat for
    fewer than `FEWEST_EXAMPLES` examples and for skewed values. Values between 0 and 1 are shares: if a limit of Student's t is
    outside this range, the interval comes from `proportion_interval`, which can only be too wide.
    """
    n = len(values)
    center = mean(values)
    if n < 2:
        return no_interval(center, ONE)
    if max(abs(value) for value in values) > LARGEST:
        return no_interval(center, HUGE)
    levels = _rounded_levels(values if levels is None else levels)
    if len(levels) == 1:
        return no_interval(center, EQUAL)
    base, top = min(levels), max(levels)
    has_both_values = all(_count_other(values, level) >= 2 for level in (base, top))
    is_two_valued = len(levels) == 2 and (0.0 in levels or base == -top)
    if is_two_valued and n >= FEWEST_TWO_VALUED and has_both_values:
        span = top - base
        low, high = proportion_interval([(value - base) / span for value in values], observations)
        return Estimate(center, base + low * span, base + high * span)
    reach = t_quantile(0.975, n - 1) * math.sqrt(sample_variance(values) / n)
    low, high = center - reach, center + reach
    is_share = min(values) >= 0.0 and max(values) <= 1.0
    # A limit that no mean can have shows that the normal approximation fails here.
    if is_share and (low < 0.0 or high > 1.0):
        return Estimate(center, *proportion_interval(values, observations))
    return Estimate(center, low, high, _t_caveat(values))


def _count_other(values: Sequence[float], level: float) -> int:
    """Return the number of values that differ from `level`."""
    return len([value for value in values if round(value, DIGITS) != level])


def widened_t(values: Sequence[float]) -> Estimate:
    """Estimate a mean by Student's t, with each limit widened for skewed values.

    Each limit is the outer of two limits: from Student's t, and from Hall's transformation, which corrects for skewness
    (Hall 1992, "On the removal of skewness by transformation"). Small samples underestimate the true skewness, so it is
    multiplied by `SKEWNESS_FACTOR`. `benchmarks/interval_coverage.py` simulates the coverage.
    """
    n = len(values)
    center, error = mean(values), math.sqrt(sample_variance(values) / n)
    t = t_quantile(0.975, n - 1)
    # The skewness of a sample is too small on average by this factor.
    unbiased = math.sqrt(n * (n - 1)) / (n - 2) if n > 2 else 1.0
    shift = SKEWNESS_FACTOR * unbiased * skewness(values) / math.sqrt(n)
    low = center - error * max(t, _without_skewness(t, shift))
    high = center + error * max(t, -_without_skewness(-t, shift))
    return Estimate(center, low, high)


def _without_skewness(t: float, shift: float) -> float:
    """Return the value that Hall's transformation maps to `t`, where `shift` is skewness / √n."""
    if abs(shift) < 1e-6:  # the limit for 0: the formula would divide two rounding errors
        return t
    return 3.0 / shift * (math.cbrt(1.0 + shift * (t - shift / 6.0)) - 1.0)


def equal_limits(value: float, n: int, low: float, high: float) -> tuple[float, float]:
    """Return 95% limits of the mean of a distribution between `low` and `high`, given that `n` draws all equaled `value`.

    The probability of other values is at most q, where (1 − q)ⁿ = 2.5%. The mean differs most from `value` if all other values
    are at one end of the range.
    """
    unseen = 1.0 - 0.025 ** (1.0 / n)
    return value - unseen * (value - low), value + unseen * (high - value)


def _t_caveat(values: Sequence[float]) -> str | None:
    if len(values) < FEWEST_EXAMPLES:
        return FEW
    return SKEWED if skewness(values) ** 2 > MAX_SKEW * len(values) else None


def sample_variance(values: Sequence[float]) -> float:
    """Return the unbiased sample variance; nan if there are fewer than two values or the sum of the values exceeds the largest
    float.
    """
    n = len(values)
    if n < 2:
        return math.nan
    center = mean(values)
    return math.fsum((value - center) * (value - center) for value in values) / (n - 1)


def skewness(values: Sequence[float]) -> float:
    """Return the third standardized moment; 0 for equal values."""
    n = len(values)
    center = mean(values)
    spread = math.sqrt(math.fsum((value - center) * (value - center) for value in values) / n)
    if not spread > 0.0:
        return 0.0
    return math.fsum(((value - center) / spread) ** 3 for value in values) / n


def proportion_interval(shares: Sequence[float], observations: int | None = None) -> tuple[float, float]:
    """Return the 95% limits of a proportion from the share of successes in each example.

    With one rollout per example, this is the exact interval of Clopper and Pearson. With several rollouts, it is the same
    interval at the effective sample size (Korn & Graubard 1998, "Confidence intervals for proportions with small expected
    number of positive counts estimated from survey data"), which is at least the number of examples. If fewer than
    `FEWEST_MIXED` examples have a success, or fewer have a failure, the design effect cannot be estimated, so the sample size
    is the number of examples.

    Args:
        shares: Shares of successes between 0 and 1, one per example; at least two examples.
        observations: Number of rollouts. Default: one per example.
    """
    n = len(shares)
    center = min(1.0, max(0.0, math.fsum(shares) / n))
    trials = float(n)
    with_success = [share for share in shares if share > 1e-9]
    with_failure = [share for share in shares if share < 1.0 - 1e-9]
    is_mixed = min(len(with_success), len(with_failure)) >= FEWEST_MIXED
    variance = sample_variance(shares) / n
    if observations is not None and observations > n and is_mixed and variance > 0.0:
        t_ratio = t_quantile(0.975, observations - 1) / t_quantile(0.975, n - 1)
        effective = center * (1.0 - center) / variance * t_ratio**2
        # Never fewer than the examples, and never more than the rollouts: the design effect is itself an estimate.
        trials = min(float(observations), max(float(n), effective))
    return clopper_pearson(round(center * trials, DIGITS), trials)


@lru_cache(maxsize=4096)  # each takes 120 evaluations of a continued fraction
def clopper_pearson(successes: float, trials: float) -> tuple[float, float]:
    """Return the exact 95% limits of a proportion.

    Args:
        successes: Number of successes, 0 … trials; fractions are interpolated by the beta distribution.
        trials: Number of trials, more than 0.

    Raises:
        ConfigError: Not 0 ≤ successes ≤ trials, or there is no trial.
    """
    if not 0.0 <= successes <= trials or trials <= 0.0:
        raise ConfigError(
            f"{successes} successes in {trials} trials; expected 0 ≤ successes ≤ trials and trials above 0"
        )
    failures = trials - successes
    low = beta_quantile(0.025, successes, failures + 1.0) if successes > 0.0 else 0.0
    high = beta_quantile(0.975, successes + 1.0, failures) if failures > 0.0 else 1.0
    return low, high


def beta_quantile(p: float, a: float, b: float) -> float:
    """Return the quantile of the beta distribution with shape `a`, `b` (both > 0), by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):  # to the last bits of a float
        middle = (low + high) / 2
        if beta_below(middle, a, b) < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def beta_below(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b).

    The function is computed from its continued fraction with Lentz's method (Press et al., "Numerical Recipes", 6.4).
    """
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    if x > (a + 1.0) / (a + b + 2.0):  # where the fraction converges slowly, that of the complement converges fast
        return 1.0 - beta_below(1.0 - x, b, a)
    log_coefficient = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    log_front = log_coefficient + a * math.log(x) + b * math.log1p(-x)
    c = 1.0
    d = 1.0 / (1.0 - (a + b) * x / (a + 1.0) or TINY)
    total = d
    for m in range(1, 10_000):
        a_2m = a + 2 * m
        even = m * (b - m) * x / ((a_2m - 1) * a_2m)
        odd = -(a + m) * (a + b + m) * x / (a_2m * (a_2m + 1))
        for term in (even, odd):
            d = 1.0 / (1.0 + term * d or TINY)
            c = 1.0 + term / c or TINY
            total *= c * d
        if abs(c * d - 1.0) < 1e-14:
            break
    return math.exp(log_front) * total / a


@lru_cache(maxsize=256)
def t_quantile(p: float, df: int) -> float:
    """Return the quantile of Student's t distribution with `df` degrees of freedom.

    This uses Newton's method on the closed form of the distribution function. The distribution function is concave above 0, so
    the iteration from 0 increases monotonically to the quantile.

    Raises:
        ConfigError: `p` is not between 0 and 1, or `df` below 1.
    """
    if not 0.0 < p < 1.0 or df < 1:
        raise ConfigError(f"no t quantile of p = {p}, df = {df}; expected 0 < p < 1 and df of 1 or more")
    if p < 0.5:
        return -t_quantile(1.0 - p, df)
    log_ratio = math.lgamma((df + 1) / 2) - math.lgamma(df / 2)
    peak = math.exp(log_ratio) / math.sqrt(df * math.pi)
    exponent = -(df + 1) / 2
    t = 0.0
    for _ in range(100):
        density = peak * (1.0 + t * t / df) ** exponent
        step = (p - 0.5 - _t_below(t, df)) / density
        t += step
        if step <= 1e-8 * t:  # the error is quadratic in the step
            break
    return t


def _t_below(t: float, df: int) -> float:
    """Return the probability that a t variable lies between 0 and `t` (Abramowitz & Stegun, 26.7.3 and 26.7.4, halved)."""
    odd = df % 2
    cosine2 = df / (df + t * t)
    term = total = math.sqrt(cosine2) if odd else 1.0
    for k in range(2 + odd, df - 1, 2):
        term *= cosine2 * (k - 1) / k
        total += term
    sine_sum = math.sqrt(1.0 - cosine2) * total
    if not odd:
        return sine_sum / 2
    angle = math.atan(t / math.sqrt(df))
    if df > 1:  # for one degree of freedom the sum has no terms
        angle += sine_sum
    return angle / math.pi
