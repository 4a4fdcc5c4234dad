"""Sharded models: PyTorch's FSDP2 (`fully_shard`).

Each process stores its shard of weights, gradients and optimizer moments; a layer's weights are gathered before the
layer is computed, and its gradients are reduced afterwards.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load  # pyright: ignore[reportUnknownVariableType]
from torch.distributed.checkpoint.state_dict_saver import save  # pyright: ignore[reportUnknownVariableType]
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from rove.core.errors import RunError
from rove.models.load import decoder_layers, trainable_parameters
from rove.train.worker_group import Ranks
from rove.utils.files import open_regular

SHARDS_FOLDER = "shards"
"""Subfolder of a checkpoint with the shards."""
METADATA = ".metadata"
"""Pickle file in this folder that describes the shards."""
METADATA_NAMES: Mapping[str, Sequence[str]] = {
    "torch.distributed.checkpoint.metadata": (
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.serialization": ("_get_layout",),
    "torch": ("Size",),
    "pathlib": ("PosixPath", "WindowsPath"),
    "pathlib._local": ("PosixPath", "WindowsPath"),  # Python 3.13
}
"""Module → names of the module that the pickle may use."""


def shard_model(model: Any, ranks: Ranks, score: Callable[..., Any], in_bf16: bool = False) -> None:
    """Shard a model over the processes, in place.

    Args:
        score: Function that training calls with the model; it becomes the model's method `score`.
        in_bf16: Whether to compute in bf16. Weights keep their type, and gradients are reduced in fp32.
    """
    mesh = init_device_mesh(ranks.device, (ranks.size,))
    dtype = torch.bfloat16 if in_bf16 else None
    sums = torch.float32 if in_bf16 else None
    for layer in decoder_layers(model):  # without any, the model is gathered as a whole
        fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy(dtype, sums))
    # The inputs of the whole model are the numbers of a batch, such as the sampler's log-probabilities: they stay in fp32.
    policy = MixedPrecisionPolicy(dtype, sums, cast_forward_inputs=False)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)  # its outputs are not modified in place
    model.score = score.__get__(model)
    register_fsdp_forward_method(model, "score")


def is_sharded(model: torch.nn.Module) -> bool:
    """Return whether a model is sharded."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor gathered from all shards; a collective call."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gather_weights(model: torch.nn.Module, into: Any | None) -> None:
    """Copy the trained weights of a sharded model to the unsharded model `into`, which is None in processes without it."""
    targets = {} if into is None else trainable_parameters(into)
    for name, parameter in trainable_parameters(model).items():
        tensor = full_tensor(parameter.detach())
        if into is not None:
            targets[name].data.copy_(tensor)


def scatter_weights(weights: Mapping[str, torch.Tensor], model: torch.nn.Module) -> None:
    """Copy unsharded weights, which every process has, to the shards of a model."""
    for name, parameter in trainable_parameters(model).items():
        assert isinstance(parameter, DTensor)
        whole = weights[name].detach().to(parameter.device)
        part = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.data.copy_(part)


def scatter_optimizer(state: Mapping[str, Any], model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Copy the optimizer state of an unsharded model to the shards."""
    # A plain state numbers the parameters in the optimizer's order; a sharded model's needs their names.
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    name_of_number: dict[Any, str] = {number: name_of[id(parameter)] for number, parameter in enumerate(parameters)}
    groups: list[dict[str, Any]] = []
    for group in state["param_groups"]:
        names = [name_of_number[number] for number in group["params"]]
        groups.append({**group, "params": names})
    moments = {name_of_number[number]: values for number, values in state["state"].items()}
    named: dict[str, Any] = {"state": moments, "param_groups": groups}
    set_optimizer_state_dict(model, optimizer, named, options=StateDictOptions(full_state_dict=True))


def write_shards(path: Path, model: torch.nn.Module, optimizer: Any, reference: Any | None) -> None:
    """Write the shard of every process to `path`; return when all shards are written."""
    save(_state(model, optimizer, reference), checkpoint_id=path / SHARDS_FOLDER)


def read_shards(path: Path, model: torch.nn.Module, optimizer: Any, reference: Any | None) -> None:
    """Restore shards written by any number of processes into a model with any number of shards, or into an unsharded model."""
    check_shards(path)
    state = _state(model, optimizer, reference)
    # A single process may read shards that several have written.
    warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized", UserWarning)
    try:
        load(state, checkpoint_id=path / SHARDS_FOLDER, planner=_PlainPlanner(), no_dist=not is_sharded(model))
    except CheckpointException as error:  # raised in every process
        why = "; ".join(str(failure[0]).splitlines()[0] for failure in error.failures.values())
        raise RunError(f"{path / SHARDS_FOLDER} cannot be read: {why}") from error
    set_optimizer_state_dict(model, optimizer, state["optimizer"])


class _PlainPlanner(DefaultLoadPlanner):
    """Reads plain values first, without executing code, because PyTorch itself loads them with `weights_only=False`."""

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        torch.load(value, weights_only=True)
        value.seek(0)
        super().load_bytes(read_item, value)


class _PlainUnpickler(pickle.Unpickler):
    """Reads the metadata of shards and rejects every class and function that it does not need."""

    def find_class(self, module_name: str, name: str, /) -> Any:
        is_dtype = module_name == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not is_dtype and name not in METADATA_NAMES.get(module_name, ()):
            raise pickle.UnpicklingError(f"{module_name}.{name} does not belong in a checkpoint")
        return super().find_class(module_name, name)


def check_shards(path: Path) -> None:
    """Check that the shards of a checkpoint are complete and contain no code."""
    folder = path / SHARDS_FOLDER
    try:
        with open_regular(folder / METADATA) as stream:
            # The metadata are a pickle, which could run code: checkpoints may come from others.
            metadata = _PlainUnpickler(stream).load()
        ends: dict[str, int] = {}
        for part in metadata.storage_data.values():
            ends[part.relative_path] = max(ends.get(part.relative_path, 0), part.offset + part.length)
    except (OSError, pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, LookupError) as error:
        raise RunError(f"{SHARDS_FOLDER}/{METADATA} cannot be read ({error})") from error
    for name, end in ends.items():
        file = folder / name
        # The names come from the checkpoint: a path or a link could lead to any file.
        is_plain = Path(name).name == name and file.is_file() and not file.is_symlink()
        size = file.stat().st_size if is_plain else 0
        if size < end:
            raise RunError(f"{SHARDS_FOLDER}/{name} has {size:,} bytes; expected {end:,}")


def _state(model: torch.nn.Module, optimizer: Any, reference: Any | None) -> dict[str, Any]:
    """Return the trained tensors by name. They are not copied, because loading writes into them."""
    state = {"model": trainable_parameters(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
    return state if reference is None else {**state, "reference": trainable_parameters(reference)}
