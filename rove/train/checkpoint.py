"""Training checkpoints: save them, restore them, and find the last intact checkpoint of a damaged run.

A checkpoint is a Hugging Face model folder (or an adapter folder) with the trainer's state. With several processes, it contains
each process's shard instead. Any number of processes can resume from both kinds.
"""

from __future__ import annotations

from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from rove.core.digest import check_checksums
from rove.core.errors import ConfigError, RunError
from rove.core.plain import JsonMapping, is_mapping
from rove.models.load import LoadedModel, copy_weights, trainable_parameters
from rove.models.weights import WEIGHT_INDEX, read_files, read_weights
from rove.runs.run import Progress, Run, digest_of_metrics
from rove.runs.schema import decoded, decoded_row
from rove.train.sharding import (
    SHARDS_FOLDER,
    check_shards,
    is_sharded,
    read_shards,
    scatter_optimizer,
    scatter_weights,
    write_shards,
)
from rove.train.trainer import Trainer
from rove.utils.systems import rename

STATE = "trainer.pt"
ERROR_CHARACTERS = 200
"""Maximum characters that are quoted of another library's error message."""


def save_checkpoint(path: Path, loaded: LoadedModel, trainer: Trainer, reference: Any = None) -> None:
    """Write model, tokenizer and optimizer state to `path`, and the weights of `reference` if there is a reference model.

    With a sharded model, every process writes its shard to the same folder.
    """
    if is_sharded(trainer.model):
        write_shards(path, trainer.model, trainer.optimizer, reference)
        return
    loaded.save(path)
    state = {"optimizer": trainer.optimizer.state_dict()}
    if reference is not None:
        state["reference"] = trainable_parameters(reference)
    torch.save(state, path / STATE)


