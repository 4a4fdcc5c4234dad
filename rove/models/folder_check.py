"""Check a model folder before memory is allocated for its contents, because its files may come from an untrusted source.

The rule: every file that transformers reads is a regular file of a plausible size, its JSON is an object, and the sizes in
`config.json` agree with the tensors that the weight files contain. A folder that breaks this rule causes a `ConfigError` that
names the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rove.core.errors import ConfigError
from rove.core.plain import JsonMapping

READ_JSON = (
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*.json",
    "*processor*.json",
    "chat_template*.json",
    "*.index.json",
)
"""Patterns of the JSON files that transformers reads. Other files, such as a trainer's state, may hold anything."""
MAX_JSON_BYTES = {"tokenizer.json": 200 << 20, "vocab.json": 200 << 20, "model.safetensors.index.json": 200 << 20}
"""Maximum sizes of large JSON files in bytes; for other JSON files, `MAX_OTHER_BYTES` applies."""
MAX_OTHER_BYTES = 10 << 20
MAX_HEADER_BYTES = 100 << 20
"""Maximum size of a safetensors header, as in the safetensors library."""
MAX_JSON_DEPTH = 100
MAX_TOKEN_ID = 10_000_000
MAX_BUFFER_BYTES = 1 << 30
"""Maximum size of tensors that a model computes from its config; if the weights are larger, their size is the limit."""
LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers")
SIZES = (
    *LAYERS,
    "hidden_size",
    "n_embd",
    "d_model",
    "intermediate_size",
    "vocab_size",
    "num_attention_heads",
    "n_head",
)
SLACK = 1.01
"""Maximum number of parameters that a config may describe per element of the weights: a few models compute small parameters."""


class Weights(NamedTuple):
    """Summary of the contents of a folder's weight files."""

    tensors: int
    elements: int
    bytes: int


def check_folder(folder: Path, trust_remote_code: bool = False) -> None:
    """Check the files of a model folder, without reading its tensors."""
    for file in sorted(folder.iterdir()):
        if file.suffix in (".json", ".jinja", ".safetensors", ".txt", ".model", ".bin") and not file.is_file():
            raise ConfigError(f"{file} is not a regular file; expected a copy of the model's file: download it again")
    read_files = set(chain.from_iterable(map(folder.glob, READ_JSON)))
    documents = {file.name: read_object(file) for file in sorted(read_files)}
    for file in sorted(folder.glob("*.jinja")):
        _check_size(file, MAX_OTHER_BYTES)
    _check_tokens(folder / "tokenizer.json", documents.get("tokenizer.json", {}))
    files = sorted(folder.glob("*.safetensors"))
    if files:
        headers = [read_header(file) for file in files]
        tensors, elements, sizes = zip(*headers, strict=True)
        total = Weights(sum(tensors), sum(elements), sum(sizes))
        config = documents.get("config.json", {})
        check_sizes(folder / "config.json", config, total)
        if "quantization_config" not in config:  # quantized tensors have fewer elements than the model has parameters
            options: dict[str, object] = {"local_files_only": True, "trust_remote_code": trust_remote_code}
            config = AutoConfig.from_pretrained(folder, **options)
            check_parameters(folder / "config.json", config, total, trust_remote_code)


def read_object(file: Path) -> dict[str, object]:
    """Return the JSON object in a file."""
    _check_size(file, MAX_JSON_BYTES.get(file.name, MAX_OTHER_BYTES))
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{file} cannot be read ({type(error).__name__}: {error}); expected JSON: download the model again"
        ) from error
    if not isinstance(content, dict):
        raise ConfigError(f"{file} holds a {type(content).__name__}; expected a JSON object: download the model again")
    # Level by level instead of by recursion, which a deep file would exhaust here or in a later reader.
    level: list[object] = [content]
    for _ in range(MAX_JSON_DEPTH):
        level = list(chain.from_iterable(map(_values, level)))
    if level:
        raise ConfigError(f"{file} has more than {MAX_JSON_DEPTH} nested objects; expected the file of a usual model")
    return content


def _values(value: object) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _check_size(file: Path, limit: int) -> None:
    size = file.stat().st_size
    if size > limit:
        raise ConfigError(f"{file} has {size:,} bytes; expected at most {limit:,}: this is not a usual model")


def read_header(file: Path) -> Weights:
    """Return the tensors that the header of a safetensors file describes, checked against the size of the file."""
    size = file.stat().st_size
    try:
        with file.open("rb") as content:
            length = int.from_bytes(content.read(8), "little")
            if not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
                raise ValueError(f"its header would have {length:,} bytes of the file's {size:,}")
            header = json.loads(content.read(length))
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        elements = sum(math.prod(_checked_shape(entry)) for entry in tensors.values())
        end = max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ConfigError(
            f"{file} cannot be read ({type(error).__name__}: {error}); expected a safetensors file: download or save it again"
        ) from error
    if end != size - 8 - length:
        raise ConfigError(
            f"{file} has {size - 8 - length:,} bytes of tensors, but its header describes {end:,}; expected a complete "
            "file: download or save it again"
        )
    return Weights(len(tensors), elements, end)


def _checked_shape(entry: JsonMapping) -> list[int]:
    shape, (start, end) = entry["shape"], entry["data_offsets"]
    if any(type(length) is not int or length < 0 for length in shape):
        raise ValueError(f"a tensor has the shape {shape}")
    if math.prod(shape) > 8 * (end - start):  # types of less than a bit do not exist
        raise ValueError(f"a tensor of the shape {shape} has {end - start:,} bytes")
    return shape


def _check_tokens(file: Path, content: Mapping[str, object]) -> None:
    tokens = content.get("added_tokens")
    if not isinstance(tokens, list):
        return
    for token in tokens:
        id = token.get("id") if isinstance(token, dict) else None
        if not isinstance(id, int) or not 0 <= id <= MAX_TOKEN_ID:
            raise ConfigError(
                f"{file} has a token with the id {id!r}; expected 0 to {MAX_TOKEN_ID:,}: download it again"
            )


def check_sizes(file: Path, config: Mapping[str, object], weights: Weights) -> None:
    """Check sizes that would make even a model without weights large."""
    parts = [config, *(part for part in config.values() if isinstance(part, dict))]
    for part in parts:
        for name in SIZES:
            value = part.get(name)
            # A layer has at least one tensor, and a width at least one number.
            limit, unit = (weights.tensors, "tensors") if name in LAYERS else (weights.elements, "numbers")
            if isinstance(value, (int, float)) and not 0 <= value <= limit:
                raise ConfigError(
                    f"{file} says {name} = {value:,}, but the weights have {limit:,} {unit}; expected a config that fits the "
                    "weights: download the model again"
                )


def check_parameters(file: Path, config: Any, weights: Weights, trust_remote_code: bool = False) -> int:
    """Check the number of parameters that a file's config describes, using a model without allocated memory; return it."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    described = sum(parameter.numel() for parameter in model.parameters())
    if described > SLACK * weights.elements:
        raise ConfigError(
            f"{file} describes {described:,} parameters, but the weights have {weights.elements:,}; expected "
            "a config that fits the weights: download the model again"
        )
    computed = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    if computed > max(MAX_BUFFER_BYTES, weights.bytes):
        raise ConfigError(
            f"{file} asks for {computed:,} bytes in addition to the weights' {weights.bytes:,}; expected a "
            "config that fits the weights: download the model again"
        )
    return described
