"""Streaming statistics of an evaluation, without texts and tokens in memory."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import astuple

from rove.core.checks import check_fields
from rove.core.ranges import NonNegativeFloat
from rove.core.records import REWARD_ERRORS, Outcome, RolloutRecord, Scores, Usage
from rove.statistics.intervals import (
    DIGITS,
    FEWEST_EXAMPLES,
    NO_VARIANCE,
    POINTS,
    Estimate,
    graded_estimate,
    mean_estimate,
    needed_examples,
    pass_at_k,
    pass_hat_k,
    percentiles,
    proportion_interval,
    sample_variance,
)
from rove.statistics.result import (
    Cost,
    EnvironmentEstimate,
    EvaluationResult,
    FunctionEstimate,
    PassEstimate,
    Percentiles,
    RoleSummary,
    TokenMeans,
)

TOLERANCE = 1e-9
"""Values that differ by at most this much count as equal: the weighted sum 0.1 + 0.2 + 0.7 is slightly below 1."""


class Price(msgspec.Struct, frozen=True):
    """Price per million tokens, in any currency.

    Example:
        >>> Price(input=0.15, output=0.60)

    Raises:
        ConfigError: A price is negative or not a finite number.
    """

    input: NonNegativeFloat
    """Price of a million prompt tokens."""
    output: NonNegativeFloat
    """Price of a million completion tokens."""

    def __post_init__(self) -> None:
        check_fields(self)

    def of(self, usage: Usage) -> float:
        """Return the cost of these tokens."""
        return (usage.prompt_tokens * self.input + usage.completion_tokens * self.output) / 1e6


class Column:
    """Sums and counts of one value by example index (0 … examples − 1), at 12 bytes per example."""

    __slots__ = ("counts", "high", "levels", "low", "sums")

    def __init__(self) -> None:
        self.sums = array("d")
        self.counts = array("I")
        self.levels: set[float] = set()
        """Distinct values, rounded; at most three are stored."""
        self.low = math.inf
        """Smallest value."""
        self.high = -math.inf
        """Largest value."""

    def add(self, example: int, value: float) -> None:
        """Add a value of the example with this index."""
        self.low, self.high = min(self.low, value), max(self.high, value)
        if len(self.levels) < 3:  # three levels already show that the values are not two-valued
            self.levels.add(round(value, DIGITS))
        sums, counts = self.sums, self.counts
        if example < len(sums):
            sums[example] += value
            counts[example] += 1
            return
        # Earlier examples may lack the value, such as a metric of another environment.
        for _ in range(example - len(sums)):
            sums.append(0.0)
            counts.append(0)
        sums.append(value)
        counts.append(1)

    @property
    def estimate(self) -> Estimate:
        """The mean of the example means: each example has equal weight, regardless of failed rollouts."""
        return mean_estimate(self.example_means(), self.levels, sum(self.counts))

    @property
    def metric_estimate(self) -> Estimate:
        """The same mean for a metric. Equal values have no interval: a metric may be a count, such as one turn per rollout, and
        then 1 is not the largest possible value.
        """
        return graded_estimate(self.example_means(), self.levels) if len(self.levels) == 1 else self.estimate

    def estimate_up_to(self, top: float | None) -> Estimate:
        """Return the estimate of values between 0 and `top`; if `top` is None, no limit is known.

        A limit that no mean can have, such as 1.401 if the maximum is 1.4, shows that the normal approximation fails. The values
        are then treated as shares of `top`, as in `graded_estimate`. For fewer than `FEWEST_EXAMPLES` examples, the estimate
        already has a more informative caveat.
        """
        estimate = self.estimate
        is_possible = math.isnan(estimate.low) or (top is not None and estimate.low >= 0.0 and estimate.high <= top)
        if not top or is_possible or self.examples < FEWEST_EXAMPLES:
            return estimate
        shares = [min(1.0, mean / top) for mean in self.example_means()]  # rounding may exceed 1
        low, high = proportion_interval(shares, sum(self.counts))
        return Estimate(estimate.mean, low * top, high * top)

    @property
    def examples(self) -> int:
        """Number of examples that have the value."""
        return len(self.counts) - self.counts.count(0)

    def example_means(self) -> array[float]:
        """Return the mean of every example that has the value."""
        return array("d", (mean for _, mean in self.means()))

    def means(self) -> Iterator[tuple[int, float]]:
        """Yield the index and mean of every example that has the value."""
        for example, (total, count) in enumerate(zip(self.sums, self.counts)):
            if count:
                yield example, total / count


class Columns:
    """Named columns over the same examples, in order of first occurrence."""

    def __init__(self) -> None:
        self.indices: dict[str, int] = {}
        """Key of an example → its index."""
        self.named: dict[str, Column] = {}
        self.weights: dict[str, float] = {}
        self.varying_weights: set[str] = set()
        """Functions that have several weights, in different environments of a group."""
        self.reward = Column()
        self._has_several_weights = False
        self._highest_weights = 0.0
        self._has_negative_weight = False

    @property
    def highest_reward(self) -> float | None:
        """The highest possible reward if the values of every reward function are shares, between 0 and 1; else None."""
        if self._has_negative_weight:
            return None
        weighted = [name for name in self.named if self.weights.get(name) or name in self.varying_weights]
        if any(self.named[name].low < 0.0 or self.named[name].high > 1.0 for name in weighted):
            return None
        return self._highest_weights if self._has_several_weights else sum(self.weights[name] for name in weighted)

    def add(self, key: str, scores: Scores) -> int:
        """Add the scores of a rollout of the example `key` and return the example's index."""
        example = self.indices.setdefault(key, len(self.indices))
        if scores.weights != self.weights:
            self._add_weights(scores.weights)
        self.reward.add(example, scores.reward)
        for values in (scores.rewards, scores.metrics):
            for name, value in values.items():
                column = self.named.get(name)
                if column is None:
                    column = self.named[name] = Column()
                column.add(example, value)
        return example

    def _add_weights(self, weights: Mapping[str, float]) -> None:
        # Environments of a group may have different functions. Their weights must not be added up: no rollout has them all.
        self._has_several_weights = bool(self.weights)
        self.varying_weights |= {name for name, weight in weights.items() if self.weights.get(name, weight) != weight}
        self.weights.update(weights)
        self._highest_weights = max(self._highest_weights, math.fsum(weights.values()))
        self._has_negative_weight = self._has_negative_weight or any(weight < 0 for weight in weights.values())


