"""What the trainer knew of single tokens, of a few rollouts of each step: tokens/STEP.json of a run folder, only looked at."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rove.core.errors import RunError
from rove.utils.files import atomic_write, read_regular


class TrainedTurn(msgspec.Struct, frozen=True):
    """What the trainer knew of one turn's sampled tokens before it took a step on them; every list is as long as these."""

    turn: int
    """Which of the rollout's steps."""
    logprobs: list[float]
    """Under the weights that were trained, at the sampling temperature. The ratio is exp(these − the sampler's)."""
    entropies: list[float]
    """In nats, of what each token was drawn from."""
    advantage: float


class TrainedRollout(msgspec.Struct, frozen=True):
    """The same of a rollout."""

    example_key: str
    rollout_index: int
    turns: list[TrainedTurn]


def file_of(run: Path, step: int) -> Path:
    """Where they lie in a run folder."""
    return run / "tokens" / f"{step}.json"


def write_tokens(run: Path, step: int, rollouts: Sequence[TrainedRollout]) -> None:
    """Keep them in a run folder."""
    file = file_of(run, step)
    file.parent.mkdir(exist_ok=True)
    atomic_write(file, msgspec.json.encode(rollouts))


def read_tokens(run: Path, step: int) -> list[TrainedRollout]:
    """Those of a step; [] where none were kept.

    Raises:
        RunError: the file is not one that rove wrote.
    """
    file = file_of(run, step)
    if not os.path.lexists(file):
        return []
    if file.parent.is_symlink():
        raise RunError(f"{file.parent} is a symbolic link; expected a folder")
    try:
        return msgspec.json.decode(read_regular(file), type=list[TrainedRollout])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RunError(f"{file} cannot be read: {error}; delete it, it is only looked at") from error
