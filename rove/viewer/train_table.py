"""The table of results of a `rove train` run, with the paired differences between its rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rove.core.errors import Error
from rove.core.plain import JsonMapping, JsonObject, is_mapping
from rove.runs.run import Run
from rove.runs.train_folder import ResultRow, TrainFolder
from rove.statistics import clopper_pearson
from rove.statistics.format import caveats, limits, percent, shown
from rove.viewer.compare import compare_runs
from rove.viewer.html import finite
from rove.viewer.index import Index
from rove.viewer.queries import CURRENT_ROLLOUTS, TABLE_SCAN
from rove.viewer.run_settings import describe_run

FIRST_COLUMNS = ("model", "evaluation", "reward", "95% interval", "change [95% interval]")
LAST_COLUMNS = ("tokens per rollout", "turns", "tokens per reply", "truncated")
"""Titles before and after the columns of the reward functions."""
MAX_FUNCTIONS = 4
"""Maximum number of reward functions with a column."""
SAME_REWARD = 1e-9
"""Smaller differences of rewards come from rounding."""
NUM_ALWAYS_SHOWN = 4
"""Number of leading columns that are shown even if they are empty."""

OpenIndex = Callable[[Path], Index]
"""Returns the complete index of the evaluation in a folder."""


class KeptModel(NamedTuple):
    """The model that a run has trained, as measured."""

    row: ResultRow
    condition: str

    @property
    def reward(self) -> JsonObject:
        """The estimate of its reward."""
        return reward_of(self.row, self.condition)


class Lengths(NamedTuple):
    """Mean lengths of the rollouts in an evaluation; None if they were not measured."""

    tokens: float | None
    """Sampled tokens per rollout."""
    turns: float | None
    truncated: float | None
    """Share of truncated rollouts."""

    @property
    def tokens_per_reply(self) -> float | None:
        """Sampled tokens per reply."""
        return self.tokens / self.turns if self.tokens is not None and self.turns else None


class Losses(NamedTuple):
    """The examples in which a model earns less than a scripted policy."""

    examples: int
    """Number of examples that both have."""
    lower: int
    """Number of those in which the model earns less."""
    higher: int
    """Number of those in which the model earns more."""
    line: int
    """Line of a rollout of the model with the largest difference."""
    reward: float
    """The model's mean reward in the example of that rollout."""
    policy_reward: float