def restore_checkpoint(path: Path, loaded: LoadedModel, trainer: Trainer, reference: Any = None) -> None:
    """Restore weights and optimizer state exactly as saved, and the `reference` model if given."""
    if (path / SHARDS_FOLDER).exists():
        read_shards(path, trainer.model, trainer.optimizer, reference)
        return
    state = read_state(path, loaded.model.device)
    restore_weights(path, loaded)
    if reference is not None and "reference" not in state:
        raise RunError(f"{path} cannot be resumed from: it has no reference model, whose weights change in this run")
    if is_sharded(trainer.model):
        scatter_weights(trainable_parameters(loaded.model), trainer.model)
        scatter_optimizer(state["optimizer"], trainer.model, trainer.optimizer)
    else:
        try:
            trainer.optimizer.load_state_dict(state["optimizer"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{path / STATE} is of another optimizer: {type(error).__name__}: {error}") from error
    if reference is not None and is_sharded(reference):
        scatter_weights(state["reference"], reference)
    elif reference is not None:
        copy_weights(reference, state["reference"])


def read_state(path: Path, device: torch.device | str, mmap: bool = False) -> JsonMapping:
    """Read the trainer state of a checkpoint, without executing pickled code.

    Args:
        mmap: Map the file into memory instead of reading it; only for the device "cpu".
    """
    if not (path / STATE).exists():
        raise RunError(f"{path} cannot be resumed from: it has no {STATE}")
    try:
        # Checkpoints may come from others; `weights_only` runs no code of theirs.
        state = torch.load(path / STATE, map_location=device, weights_only=True, mmap=mmap)
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, UnpicklingError) as error:
        lines = str(error).splitlines()
        reason = lines[0] if lines else type(error).__name__
        raise RunError(f"{STATE} cannot be read ({reason[:ERROR_CHARACTERS]})") from error
    if not is_mapping(state) or "optimizer" not in state:
        raise RunError(f"{STATE} has no state of an optimizer")
    return state


def restore_weights(path: Path, loaded: LoadedModel) -> None:
    """Copy the weights of a checkpoint into the model in place."""
    try:
        weights = read_weights(path, loaded.model) if loaded.adapter is None else read_files(path)
    except ConfigError as error:
        raise RunError(str(error)) from error
    targets = loaded.tensors()
    wrong = sorted(targets.keys() ^ weights.keys())
    wrong += [name for name in targets if name in weights and targets[name].shape != weights[name].shape]
    if wrong:
        raise RunError(f"{path} holds another model: {', '.join(wrong[:3])} … missing, unknown or of another shape")
    with torch.no_grad():
        for name, tensor in weights.items():
            targets[name].copy_(tensor)


DAMAGED = ".damaged"
"""Suffix that a damaged checkpoint gets when it is renamed."""


def recover(run: Run) -> list[str]:
    """Rename damaged checkpoints that are newer than the last intact checkpoint, so that training resumes from the intact one.

    Returns:
        A sentence for every renamed checkpoint: its name, the reason, and where training resumes.
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
    # Nothing is renamed then: the folder stays as it is for a repair by hand.
    if damaged and intact is None:
        reasons = "\n  ".join(f"step {path.name}: {reason}" for path, reason in damaged.items())
        raise RunError(
            f"no checkpoint of {run.path} is intact:\n  {reasons}\nRestore one from a copy, or train again with --overwrite"
        )
    # The best weights cannot be computed again from an earlier checkpoint, so damage here is an error.
    best = run.path / "checkpoints" / "best"
    if best.exists():
        try:
            check_weights(best)
            check_checksums(best)
        except RunError as error:
            raise RunError(
                f"{best} holds the best weights of this run and is damaged: {error}\nRestore it from a copy, or train again "
                "with --overwrite"
            ) from error
    last_step = intact.name if intact else "0"
    notices: list[str] = []
    for path, reason in damaged.items():
        renamed = _set_aside(path).name
        notices.append(
            f"checkpoint {path} is damaged: {reason}. It was renamed to {renamed}; training resumes after step {last_step}"
        )
    return notices


def _set_aside(path: Path) -> Path:
    number = 0
    # A checkpoint may be damaged again after it was trained again.
    while (aside := path.with_name(f"{path.name}{DAMAGED}{number or ''}")).exists():
        number += 1
    rename(path, aside)
    return aside


def check_checkpoint(run: Run, path: Path) -> None:
    """Check that training can resume from a checkpoint: its files are complete and unchanged since it was saved."""
    progress = run.progress_of(path)
    if (path / SHARDS_FOLDER).exists():
        check_shards(path)
    else:
        check_weights(path)
        read_state(path, "cpu", mmap=True)
    # A flipped byte leaves a readable file with other weights; only the checksum shows it.
    check_checksums(path)
    _check_metrics(run, progress)
    _check_rollouts(run, progress)


def check_weights(path: Path) -> None:
    """Check that the safetensors files of a model folder are complete."""
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
    rows: list[bytes] = []
    for number, line in enumerate(run.lines_of("metrics.jsonl"), start=1):
        if size >= progress.metrics_bytes:
            break
        size += len(line) + 1
        rows.append(line + b"\n")
        try:
            decoded_row(line)
        except RunError as error:
            raise RunError(f"metrics.jsonl, line {number}: {error}") from error
    if size != progress.metrics_bytes:
        raise RunError(
            f"metrics.jsonl has {size:,} bytes where the checkpoint was written after {progress.metrics_bytes:,}"
        )
    if digest_of_metrics(b"".join(rows)) != progress.metrics_digest:
        raise RunError("metrics.jsonl has other rows than when the checkpoint was written")


def _check_rollouts(run: Run, progress: Progress) -> None:
    """Check that the run has the rollouts of all steps before the checkpoint, although training does not read them."""
    file = run.path / "rollouts.jsonl"
    size = file.stat().st_size if file.exists() else 0
    if size < progress.rollouts_bytes:
        raise RunError(
            f"rollouts.jsonl has {size:,} bytes where the checkpoint was written after {progress.rollouts_bytes:,}"
        )
