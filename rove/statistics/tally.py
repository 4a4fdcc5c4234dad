"""The tally of an evaluation: rollout by rollout, in memory that no text and no token takes part in."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rove.core.errors import ConfigError
from rove.core.records import Outcome, RolloutRecord, Scores, Usage
from rove.statistics.estimates import POINTS, needed_examples, pass_at_k, pass_hat_k, percentiles
from rove.statistics.intervals import DIGITS, Estimate, mean_estimate, sample_variance

TOLERANCE = 1e-9
"""Values no further apart are equal: a reward is a weighted sum, 0.1 + 0.2 + 0.7 of it is a hair below 1."""


class Price(msgspec.Struct, frozen=True):
    """Price of tokens per million, in any currency.

    Example:
        >>> Price(input=0.15, output=0.60)

    Raises:
        ConfigError: a price is negative or no number.
    """

    input: float
    """Prompt tokens."""
    output: float
    """Completion tokens."""

    def __post_init__(self) -> None:
        for name in ("input", "output"):
            if not getattr(self, name) >= 0.0:
                raise ConfigError(f"the {name} price is {getattr(self, name)}; expected 0 or more per million tokens")

    def of(self, usage: Usage) -> float:
        """Return the cost of these tokens."""
        return (usage.prompt_tokens * self.input + usage.completion_tokens * self.output) / 1e6


class Column:
    """Sums and counts of one value by example; an example is a place, 0 … examples − 1. Takes 12 bytes an example."""

    __slots__ = ("counts", "high", "levels", "low", "sums")

    def __init__(self) -> None:
        self.sums = array("d")
        self.counts = array("I")
        self.levels: set[float] = set()
        """Distinct values, rounded; at most three of them."""
        self.low = math.inf
        """Smallest value."""
        self.high = -math.inf
        """Largest value."""

    def add(self, place: int, value: float) -> None:
        """Count another value of the example at `place`."""
        self.low, self.high = min(self.low, value), max(self.high, value)
        if len(self.levels) < 3:
            self.levels.add(round(value, DIGITS))
        sums, counts = self.sums, self.counts
        if place < len(sums):
            sums[place] += value
            counts[place] += 1
            return
        for _ in range(place - len(sums)):
            sums.append(0.0)
            counts.append(0)
        sums.append(value)
        counts.append(1)

    @property
    def estimate(self) -> Estimate:
        """The mean over examples of the means of their values, so that an example counts the same whatever failed."""
        return mean_estimate(self.example_means(), self.levels, sum(self.counts))

    @property
    def examples(self) -> int:
        """How many examples have the value."""
        return len(self.counts) - self.counts.count(0)

    def example_means(self) -> array[float]:
        """Return the mean of every example that has the value."""
        return array("d", (mean for _, mean in self.means()))

    def means(self) -> Iterator[tuple[int, float]]:
        """Place and mean of every example that has the value."""
        for place, (total, count) in enumerate(zip(self.sums, self.counts)):
            if count:
                yield place, total / count


class Columns:
    """Named columns over the same examples, in the order in which names and examples came."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}
        self.named: dict[str, Column] = {}
        self.weights: dict[str, float] = {}
        self.reward = Column()

    def add(self, key: str, scores: Scores) -> int:
        """Count the scores of a rollout of the example `key`; returns the example's place."""
        place = self.places.setdefault(key, len(self.places))
        self.weights.update(scores.weights)
        self.reward.add(place, scores.reward)
        for values in (scores.rewards, scores.metrics):
            for name, value in values.items():
                column = self.named.get(name)
                if column is None:
                    column = self.named[name] = Column()
                column.add(place, value)
        return place