class TrainResults(NamedTuple):
    """The measured rows of a `rove train` run and their evaluations."""

    folder: TrainFolder
    rows: Sequence[ResultRow]
    open_index: OpenIndex

    def evaluation(self, row: ResultRow, condition: str) -> Path | None:
        """Return the run folder of a row's evaluation; None without its rollouts."""
        path = self.folder.evaluation_folder(row.name, condition)
        return path if (path / "rollouts.jsonl").exists() else None

    def condition_words(self, row: ResultRow, condition: str) -> str:
        """Return the name of a condition with its temperature, "sampled: temperature 1"."""
        path = self.evaluation(row, condition)
        temperature = describe_run(Run(path))["config"].get("temperature") if path else None
        if not isinstance(temperature, (int, float)):
            return condition
        return f"{condition}: temperature {temperature:g}" if condition else f"temperature {temperature:g}"

    def difference(self, old: ResultRow, new: ResultRow, condition: str) -> JsonObject | None:
        """Return the paired difference of the rewards of two rows; None if their rollouts cannot be compared."""
        if condition not in old.conditions or condition not in new.conditions:
            return None
        old_path, new_path = self.evaluation(old, condition), self.evaluation(new, condition)
        if old_path is None or new_path is None:
            return None
        old_index, new_index = self.open_index(old_path), self.open_index(new_path)

        def compared() -> JsonObject | None:
            try:
                comparison: JsonObject = compare_runs(old_index, new_index, "reward", (old.name, new.name))
                return comparison["main"]
            except Error:  # no common reward, or no scored rollout
                return None

        # The cache of an index ends when its own file grows, so the key has to contain the state of the other file.
        [stamp] = old_index.query("SELECT bytes, lines FROM seen")
        return new_index.cached(("difference", str(old_index.file), stamp), compared)

    def scripts(self, condition: str) -> list[ResultRow]:
        """Return the rows of the scripted policies with a reward, the weakest first."""
        rows = [row for row in self.rows if row.model.startswith("scripted:") and condition in row.conditions]
        rows = [row for row in rows if reward_of(row, condition)["mean"] is not None]
        return sorted(rows, key=lambda row: reward_of(row, condition)["mean"])

    def losses(self, row: ResultRow, policy: ResultRow, condition: str) -> Losses | None:
        """Compare a model with a scripted policy on the same examples; None without an example in which it earns less."""
        path, policy_path = self.evaluation(row, condition), self.evaluation(policy, condition)
        if path is None or policy_path is None:
            return None
        sql = (
            f"SELECT example_key, AVG(reward), MIN(line) FROM {TABLE_SCAN} "
            f"WHERE {CURRENT_ROLLOUTS} AND reward IS NOT NULL GROUP BY example_key"
        )
        model_rows = self.open_index(path).query(sql)
        rewards = {key: mean for key, mean, _ in model_rows}
        lines = {key: line for key, _, line in model_rows}
        policy_rewards = {key: mean for key, mean, _ in self.open_index(policy_path).query(sql)}
        losses = {key: policy_rewards[key] - rewards[key] for key in rewards if key in policy_rewards}
        lower = sum(loss > SAME_REWARD for loss in losses.values())
        higher = sum(loss < -SAME_REWARD for loss in losses.values())
        if not lower:
            return None
        worst = max(losses, key=lambda key: losses[key])
        return Losses(len(losses), lower, higher, lines[worst], rewards[worst], policy_rewards[worst])

    def lengths(self, row: ResultRow, condition: str) -> Lengths:
        """Return the lengths of a row's rollouts."""
        summary = row.conditions.get(condition, {})
        path = self.evaluation(row, condition)
        tokens, turns = None, None
        if path is not None:
            # Only scored rollouts: those that failed before the first reply have no length.
            columns = "AVG(completion_tokens), AVG(turns)"
            sql = f"SELECT {columns} FROM {TABLE_SCAN} WHERE {CURRENT_ROLLOUTS} AND reward IS NOT NULL"
            [(tokens, turns)] = self.open_index(path).query(sql)
        if row.model.startswith("scripted:"):  # these have no tokenizer
            tokens = None
        return Lengths(finite(tokens), finite(turns), finite(summary.get("truncation_share")))


def reward_of(row: ResultRow, condition: str) -> JsonObject:
    """Return the estimate of a row's reward; `mean` is None if the file has no number."""
    estimate = row.conditions[condition].get("reward")
    values: JsonObject = estimate if isinstance(estimate, dict) else {}
    return {**values, "mean": finite(values.get("mean"))}


def kept_model(rows: Sequence[ResultRow]) -> KeptModel | None:
    """Return the last trained model under its first condition; None before the first training stage."""
    trained = [row for row in rows if row.is_trained and row.conditions]
    if not trained:
        return None
    # The row of the last stage, which a row with another temperature may repeat.
    row = next(row for row in trained if row.model == trained[-1].model)
    # The first condition is the one for which RL is made, such as sampling at T = 1.
    return KeptModel(row, next(iter(row.conditions)))


def best_reward(results: TrainResults, condition: str) -> float | None:
    """Return the best reward of any model's rollout under a condition; None without rollouts."""
    best: list[float] = []
    for row in results.rows:
        path = results.evaluation(row, condition)
        if path is not None:
            sql = f"SELECT MAX(reward) FROM {TABLE_SCAN} WHERE {CURRENT_ROLLOUTS}"
            [(reward,)] = results.open_index(path).query(sql)
            best += [] if reward is None else [float(reward)]
    return max(best, default=None)


def decimals(value: float | None) -> str:
    """Format a reward with three decimals, so that a column of rewards has one form; None → "–"."""
    if value is None or not math.isfinite(value):
        return shown(None)
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.4g}"


def has_interval(main: JsonMapping) -> bool:
    """Return whether a difference has an interval."""
    return all(isinstance(main[end], float) and math.isfinite(main[end]) for end in ("low", "high"))


def equal_words(main: JsonMapping) -> str:
    """Return what is known about a difference that is equal in all examples, which has no interval of its mean."""
    examples = main["examples"]
    if not examples or main["difference"]:
        return str(main["caveat"] or "no interval")
    _, high = clopper_pearson(0, examples)
    return f"equal in all {examples:,} examples; 95% interval of the share that differs: 0% to {percent(high)}%"


