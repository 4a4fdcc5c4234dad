"""A PEFT LoRA adapter inside a model: add it, save it, merge it.

PEFT replaces linear layers with its own layers, each of which contains the original layer. The rest of the model does not
change, so attention, packing and fast linear layers still apply. (`rove.engine.lora` applies adapters per request
instead.)
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.tuners import lora
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.modules.conv import _ConvNd  # pyright: ignore[reportPrivateUsage]
from transformers.pytorch_utils import Conv1D

from rove.core.digest import ADAPTER_BASE, ADAPTER_CONFIG, ADAPTER_TENSORS, digest_model
from rove.core.errors import ConfigError, nearest
from rove.models.linear import FastLinear, lora_linear

ADAPTER_NAME = "default"
"""PEFT's name for the only adapter of a model."""
LINEAR = (nn.Linear, Conv1D)
"""Classes of linear layers; GPT-2's class is called Conv1D and has a transposed weight."""
WITHOUT_OUT_PROJ = frozenset({"falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h"})
"""Model types with Mamba layers in which PEFT refuses `out_proj`, because a fused kernel reads its weight."""


class Adapter:
    """The adapter in a model."""

    def __init__(self, wrapped: PeftModel, base: str):
        self._wrapped = wrapped
        self.base = base
        self._base_digest = digest_model(base)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the adapter's weights (not copies) by PEFT's names, as in the file that `save` writes."""
        return get_peft_model_state_dict(self._wrapped, save_embedding_layers=False)

    def save(self, path: Path) -> None:
        """Write the files of PEFT's `save_pretrained`: weights, and settings with the path of the base model."""
        path.mkdir(parents=True, exist_ok=True)
        config: Any = copy.copy(self._wrapped.peft_config[ADAPTER_NAME])
        config.base_model_name_or_path = self.base
        config.inference_mode = True
        config.target_modules = sorted(config.target_modules)  # sets have a different order in every process
        config.save_pretrained(str(path))
        tensors = {name: tensor.contiguous() for name, tensor in self.tensors().items()}
        save_file(tensors, path / ADAPTER_TENSORS, metadata={"format": "pt"})
        (path / ADAPTER_BASE).write_text(self._base_digest + "\n", encoding="utf-8", newline="\n")


def add_adapter(
    model: nn.Module, rank: int, alpha: float, dropout: float, targets: Sequence[str], seed: int, base: str
) -> Adapter:
    """Add a new adapter to a model. It changes no outputs yet; from now on, only the adapter's weights are trained.

    Args:
        targets: Last parts of the names of linear layers to adapt; if it is empty, all linear layers except the head.
        seed: Seed of the adapter's random matrices A; the matrices B start at zero.
    """
    modules = _target_modules(model, targets)
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # pyright: ignore[reportArgumentType]  (PEFT accepts floats)
        lora_dropout=dropout,
        target_modules=modules,
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in _matching(model, modules)),
        task_type="CAUSAL_LM",
    )
    # Forked: the adapter's seed must not change what the rest of a run draws.
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # from PEFT's calls into transformers
        torch.manual_seed(seed)
        try:
            wrapped: Any = get_peft_model(model, config)  # pyright: ignore[reportArgumentType]
        except (ValueError, TypeError, NotImplementedError) as error:
            raise ConfigError(
                f"PEFT cannot add an adapter to {type(model).__name__}: {' '.join(str(error).split())[:300]}; name the layers to "
                "adapt in lora.targets, or train the full model (lora.rank = 0)"
            ) from error
    model.eval()  # PEFT's new layers begin in training mode
    for layer in model.modules():
        if type(layer) is lora.Linear and type(layer.base_layer) is FastLinear:
            layer.__class__ = FastLoRA
    return Adapter(wrapped, base)


class FastLoRA(lora.Linear):
    """PEFT's layer around a `FastLinear`, with less overhead: its weights are equal, and its results are equal up to rounding."""

    def forward(self, x: torch.Tensor, *args: object, **kwargs: Any) -> torch.Tensor:
        """x [..., in] → [..., out]."""
        if self.disable_adapters or not isinstance(self.lora_dropout[ADAPTER_NAME], nn.Identity):
            return super().forward(x, *args, **kwargs)
        a, b = self.lora_A[ADAPTER_NAME].weight, self.lora_B[ADAPTER_NAME].weight
        return lora_linear(x, self.base_layer, a, b, self.scaling[ADAPTER_NAME])  # pyright: ignore[reportArgumentType]


def describe_coverage(model: Any, targets: Sequence[str]) -> str:
    """Return a text about the share of a model's parameters that an adapter changes; see `add_adapter` for the arguments."""
    layers = set(_matching(model, _target_modules(model, targets)))
    total = sum(parameter.numel() for parameter in model.parameters())
    adapted = sum(layer.weight.numel() for layer in layers if hasattr(layer, "weight"))
    text = f"the adapter covers {len(layers)} layers with {adapted / total:.1%} of the model's parameters"
    # In most models, the experts are separate parameters, not linear layers.
    experts = 0
    for path, module in model.named_modules():
        is_expert = "expert" in f"{path} {type(module).__name__}".lower()
        if is_expert and module not in layers:
            experts += sum(parameter.numel() for parameter in module.parameters(recurse=False))
    if experts:
        text += f"; the experts, {experts / total:.1%}, stay as they are"
    return text


