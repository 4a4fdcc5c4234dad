"""A PEFT LoRA adapter inside a model: add it, save it, merge it.

PEFT replaces linear layers by its own, which contain the old ones. The rest of the model does not change, so attention, packing
and fast linear layers still apply. (`rove.engine.lora` applies adapters per request instead.)
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.tuners import lora
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from rove.core.digest import ADAPTER_BASE, ADAPTER_CONFIG, ADAPTER_TENSORS, digest_model
from rove.core.errors import ConfigError, nearest
from rove.models.linear import FastLinear, lora_linear

ADAPTER_NAME = "default"
"""PEFT's name for the only adapter of a model."""


class Adapter:
    """The adapter in a model."""

    def __init__(self, wrapped: PeftModel, base: str):
        self._wrapped = wrapped
        self.base = base
        self._base_digest = digest_model(base)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return its weights (not copies) by PEFT's names, as in the file that `save` writes."""
        return get_peft_model_state_dict(self._wrapped, save_embedding_layers=False)

    def save(self, path: Path) -> None:
        """Write what PEFT's `save_pretrained` writes: weights, and settings with the path of the base model."""
        path.mkdir(parents=True, exist_ok=True)
        config: Any = copy.copy(self._wrapped.peft_config[ADAPTER_NAME])
        config.base_model_name_or_path = self.base
        config.inference_mode = True
        config.target_modules = sorted(config.target_modules)  # sets have a different order in every process
        config.save_pretrained(str(path))
        tensors = {name: tensor.contiguous() for name, tensor in self.tensors().items()}
        save_file(tensors, path / ADAPTER_TENSORS, metadata={"format": "pt"})
        (path / ADAPTER_BASE).write_text(self._base_digest + "\n", encoding="utf-8")


def add_adapter(
    model: nn.Module, rank: int, alpha: float, dropout: float, targets: Sequence[str], seed: int, base: str
) -> Adapter:
    """Add a new adapter to a model; it changes nothing yet, and from now on its weights alone are trained.

    Args:
        targets: Last parts of the names of linear layers; empty: all but the head.
        seed: Seed of its random half (A; B starts at zero).
    """
    linear_names = _linear_names(model)
    unknown = [name for name in targets if name not in linear_names]
    if unknown:
        raise ConfigError(f"lora.targets has '{unknown[0]}'; {nearest(unknown[0], linear_names)}")
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # pyright: ignore[reportArgumentType]  (PEFT accepts floats)
        lora_dropout=dropout,
        target_modules=list(targets) or linear_names,
        task_type="CAUSAL_LM",
    )
    # Forked: the adapter's seed must not change what the rest of a run draws.
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # from PEFT's calls into transformers
        torch.manual_seed(seed)
        wrapped: Any = get_peft_model(model, config)  # pyright: ignore[reportArgumentType]
    model.eval()  # PEFT's new layers begin in training mode
    for layer in model.modules():
        if type(layer) is lora.Linear and type(layer.base_layer) is FastLinear:
            layer.__class__ = FastLoRA
    return Adapter(wrapped, base)


class FastLoRA(lora.Linear):
    """PEFT's layer around a `FastLinear`: equal weights, equal results up to rounding, less overhead."""

    def forward(self, x: torch.Tensor, *args: object, **kwargs: Any) -> torch.Tensor:
        """x [..., in] → [..., out]."""
        if self.disable_adapters or not isinstance(self.lora_dropout[ADAPTER_NAME], nn.Identity):
            return super().forward(x, *args, **kwargs)
        a, b = self.lora_A[ADAPTER_NAME].weight, self.lora_B[ADAPTER_NAME].weight
        return lora_linear(x, self.base_layer, a, b, self.scaling[ADAPTER_NAME])  # pyright: ignore[reportArgumentType]


def _linear_names(model: Any) -> list[str]:
    """Return the last parts of the names of the linear layers except the head."""
    head = model.get_output_embeddings()
    names: set[str] = set()
    for path, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and layer is not head:
            names.add(path.rpartition(".")[2])
    return sorted(names)


def merge_adapter(model: nn.Module, folder: str | Path) -> nn.Module:
    """Merge an adapter into the weights of its base model, in place; return the model."""
    try:
        file_names = load_file(Path(folder) / ADAPTER_TENSORS).keys()
        _check_tied(model, file_names, folder)
        device = str(next(model.parameters()).device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # missing weights are an error below
            wrapped = PeftModel.from_pretrained(model, str(folder), torch_device=device)  # pyright: ignore[reportArgumentType]
        model_names = get_peft_model_state_dict(wrapped, save_embedding_layers=False).keys()
    except (OSError, RuntimeError, ValueError, TypeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"the adapter in {folder} cannot be put into its base model: {reason}; expected {ADAPTER_CONFIG} and "
            f"{ADAPTER_TENSORS} as PEFT writes them for that model"
        ) from error
    # PEFT leaves out tensors that do not fit, with a warning only: the merged model would be another one. Beside an adapter of
    # the embeddings or the head, it writes a copy of their own weights.
    unmatched = sorted(name for name in file_names ^ model_names if not name.endswith(".base_layer.weight"))
    if unmatched:
        raise ConfigError(f"the adapter in {folder} does not fit its base model: only one of them has '{unmatched[0]}'")
    return wrapped.merge_and_unload().requires_grad_(True)  # pyright: ignore[reportCallIssue]


def _check_tied(model: Any, file_names: Iterable[str], folder: str | Path) -> None:
    """Refuse low-rank changes of an embedding or a head that share one weight.

    Merging adds the change to both, so that the model computes something else than with the adapter, also in plain PEFT.
    """
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head is None or head.weight is not embedding.weight:
        return
    for name, module in model.named_modules():
        is_changed = any(f".{name}.lora_" in file_name for file_name in file_names)
        if module in (embedding, head) and is_changed:
            raise ConfigError(
                f"the adapter in {folder} changes {name}, whose weight is also that of the "
                f"{'embeddings' if module is head else 'head'}: merged, it would change both. Train it with modules_to_save "
                "instead of target_modules, or on a base model with tie_word_embeddings = false"
            )