class RoleUsage:
    """Calls and tokens of model roles.

    Args:
        prices: Prices by role.
    """

    def __init__(self, prices: Mapping[str, Price]) -> None:
        self.prices = prices
        self.calls: Counter[str] = Counter()
        self.usage: dict[str, Usage] = {}

    def add(self, roles: Mapping[str, Sequence[Usage]]) -> None:
        """Count the tokens of each answer of each role in one rollout."""
        for role, used in roles.items():
            self.calls[role] += len(used)
            self.usage[role] = sum(used, self.usage.get(role, Usage()))

    def summary(self) -> dict[str, dict[str, float]]:
        """`calls`, `prompt_tokens`, `completion_tokens`, and `cost` where the role has a price."""
        found: dict[str, dict[str, float]] = {}
        for role, used in self.usage.items():
            found[role] = {"calls": self.calls[role], **msgspec.structs.asdict(used)}
            if role in self.prices:
                found[role]["cost"] = self.prices[role].of(used)
        return found


class Tally:
    """Statistics of an evaluation, gathered rollout by rollout.

    Memory grows with the examples, by 12 bytes for each function and some 150 for the key, not with rollouts or turns.

    Args:
        pass_threshold: a rollout whose reward is at least this passes.
        price: Price of the model's tokens. Default: no cost in the summary.
        role_prices: Prices of model roles, such as a judge.
    """

    def __init__(
        self,
        *,
        pass_threshold: float = 1.0,
        price: Price | None = None,
        role_prices: Mapping[str, Price] | None = None,
    ) -> None:
        self.pass_threshold = pass_threshold
        self.price = price
        self.model_roles = RoleUsage(role_prices or {})
        self.environments: dict[str, Column] = {}
        self.rollouts = self.failed = self.truncated = self.retries = 0
        self.usage = Usage()
        self.errors: dict[str, int] = {}
        self.stops: dict[str, int] = {}
        self._columns = Columns()
        self._passed = Column()
        self._seconds: dict[str, Counter[float]] = {"answer": Counter(), "rollout": Counter()}

    def add(self, record: RolloutRecord | Outcome) -> None:
        """Count a rollout: its scores, or its error."""
        self.rollouts += 1
        self.truncated += record.is_truncated
        self.usage = self.usage + record.usage
        outcome = record.outcome if isinstance(record, RolloutRecord) else record
        self.model_roles.add(outcome.model_roles)
        self.retries += outcome.retries
        for seconds in outcome.turn_seconds:
            self._seconds["answer"][_rounded(seconds)] += 1
        if record.error is not None:
            self.failed += 1
            label = f"{record.error.phase}: {record.error.type}"
            self.errors[label] = self.errors.get(label, 0) + 1
        if record.scores is None:
            return
        self._seconds["rollout"][_rounded(record.timing.total)] += 1
        stop = record.stop_condition or "none"
        self.stops[stop] = self.stops.get(stop, 0) + 1
        place = self._columns.add(record.example_key, record.scores)
        self._passed.add(place, record.scores.reward >= self.pass_threshold - TOLERANCE)
        if record.env_id:
            self.environments.setdefault(record.env_id, Column()).add(place, record.scores.reward)

    def summary(self) -> dict[str, Any]:
        """Everything as plain values; what JSON cannot hold (nan) it writes as null.

        Estimates are over the scored rollouts: `mean`, `low` and `high` of a 95 % interval over examples, and `caveat`, a
        sentence where the interval may not hold or does not exist (see `mean_estimate`), else None:

        - `reward`, `functions` (with `weight`, 0 for a metric)
        - `pass@k`, `pass^k`: for k = 1, 2, 4, … and the size of the largest group the probability that one, or all, of k
          rollouts pass (reward ≥ `pass_threshold`); `left_out` examples have fewer than k scored rollouts

        Beside them: `retries` (failed tries before answers), `error_share` and `truncation_share` of all rollouts,
        `tokens_per_rollout` (means over all rollouts),
        `latency` in seconds, to three digits (`answer`: every answer of the model; `rollout`: scored ones, whole), `cost`
        where there is a price (of the model's tokens alone). `roles` has calls, tokens and cost of whoever else was asked, such
        as a judge, and `environments` the reward in each member of an `EnvGroup`; neither is there where there are none.
        `needed_examples` is how many a run needs so that it can be told from another one like it,
        on other examples, when their true rewards are 0.02 apart (unpaired, see `needed_examples`); with fewer,
        `too_few` says so.
        """
        reward = self._columns.reward
        examples = reward.examples
        needed = needed_examples(2 * sample_variance(reward.example_means()))
        weights = self._columns.weights
        summary: dict[str, Any] = {
            "rollouts": self.rollouts,
            "scored": self.rollouts - self.failed,
            "failed": self.failed,
            "truncated": self.truncated,
            "retries": self.retries,
            "error_share": _share(self.failed, self.rollouts),
            "truncation_share": _share(self.truncated, self.rollouts),
            "examples": examples,
            "reward": reward.estimate._asdict(),
            "functions": {
                name: {**column.estimate._asdict(), "weight": weights.get(name, 0.0)}
                for name, column in self._columns.named.items()
            },
            "pass_threshold": self.pass_threshold,
            **self._passes(),
            "stops": self.stops,
            "errors": self.errors,
            "prompt_tokens": self.usage.prompt_tokens,
            "completion_tokens": self.usage.completion_tokens,
            "tokens_per_rollout": {
                "prompt": _share(self.usage.prompt_tokens, self.rollouts),
                "completion": _share(self.usage.completion_tokens, self.rollouts),
            },
            "latency": {
                name: dict(zip(("p50", "p90", "p99"), percentiles(seconds)))
                for name, seconds in self._seconds.items()
                if seconds
            },
            "needed_examples": needed,
        }
        if needed is None or examples < needed:
            summary["too_few"] = _too_few(examples, needed)
        return summary | self._where_there_are()

    def _where_there_are(self) -> dict[str, Any]:
        """What not every evaluation has: other roles, several environments, a price."""
        found: dict[str, Any] = {}
        if self.model_roles.usage:
            found["model_roles"] = self.model_roles.summary()
        if self.environments:
            found["environments"] = {
                name: {**column.estimate._asdict(), "examples": column.examples, "rollouts": sum(column.counts)}
                for name, column in self.environments.items()
            }
        if self.price is not None:
            total = self.price.of(self.usage)
            found["cost"] = {"total": total, "per_rollout": _share(total, self.rollouts)}
        return found

    def _passes(self) -> dict[str, dict[str, dict[str, float]]]:
        """pass@k and pass^k by k, as text: keys of JSON are."""
        counts, passed = self._columns.reward.counts, self._passed.sums
        groups = {(n, c) for n, c in zip(counts, passed) if n}
        examples, size = self._columns.reward.examples, max(counts, default=0)
        tries = [2**i for i in range(size.bit_length()) if 2**i < size] + ([size] if size else [])
        found: dict[str, dict[str, dict[str, float]]] = {"pass@k": {}, "pass^k": {}}
        for name, probability in (("pass@k", pass_at_k), ("pass^k", pass_hat_k)):
            for k in tries:
                chance = {(n, c): probability(n, int(c), k) for n, c in groups if n >= k}
                values = array("d", (chance[group] for group in zip(counts, passed) if group in chance))
                estimate = mean_estimate(values, {0.0, 1.0}, sum(n // k for n in counts if n >= k))
                left_out = examples - len(values)
                found[name][str(k)] = {**estimate._asdict(), "examples": len(values), "left_out": left_out}
        return found


def _rounded(seconds: float) -> float:
    """Three significant digits: as many as a latency has, and few enough different ones to count each."""
    return float(f"{seconds:.3g}")


def _share(part: float, whole: int) -> float:
    return part / whole if whole else math.nan


def _too_few(examples: int, needed: int | None) -> str:
    have = f"{examples:,} scored example{'s' * (examples != 1)}"
    if needed is None:
        return f"{have}, 2 at least are needed for an interval"
    return f"{have}, about {needed:,} are needed to tell two such runs {POINTS} apart (unpaired)"
