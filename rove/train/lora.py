"""LoRA in training: train an adapter's weights instead of the model's (Hu et al. 2021, arXiv 2106.09685)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from rove.core.digest import derive_seed
from rove.models.load import LoadedModel
from rove.models.pretrained import model_path
from rove.train.config import TrainingConfig


def add_lora(config: TrainingConfig, loaded: LoadedModel) -> LoadedModel:
    """Return the model with a new adapter if the settings ask for one; only its weights are then trained and saved.

    Raises:
        ConfigError: The model has no layers with the names in `lora.targets`.
    """
    if not config.lora.rank:
        return loaded
    from rove.models.adapter import add_adapter

    folder = Path(model_path(config.model)).expanduser()
    adapter = add_adapter(
        loaded.model,
        config.lora.rank,
        config.lora.alpha,
        config.lora.dropout,
        config.lora.targets,
        derive_seed(config.seed, "adapter"),
        base=str(folder.resolve()) if folder.is_dir() else config.model,
    )
    return loaded._replace(adapter=adapter)


@contextmanager
def adapter_dropout(model: Any, seed: int) -> Iterator[None]:
    """Return a context in which the adapter's dropout is active, with its own random stream."""
    layers = [layer for name, layer in model.named_modules() if ".lora_dropout." in name]
    if not any(isinstance(layer, torch.nn.Dropout) for layer in layers):
        yield
        return
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for layer in layers:
            layer.train()
        try:
            yield
        finally:
            for layer in layers:
                layer.eval()
