"""Compare two runs example by example."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from rove.core.errors import ConfigError, nearest
from rove.core.records import Outcome, RolloutRecord
from rove.statistics.intervals import (
    DIGITS,
    EQUAL,
    FEWEST_EXAMPLES,
    LARGEST,
    ONE,
    POINTS,
    Estimate,
    clopper_pearson,
    graded_estimate,
    mean,
    needed_examples,
    no_interval,
    sample_variance,
)
from rove.statistics.summary import TOLERANCE, Column, Columns

REWARD = "reward"
MOVERS = 10
"""Maximum number of examples listed per direction."""
FEWEST_DIFFERING = 6
"""Examples that must differ before a direction is reported: fewer fair coins agree in more than 5 % of cases."""
FEWEST_RANGE = 15
"""Examples from which the observed range of values counts as their true range, unless all values are 0 or 1."""
BETS = tuple((place + 0.5) / 32 for place in range(32))
"""Shares of the capital that `bounded_sign` bets."""
CAPITAL = 40.0
"""Capital from which `bounded_sign` decides: 2 / 5 %."""
Z = 1.959963984540054
"""Normal quantile of a 95 % interval."""


class Difference(msgspec.Struct, frozen=True):
    """One value in both runs: means over the compared examples, equally weighted."""

    name: str
    a: float
    b: float
    difference: float
    """b − a."""
    low: float
    """Lower limit of the 95 % interval of the difference; nan without an interval."""
    high: float
    """Upper limit."""
    caveat: str | None
    """Why the interval may be invalid or is missing; None for a valid interval."""
    examples: int
    """Examples with the value in both runs; 0 when unpaired."""
    direction: int
    """1 if b is higher, −1 if it is lower, 0 if undecided."""
    weight: float | None
    """Weight of the value in the reward (in B, else in A); 0 for a metric, None for the reward itself."""


class Mover(msgspec.Struct, frozen=True):
    """An example with its mean in both runs."""

    example_key: str
    example_id: int
    """Its position in the dataset of run B."""
    a: float
    b: float


class Comparison(msgspec.Struct, frozen=True):
    """The result of `compare`."""

    names: tuple[str, str]
    verdict: str
    """The conclusion as a sentence."""
    main: Difference
    """The compared value."""
    paired: bool
    """Whether the comparison is over shared examples; False if the runs share none."""
    only_a: int
    """Examples scored only in A, which are excluded (unpaired: the examples of A)."""
    only_b: int
    wins: int
    """Examples in which b is higher."""
    ties: int
    losses: int
    up: list[Mover]
    """Examples with the largest increase, in descending order."""
    down: list[Mover]
    needed_examples: int | None
    """Examples (unpaired: per run) needed to detect a difference of 0.02; see `needed_examples`."""
    others: list[Difference]
    """Every other value of both runs: the reward, then by weight. Intervals are not corrected for multiple comparisons: of
    twenty equal values, one is expected to appear different."""
    notes: list[str]
    """Limitations of the comparison: differing weights or functions, excluded examples."""


class _Side:
    """One run's values by example."""

    def __init__(self, rollouts: Iterable[Outcome | RolloutRecord]):
        self.columns = Columns()
        self.ids: dict[str, int] = {}
        for rollout in rollouts:
            if rollout.scores is not None:
                self.columns.add(rollout.example_key, rollout.scores)
                self.ids[rollout.example_key] = rollout.example_id
        self.keys = list(self.columns.places)
        self.weights = self.columns.weights
        self.functions = set(self.columns.named)

    def means(self, name: str) -> dict[str, float]:
        """Return the mean over the rollouts of every example that has the value."""
        return {self.keys[place]: value for place, value in self.column(name).means()}

    def column(self, name: str) -> Column:
        """Return the values called `name`."""
        return self.columns.reward if name == REWARD else self.columns.named[name]


