"""Simulate how often 95% intervals contain the true mean, and how often `rove.compare` reports a false direction.

    python benchmarks/interval_coverage.py            # print the tables (about 20 minutes on one core)
    python benchmarks/interval_coverage.py --write    # write them into docs/evaluation.md

The simulations are seeded, so every run prints the same numbers.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rove import Outcome, Scores, compare
from rove.statistics import Column

PAGE = Path(__file__).parents[1] / "docs" / "evaluation.md"
EXAMPLES = (5, 10, 30, 100, 300)
COMPARED = (5, 10, 20, 50, 200)
ROLLOUTS = (1, 4, 16)
Draw = Callable[[np.random.Generator, int], Sequence[Sequence[float]]]
"""A function (generator, n) that returns the rewards of n examples: a list of rollouts per example."""
Pair = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]
"""A function (generator, n) that returns the rewards of two runs, of shape (n, rollouts) each."""


class Coverage(NamedTuple):
    """Fractions of the simulated evaluations."""

    clear: float
    """Fraction with an interval without a caveat."""
    missed: float
    """Fraction with an interval without a caveat that does not contain the true mean."""
    covered: float
    """Fraction of the intervals, with or without a caveat, that contain the true mean; nan without any interval."""


def single(values: np.ndarray) -> list[list[float]]:
    """Return one rollout per example."""
    return [[value] for value in values.tolist()]


def bernoulli(p: float) -> Draw:
    """Return a draw of rewards that are 1 with probability `p`, else 0."""
    return lambda rng, n: single(rng.binomial(1, p, n).astype(float))


def grouped(p: float, rollouts: int, correlation: float) -> Draw:
    """Return a draw of 0/1 rewards of several rollouts per example with an intraclass correlation (beta-binomial)."""
    concentration = (1.0 - correlation) / correlation

    def draw(rng: np.random.Generator, n: int) -> list[list[float]]:
        chances = rng.beta(p * concentration, (1.0 - p) * concentration, n)
        return rng.binomial(1, chances[:, None], (n, rollouts)).astype(float).tolist()

    return draw


def with_format(p: float) -> Draw:
    """Return a draw of rewards: 1 with probability `p`, plus a format reward of 0.2 with probability 0.9."""
    return lambda rng, n: single(rng.binomial(1, p, n) + 0.2 * rng.binomial(1, 0.9, n))


DRAWS: dict[str, tuple[Draw, float]] = {
    **{f"0/1, p = {p}": (bernoulli(p), p) for p in (0.05, 0.5, 0.95, 0.99)},
    **{f"0/1, p = {p}, 4 rollouts, correlation 0.3": (grouped(p, 4, 0.3), p) for p in (0.5, 0.95, 0.99)},
    "normal": (lambda rng, n: single(rng.normal(0.7, 0.2, n)), 0.7),
    "uniform": (lambda rng, n: single(rng.uniform(0.0, 1.0, n)), 0.5),
    "0/1 + 0.2 format, p = 0.95": (with_format(0.95), 0.95 + 0.18),
    "exponential": (lambda rng, n: single(rng.exponential(1.0, n)), 1.0),
    "lognormal, σ = 1.5": (lambda rng, n: single(rng.lognormal(0.0, 1.5, n)), math.exp(1.125)),
}


def counted(rollouts: int) -> str:
    """Return a number of rollouts with its noun."""
    return f"{rollouts} rollout{'s' * (rollouts > 1)}"


def differing(gaps: Callable[[np.random.Generator, int], np.ndarray]) -> Pair:
    """Return a pair of runs whose rewards differ by `gaps`, with one rollout per example."""

    def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        base = rng.normal(0.0, 1.0, (n, 1))
        return base, base + gaps(rng, n)[:, None]

    return draw


def both(p: float, rollouts: int, share: float = 0.0, gain: float = 0.0, concentration: float = 2.0) -> Pair:
    """Return a pair of runs with 0/1 rewards and examples of varying difficulty.

    Args:
        p: Mean chance of a reward of 1.
        rollouts: Rollouts per example.
        share: Share of the examples on which the second run is better.
        gain: By how much its chance of a reward of 1 is higher there, if the maximum of 1 allows it.
        concentration: The larger, the more similar the examples are.
    """

    def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        chances = rng.beta(concentration * p, concentration * (1.0 - p), (n, 1))
        better = np.minimum(1.0, chances + gain * (rng.random((n, 1)) < share))
        return rng.binomial(1, chances, (n, rollouts)), rng.binomial(1, better, (n, rollouts))

    return draw


def graded(rollouts: int, gain: float = 0.0, zeros: float = 0.0) -> Pair:
    """Return a pair of runs with rewards between 0 and 1 in steps of 0.1, a share of which is 0; equal ones are frequent."""

    def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        level, is_nonzero = rng.beta(2.0, 2.0, (n, 1)) * (1.0 - gain), rng.random((n, 1)) >= zeros
        noise = (rng.normal(0.0, 0.1, (n, rollouts)) for _ in range(2))
        a, b = (np.clip(np.round(level + add + e, 1), 0.0, 1.0) * is_nonzero for add, e in zip((0.0, gain), noise))
        return a, b

    return draw


def true_difference(pair: Pair) -> float:
    """Return the difference of the true means, from two million examples."""
    a, b = pair(np.random.default_rng(1), 2_000_000)
    return float(b.mean() - a.mean())


def opposed(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return constant rewards of 0.8, and rewards that are 1 with probability 0.8, else 0; shape (n, 1) each."""
    return np.full((n, 1), 0.8), rng.binomial(1, 0.8, (n, 1))


