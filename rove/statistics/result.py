"""The result of an evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rove.core.errors import ConfigError, missing_train_package
from rove.core.plain import JsonObject
from rove.runs.run import Run
from rove.statistics.intervals import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame
    from rich.table import Table


class FunctionEstimate(Estimate, frozen=True, kw_only=True):
    """The mean of a reward function or metric."""

    weight: float
    """Weight in the reward; 0 for a metric."""


class PassEstimate(Estimate, frozen=True, kw_only=True):
    """The probability that one, or all, of k rollouts of an example pass."""

    examples: int
    """Examples with at least k scored rollouts."""
    left_out: int
    """Examples with fewer."""


class EnvironmentEstimate(Estimate, frozen=True, kw_only=True):
    """The mean reward of one environment of an `EnvGroup`."""

    examples: int
    rollouts: int


class TokenMeans(msgspec.Struct, frozen=True):
    """Mean numbers of tokens per rollout; nan without a rollout."""

    prompt: float
    """Prompt tokens of all turns."""
    completion: float


class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles of a duration in seconds."""

    p50: float
    p90: float
    p99: float


class RoleSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """Calls, tokens and cost of a model role, such as a judge."""

    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None = None
    """None without a price for the role."""


class Cost(msgspec.Struct, frozen=True, omit_defaults=True):
    """Cost of the model's tokens, in the unit of the price."""

    total: float
    """Cost of the rollouts in the result."""
    per_rollout: float
    spent: float | None = None
    """Cost of all attempts, including repeated ones and model roles; None if it is unknown, as after `rescore`."""


class Rescored(msgspec.Struct, frozen=True):
    """The origin of rescored rollouts."""

    run: str
    """Run folder with the original rollouts."""
    failed: int
    """Rollouts left out because they had failed there."""
    gone: int
    """Rollouts left out because the dataset no longer has their example."""


class EvaluationResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of `rove.evaluate` and `rove.rescore`.

    Means and intervals are over the scored rollouts. An interval is a 95% interval over examples, since rollouts of one example
    are not independent.

    Example:
        >>> result = env.evaluate_sync(client, num_examples=100)
        >>> result.reward.mean, result.reward.low, result.reward.high
        >>> result.functions["win"].mean
        >>> rich.print(result.table)
    """

    rollouts: int
    """All rollouts, including failed ones."""
    scored: int
    failed: int
    truncated: int
    retries: int
    """Failed attempts at a request before its response."""
    error_share: float
    """Share of failed rollouts; nan without a rollout."""
    truncation_share: float
    examples: int
    """Examples with a scored rollout."""
    reward: Estimate
    functions: dict[str, FunctionEstimate]
    """Reward functions and metrics by name."""
    pass_threshold: float
    """A rollout passes if its reward is at least this."""
    pass_at_k: dict[int, PassEstimate] = msgspec.field(name="pass@k")
    """By k (1, 2, 4, … and the size of the largest group): the probability that at least one of k rollouts passes."""
    pass_hat_k: dict[int, PassEstimate] = msgspec.field(name="pass^k")
    """By k: the probability that all of k rollouts pass."""
    stops: dict[str, int]
    """Scored rollouts by stop condition."""
    errors: dict[str, int]
    """Failed rollouts by phase and type of the error."""
    prompt_tokens: int
    completion_tokens: int
    tokens_per_rollout: TokenMeans
    latency: dict[str, Percentiles]
    """Seconds of an `answer` (one model turn) and of a scored `rollout`."""
    needed_examples: int | None
    """Examples per run needed to detect a difference of 0.02 in the mean reward (unpaired); None if it is unknown."""
    too_few: str | None = None
    """Message if the run has fewer than `needed_examples`."""
    model_roles: dict[str, RoleSummary] = {}
    environments: dict[str, EnvironmentEstimate] = {}
    """Mean reward by environment of an `EnvGroup`."""
    cost: Cost | None = None
    """None without a price."""
    not_run: int | None
    """Planned rollouts that the budget did not allow; None if the dataset's length is unknown."""
    broken_rewards: dict[str, str] = {}
    """Last error of each function that raised in every rollout and counts as 0.0, as in environments for `verifiers` v0."""
    rescored: Rescored | None = None
    """Set by `rove.rescore`."""
    run: Run | None = None
    """The run folder, if there is one; it is not part of `to_dict`."""

    @property
    def metrics(self) -> dict[str, FunctionEstimate]:
        """The functions without a weight, which do not count in the reward."""
        return {name: function for name, function in self.functions.items() if not function.weight}

    def to_dict(self) -> JsonObject:
        """Return the content of summary.json as plain values; unknown numbers are nan, which JSON writes as null."""
        # The open run folder is no value; JSON has only texts as keys, and pass@k has numbers.
        return msgspec.to_builtins(msgspec.structs.replace(self, run=None), str_keys=True)

    @property
    def table(self) -> Table:
        """A table for `rich.print`: reward, pass@k, reward functions and metrics with their intervals."""
        from rove.statistics.tables import summary_table

        return summary_table(self.to_dict(), "")

    def to_pandas(self) -> DataFrame:
        """Return a row per value: the reward, every reward function and metric, pass@k and pass^k.

        Columns: mean, low, high, caveat, weight (nan except for functions).

        Raises:
            ConfigError: pandas is not installed.
        """
        try:
            from pandas import DataFrame
        except ModuleNotFoundError:
            raise ConfigError(
                "to_pandas() needs the package 'pandas', which is not installed: pip install pandas"
            ) from None
        values = self._values()
        rows = [msgspec.structs.asdict(value) for value in values.values()]
        columns = ["mean", "low", "high", "caveat", "weight"]
        return DataFrame(rows, index=list(values)).reindex(columns=columns)

    def plot(self) -> Figure:
        """Return a matplotlib figure of the means with their 95% intervals.

        Raises:
            ConfigError: matplotlib is not installed.
        """
        try:  # not pyplot, which would choose a window system for the whole process
            from matplotlib.figure import Figure
        except ModuleNotFoundError:
            raise missing_train_package("matplotlib", "plotting a result") from None
        values = self._values()
        figure = Figure(figsize=(6.4, 0.8 + 0.3 * len(values)), layout="constrained")
        axes = figure.add_subplot()
        for row, value in enumerate(values.values()):
            axes.plot(value.mean, row, "o", color="C0")
            axes.hlines(row, value.low, value.high, color="C0")  # draws nothing where there is no interval (nan)
        axes.set_yticks(range(len(values)), list(values))
        axes.invert_yaxis()
        axes.set_xlabel("mean with 95% interval")
        return figure

    def _values(self) -> dict[str, Estimate]:
        """Return every mean by its label."""
        passes = {f"pass@{k}": estimate for k, estimate in self.pass_at_k.items()}
        passes |= {f"pass^{k}": estimate for k, estimate in self.pass_hat_k.items()}
        return {"reward": self.reward, **self.functions, **passes}
