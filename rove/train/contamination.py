"""Find evaluation rows that are also training rows, by comparing the contents."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from rove.envs.dataset import example_key
from rove.envs.environment import Environment
from rove.remote.isolation import Isolation
from rove.remote.loading import temporary_environment
from rove.train.collect import rows_needed
from rove.train.config import EvaluationConfig, RLConfig

MAX_ROWS = 10_000
"""Maximum number of rows to compare per dataset; hashing them takes well under a second."""


class Overlap(NamedTuple):
    """How many rows of an evaluation are training rows."""

    evaluation: str
    """Name of the evaluation."""
    shared: int
    """Evaluated rows that are equal to a training row."""
    measured: int

    def __str__(self) -> str:
        return f"{self.evaluation}: {self.shared:,} of {self.measured:,} rows are also trained on"


def trained_keys(config: RLConfig, env: Environment) -> list[str]:
    """Return the keys (content hashes) of the training rows that an RL run may use, in the rows' order (at most `MAX_ROWS`)."""
    needed = rows_needed(config, env)
    rows = env.examples(MAX_ROWS if needed < 0 else min(MAX_ROWS, needed), train=True)
    return [example_key(row) for row in rows]


def find_overlaps(
    evaluations: Sequence[EvaluationConfig],
    env_dir: str | Path | None,
    trained: Collection[str],
    isolation: Isolation = Isolation(),  # noqa: B008  frozen
) -> list[Overlap]:
    """Return the overlap of each evaluation with the training rows; exhaustive evaluations use no rows and are left out."""
    overlaps: list[Overlap] = []
    for evaluation in evaluations:
        if evaluation.is_exhaustive:
            continue
        own_isolation = evaluation.environment_isolation(isolation)
        with temporary_environment(evaluation.env, env_dir, evaluation.env_args, own_isolation) as env:
            rows = islice(env.examples(evaluation.num_examples), MAX_ROWS)
            keys = [example_key(row) for row in rows]
        shared = sum(key in trained for key in keys)
        overlaps.append(Overlap(evaluation.label, shared, len(keys)))
    return overlaps
