"""Is run B better than run A? Answered example by example."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from rove.errors import ConfigError, nearest
from rove.records import Outcome, RolloutRecord
from rove.statistics.estimates import (
    POINTS,
    Estimate,
    clustered_mean,
    example_variance,
    mean,
    needed_examples,
    t_quantile,
)
from rove.statistics.tally import TOLERANCE, Columns

REWARD = "reward"
MOVERS = 10
"""At most so many examples are named in each direction."""
FEWEST_DIFFERING = 6
"""Examples that must differ before a direction is told: were they coins, fewer would all agree in over 5 % of cases."""
FEWEST_EACH = 4
"""Likewise, examples of each run in an unpaired comparison: fewer would separate by chance in over 5 % of cases."""


class Difference(msgspec.Struct, frozen=True):
    """One value in both runs: means over the examples that count, every example the same weight."""

    name: str
    a: float
    b: float
    difference: float
    """b − a."""
    half_width: float
    """Of the 95 % interval of the difference; nan when it cannot be told."""
    examples: int
    """Examples with the value in both runs; 0 when unpaired."""
    direction: int
    """1 when b is higher, −1 when it is lower, 0 when neither can be told."""
    weight: float | None
    """What the value counts in the reward (in B, else in A), 0 for a metric; None for the reward itself."""


class Mover(msgspec.Struct, frozen=True):
    """An example with its mean in both runs."""

    example_key: str
    example_id: int
    """Its position in the dataset of run B."""
    a: float
    b: float


class Comparison(msgspec.Struct, frozen=True):
    """What `compare` found."""

    names: tuple[str, str]
    verdict: str
    """The answer in words."""
    main: Difference
    """The value that was asked about."""
    paired: bool
    """Over the examples both runs have; else between different examples, as there are none in common."""
    only_a: int
    """Examples scored in A alone, left out (in an unpaired comparison: those of A)."""
    only_b: int
    wins: int
    """Examples in which b is higher."""
    ties: int
    losses: int
    up: list[Mover]
    """Examples that rose most, the largest rise first."""
    down: list[Mover]
    needed_examples: int | None
    """Examples (unpaired: of each run) after which a difference of 0.02 could be told; see `needed_examples`."""
    others: list[Difference]
    """Every other value both runs have: the reward, then by weight. Each interval stands by itself, so that among twenty
    values that do not differ one is expected to seem to."""
    notes: list[str]
    """What to know before believing it: weights or functions that differ, examples left out."""


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
        """Mean over the rollouts of every example that has the value."""
        column = self.columns.reward if name == REWARD else self.columns.named[name]
        return {self.keys[place]: value for place, value in column.means()}


def compare(
    a: Iterable[Outcome | RolloutRecord],
    b: Iterable[Outcome | RolloutRecord],
    value: str = REWARD,
    *,
    names: tuple[str, str] = ("A", "B"),
) -> Comparison:
    """Compare two runs, b − a, over the examples both have scored.

    An example's value is the mean over its scored rollouts; the interval of the mean difference is Student's over examples
    (paired; Miller 2024, arXiv:2411.00640). Without common examples it is Welch's over those of each run. A direction is
    told when that interval excludes zero and enough examples differ (`FEWEST_DIFFERING`, `FEWEST_EACH`): the interval of a
    handful of equal differences is narrower than they deserve.

    Args:
        a: rollouts of the run compared with.
        b: rollouts of the run in question.
        value: "reward", or the name of a reward function or metric of both.
        names: what the words call them.

    Raises:
        ConfigError: a run has no scored rollout, or one of them lacks the value.
    """
    sides = _Side(a), _Side(b)
    for side, name in zip(sides, names):
        if not side.keys:
            raise ConfigError(f"{name} has no scored rollout: there is nothing to compare")
        if value != REWARD and value not in side.functions:
            raise ConfigError(f"{name} has no value '{value}'; {nearest(value, {REWARD, *side.functions})}")
    in_a, in_b = (side.means(value) for side in sides)
    shared = in_a.keys() & in_b.keys()
    movers = [Mover(key, sides[1].ids[key], in_a[key], in_b[key]) for key in shared]
    movers.sort(key=lambda mover: (-abs(mover.b - mover.a), mover.example_id, mover.example_key))
    up = [mover for mover in movers if mover.b - mover.a > TOLERANCE]
    down = [mover for mover in movers if mover.a - mover.b > TOLERANCE]
    only = (len(in_a) - len(shared), len(in_b) - len(shared))
    main, needed = _difference(value, *sides)
    others = [_difference(name, *sides)[0] for name in {REWARD, *sides[0].functions & sides[1].functions} - {value}]
    others.sort(key=lambda one: (one.weight is not None, -abs(one.weight or 0.0), one.name))
    return Comparison(
        names=names,
        verdict=_verdict(main, needed, len(up) + len(down), only, names),
        main=main,
        paired=bool(shared),
        only_a=only[0],
        only_b=only[1],
        wins=len(up),
        ties=len(shared) - len(up) - len(down),
        losses=len(down),
        up=up[:MOVERS],
        down=down[:MOVERS],
        needed_examples=needed,
        others=others,
        notes=_notes(sides, names, bool(shared), only),
    )


def _difference(name: str, a: _Side, b: _Side) -> tuple[Difference, int | None]:
    """The difference of one value, and the examples needed for 0.02 of it."""
    weight = None if name == REWARD else b.weights.get(name, a.weights.get(name, 0.0))
    in_a, in_b = a.means(name), b.means(name)
    shared = in_a.keys() & in_b.keys()
    if shared:
        in_a, in_b = ({key: side[key] for key in shared} for side in (in_a, in_b))
        gaps = {key: in_b[key] - in_a[key] for key in shared}
        estimate = clustered_mean(gaps.items())
        variance = example_variance(estimate, len(shared))
        enough = sum(abs(gap) > TOLERANCE for gap in gaps.values()) >= FEWEST_DIFFERING
    else:
        estimate, variance = _welch(in_a, in_b)
        enough = min(len(in_a), len(in_b)) >= FEWEST_EACH
    told = enough and abs(estimate.mean) - estimate.half_width > TOLERANCE
    direction = int(math.copysign(1, estimate.mean)) if told else 0
    means = mean(list(in_a.values())), mean(list(in_b.values()))
    return Difference(name, *means, *estimate, len(shared), direction, weight), needed_examples(variance)


def _welch(a: Mapping[str, float], b: Mapping[str, float]) -> tuple[Estimate, float]:
    """Difference between the means of different examples, and the variance of one example's difference.

    Degrees of freedom are Welch's and Satterthwaite's, rounded down.
    """
    sides = [(clustered_mean(side.items()), len(side)) for side in (a, b)]
    difference = sides[1][0].mean - sides[0][0].mean
    if min(len(a), len(b)) < 2:
        return Estimate(difference, math.nan), math.nan
    variances = [example_variance(estimate, n) for estimate, n in sides]
    errors = [variance / n for variance, (_, n) in zip(variances, sides)]
    total = sum(errors)
    if not total:
        return Estimate(difference, 0.0), 0.0
    freedom = total**2 / sum(error**2 / (n - 1) for error, (_, n) in zip(errors, sides))
    quantile = t_quantile(0.975, max(1, int(freedom + 1e-9)))  # rounding must not cost a degree of freedom
    return Estimate(difference, quantile * math.sqrt(total)), sum(variances)


def _verdict(
    main: Difference, needed: int | None, differing: int, only: tuple[int, int], names: tuple[str, str]
) -> str:
    if main.examples:
        basis = f"on {main.examples:,} shared example{'s' * (main.examples > 1)}"
    else:
        basis = f"between {only[0]:,} and {only[1]:,} different examples"
    width = "" if math.isnan(main.half_width) else f" ± {main.half_width:.3f}"
    seen = f"{main.name} {main.difference:+.3f}{width} {basis}"
    if main.direction:
        return f"{names[1]} is {_judgement(main)} than {names[0]}: {seen}"
    if needed is None:
        return f"no difference can be told: {seen}; an interval takes two examples at least"
    if main.examples and not differing:
        seen = f"{main.name} is equal {basis}"
    elif abs(main.difference) - main.half_width > TOLERANCE:
        few = f"only {differing} of them differ" if main.examples else "that is too few"
        seen += f", but {few} and chance alone could do that"
    have = main.examples or min(only)
    if have >= needed:
        return f"no difference can be told: {seen}; a true one of {POINTS} would probably have shown"
    each = "" if main.examples else " in each run"
    return (
        f"no difference can be told: {seen}; "
        f"about {needed - have:,} more examples{each} would be needed to tell a true one of {POINTS}"
    )


def _judgement(main: Difference) -> str:
    """Better or worse where the reward says which is which; a metric is only higher or lower."""
    if main.weight == 0.0:
        return "higher" if main.direction > 0 else "lower"
    return "better" if main.direction * (1.0 if main.weight is None else main.weight) > 0 else "worse"


def _notes(sides: tuple[_Side, _Side], names: tuple[str, str], paired: bool, only: tuple[int, int]) -> list[str]:
    a, b = sides
    notes: list[str] = []
    if not paired:
        notes.append(
            "no example is in both runs: the difference is between different examples, and that much less sure"
        )
    elif any(only):
        notes.append(
            f"left out, as the other run has not scored them: {only[0]:,} of {names[0]}, {only[1]:,} of {names[1]}"
        )
    weights = {name: [side.weights.get(name, 0.0) for side in sides] for name in sorted(a.functions & b.functions)}
    changed = [f"{name} {old:g} → {new:g}" for name, (old, new) in weights.items() if old != new]
    if changed:
        notes.append(f"reward weights differ ({', '.join(changed)}): the two rewards do not mean the same")
    for mine, others, name in ((a, b, names[0]), (b, a, names[1])):
        missing = sorted(mine.functions - others.functions)
        if missing:
            notes.append(f"only {name} has {', '.join(missing)}")
    return notes
