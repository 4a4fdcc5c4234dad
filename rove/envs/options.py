"""Types of the keyword options of `rove.generate`, `rove.evaluate` and `rove.run_rollouts`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypedDict

from rove.core.protocols import Limits
from rove.core.records import Outcome, RolloutRecord
from rove.runs.run import Run
from rove.statistics.summary import Price


class RolloutOptions(TypedDict, total=False):
    """Options for running rollouts; `rove.rollouts.evaluate.Options` has their ranges and defaults."""

    rollouts_per_example: int
    """Rollouts per example (default: 1)."""
    sampling_args: Mapping[str, object]
    """Sampling parameters with OpenAI's names."""
    max_concurrent: int | None
    """Maximum concurrent rollouts. Default: the client's recommendation."""
    max_scoring: int | None
    """Maximum number of rollouts scored concurrently."""
    limits: Limits | Mapping[str, float]
    """Limits of one rollout."""
    price: Price | Mapping[str, float] | None
    """Price of the model's tokens."""
    fail_fast: bool
    """Raise at the first failed rollout."""
    seed: int
    """Random seed (default: 0)."""


class EvaluationOptions(RolloutOptions, total=False):
    """How to run an evaluation; `rove.rollouts.evaluate.Options` has the ranges and the defaults."""

    num_examples: int
    """Number of rows from the start of the dataset; -1 = all (default)."""
    skip_examples: int
    """Number of rows to skip at the start of the dataset."""
    role_prices: Mapping[str, Price | Mapping[str, float]]
    """Prices of the tokens of model roles."""
    budget: float | None
    """Maximum cost of the whole run."""
    max_errors: float | None
    """Stop when more rollouts than this number have failed; a value below 1 is a share of the rollouts."""
    train: bool
    """Use the training rows."""
    pass_threshold: float
    """Minimum reward of a passing rollout, for pass@k (default: 1.0)."""
    run: Run | str | Path | None
    """A run folder or a started `Run`, to which finished rollouts are written; rollouts already in it are not run again. A folder
    with another identity is refused (see `rove.rollouts.evaluate.run_identity`)."""


class GenerateOptions(EvaluationOptions, total=False):
    """Keyword options of `rove.generate`."""

    on_record: Callable[[RolloutRecord], object] | None
    """Called with every record, including records that are already in the folder, in no particular order."""


class EvaluateOptions(EvaluationOptions, total=False):
    """Keyword options of `rove.evaluate`."""

    on_record: Callable[[RolloutRecord | Outcome], object] | None
    """Called with every record, and with an `Outcome` for rollouts that are already in the folder."""