class RoleUsage:
    """Calls and tokens of model roles."""

    def __init__(self, prices: Mapping[str, Price]) -> None:
        self.prices = prices
        self.calls: Counter[str] = Counter()
        self.usage: dict[str, Usage] = {}

    def add(self, roles: Mapping[str, Sequence[Usage]]) -> None:
        """Add the tokens of each answer of each role in one rollout."""
        for role, used in roles.items():
            self.calls[role] += len(used)
            self.usage[role] = sum(used, self.usage.get(role, Usage()))

    def summary(self) -> dict[str, RoleSummary]:
        """Return the sums by role."""
        return {
            role: RoleSummary(
                calls=self.calls[role],
                prompt_tokens=used.prompt_tokens,
                completion_tokens=used.completion_tokens,
                cost=self.prices[role].of(used) if role in self.prices else None,
            )
            for role, used in self.usage.items()
        }


class Tally:
    """Statistics of an evaluation, updated rollout by rollout.

    Memory per example is about 150 bytes plus 12 bytes per function; it does not grow with rollouts or turns.

    Args:
        pass_threshold: Minimum reward of a passing rollout.
        price: Price of the model's tokens. Default: no cost in the result.
        role_prices: Prices of model roles, such as a judge.
    """

    def __init__(
        self, *, pass_threshold: float = 1.0, price: Price | None = None, role_prices: Mapping[str, Price] | None = None
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
        """Add the scores or the error of a rollout."""
        self.rollouts += 1
        self.truncated += record.is_truncated
        self.usage = self.usage + record.usage  # failed rollouts were paid for as well
        # Outcomes are what resumed runs read: the same sums must come out of both.
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
        example = self._columns.add(record.example_key, record.scores)
        has_passed = record.scores.reward >= self.pass_threshold - TOLERANCE
        self._passed.add(example, 1.0 if has_passed else 0.0)
        if record.env_id:
            self.environments.setdefault(record.env_id, Column()).add(example, record.scores.reward)

    def result(self) -> EvaluationResult:
        """Return the statistics of the rollouts so far."""
        reward = self._columns.reward
        examples = reward.examples
        variance = sample_variance(reward.example_means())
        needed = needed_examples(2 * variance)  # unpaired, with a second run of the same variance
        has_enough = needed is not None and examples >= needed
        weights = self._columns.weights
        any_of, all_of = self._passes()
        return EvaluationResult(
            rollouts=self.rollouts,
            scored=self.rollouts - self.failed,
            failed=self.failed,
            truncated=self.truncated,
            retries=self.retries,
            error_share=_share(self.failed, self.rollouts),
            truncation_share=_share(self.truncated, self.rollouts),
            examples=examples,
            reward=reward.estimate_up_to(self._columns.highest_reward),
            functions={
                name: FunctionEstimate(
                    *astuple(column.estimate if weights.get(name) else column.metric_estimate),
                    weight=weights.get(name, 0.0),
                )
                for name, column in self._columns.named.items()
            },
            pass_threshold=self.pass_threshold,
            pass_at_k=any_of,
            pass_hat_k=all_of,
            stops=dict(self.stops),  # copies, since later rollouts must not change this result
            errors=dict(self.errors),
            prompt_tokens=self.usage.prompt_tokens,
            completion_tokens=self.usage.completion_tokens,
            tokens_per_rollout=TokenMeans(
                _share(self.usage.prompt_tokens, self.rollouts), _share(self.usage.completion_tokens, self.rollouts)
            ),
            latency={name: Percentiles(*percentiles(seconds)) for name, seconds in self._seconds.items() if seconds},
            needed_examples=needed,
            too_few=None if has_enough else _too_few(examples, needed, variance < NO_VARIANCE),
            model_roles=self.model_roles.summary(),
            environments={
                name: EnvironmentEstimate(
                    *astuple(column.estimate), examples=column.examples, rollouts=sum(column.counts)
                )
                for name, column in self.environments.items()
            },
            cost=self._cost(),
            not_run=0,
        )

    def _cost(self) -> Cost | None:
        if self.price is None:
            return None
        total = self.price.of(self.usage)
        return Cost(total, _share(total, self.rollouts))

    def _passes(self) -> tuple[dict[int, PassEstimate], dict[int, PassEstimate]]:
        """Return pass@k and pass^k by k."""
        counts, passed = self._columns.reward.counts, self._passed.sums
        # Computed once for all examples with the same numbers of rollouts and passes: a run has few such pairs.
        distinct_groups = {(n, c) for n, c in zip(counts, passed) if n}
        examples, size = self._columns.reward.examples, max(counts, default=0)
        powers = [2**exponent for exponent in range(size.bit_length())]
        tries = [k for k in powers if k < size]
        if size:
            tries.append(size)

        def estimate(probability: Callable[[int, int, int], float], k: int) -> PassEstimate:
            probabilities = {(n, c): probability(n, int(c), k) for n, c in distinct_groups if n >= k}
            values = array("d", (probabilities[group] for group in zip(counts, passed) if group in probabilities))
            observations = sum(n // k for n in counts if n >= k)
            interval = mean_estimate(values, {0.0, 1.0}, observations)
            return PassEstimate(*astuple(interval), examples=len(values), left_out=examples - len(values))

        any_of = {k: estimate(pass_at_k, k) for k in tries}
        all_of = {k: estimate(pass_hat_k, k) for k in tries}
        return any_of, all_of


def _rounded(seconds: float) -> float:
    """Round to three significant digits, which bounds the number of distinct latencies."""
    return float(f"{seconds:.3g}")


def _share(part: float, whole: int) -> float:
    return part / whole if whole else math.nan


def _too_few(examples: int, needed: int | None, are_equal: bool) -> str:
    available = f"{examples:,} scored example" if examples == 1 else f"{examples:,} scored examples"
    if needed is None:
        return f"{available}, at least 2 are needed for an interval"
    if are_equal:
        odds = f"1 in {1 / POINTS:.0f}"
        return f"{available} with equal mean rewards; about {needed:,} are needed to notice that {odds} differs"
    return f"{available}; two runs need about {needed:,} each to show a difference of {POINTS} (unpaired)"


class RewardErrors:
    """Counts of calls and exceptions of each reward function, to find functions whose mean is meaningless.

    Functions of different environments in a group are counted separately. Metrics are excluded, because they have no
    weight.
    """

    def __init__(self) -> None:
        self._called: Counter[tuple[str, str]] = Counter()
        self._raised: Counter[tuple[str, str]] = Counter()
        self._errors: dict[tuple[str, str], str] = {}

    def add(self, record: RolloutRecord | Outcome) -> None:
        """Add a rollout."""
        scores = record.scores
        if scores is None:
            return
        names = list(scores.rewards)
        if names == ["reward"]:  # the environment combines its functions itself: they are among the metrics
            names += scores.metrics
        for name in names:
            self._called[record.env_id, name] += 1
        errors = scores.extras.get(REWARD_ERRORS)
        if isinstance(errors, dict):
            for name, error in errors.items():
                self._raised[record.env_id, name] += 1
                self._errors[record.env_id, name] = str(error)

    @property
    def broken(self) -> dict[str, str]:
        """Function → its last error, for functions that raised an exception in every rollout in which they were called."""
        return {
            name: self._errors[env_id, name]
            for (env_id, name), times in self._raised.items()
            if times >= self._called[env_id, name] > 0
        }


def broken_reward(name: str, error: str) -> str:
    """Return the message for a function that raised in every rollout."""
    return f"its reward is broken: {name} raised in every rollout, which counts as 0.0: {error}"
