"""How often 95 % intervals hold the true mean, and how often `rove.compare` states a direction where there is none.

    python benchmarks/interval_coverage.py            # print the tables (about 8 minutes on one core)
    python benchmarks/interval_coverage.py --write    # write them into docs/evaluation.md

Seeded: the same numbers on every run.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rove.core.records import Outcome, Scores
from rove.statistics import Column, compare

PAGE = Path(__file__).parents[1] / "docs" / "evaluation.md"
EXAMPLES = (5, 10, 30, 100, 300)
COMPARED = (5, 10, 15, 20, 30, 100)
Draw = Callable[[np.random.Generator, int], Sequence[Sequence[float]]]
"""Rewards of n examples: one list of rollouts each."""
Pair = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]
"""Rewards of n examples in two runs with the same true mean: a row per example, a column per rollout."""


class Coverage(NamedTuple):
    """Shares of the simulated evaluations."""

    clear: float
    """With an interval that has no caveat."""
    missed: float
    """With an interval that has no caveat and does not hold the true mean."""
    held: float
    """With an interval, with or without a caveat, that holds the true mean, among those with an interval."""


def single(values: np.ndarray) -> list[list[float]]:
    """Return one rollout per example."""
    return [[value] for value in values.tolist()]


def bernoulli(p: float) -> Draw:
    """Return rewards that are 1 with probability `p`, else 0."""
    return lambda rng, n: single(rng.binomial(1, p, n).astype(float))


def grouped(p: float, rollouts: int, correlation: float) -> Draw:
    """Return 0/1 rewards of several rollouts per example with an intraclass correlation (beta-binomial)."""
    rest = (1.0 - correlation) / correlation

    def draw(rng: np.random.Generator, n: int) -> list[list[float]]:
        chances = rng.beta(p * rest, (1.0 - p) * rest, n)
        return rng.binomial(1, chances[:, None], (n, rollouts)).astype(float).tolist()

    return draw


def with_format(p: float) -> Draw:
    """Return a reward of 1 with probability `p`, plus a format reward of 0.2 with probability 0.9."""
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


def differing(gaps: Callable[[np.random.Generator, int], np.ndarray]) -> Pair:
    """Return two runs whose rewards differ by these amounts, with one rollout per example."""

    def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        base = rng.normal(0.0, 1.0, (n, 1))
        return base, base + gaps(rng, n)[:, None]

    return draw


def both(p: float, rollouts: int) -> Pair:
    """Return two runs of 0/1 rewards whose examples are of different difficulty."""

    def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        chances = rng.beta(2 * p, 2 * (1.0 - p), (n, 1))
        return rng.binomial(1, chances, (n, rollouts)), rng.binomial(1, chances, (n, rollouts))

    return draw


def opposed(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return constant rewards of 0.8, and rewards that are 1 with probability 0.8, else 0."""
    return np.full((n, 1), 0.8), rng.binomial(1, 0.8, (n, 1))


PAIRS: dict[str, Pair] = {
    "0/1, p = 0.5": both(0.5, 1),
    "0/1, p = 0.95": both(0.95, 1),
    "0/1, p = 0.9, 4 rollouts": both(0.9, 4),
    "always 0.8 against 0/1, p = 0.8": opposed,
    "normal": differing(lambda rng, n: rng.normal(0.0, 0.3, n)),
    "exponential, less its mean": differing(lambda rng, n: rng.exponential(1.0, n) - 1.0),
    "lognormal, σ = 1, less its mean": differing(lambda rng, n: rng.lognormal(0.0, 1.0, n) - math.exp(0.5)),
    "lognormal, σ = 1.5, less its mean": differing(lambda rng, n: rng.lognormal(0.0, 1.5, n) - math.exp(1.125)),
}


def coverage(draw: Draw, truth: float, examples: int, repeats: int, seed: int = 0) -> Coverage:
    """Evaluate `repeats` times and return how often the summary's interval of the reward holds the true mean."""
    rng = np.random.default_rng(seed)
    clear = missed = held = intervals = 0
    for _ in range(repeats):
        column = Column()
        for key, rewards in enumerate(draw(rng, examples)):
            for reward in rewards:
                column.add(key, reward)
        seen = column.estimate
        if math.isnan(seen.low):
            continue
        intervals += 1
        holds = seen.low - 1e-9 <= truth <= seen.high + 1e-9
        held += holds
        clear += seen.caveat is None
        missed += seen.caveat is None and not holds
    return Coverage(clear / repeats, missed / repeats, held / intervals if intervals else math.nan)


def false_directions(pair: Pair, examples: int, repeats: int, seed: int = 0, paired: bool = True) -> float:
    """Return the share of comparisons that state a direction although the true means are equal.

    Args:
        pair: The rewards of both runs.
        examples: Of each run.
        repeats: Comparisons.
        seed: Random seed.
        paired: Whether both runs have the same examples.
    """
    rng = np.random.default_rng(seed)
    found = 0
    for _ in range(repeats):
        a, b = ([[float(reward) for reward in row] for row in side] for side in pair(rng, examples))
        start = 0 if paired else examples
        found += compare(outcomes(a, 0), outcomes(b, start)).main.direction != 0
    return found / repeats


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


def cell(found: Coverage) -> str:
    """Return the coverage in %, in brackets where most of these intervals carry a caveat."""
    if math.isnan(found.held):
        return "no interval"
    return f"{100 * found.held:.1f}" if found.clear > 0.5 else f"({100 * found.held:.1f})"


def tables(repeats: int) -> dict[str, str]:
    """Return the tables of docs/evaluation.md by name."""
    found = {name: [coverage(draw, truth, n, repeats) for n in EXAMPLES] for name, (draw, truth) in DRAWS.items()}
    held = {name: [cell(one) for one in row] for name, row in found.items()}
    missed = {name: [f"{100 * one.missed:.1f} / {100 * one.clear:.0f}" for one in row] for name, row in found.items()}
    wrong = {
        f"{name}{'' if paired else ' (different examples)'}": [
            f"{100 * false_directions(pair, n, repeats, paired=paired):.1f}" for n in COMPARED
        ]
        for paired in (True, False)
        for name, pair in PAIRS.items()
    }
    return {
        "coverage": table("rewards", EXAMPLES, held),
        "missed": table("rewards", EXAMPLES, missed),
        "directions": table("differences", COMPARED, wrong),
    }


def written(page: str, found: dict[str, str]) -> str:
    """Return the page with each table between its markers."""
    for name, text in found.items():
        start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, rest = page.split(start)
        page = f"{before}{start}{text}\n{end}{rest.split(end)[1]}"
    return page


def main() -> None:
    """Print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="Write the tables into docs/evaluation.md.")
    parser.add_argument("--repeats", type=int, default=2000, help="Simulated evaluations per cell (2000).")
    options = parser.parse_args()
    found = tables(options.repeats)
    if options.write:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    print("\n\n".join(found.values()))


if __name__ == "__main__":
    main()
