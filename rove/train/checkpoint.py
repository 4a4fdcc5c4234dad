"""A training checkpoint: an ordinary Hugging Face folder, or an adapter's, with the trainer's state beside the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from rove.errors import RunError
from rove.models.load import LoadedModel, copy_weights, trained
from rove.runs import Run
from rove.train.trainer import Trainer

STATE = "trainer.pt"


def save_checkpoint(path: Path, loaded: LoadedModel, trainer: Trainer, reference: Any = None) -> None:
    """Write model, tokenizer and optimizer state into `path`, and the weights of a `reference` model if there is one."""
    loaded.save(path)
    state = {"optimizer": trainer.optimizer.state_dict()}
    if reference is not None:
        state["reference"] = trained(reference)
    torch.save(state, path / STATE)


def restore_checkpoint(path: Path, loaded: LoadedModel, trainer: Trainer, reference: Any = None) -> None:
    """Put weights and optimizer state back, exactly as they were saved; those of the `reference` too if it is given.

    Raises:
        RunError: the checkpoint has no trainer state, or is of another model.
    """
    if not (path / STATE).exists():
        raise RunError(f"{path} cannot be resumed from: it has no {STATE}")
    restore_weights(path, loaded)
    state = torch.load(path / STATE, map_location=loaded.model.device, weights_only=True)
    trainer.optimizer.load_state_dict(state["optimizer"])
    if reference is not None:
        if "reference" not in state:
            raise RunError(
                f"{path} cannot be resumed from: it has no reference model, whose weights change in this run"
            )
        copy_weights(reference, state["reference"])


def restore_weights(path: Path, loaded: LoadedModel) -> None:
    """Copy a checkpoint's weights into the model in place.

    Raises:
        RunError: they are another model's.
    """
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(path.glob("*.safetensors")):
        weights.update(load_file(file, device=str(loaded.model.device)))
    own = loaded.tensors()
    written = {own[name].data_ptr() for name in weights if name in own}  # of tied weights the file holds one
    wrong = [name for name, tensor in own.items() if name not in weights and tensor.data_ptr() not in written]
    wrong += [name for name, tensor in weights.items() if name not in own or own[name].shape != tensor.shape]
    if wrong:
        raise RunError(f"{path} holds another model: {', '.join(wrong[:3])} … missing, unknown or of another shape")
    with torch.no_grad():
        for name, tensor in weights.items():
            own[name].copy_(tensor)


def resume(loaded: LoadedModel, trainer: Trainer, run: Run, reference: Any = None) -> int:
    """Put everything back to where the last checkpoint was; how many steps that is, 0 where there is none.

    Args:
        loaded: the model, restored in place.
        trainer: of it.
        run: its folder.
        reference: a second model whose weights are in the checkpoints too.

    Raises:
        RunError: see `restore_checkpoint`.
    """
    last = run.last_checkpoint()
    if last is not None:
        restore_checkpoint(last[0], loaded, trainer, reference)
    run.cut(last[1] if last else None)
    return last[1].step if last else 0
