"""Read and convert weights in model folders: their names and their types.

transformers 5 computes with other weights than it writes: `save_pretrained` gives them the names and shapes of the published
model (for Mixtral, a matrix per expert instead of a single matrix for all experts), and `from_pretrained` converts them back.
Therefore, rove never compares names in a file with names in a model; see docs/decisions/weight_names.md.
"""

from __future__ import annotations

import copy
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from transformers.utils import logging

from rove.core.digest import ADAPTER_CONFIG
from rove.core.errors import ConfigError
from rove.models.older_releases import write_json
from rove.runs.layout import is_train_folder
from rove.runs.train_folder import TrainFolder
from rove.utils.systems import rename

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
"""Types in which the weights of a trained model are written, by the types' names in safetensors files."""
WEIGHT_INDEX = "model.safetensors.index.json"


def read_files(folder: str | Path) -> dict[str, torch.Tensor]:
    """Return the tensors in the safetensors files of a folder on the CPU, by their names in the files."""
    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        raise ConfigError(
            f"{folder} holds no weights; expected a model folder with .safetensors files{folder_hint(Path(folder))}"
        )
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            tensors |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{file} cannot be read ({error}); copy or save it again") from error
    return tensors


def read_weights(folder: str | Path, model: Any) -> dict[str, torch.Tensor]:
    """Return the weights in a model folder on the CPU, by the names of `model.state_dict()`, with tied weights under each name.

    transformers converts the weights as when it loads the folder.
    """
    # transformers changes the configuration and the dictionary that it is given.
    config, file_weights = copy.deepcopy(model.config), read_files(folder)
    # Forked: missing weights, which are an error below, would be drawn at random.
    with torch.random.fork_rng(devices=[]), _quiet():
        converted, report = type(model).from_pretrained(
            None,
            config=config,
            state_dict=file_weights,
            dtype=model.dtype,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    misshapen = [name for name, *_ in report["mismatched_keys"]]
    wrong = sorted({*report["missing_keys"], *report["unexpected_keys"], *misshapen})
    wrong += report["error_msgs"]
    if wrong:
        raise ConfigError(
            f"{folder} holds another model: {', '.join(wrong[:3])} … missing, unknown or of another shape; expected the weights "
            f"of a {type(model).__name__} of the same sizes"
        )
    return converted.state_dict()


@contextmanager
def _quiet() -> Iterator[None]:
    """Return a context manager that suppresses transformers' report of mismatched weights."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def file_dtypes(folder: Path) -> dict[str, torch.dtype]:
    """Return the type of each weight in a model folder by the weight's name in the folder.

    Returns:
        {} for a quantized model, which is trained and written without its quantization.
    """
    dtypes: dict[str, torch.dtype] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (not a dict)
                dtype = tensors.get_slice(name).get_dtype()
                if dtype.startswith(("F", "BF")) and dtype not in DTYPES:
                    return {}
                if dtype in DTYPES:
                    dtypes[name] = DTYPES[dtype]
    return dtypes


def cast_files(folder: Path, dtypes: Mapping[str, torch.dtype]) -> None:
    """Convert the weights in a model folder, in place.

    Args:
        dtypes: Type of each weight by its name in the file. Other weights get the most common type.
    """
    sizes: Counter[torch.dtype] = Counter()
    for file in folder.glob("*.safetensors"):
        sizes += _count_types(file, dtypes)
    if not sizes:
        return
    [(main_dtype, _)] = sizes.most_common(1)
    total_bytes = 0
    for file in sorted(folder.glob("*.safetensors")):
        total_bytes += _cast_file(file, dtypes, main_dtype)
    _record_dtype(folder / "config.json", main_dtype)
    index = folder / WEIGHT_INDEX
    if index.exists():
        content = json.loads(index.read_bytes())
        content["metadata"]["total_size"] = total_bytes
        write_json(index, content)


def _count_types(file: Path, dtypes: Mapping[str, torch.dtype]) -> Counter[torch.dtype]:
    """Return the number of elements of each type."""
    sizes: Counter[torch.dtype] = Counter()
    with safe_open(file, "pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118  (not a dict)
            if name in dtypes:
                sizes[dtypes[name]] += prod(tensors.get_slice(name).get_shape())
    return sizes


def _cast_file(file: Path, dtypes: Mapping[str, torch.dtype], main_dtype: torch.dtype) -> int:
    """Convert the weights in a file; return the size of the weights in bytes."""
    weights = _cast_weights(file, dtypes, main_dtype)
    draft = file.with_suffix(".draft")
    save_file(weights, draft, metadata={"format": "pt"})
    rename(draft, file)
    return sum(tensor.nbytes for tensor in weights.values())


def _cast_weights(file: Path, dtypes: Mapping[str, torch.dtype], main_dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return copies of the weights in a file. No tensor that maps the file is left, so that Windows lets the file be replaced."""
    weights: dict[str, torch.Tensor] = {}
    with safe_open(file, "pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118  (not a dict)
            tensor = tensors.get_tensor(name)
            dtype = dtypes.get(name, main_dtype) if tensor.is_floating_point() else tensor.dtype
            weights[name] = tensor.to(dtype, copy=True)
    return weights


def _record_dtype(file: Path, dtype: torch.dtype) -> None:
    """Set the type of the weights in a model's configuration, and in the configurations of its parts."""
    content = json.loads(file.read_bytes())
    name = str(dtype).removeprefix("torch.")
    content["dtype"] = name
    for part in content.values():
        if isinstance(part, dict) and "dtype" in part:
            part["dtype"] = name
    write_json(file, content)


def folder_hint(folder: Path) -> str:
    """Return the end of an error message: if `folder` is that of a run or `rove train`, a hint that names the model inside."""
    trained = _trained_model(folder)
    if trained is not None:
        return f"; did you mean {trained}?"
    if not folder.is_dir() or not is_train_folder(os.listdir(folder)):
        return ""
    models = [_trained_model(stage.path) for stage in TrainFolder(folder).stages()]
    newest = next((model for model in reversed(models) if model is not None), None)
    hint = "without a trained model" if newest is None else f"whose newest model is {newest}"
    return f"; it is a folder of rove train, {hint}"


def _trained_model(run: Path) -> Path | None:
    """Return the model folder inside a run folder; None if it has no model."""
    for name in ("final", "checkpoints/best"):
        if (run / name / "config.json").exists() or (run / name / ADAPTER_CONFIG).exists():
            return run / name
    return None
