"""The result of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from rove.core.errors import missing_train_package
from rove.core.plain import JsonMapping, JsonObject
from rove.runs.run import Run
from rove.statistics.format import caveats, folded, interval, number
from rove.statistics.intervals import Estimate
from rove.utils.notebook import ShownAsText, data_frame

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.table import Table

    from rove.utils.figure import NotebookFigure

SUMMARY_NAME = 26
"""Maximum width of a name in the table of a summary, in columns."""


class FunctionEstimate(Estimate, frozen=True, kw_only=True):
    """The mean of a reward function or metric."""

    weight: float
    """Weight in the reward; 0 for a metric."""


class PassEstimate(Estimate, frozen=True, kw_only=True):
    """The probability that one, or all, of k rollouts of an example pass."""

    examples: int
    """Number of examples with at least k scored rollouts."""
    left_out: int
    """Number of examples with fewer than k scored rollouts."""


class EnvironmentEstimate(Estimate, frozen=True, kw_only=True):
    """The mean reward of one environment of an `EnvGroup`."""

    examples: int
    rollouts: int


class TokenMeans(msgspec.Struct, frozen=True):
    """Mean numbers of tokens per rollout; nan without a rollout."""

    prompt: float
    """Mean number of prompt tokens of all turns."""
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
    """Cost of the role; None if the role has no price."""


class Cost(msgspec.Struct, frozen=True, omit_defaults=True):
    """Cost of the model's tokens, in the unit of the price."""

    total: float
    """Cost of the rollouts in the result."""
    per_rollout: float
    spent: float | None = None
    """Cost of all attempts, including repeated attempts and model roles; None if it is unknown, as after `rescore`."""


class Rescored(msgspec.Struct, frozen=True):
    """The origin of rescored rollouts."""

    run: str
    """Run folder with the original rollouts."""
    failed: int
    """Number of rollouts left out because they had failed in the original run."""
    gone: int
    """Number of rollouts left out because the dataset no longer has their example."""