def compare(
    a: Iterable[Outcome | RolloutRecord],
    b: Iterable[Outcome | RolloutRecord],
    value: str = REWARD,
    *,
    names: tuple[str, str] = ("A", "B"),
    movers: int = MOVERS,
) -> Comparison:
    """Compare two runs (b − a) over the examples that both have scored.

    An example's value is the mean over its scored rollouts; the interval is that of the mean difference over examples (paired;
    Miller 2024, arXiv:2411.00640; see `mean_estimate`). Where every rollout of both runs has one of two values and each
    example one rollout, it is that of Bonett and Price (2012). Without common examples, it combines the intervals of both runs
    (Zou & Donner 2008).

    The direction is decided by the exact sign test (McNemar's) where examples only gain or lose the whole range of values; by
    the interval where it has no caveat; otherwise, for values of 0 and 1, by a test that holds for every distribution (see
    `bounded_sign`); and for other values by an exact binomial interval that assumes the largest variance which the range of
    values allows, unless `FEWEST_EXAMPLES` differences are all equal. The range is taken from the examples from `FEWEST_RANGE`
    on. A few or skewed differences therefore do not decide a direction.

    Args:
        a: Rollouts of the baseline run.
        b: Rollouts of the run to compare with it.
        value: "reward", or the name of a reward function or metric of both runs.
        names: Names of the runs in the verdict.
        movers: Maximum number of examples listed per direction.

    Raises:
        ConfigError: A run has no scored rollout, or one of them lacks the value.
    """
    sides = _Side(a), _Side(b)
    for side, name in zip(sides, names):
        if not side.keys:
            raise ConfigError(f"{name} has no scored rollout; a comparison needs at least one in each run")
        if value != REWARD and value not in side.functions:
            raise ConfigError(f"{name} has no value '{value}'; {nearest(value, {REWARD, *side.functions})}")
    in_a, in_b = (side.means(value) for side in sides)
    shared = in_a.keys() & in_b.keys()
    moved = [Mover(key, sides[1].ids[key], in_a[key], in_b[key]) for key in shared]
    moved.sort(key=lambda mover: (-abs(mover.b - mover.a), mover.example_id, mover.example_key))
    up = [mover for mover in moved if mover.b - mover.a > TOLERANCE]
    down = [mover for mover in moved if mover.a - mover.b > TOLERANCE]
    only = (len(in_a) - len(shared), len(in_b) - len(shared))
    main, needed = _difference(value, *sides)
    others = [_difference(name, *sides)[0] for name in {REWARD, *sides[0].functions & sides[1].functions} - {value}]
    others.sort(key=lambda one: (one.weight is not None, -abs(one.weight or 0.0), one.name))
    return Comparison(
        names=names,
        verdict=_verdict(main, needed, only, names),
        main=main,
        paired=bool(shared),
        only_a=only[0],
        only_b=only[1],
        wins=len(up),
        ties=len(shared) - len(up) - len(down),
        losses=len(down),
        up=up[:movers],
        down=down[:movers],
        needed_examples=needed,
        others=others,
        notes=_notes(sides, names, bool(shared), only),
    )


def _difference(name: str, a: _Side, b: _Side) -> tuple[Difference, int | None]:
    """Return the difference of one value, and the number of examples needed to detect a difference of 0.02."""
    weight = None if name == REWARD else b.weights.get(name, a.weights.get(name, 0.0))
    columns = a.column(name), b.column(name)
    in_a, in_b = a.means(name), b.means(name)
    shared = in_a.keys() & in_b.keys()
    if shared:
        in_a, in_b = ({key: side[key] for key in shared} for side in (in_a, in_b))
        gaps = [in_b[key] - in_a[key] for key in shared]
        estimate, direction = _paired(gaps, _value_range(*columns, len(gaps)))
        variance = sample_variance(gaps)
    else:
        estimate, direction = _unpaired(*columns)
        variance = sum(sample_variance(column.example_means()) for column in columns)
    means = mean(list(in_a.values())), mean(list(in_b.values()))
    return Difference(name, *means, *estimate, len(shared), direction, weight), needed_examples(variance)


def _value_range(a: Column, b: Column, examples: int) -> tuple[float, float] | None:
    """Return the smallest and the largest value that a rollout may have; None if too few examples show it or they overflow."""
    if a.levels | b.levels <= {0.0, 1.0}:
        return 0.0, 1.0
    low, high = min(a.low, b.low), max(a.high, b.high)
    return (low, high) if examples >= FEWEST_RANGE and TOLERANCE < high - low <= LARGEST else None


