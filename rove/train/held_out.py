"""Decide which held-out examples select the weights, and which are used for the reported results.

The best of many measurements overestimates the reward on the examples and seeds that selected it. So the evaluations
during training and the results table use different examples, and their rollouts have different random seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

from rove.core.plain import JsonMapping
from rove.envs.dataset import content_key, example_key
from rove.remote.isolation import Isolation
from rove.remote.loading import temporary_environment
from rove.train.config import EvaluationConfig

SELECTION_ROLLOUTS = 200
"""Number of held-out rollouts in each evaluation during training."""
SELECTION_SHARE = 1 / 3
"""Share of the held-out examples that select the weights if there are few examples; the table reports the other examples."""
FEWEST_SPLIT = 30
"""With fewer held-out examples than this, selection and table both use all of them: very few examples would select weights at
random."""
TABLE_SEED = 1_000_003
"""Random seed of the results table; the evaluations during training use the seed of the run."""
NOTED_SHARE = 0.01
"""rove warns if more than this share of the table's examples also selected the weights. Generators repeat a few questions by
chance, such as one question in 1,000 in reverse_text."""


class HeldOut(NamedTuple):
    """How a recipe uses the held-out examples."""

    selection: int
    """Number of examples that the evaluations during training use, from the start of the dataset."""
    table: int
    """Number of examples that the results table uses."""
    skipped: int
    """Number of examples that the table skips at the start of the dataset."""
    has_other_seed: bool
    """Whether the evaluations during training pass another `seed` to the environment, to get different examples."""
    explanation: str
    """The recipe's explanation of this split."""


def split_held_out(available: int | None, table: int, has_seed: bool) -> HeldOut:
    """Return disjoint held-out examples for the selection of the weights and for the table.

    With few examples, or if the environment has no argument `seed`, the table skips the examples that select the
    weights. With fewer than `FEWEST_SPLIT` examples, both use all of them.

    Args:
        available: Number of held-out examples; None if the environment generates as many as needed.
        table: Number of examples that the table requests.
        has_seed: Whether the environment has an argument `seed` that generates other examples.
    """
    has_enough = available is None or available >= SELECTION_ROLLOUTS + table
    if has_seed and has_enough:
        text = "The evaluations in training, which choose the weights, use examples of another seed."
        return HeldOut(SELECTION_ROLLOUTS, table, 0, True, text)
    if available is not None and available < FEWEST_SPLIT:
        text = (
            f"There are only {available:,}: the evaluations in training, which choose the weights, use all of them, too. The "
            "table has other random seeds, but its values may be too high for new examples. Add examples."
        )
        return HeldOut(available, available, 0, False, text)
    selection = SELECTION_ROLLOUTS
    if available is not None:
        selection = min(selection, int(SELECTION_SHARE * available))
        table = min(table, available - selection)
    text = f"The first {selection:,} examples choose the weights in training; the table uses others."
    if not has_enough:
        text += f" There are only {available:,} examples."
    return HeldOut(selection, table, selection, False, text)


class ExampleKeys(NamedTuple):
    """Hashes of an example's contents."""

    question: str
    """Prompt and answer or, without an answer, prompt and info."""
    example: str
    """Prompt, answer and info."""


def keys_of(
    env: str,
    env_dir: str | Path | None,
    env_args: JsonMapping,
    count: int,
    skipped: int = 0,
    isolation: Isolation = Isolation(),  # noqa: B008  frozen
) -> list[ExampleKeys]:
    """Return the keys of `count` evaluation examples of an environment (all if < 0), after the first `skipped` examples."""
    last = count if count < 0 else skipped + count
    with temporary_environment(env, env_dir, env_args, isolation) as loaded:
        rows = islice(loaded.examples(last), skipped, None)
        return [ExampleKeys(content_key(row), example_key(row)) for row in rows]


def count_shared(selection: Sequence[ExampleKeys], table: Sequence[ExampleKeys]) -> int:
    """Return the number of examples of the table that also select the weights.

    Examples are the same if prompt and answer are equal; `info` is ignored, because it may hold a number that differs in every
    row. Without an answer, as in games, and if most rows have the same prompts and answers, `info` is compared as well.
    """
    questions = {keys.question for keys in table}
    examples = {keys.example for keys in table}
    if 2 * len(questions) < len(examples):
        selected = {keys.example for keys in selection}
        return sum(keys.example in selected for keys in table)
    selected = {keys.question for keys in selection}
    return sum(keys.question in selected for keys in table)


class Table(Protocol):
    """Settings of the results table, with the same names as settings of `rove eval`."""

    @property
    def env(self) -> str: ...  # noqa: D102
    @property
    def env_args(self) -> dict[str, object]: ...  # noqa: D102
    @property
    def num_examples(self) -> int: ...  # noqa: D102
    @property
    def skip_examples(self) -> int: ...  # noqa: D102
    @property
    def seed(self) -> int: ...  # noqa: D102


def _choosing(metric: str | None, evaluations: Iterable[EvaluationConfig]) -> list[EvaluationConfig]:
    """Return the evaluations by rollouts that select the weights."""
    if metric is None:
        return []
    return [
        evaluation
        for evaluation in evaluations
        if evaluation.kind == "rollouts" and metric.startswith(f"eval/{evaluation.label}/")
    ]


def overlap_note(metric: str | None, evaluations: Iterable[EvaluationConfig], seed: int, table: Table) -> str | None:
    """Return a note if the table reports examples that selected the weights; None if it does not."""
    for evaluation in _choosing(metric, evaluations):
        same_dataset = (evaluation.env, evaluation.env_args) == (table.env, table.env_args)
        if not same_dataset or 0 <= evaluation.num_examples <= table.skip_examples:
            continue
        seeds = "and the same random seeds, so its values are" if seed == table.seed else "so its values may be"
        advice = f"skip_examples = {evaluation.num_examples}" if evaluation.num_examples > 0 else "other env_args"
        return (
            f"the results table uses examples that also chose the weights ({metric}), {seeds} too high; "
            f"set {advice} under [evaluation] in a copy of the recipe, if the environment has more examples"
        )
    return None


def shared_note(
    metric: str | None, evaluations: Iterable[EvaluationConfig], table: Table, env_dir: str | None
) -> str | None:
    """Return a note if many examples of the table have the contents of examples that selected the weights; None if few do."""
    for evaluation in _choosing(metric, evaluations):
        if evaluation.env != table.env:
            continue
        isolation = evaluation.environment_isolation(Isolation())
        reported = keys_of(table.env, env_dir, table.env_args, table.num_examples, table.skip_examples, isolation)
        selection = keys_of(evaluation.env, env_dir, evaluation.env_args, evaluation.num_examples, isolation=isolation)
        shared = count_shared(selection, reported)
        if shared > NOTED_SHARE * len(reported):
            return (
                f"{shared:,} of the {len(reported):,} examples of the results table have the question and the answer of examples "
                f"that also chose the weights ({metric}), so its values may be too high for new questions"
            )
    return None
