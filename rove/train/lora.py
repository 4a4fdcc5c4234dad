"""LoRA in training: train an adapter's weights instead of the model's (Hu et al. 2021, arXiv 2106.09685)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rove.core.digest import derive_seed
from rove.core.errors import ConfigError
from rove.models.load import LoadedModel, check_peft

if TYPE_CHECKING:
    from rove.train.rl import RLConfig
    from rove.train.sft import SFTConfig


def check_lora(config: RLConfig | SFTConfig) -> None:
    """Check the adapter settings.

    Raises:
        ConfigError: A setting is out of range or without effect, or PEFT is not installed.
    """
    if config.lora_rank < 0:
        raise ConfigError(f"lora_rank is {config.lora_rank}; expected 1 or more, or 0 to train the whole model")
    if config.lora_alpha <= 0:
        raise ConfigError(f"lora_alpha is {config.lora_alpha}; expected more than 0")
    if not 0 <= config.lora_dropout < 1:
        raise ConfigError(f"lora_dropout is {config.lora_dropout}; expected a share from 0 to below 1")
    idle = [name for name in ("lora_dropout", "lora_targets") if getattr(config, name)]
    if idle and not config.lora_rank:
        raise ConfigError(f"{idle[0]} is {getattr(config, idle[0])}, but lora_rank is 0, so there is no adapter")
    if config.lora_rank:
        check_peft()


def add_lora(config: RLConfig | SFTConfig, loaded: LoadedModel) -> LoadedModel:
    """Return the model with a new adapter if the settings ask for one; its weights alone are then trained and saved.

    Raises:
        ConfigError: The model has no layers with the names in `lora_targets`.
    """
    if not config.lora_rank:
        return loaded
    from rove.models.adapter import add_adapter

    folder = Path(config.model).expanduser()
    adapter = add_adapter(
        loaded.model,
        config.lora_rank,
        config.lora_alpha,
        config.lora_dropout,
        config.lora_targets,
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
