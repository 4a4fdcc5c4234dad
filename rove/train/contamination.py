"""Whether what is measured while training is also trained on, told by the rows' contents."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from rove.envs.dataset import example_key
from rove.envs.environment import Environment
from rove.remote.loading import Isolation, looking_at
from rove.train.collect import rows_needed
from rove.train.config import EvaluationConfig, RLConfig

MAX_ROWS = 10_000
"""Rows that are looked at of any dataset: as many as take well under a second."""


class Overlap(NamedTuple):
    """How much of what an evaluation measures is trained on."""

    evaluation: str
    """Of the evaluation."""
    shared: int
    """Measured rows with the content of one that is trained on."""
    measured: int

    def __str__(self) -> str:
        return f"{self.evaluation}: {self.shared:,} of {self.measured:,} rows are also trained on"


def trained_keys(config: RLConfig, env: Environment) -> list[str]:
    """The keys (hashes of the content) of the training rows that an RL run may play, in their order; of at most `MOST`."""
    needed = rows_needed(config, env)
    rows = env.examples(MAX_ROWS if needed < 0 else min(MAX_ROWS, needed), train=True)
    return [example_key(row) for row in rows]


def find_overlaps(
    evaluations: Sequence[EvaluationConfig],
    env_dir: str | Path | None,
    trained: Collection[str],
    isolation: Isolation = Isolation(),  # noqa: B008  frozen
) -> list[Overlap]:
    """What each evaluation shares with the training rows; those of every line of play measure no rows, and are left out.

    Args:
        evaluations: of the run.
        env_dir: where environments are looked for first.
        trained: keys of the rows that are trained on.
        isolation: of the run's own environment.
    """
    found: list[Overlap] = []
    for evaluation in evaluations:
        if evaluation.evaluation_kind is not None:
            continue
        where = evaluation.environment_isolation(isolation)
        with looking_at(evaluation.env, env_dir, evaluation.env_args, where) as env:
            keys = [example_key(row) for row in islice(env.examples(evaluation.num_examples), MAX_ROWS)]
        found.append(Overlap(evaluation.label, sum(key in trained for key in keys), len(keys)))
    return found