def _paired(gaps: Sequence[float], limits: tuple[float, float] | None) -> tuple[Estimate, int]:
    """Estimate the mean of differences and decide its sign.

    Args:
        gaps: One difference per example.
        limits: Smallest and largest possible value, if known.
    """
    n, up, down = len(gaps), sum(gap > TOLERANCE for gap in gaps), sum(gap < -TOLERANCE for gap in gaps)
    if n < 2 or not up + down:
        return no_interval(mean(gaps), ONE if n < 2 else EQUAL), 0
    span = limits[1] - limits[0] if limits else math.nan
    if all(abs(gap) <= TOLERANCE or abs(abs(gap) - span) <= TOLERANCE for gap in gaps):
        direction = (up > down) - (up < down) if sign_test(up, down) <= 0.05 else 0
        return _scaled(bonett_price(up, down, n), span), direction
    estimate = graded_estimate(gaps)
    if estimate.caveat is None:
        return estimate, _sign_of(estimate) if up + down >= FEWEST_DIFFERING else 0
    if estimate.caveat == EQUAL and n >= FEWEST_EXAMPLES:
        return estimate, 1 if estimate.mean > 0.0 else -1
    if limits is None:
        return estimate, 0
    if limits == (0.0, 1.0):
        return estimate, bounded_sign(gaps)
    low, high = _binomial_limits(gaps, -span, span)  # a rare value may lie beyond the observed range
    return estimate, _sign_of(Estimate(estimate.mean, low - 0.5, high - 0.5))


def bounded_sign(values: Sequence[float]) -> int:
    """Return the sign of the true mean of values between −1 and 1, or 0 if they do not decide it at a level of 5 %.

    Valid for every distribution and number of values: a gambler who bets a fixed share on each value multiplies the capital by 40
    with a probability of at most 1/40 if the true mean is not positive (Waudby-Smith & Ramdas 2024, "Estimating means of bounded
    random variables by betting", with a uniform mixture of fixed bets).
    """
    counts = Counter(min(1.0, max(-1.0, value)) for value in values)
    for sign in (1, -1):
        capitals = [
            math.fsum(count * math.log1p(sign * bet * value) for value, count in counts.items()) for bet in BETS
        ]
        top = max(capitals)
        if top + math.log(math.fsum(math.exp(one - top) for one in capitals) / len(BETS)) >= math.log(CAPITAL):
            return sign
    return 0


def _unpaired(a: Column, b: Column) -> tuple[Estimate, int]:
    """Estimate the difference between the means of different examples and decide its sign."""
    estimate = difference_estimate(a.estimate, b.estimate)
    if estimate.caveat is None:
        return estimate, _sign_of(estimate)
    limits = _value_range(a, b, min(a.examples, b.examples))
    if limits is None or min(a.examples, b.examples) < 2:
        return estimate, 0
    means = a.example_means(), b.example_means()
    sides = [Estimate(_share(values, *limits), *_binomial_limits(values, *limits)) for values in means]
    return estimate, _sign_of(difference_estimate(*sides))


def _binomial_limits(values: Sequence[float], low: float, high: float) -> tuple[float, float]:
    """Return 95 % limits of the mean's place between `low` and `high`, as wide as if only these two values occurred."""
    return clopper_pearson(round(_share(values, low, high) * len(values), DIGITS), len(values))


def _share(values: Sequence[float], low: float, high: float) -> float:
    """Return where the mean lies between `low` and `high`, from 0 to 1."""
    return min(1.0, max(0.0, (mean(values) - low) / (high - low)))


def _sign_of(estimate: Estimate) -> int:
    """Return the sign of an estimate whose interval excludes zero, else 0."""
    return int(estimate.low > TOLERANCE) - int(estimate.high < -TOLERANCE)


def _scaled(estimate: Estimate, factor: float) -> Estimate:
    return Estimate(estimate.mean * factor, estimate.low * factor, estimate.high * factor, estimate.caveat)


def sign_test(up: int, down: int) -> float:
    """Return the two-sided p-value of `up` rises among `up + down` changes that go either way with probability 1/2."""
    n, fewer = up + down, min(up, down)
    tail = math.fsum(
        math.exp(math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) - n * math.log(2))
        for i in range(fewer + 1)
    )
    return min(1.0, 2 * tail)