def change_cell(main: JsonMapping | None) -> str:
    """Return a difference with its interval for the table; an asterisk refers to the footnote."""
    if main is None:
        return shown(None)
    sign = "+" if main["difference"] > 0 else ""
    mark = "*" if main["caveat"] else ""
    ends = f" [{decimals(main['low'])}, {decimals(main['high'])}]" if has_interval(main) else ""
    return f"{sign}{decimals(main['difference'])}{ends}{mark}"


def describe_table(results: TrainResults) -> JsonObject:
    """Return `head` and `values` of the table, all models under one condition and then under the next one, and `footnotes`."""
    conditions = dict.fromkeys(condition for row in results.rows for condition in row.conditions)
    functions = weighted_functions(results.rows)
    values: list[tuple[str, ...]] = []
    estimates: list[JsonObject] = []
    footnotes: list[str] = []
    for condition in conditions:
        rows = [row for row in results.rows if condition in row.conditions]
        for position, row in enumerate(rows):
            is_compared = position > 0 and row.is_trained
            main = results.difference(rows[position - 1], row, condition) if is_compared else None
            estimates += [reward_of(row, condition), *([] if main is None else [main])]
            values.append(_table_row(results, row, condition, main, functions))
            if main is not None and not has_interval(main):
                footnotes.append(f"({row.name}, {condition}: {equal_words(main)}.)")
    head, values = _without_empty_columns((*FIRST_COLUMNS, *functions, *LAST_COLUMNS), values)
    caveat_line = caveats(estimates)
    words = {results.condition_words(row, condition): None for row in results.rows for condition in row.conditions}
    explained = [text for text in words if "temperature" in text]
    models = "base: the model before training; + …: the model after this stage; change: from the row above"
    lines = [f"{'; '.join([models, *explained])}.", " ".join([caveat_line, *footnotes]).strip()]
    return {"head": head, "values": values, "footnotes": [line for line in lines if line] if values else []}


def weighted_functions(rows: Sequence[ResultRow]) -> list[str]:
    """Return the reward functions with a weight, those with the largest one first; [] if only one has, which is the reward."""
    weights: dict[str, float] = {}
    for summary in (summary for row in rows for summary in row.conditions.values()):
        functions = summary.get("functions")
        for name, estimate in functions.items() if is_mapping(functions) else ():
            weight = finite(estimate.get("weight")) if is_mapping(estimate) else None
            if weight:
                weights[str(name)] = abs(weight)
    return sorted(weights, key=lambda name: -weights[name])[:MAX_FUNCTIONS] if len(weights) > 1 else []


def _function_mean(summary: JsonMapping, name: str) -> float | None:
    functions = summary.get("functions")
    estimate = functions.get(name) if is_mapping(functions) else None
    return finite(estimate.get("mean")) if is_mapping(estimate) else None


def _table_row(
    results: TrainResults, row: ResultRow, condition: str, main: JsonMapping | None, functions: Sequence[str]
) -> tuple[str, ...]:
    reward = reward_of(row, condition)
    lengths = results.lengths(row, condition)
    return (
        row.name,
        condition or shown(None),
        decimals(reward["mean"]),
        _interval_cell(reward),
        change_cell(main),
        *(decimals(_function_mean(row.conditions[condition], name)) for name in functions),
        one_decimal(lengths.tokens),
        one_decimal(lengths.turns),
        one_decimal(lengths.tokens_per_reply),
        shown(None) if lengths.truncated is None else f"{percent(lengths.truncated)}%",
    )


def _interval_cell(reward: JsonMapping) -> str:
    bounds = limits(reward)
    mark = "*" if reward.get("caveat") else ""
    return f"[{decimals(bounds[0])}, {decimals(bounds[1])}]{mark}" if bounds else f"{shown(None)}{mark}"


def one_decimal(value: float | None) -> str:
    """Format a length; None → "–"."""
    return shown(None) if value is None else f"{value:,.1f}"


def _without_empty_columns(
    head: Sequence[str], values: Sequence[tuple[str, ...]]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the head and the rows without the columns that are empty in all rows."""
    columns = [
        column
        for column in range(len(head))
        if column < NUM_ALWAYS_SHOWN or any(row[column] != shown(None) for row in values)
    ]
    return tuple(head[column] for column in columns), [tuple(row[column] for column in columns) for row in values]
