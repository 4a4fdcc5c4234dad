"""Weights as servers of vLLM are to find them: a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from rove.models.load import LoadedModel

LFM2_SIZES = ("conv_dim", "block_dim")
"""What vLLM 0.32 wants to read of an LFM2, and transformers does not write of one that is made from scratch: its width."""
BODY_FILE, HEAD_FILE = "model-body.safetensors", "model-head.safetensors"


def write_served(loaded: LoadedModel, folder: Path) -> None:
    """Write a model as vLLM is to load it: an ordinary folder, an adapter merged into the weights, and its head written out.

    A head that is tied to the embeddings is written as a matrix of its own, in a model that says it is not tied: when weights
    are replaced, vLLM 0.32 fills the embeddings and leaves the head to follow, which on a CPU it does not (what it computes
    with there is a copy in another layout).
    """
    model = loaded.model
    weights = merged_weights(model)
    model.save_pretrained(folder, state_dict=weights)
    loaded.tokenizer.save_pretrained(folder)
    config = msgspec.json.decode((folder / "config.json").read_bytes())
    tied = config.get("tie_word_embeddings", model.config.get_text_config().tie_word_embeddings)
    more = {name: config["hidden_size"] for name in LFM2_SIZES if config["model_type"] == "lfm2"}
    config = {**more, **config, "tie_word_embeddings": False}
    (folder / "config.json").write_bytes(msgspec.json.format(msgspec.json.encode(config)))
    if not tied:
        return
    head = model.get_output_embeddings()
    name = next(name for name, module in model.named_modules() if module is head) + ".weight"
    _add_tensor(folder, name, head.weight.detach().contiguous())


def _add_tensor(folder: Path, name: str, tensor: torch.Tensor) -> None:
    """One more tensor in a file of its own: readers of several files go by the index."""
    save_file({name: tensor}, folder / HEAD_FILE, metadata={"format": "pt"})
    index, alone = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.exists():
        content = msgspec.json.decode(index.read_bytes())
    else:
        with safe_open(alone, "pt") as file:
            content = {"metadata": {}, "weight_map": dict.fromkeys(file.keys(), BODY_FILE)}
        alone.rename(folder / BODY_FILE)
    content["weight_map"][name] = HEAD_FILE
    index.write_bytes(msgspec.json.encode(content))


def merged_weights(model: Any) -> dict[str, torch.Tensor]:
    """Name → weight of a model, with the adapter in it merged."""
    if not any(hasattr(layer, "get_delta_weight") for layer in model.modules()):
        return model.state_dict()
    weights = {name: tensor for name, tensor in model.state_dict().items() if ".lora_" not in name}
    with torch.no_grad():
        for name, layer in model.named_modules():
            if hasattr(layer, "get_delta_weight"):
                inside = f"{name}.base_layer.weight"
                weights[inside] = weights[inside] + layer.get_delta_weight("default")
    return {name.replace(".base_layer.", "."): tensor for name, tensor in weights.items()}