def bonett_price(up: int, down: int, n: int) -> Estimate:
    """Estimate a difference of paired proportions (Bonett & Price 2012, "Adjusted Wald confidence interval ...").

    Args:
        up: Pairs that rose by 1.
        down: Pairs that fell by 1.
        n: All pairs.
    """
    rise, fall = (up + 1) / (n + 2), (down + 1) / (n + 2)
    reach = Z * math.sqrt((rise + fall - (rise - fall) ** 2) / (n + 2))
    return Estimate((up - down) / n, max(-1.0, rise - fall - reach), min(1.0, rise - fall + reach))


def difference_estimate(a: Estimate, b: Estimate) -> Estimate:
    """Estimate b − a from independent estimates, whose intervals may be asymmetric.

    Zou & Donner 2008, "Construction of confidence limits about effect measures: a general approach".
    """
    difference, caveat = b.mean - a.mean, a.caveat or b.caveat
    low = difference - math.hypot(b.mean - b.low, a.high - a.mean)
    high = difference + math.hypot(b.high - b.mean, a.mean - a.low)
    if math.isnan(low) or math.isnan(high):
        return no_interval(difference, caveat or "no interval")
    return Estimate(difference, low, high, caveat)


def _verdict(main: Difference, needed: int | None, only: tuple[int, int], names: tuple[str, str]) -> str:
    if main.examples:
        basis = f"on {main.examples:,} shared example{'s' * (main.examples > 1)}"
    else:
        basis = f"between {only[0]:,} and {only[1]:,} different examples"
    limits = "" if math.isnan(main.low) else f" [{main.low:+.3f}, {main.high:+.3f}]"
    seen = f"{main.name} {main.difference:+.3f}{limits} {basis}"
    if main.direction:
        return f"{names[1]} is {_judgement(main)} than {names[0]}: {seen}"
    if needed is None:
        return f"too few examples: {seen}; an interval needs at least 2 examples"
    if math.isnan(main.low) and abs(main.difference) <= TOLERANCE:
        seen = f"{main.name} is equal {basis}"
    have = main.examples or min(only)
    each = "" if main.examples else " in each run"
    if _unsure(main):
        few = main.caveat or f"fewer than {FEWEST_DIFFERING} examples differ, or too few of them in one direction"
        if have < FEWEST_EXAMPLES:
            few = f"at least {FEWEST_EXAMPLES} examples{each} are needed"
        return f"too few examples to determine a direction: {seen}; {few}"
    if have >= needed:
        return f"no detectable difference: {seen}; a difference of {POINTS} would probably have been detected"
    return (
        f"no detectable difference: {seen}; "
        f"about {needed - have:,} more examples{each} would be needed to detect a difference of {POINTS}"
    )


def _unsure(main: Difference) -> bool:
    """Return whether there is an apparent difference on too few examples."""
    if math.isnan(main.low):
        return abs(main.difference) > TOLERANCE
    return main.low > TOLERANCE or main.high < -TOLERANCE


def _judgement(main: Difference) -> str:
    """Return "better" or "worse" for values with a weight, "higher" or "lower" for metrics."""
    if main.weight == 0.0:
        return "higher" if main.direction > 0 else "lower"
    return "better" if main.direction * (1.0 if main.weight is None else main.weight) > 0 else "worse"


def _notes(sides: tuple[_Side, _Side], names: tuple[str, str], paired: bool, only: tuple[int, int]) -> list[str]:
    a, b = sides
    notes: list[str] = []
    if not paired:
        notes.append("the runs share no examples: a difference between different examples is less certain")
    elif any(only):
        notes.append(
            f"excluded because the other run did not score them: {only[0]:,} of {names[0]}, {only[1]:,} of {names[1]}"
        )
    weights = {name: [side.weights.get(name, 0.0) for side in sides] for name in sorted(a.functions & b.functions)}
    changed = [f"{name} {old:g} → {new:g}" for name, (old, new) in weights.items() if old != new]
    if changed:
        notes.append(f"reward weights differ ({', '.join(changed)}): the rewards are not comparable")
    for mine, others, name in ((a, b, names[0]), (b, a, names[1])):
        missing = sorted(mine.functions - others.functions)
        if missing:
            notes.append(f"only {name} has {', '.join(missing)}")
    return notes