class EvaluationResult(ShownAsText, msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of `rove.evaluate` and `rove.rescore`.

    Means and intervals are over the scored rollouts. An interval is a 95% interval over examples, since rollouts of one example
    are not independent.

    Example:
        >>> result = env.evaluate_sync(client, num_examples=100)
        >>> result.reward.mean, result.reward.low, result.reward.high
        >>> result.functions["win"].mean
        >>> print(result)
    """

    rollouts: int
    """Number of all rollouts, including failed rollouts."""
    scored: int
    failed: int
    truncated: int
    retries: int
    """Number of failed attempts before the responses to requests."""
    error_share: float
    """Share of failed rollouts; nan without a rollout."""
    truncation_share: float
    examples: int
    """Number of examples with a scored rollout."""
    reward: Estimate
    functions: dict[str, FunctionEstimate]
    """Reward functions and metrics by name."""
    pass_threshold: float
    """Minimum reward of a passing rollout."""
    pass_at_k: dict[int, PassEstimate] = msgspec.field(name="pass@k")
    """By k (1, 2, 4, … and the size of the largest group): the probability that at least one of k rollouts passes."""
    pass_hat_k: dict[int, PassEstimate] = msgspec.field(name="pass^k")
    """By k: the probability that all of k rollouts pass."""
    stops: dict[str, int]
    """Number of scored rollouts by stop condition."""
    errors: dict[str, int]
    """Number of failed rollouts by phase and type of the error."""
    prompt_tokens: int
    completion_tokens: int
    tokens_per_rollout: TokenMeans
    latency: dict[str, Percentiles]
    """Seconds of an `answer` (one model turn) and of a scored `rollout`."""
    needed_examples: int | None
    """Number of examples per run needed to detect a difference of 0.02 in the mean reward (unpaired); None if it is unknown."""
    too_few: str | None = None
    """Message if the run has fewer than `needed_examples` examples; else None."""
    model_roles: dict[str, RoleSummary] = {}
    environments: dict[str, EnvironmentEstimate] = {}
    """Mean reward by environment of an `EnvGroup`."""
    cost: Cost | None = None
    """Cost of the model's tokens; None without a price."""
    not_run: int | None
    """Number of planned rollouts that the budget did not allow; None if the dataset's length is unknown."""
    broken_rewards: dict[str, str] = {}
    """Last error of each function that raised in every rollout; its values count as 0.0, as in environments for `verifiers` v0.
    """
    rescored: Rescored | None = None
    """The origin of rescored rollouts, set by `rove.rescore`; else None."""
    run: Run | None = None
    """The run folder, if there is one; it is not part of `to_dict`."""

    @property
    def metrics(self) -> dict[str, FunctionEstimate]:
        """The functions without a weight, which do not count in the reward."""
        return {name: function for name, function in self.functions.items() if not function.weight}

    def to_dict(self) -> JsonObject:
        """Return the content of summary.json as plain values; unknown numbers are nan, which JSON writes as null."""
        # The open run folder is not a value; JSON has only texts as keys, and pass@k has numbers.
        return msgspec.to_builtins(msgspec.structs.replace(self, run=None), str_keys=True)

    @property
    def table(self) -> Table:
        """Reward, pass@k, reward functions and metrics with their intervals. `print` shows the table as text."""
        return summary_table(self.to_dict(), "")

    def __str__(self) -> str:
        """Return the table and the number of rollouts."""
        return f"{self.table}{self.scored} of {self.rollouts} rollouts scored"

    def to_pandas(self) -> DataFrame:
        """Return a row per value: the reward, every reward function and metric, pass@k and pass^k.

        Columns: mean, low, high, caveat, weight (nan for values that are not functions).

        Raises:
            ConfigError: pandas is not installed.
        """
        values = self._values()
        rows = [msgspec.structs.asdict(value) for value in values.values()]
        columns = ["mean", "low", "high", "caveat", "weight"]
        return data_frame(rows, index=list(values)).reindex(columns=columns)

    def plot(self) -> NotebookFigure:
        """Return a matplotlib figure of the means with their 95% intervals.

        Raises:
            ConfigError: matplotlib is not installed.
        """
        try:
            from rove.utils.figure import NotebookFigure
        except ModuleNotFoundError:
            raise missing_train_package("matplotlib", "plotting a result") from None
        values = self._values()
        figure = NotebookFigure(figsize=(6.4, 0.8 + 0.3 * len(values)), layout="constrained")
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


def summary_table(summary: JsonMapping, title: str) -> Table:
    """Return the table of an evaluation's summary: reward, pass@k, reward functions and metrics with their intervals.

    pass@k is shown if groups have at least two members and some, but not all, rollouts pass.
    """
    from rove.utils.console import TextTable

    rows: list[tuple[str, JsonMapping, str]] = [("reward", summary["reward"], "")]
    rows += [(name, estimate, "") for name, estimate in _passes(summary)]
    for name, estimate in sorted(summary["functions"].items(), key=lambda item: -abs(item[1]["weight"])):
        rows.append((name, estimate, f"{estimate['weight']:g}" if estimate["weight"] else "metric"))
    rows += [(f"reward in {name}", estimate, "") for name, estimate in summary.get("environments", {}).items()]
    noted = caveats(estimate for _, estimate, _ in rows)
    table = TextTable(
        title=title or None, title_justify="left", width=72, caption=noted or None, caption_justify="left"
    )
    table.add_column("", style="bold")
    table.add_column("mean", justify="right")
    table.add_column("95% interval", justify="right", no_wrap=True)
    table.add_column("weight", justify="right")
    for name, estimate, weight in rows:
        label = "\n".join(filter(None, [folded(name, SUMMARY_NAME), coverage(estimate)]))
        table.add_row(label, number(estimate["mean"]), interval(estimate), weight)
    return table


def coverage(estimate: Mapping[str, object]) -> str:
    """Return the examples of a pass@k as text, "3 of 100 examples", if others have too few rollouts; else ""."""
    examples, left_out = estimate.get("examples"), estimate.get("left_out")
    if not isinstance(examples, int) or not isinstance(left_out, int) or not left_out:
        return ""
    return f"{examples:,} of {examples + left_out:,} examples"


def _passes(summary: JsonMapping) -> list[tuple[str, Mapping[str, float]]]:
    """Return pass@1, pass@k and pass^k for the whole group size k."""
    any_of, all_of = summary.get("pass@k", {}), summary.get("pass^k", {})
    group_size = max(map(int, any_of), default=0)
    if group_size < 2:
        return []
    pass_share = any_of["1"]["mean"] or 0.0  # None if no rollout has a score
    if not 0.0 < pass_share < 1.0:  # all three would be 0, or all three 1
        return []
    threshold = f"reward ≥ {summary['pass_threshold']:g}"
    k = str(group_size)
    return [
        (f"pass@1 ({threshold})", any_of["1"]),
        (f"pass@{k} (one of {k})", any_of[k]),
        (f"pass^{k} (all of {k})", all_of[k]),
    ]
