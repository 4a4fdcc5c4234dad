"""Write weights as vLLM servers load them: a model folder, or an adapter folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from rove.models.load import LoadedModel
from rove.models.older_releases import save_tokenizer
from rove.utils.systems import rename

if TYPE_CHECKING:
    from rove.models.adapter import Adapter

LFM2_SIZES = ("conv_dim", "block_dim")
"""Names under which vLLM 0.32 reads the width of an LFM2 model; transformers does not write them for a new model."""
BODY_FILE, HEAD_FILE = "model-body.safetensors", "model-head.safetensors"


def write_served(loaded: LoadedModel, folder: Path, merged: bool = True) -> None:
    """Write a model folder for vLLM, with the adapter merged into the weights and the head written separately.

    If the head is tied to the embeddings, it is written as a separate matrix, with `tie_word_embeddings` off: when vLLM 0.32
    reloads weights, it fills the embeddings and expects the head to follow, which fails on a CPU, where the head is a copy in
    another layout.
    """
    model = loaded.model
    weights = merged_weights(model) if merged else base_weights(model)
    model.save_pretrained(folder, state_dict=weights)
    save_tokenizer(loaded.tokenizer, folder, loaded.small_files)
    config = msgspec.json.decode((folder / "config.json").read_bytes())
    is_tied = config.get("tie_word_embeddings", model.config.get_text_config().tie_word_embeddings)
    if config["model_type"] == "lfm2":
        config = dict.fromkeys(LFM2_SIZES, config["hidden_size"]) | config
    config["tie_word_embeddings"] = False
    (folder / "config.json").write_bytes(msgspec.json.format(msgspec.json.encode(config)))
    if not is_tied:
        return
    head = model.get_output_embeddings()
    name = next(name for name, module in model.named_modules() if module is head) + ".weight"
    _add_tensor(folder, name, head.weight.detach().contiguous())


def _add_tensor(folder: Path, name: str, tensor: torch.Tensor) -> None:
    """Add a tensor in its own file, and an index file, which is needed to read a model that has several files."""
    save_file({name: tensor}, folder / HEAD_FILE, metadata={"format": "pt"})
    index, single_file = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.exists():
        content = msgspec.json.decode(index.read_bytes())
    else:
        with safe_open(single_file, "pt") as file:
            content = {"metadata": {}, "weight_map": dict.fromkeys(file.keys(), BODY_FILE)}
        # transformers reads a file of the old name alone, and would not find the head.
        rename(single_file, folder / BODY_FILE)
    content["weight_map"][name] = HEAD_FILE
    index.write_bytes(msgspec.json.encode(content))


def merged_weights(model: Any) -> dict[str, torch.Tensor]:
    """Return the weights by name, with the adapter merged."""
    weights = base_weights(model)
    with torch.no_grad():
        for name, layer in model.named_modules():
            if hasattr(layer, "get_delta_weight"):
                weights[f"{name}.weight"] = weights[f"{name}.weight"] + layer.get_delta_weight("default")
    return weights


def base_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights by name, without the adapter."""
    weights = {name: tensor for name, tensor in model.state_dict().items() if ".lora_" not in name}
    return {name.replace(".base_layer.", "."): tensor for name, tensor in weights.items()}


def write_adapter(adapter: Adapter, folder: Path) -> None:
    """Write an adapter in PEFT format over an older one of the same shape. Files are replaced atomically, since servers may
    be reading them.
    """
    new = folder.with_name(folder.name + "-new")
    adapter.save(new)
    folder.mkdir(parents=True, exist_ok=True)
    for file in new.iterdir():
        rename(file, folder / file.name)
    new.rmdir()


def folder_bytes(folder: Path) -> int:
    """Return the size of the files in a folder in bytes."""
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
