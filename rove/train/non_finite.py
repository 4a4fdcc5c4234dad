"""Steps whose loss or gradient is not a finite number: skipped, counted, and the end of training when they do not stop."""

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
"""1 in the metrics of a step that was skipped, 0 in those of one that was not."""


class NonFiniteBatch(msgspec.Struct, frozen=True):
    """What training stopped at."""

    step: int
    reason: str
    samples: list[TrainingSequence]


def consecutive_skips(history: Sequence[Mapping[str, float]]) -> int:
    """How many of the last steps that had anything to train on were skipped, without one between them that was not."""
    tried = [row[SKIPPED_METRIC] for row in history if SKIPPED_METRIC in row]
    return next((i for i, skipped in enumerate(reversed(tried)) if not skipped), len(tried))


def step_unless_non_finite(
    train: Callable[[], dict[str, float]],
    samples: Sequence[TrainingSequence],
    run: Run,
    history: Sequence[Mapping[str, float]],
    most: int,
) -> dict[str, float]:
    """What `train` measured; of a step that had to be skipped, only that.

    Args:
        train: takes the step, or raises TrainingError and leaves weights and optimizer as they were.
        samples: what it trains on.
        run: where the samples of the last step are kept when training stops.
        history: metrics of the steps before, oldest first.
        most: so many skipped steps in a row stop training.

    Raises:
        TrainingError: that many were skipped.
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
    """The batch at which a run stopped, from its folder.

    Raises:
        RunError: there is none.
    """
    file = Path(path) / FILE
    if not file.exists():
        raise RunError(f"{path} has no {FILE}: training did not stop at a step that is not finite")
    return msgspec.msgpack.decode(file.read_bytes(), type=NonFiniteBatch)
