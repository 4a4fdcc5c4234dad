"""Find the last intact checkpoint of a damaged training run."""

from __future__ import annotations

import os
from pathlib import Path

from safetensors import SafetensorError, safe_open

from rove.core.errors import RunError
from rove.runs.run import Progress, Run
from rove.runs.schema import decoded, decoded_row
from rove.train.checkpoint import read_state
from rove.train.sharding import FOLDER, check_shards

DAMAGED = ".damaged"
"""Suffix of a checkpoint that was set aside."""
WEIGHT_INDEX = "model.safetensors.index.json"


def recover(run: Run) -> list[str]:
    """Rename the damaged checkpoints that are newer than the last intact one, so that training resumes from that.

    Args:
        run: a started run.

    Returns:
        a sentence for every checkpoint that was renamed: which, why, and where training resumes.

    Raises:
        RunError: the run has checkpoints and none is intact, or the best weights, which are its result, are damaged.
    """
    damaged: dict[Path, str] = {}
    intact = None
    for path in run.checkpoints():
        try:
            check_checkpoint(run, path)
        except RunError as error:
            damaged[path] = str(error)
            continue
        intact = path
        break
    if damaged and intact is None:
        reasons = "\n  ".join(f"step {path.name}: {why}" for path, why in damaged.items())
        raise RunError(
            f"no checkpoint of {run.path} is intact:\n  {reasons}\nRestore one from a copy, or train again with --overwrite"
        )
    best = run.path / "checkpoints" / "best"
    if best.exists():
        try:
            check_weights(best)
        except RunError as error:
            raise RunError(
                f"{best} holds the best weights of this run and is damaged: {error}\nRestore it from a copy, or train again "
                "with --overwrite"
            ) from error
    after = intact.name if intact else "0"
    return [
        f"checkpoint {path} is damaged: {why}. It was renamed to {_set_aside(path).name}; training resumes after step {after}"
        for path, why in damaged.items()
    ]


def _set_aside(path: Path) -> Path:
    number = 0
    while (aside := path.with_name(f"{path.name}{DAMAGED}{number or ''}")).exists():
        number += 1
    os.replace(path, aside)
    return aside


def check_checkpoint(run: Run, path: Path) -> None:
    """Refuse a checkpoint from which training cannot resume. Tensors are not read, only their place in the files.

    Raises:
        RunError: a file of the checkpoint, or the part of metrics.jsonl that belongs to it, is damaged or missing.
    """
    progress = run.progress_of(path)
    if (path / FOLDER).exists():
        check_shards(path)
    else:
        check_weights(path)
        read_state(path, "cpu", mmap=True)
    _check_metrics(run, progress)


def check_weights(path: Path) -> None:
    """Refuse a model folder whose safetensors files are missing or cut off.

    Raises:
        RunError: which file, and why.
    """
    names = {file.name for file in path.glob("*.safetensors")}
    index = path / WEIGHT_INDEX
    if index.exists():
        content = decoded(index, index.read_bytes(), dict[str, dict[str, object]])
        names |= {str(name) for name in content.get("weight_map", {}).values()}
    if not names:
        raise RunError(f"{path} has no .safetensors file")
    for name in sorted(names):
        try:
            with safe_open(path / name, "pt"):
                pass
        except (OSError, SafetensorError) as error:
            raise RunError(f"{name} cannot be read ({error})") from error


def _check_metrics(run: Run, progress: Progress) -> None:
    size = 0
    for number, line in enumerate(run.lines_of("metrics.jsonl"), start=1):
        if size >= progress.metrics_bytes:
            break
        size += len(line) + 1
        try:
            decoded_row(line)
        except RunError as error:
            raise RunError(f"metrics.jsonl, line {number}: {error}") from error
    if size != progress.metrics_bytes:
        raise RunError(
            f"metrics.jsonl has {size:,} bytes where the checkpoint was written after {progress.metrics_bytes:,}"
        )