PAIRS: dict[str, Pair] = {
    **{f"0/1, p = {p}, {counted(r)}": both(p, r) for p in (0.5, 0.95) for r in ROLLOUTS},
    **{f"0/1, p = 0.5, mostly all or none, {counted(r)}": both(0.5, r, concentration=0.3) for r in ROLLOUTS},
    **{f"steps of 0.1, half of them 0, {counted(r)}": graded(r, zeros=0.5) for r in ROLLOUTS},
    "always 0.8 against 0/1, p = 0.8": opposed,
    "normal": differing(lambda rng, n: rng.normal(0.0, 0.3, n)),
    "exponential, less its mean": differing(lambda rng, n: rng.exponential(1.0, n) - 1.0),
    "lognormal, σ = 1, less its mean": differing(lambda rng, n: rng.lognormal(0.0, 1.0, n) - math.exp(0.5)),
    "lognormal, σ = 1.5, less its mean": differing(lambda rng, n: rng.lognormal(0.0, 1.5, n) - math.exp(1.125)),
}


BETTER: dict[str, Callable[[int], Pair]] = {
    "0/1, p = 0.3, better on all by up to 0.2": lambda rollouts: both(0.3, rollouts, 1.0, 0.2),
    "0/1, p = 0.5, better on a quarter by up to 0.5": lambda rollouts: both(0.5, rollouts, 0.25, 0.5, 0.3),
    "0/1, p = 0.1, better on 5% by 0.6": lambda rollouts: both(0.1, rollouts, 0.05, 0.6, 1.0),
    "steps of 0.1, better by up to 0.1": lambda rollouts: graded(rollouts, 0.1),
    "steps of 0.1, half of them 0, better by up to 0.1": lambda rollouts: graded(rollouts, 0.1, 0.5),
}
"""Pairs of which the second run is better, by number of rollouts."""


class Compared(NamedTuple):
    """Fractions of the simulated comparisons."""

    covered: float
    """Fraction of the intervals that contain the true difference."""
    higher: float
    """Fraction that reports that the second run is better."""
    lower: float
    """Fraction that reports that it is worse."""


def coverage(draw: Draw, truth: float, examples: int, repeats: int, seed: int = 0) -> Coverage:
    """Simulate `repeats` evaluations and return how often the interval of the reward contains the true mean.

    Args:
        draw: The distribution of the rewards.
        truth: True mean of the rewards.
        examples: Examples per evaluation.
        repeats: Number of evaluations.
        seed: Random seed.
    """
    rng = np.random.default_rng(seed)
    clear = missed = covered = intervals = 0
    for _ in range(repeats):
        column = Column()
        for key, rewards in enumerate(draw(rng, examples)):
            for reward in rewards:
                column.add(key, reward)
        estimate = column.estimate
        if math.isnan(estimate.low):
            continue
        intervals += 1
        contains = estimate.low - 1e-9 <= truth <= estimate.high + 1e-9
        covered += contains
        clear += estimate.caveat is None
        missed += estimate.caveat is None and not contains
    return Coverage(clear / repeats, missed / repeats, covered / intervals if intervals else math.nan)


def false_directions(pair: Pair, examples: int, repeats: int, seed: int = 0, paired: bool = True) -> float:
    """Return the fraction of comparisons that report a direction although the true means are equal; see `compared`."""
    result = compared(pair, 0.0, examples, repeats, seed, paired)
    return result.higher + result.lower