def _target_modules(model: Any, targets: Sequence[str]) -> list[str]:
    """Return PEFT's `target_modules` for `targets`; if `targets` is empty, for all linear layers that PEFT can adapt."""
    layers = _linear_layers(model)
    problems = _problems(model, layers)
    names = sorted({_last_part(path) for path in layers})
    unknown = [name for name in targets if name not in names]
    if unknown:
        raise ConfigError(f"lora.targets has '{unknown[0]}'; {nearest(unknown[0], names)}")
    for path, problem in problems.items():
        if problem and _last_part(path) in targets:
            raise ConfigError(
                f"lora.targets has '{_last_part(path)}', but {path} {problem}; remove it from lora.targets"
            )
    if targets:
        return list(targets)
    usable = [path for path, problem in problems.items() if not problem]
    # PEFT adapts every layer that has a target's name. Zamba 2 has linear layers called "0", as its first block is.
    taken = {_last_part(path) for path, problem in problems.items() if problem}
    for path, module in model.named_modules():
        if not isinstance(module, (*LINEAR, nn.Embedding, _ConvNd)):
            taken.add(_last_part(path))
    modules: set[str] = set()
    for path in usable:
        modules.add(path if _last_part(path) in taken else _last_part(path))
    if not modules:
        raise ConfigError(f"{type(model).__name__} has no linear layer that an adapter can change; set lora.rank = 0")
    return sorted(modules)


def _text_layers(model: Any) -> set[Any]:
    """Return the layers that read text; in models with `text_config`, other parts read images and sound."""
    has_other_parts = getattr(model.config, "text_config", None) is not None
    return set((model.get_decoder() if has_other_parts else model).modules())


def _linear_layers(model: Any) -> dict[str, Any]:
    """Return the linear layers except the head, by name."""
    head = model.get_output_embeddings()
    return {path: layer for path, layer in model.named_modules() if isinstance(layer, LINEAR) and layer is not head}


def _problems(model: Any, layers: Mapping[str, Any]) -> dict[str, str]:
    """Return for each linear layer, by name, why it cannot have an adapter; "" if it can."""
    uses = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    text_layers = _text_layers(model)
    problems: dict[str, str] = {}
    for path, layer in layers.items():
        if layer in text_layers:
            problems[path] = _problem(model, path, layer, uses[id(layer.weight)])
        else:  # training reads text only, so an adapter of these layers would stay at zero
            problems[path] = "belongs to a part of the model that reads images or sound"
    return problems


def _problem(model: Any, path: str, layer: Any, uses: int) -> str:
    """Return the reason why PEFT cannot adapt a linear layer or would merge its adapter wrongly; "" if there is no problem.

    Args:
        uses: Number of layers that share the layer's weight.
    """
    name = _last_part(path)
    # PEFT adds the adapter's product to the output of a layer; that of Llama 4's and Phi-MoE's routers is a tuple.
    if type(layer).__name__.endswith("Router"):
        return "is a router, whose output is not a plain product"
    # Jamba, Mamba, and Falcon-Mamba multiply by `dt_proj.weight` themselves: the adapter had no effect until it was merged.
    if name == "dt_proj":
        return "is used by its weight alone, past an adapter"
    if name == "out_proj" and model.config.model_type in WITHOUT_OUT_PROJ:
        return "is a layer of Mamba that PEFT does not adapt"
    # Several adapters would be merged into one weight. Zamba 2 repeats a few attention blocks.
    if uses > 1:
        return "shares its weight with other layers"
    return ""


def _matching(model: nn.Module, target_modules: Sequence[str]) -> list[Any]:
    """Return the layers that PEFT adapts for `target_modules`."""
    endings = tuple(f".{target}" for target in target_modules)
    return [module for path, module in model.named_modules() if f".{path}".endswith(endings)]


def _last_part(path: str) -> str:
    return path.rpartition(".")[2]


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
    except ConfigError:
        raise
    except (OSError, RuntimeError, ValueError, TypeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"the adapter in {folder} cannot be put into its base model: {reason}; expected {ADAPTER_CONFIG} and "
            f"{ADAPTER_TENSORS} as PEFT writes them for that model"
        ) from error
    # PEFT leaves out tensors that do not fit, with a warning only: the merged model would be another one. Next to an adapter of
    # the embeddings or the head, it writes a copy of their own weights.
    unmatched = sorted(name for name in file_names ^ model_names if not name.endswith(".base_layer.weight"))
    if unmatched:
        raise ConfigError(f"the adapter in {folder} does not fit its base model: only one of them has '{unmatched[0]}'")
    return wrapped.merge_and_unload().requires_grad_(True)  # pyright: ignore[reportCallIssue]


def _check_tied(model: Any, file_names: Iterable[str], folder: str | Path) -> None:
    """Refuse low-rank changes of an embedding or a head that share one weight.

    Merging would add the change to both, so that the merged model would differ from the model with the adapter, also in plain
    PEFT.
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
