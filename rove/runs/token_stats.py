"""Per-token statistics of training for some rollouts of each step: tokens/STEP.json of a run folder, for viewing only."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rove.core.errors import RunError
from rove.core.plain import UNREADABLE
from rove.utils.files import atomic_write, read_regular


class TrainedTurn(msgspec.Struct, frozen=True):
    """Statistics of one turn before the optimizer step; lists have one value per sampled token."""

    turn: int
    """Position of the turn in the rollout."""
    logprobs: list[float]
    """Log-probabilities under the trained weights at the sampling temperature; the importance ratio is exp(these values − the
    sampler's log-probabilities)."""
    entropies: list[float]
    """Entropy of the sampling distribution in nats."""
    advantage: float


class TrainedRollout(msgspec.Struct, frozen=True):
    """Statistics of the turns of a rollout."""

    example_key: str
    rollout_index: int
    turns: list[TrainedTurn]


def file_of(run: Path, step: int) -> Path:
    """Return the path of a step's statistics."""
    return run / "tokens" / f"{step}.json"


def write_tokens(run: Path, step: int, rollouts: Sequence[TrainedRollout]) -> None:
    """Write the statistics of a step."""
    file = file_of(run, step)
    file.parent.mkdir(exist_ok=True)
    atomic_write(file, msgspec.json.encode(rollouts))


def read_tokens(run: Path, step: int) -> list[TrainedRollout]:
    """Return the statistics of a step; [] if there are none."""
    file = file_of(run, step)
    if not os.path.lexists(file):
        return []
    if file.parent.is_symlink():
        raise RunError(f"{file.parent} is a symbolic link; expected a folder")
    try:
        return msgspec.json.decode(read_regular(file), type=list[TrainedRollout])
    except UNREADABLE as error:
        raise RunError(f"{file} cannot be read: {error}; delete it, it is only used for viewing") from error