def compared(pair: Pair, truth: float, examples: int, repeats: int, seed: int = 0, paired: bool = True) -> Compared:
    """Simulate `repeats` comparisons of two runs.

    Args:
        pair: The distribution of the rewards of both runs.
        truth: True difference of the means.
        examples: Examples per run.
        repeats: Number of comparisons.
        seed: Random seed.
        paired: Whether both runs have the same examples.
    """
    rng = np.random.default_rng(seed)
    directions = {1: 0, 0: 0, -1: 0}
    covered = intervals = 0
    for _ in range(repeats):
        a, b = ([[float(reward) for reward in row] for row in side] for side in pair(rng, examples))
        main = compare(outcomes(a, 0), outcomes(b, 0 if paired else examples)).main
        directions[main.direction] += 1
        if not math.isnan(main.low):
            intervals += 1
            covered += main.low - 1e-9 <= truth <= main.high + 1e-9
    share = covered / intervals if intervals else math.nan
    return Compared(share, directions[1] / repeats, directions[-1] / repeats)


def outcomes(rewards: Sequence[Sequence[float]], start: int) -> list[Outcome]:
    """Return scored rollouts of examples numbered from `start`."""
    return [
        Outcome(str(key), key, i, "answered", False, Scores(reward, {}, {}), None)
        for key, row in enumerate(rewards, start)
        for i, reward in enumerate(row)
    ]


def table(head: str, sizes: Sequence[int], rows: dict[str, list[str]]) -> str:
    """Return a Markdown table with a row per distribution and a column per number of examples."""
    lines = [f"| {head} | {' | '.join(f'n = {n}' for n in sizes)} |", f"| --- |{' ---: |' * len(sizes)}"]
    return "\n".join([*lines, *(f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items())])


def cell(coverage: Coverage) -> str:
    """Return the coverage in %, in parentheses if at most half of the evaluations have an interval without a caveat."""
    if math.isnan(coverage.covered):
        return "no interval"
    return f"{100 * coverage.covered:.1f}" if coverage.clear > 0.5 else f"({100 * coverage.covered:.1f})"


def interval_tables(repeats: int) -> dict[str, str]:
    """Return the tables of the intervals of one evaluation."""
    results = {name: [coverage(draw, truth, n, repeats) for n in EXAMPLES] for name, (draw, truth) in DRAWS.items()}
    covered = {name: [cell(result) for result in row] for name, row in results.items()}
    missed = {
        name: [f"{100 * result.missed:.1f} / {100 * result.clear:.0f}" for result in row]
        for name, row in results.items()
    }
    return {"coverage": table("rewards", EXAMPLES, covered), "missed": table("rewards", EXAMPLES, missed)}


def equal_table(repeats: int) -> dict[str, str]:
    """Return the table of comparisons between runs with equal true means."""
    rows: dict[str, list[str]] = {}
    for paired in (True, False):
        for name, pair in PAIRS.items():
            results = [compared(pair, 0.0, n, repeats, paired=paired) for n in COMPARED]
            rows[name if paired else f"{name} (different examples)"] = [
                f"{percent(result.covered)} / {percent(result.higher + result.lower)}" for result in results
            ]
    return {"directions": table("differences", COMPARED, rows)}


def better_table(repeats: int) -> dict[str, str]:
    """Return the table of comparisons with a run that is better."""
    rows: dict[str, list[str]] = {}
    for name, make in BETTER.items():
        truth = true_difference(make(1))
        for rollouts in ROLLOUTS:
            results = [compared(make(rollouts), truth, n, repeats) for n in COMPARED]
            rows[f"{name}, {counted(rollouts)}"] = [" / ".join(map(percent, result)) for result in results]
    return {"better": table("differences", COMPARED, rows)}


def percent(share: float) -> str:
    """Return a share in percent; a dash if it is unknown."""
    return "–" if math.isnan(share) else f"{100 * share:.1f}"


TABLES = {"intervals": interval_tables, "equal": equal_table, "better": better_table}


def insert_tables(page: str, tables: dict[str, str]) -> str:
    """Return the page with the text between the markers of each table replaced."""
    for name, text in tables.items():
        start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        head, tail = page.split(start)
        page = f"{head}{start}{text}\n{end}{tail.split(end)[1]}"
    return page


def main() -> None:
    """Print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="Write the tables into docs/evaluation.md.")
    parser.add_argument("--repeats", type=int, default=2000, help="Simulated evaluations per cell (default: 2000).")
    parser.add_argument("--tables", nargs="*", choices=TABLES, default=[*TABLES], help="Tables to make (default: all).")
    options = parser.parse_args()
    markdown = {name: text for kind in options.tables for name, text in TABLES[kind](options.repeats).items()}
    if options.write:
        PAGE.write_text(insert_tables(PAGE.read_text(encoding="utf-8"), markdown), encoding="utf-8")
    print("\n\n".join(markdown.values()))


if __name__ == "__main__":
    main()
