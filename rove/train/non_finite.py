"""Steps with a non-finite loss or gradient: skip and count them, and stop training if they repeat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from rove.core.errors import RunError
from rove.runs.run import Run
from rove.train.sequences import TrainingSequence
from rove.train.trainer import TrainingError

FILE = "bad_batch.msgpack"
SKIPPED_METRIC = "optim/skipped"
"""1 in the metrics of a skipped step, else 0."""


class NonFiniteBatch(msgspec.Struct, frozen=True):
    """The batch at which training stopped."""

    step: int
    reason: str
    samples: list[TrainingSequence]


def consecutive_skips(history: Sequence[Mapping[str, float]]) -> int:
    """Return the number of skipped steps at the end of the history; steps without training data do not count."""
    tried = [row[SKIPPED_METRIC] for row in history if SKIPPED_METRIC in row]
    return next((i for i, skipped in enumerate(reversed(tried)) if not skipped), len(tried))


def step_unless_non_finite(
    train: Callable[[], dict[str, float]],
    samples: Sequence[TrainingSequence],
    run: Run,
    history: Sequence[Mapping[str, float]],
    most: int,
) -> dict[str, float]:
    """Return the metrics of `train`, or only the skip metric if the step had to be skipped.

    Args:
        train: Takes the step, or raises TrainingError and leaves weights and optimizer unchanged.
        samples: The sequences that it trains on.
        run: Run folder, where the last batch is saved if training stops.
        history: Metrics of the earlier steps, oldest first.
        most: Consecutive skipped steps that stop training.

    Raises:
        TrainingError: That many steps were skipped.
    """
    try:
        return {**train(), SKIPPED_METRIC: 0.0}
    except TrainingError as error:
        bad = consecutive_skips(history) + 1
        if bad < most:
            return {SKIPPED_METRIC: 1.0}
        step = len(history) + 1
        run.write_bytes(FILE, msgspec.msgpack.encode(NonFiniteBatch(step, str(error), list(samples))))
        raise TrainingError(
            f"step {step}: {error}. Training stops after {bad} skipped steps in a row (max_non_finite_steps = {most}); the last "
            f"batch is in {run.path / FILE}. Lower the learning rate, or look for rewards and log-probabilities in the batch "
            "that are no numbers"
        ) from error


def read_non_finite_batch(path: str | Path) -> NonFiniteBatch:
    """Return the batch at which a run stopped.

    Raises:
        RunError: The run has none.
    """
    file = Path(path) / FILE
    if not file.exists():
        raise RunError(f"{path} has no {FILE}: training did not stop at a step that is not finite")
    return msgspec.msgpack.decode(file.read_bytes(), type=NonFiniteBatch)
