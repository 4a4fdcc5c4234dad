"""Convert GGUF files to ordinary Hugging Face model folders."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from rove.core.errors import ConfigError, missing_train_package
from rove.core.plain import Arguments
from rove.models.older_releases import save_model, save_tokenizer
from rove.utils.systems import link_or_copy

try:
    import gguf as _gguf
except ImportError:
    _gguf = None

MAGIC = b"GGUF"


def convert_gguf(file: Path, folder: Path) -> None:
    """Write the dequantized model and the tokenizer of a GGUF file into a folder, in fp32."""
    if _gguf is None:
        raise missing_train_package("gguf", "reading a GGUF file")
    with file.open("rb") as stream:
        start = stream.read(len(MAGIC))
    if start != MAGIC:
        raise ConfigError(f"{file} is not a GGUF file: it starts with {start!r}, expected {MAGIC!r}")
    disable_progress_bar()
    with tempfile.TemporaryDirectory() as alone:  # transformers would also read other files of the file's folder
        link_or_copy(Path(alone) / file.name, file.absolute())
        source: Arguments = {"gguf_file": file.name, "trust_remote_code": False}
        try:
            _check_layers(_gguf.GGUFReader(file), file)
            model = AutoModelForCausalLM.from_pretrained(alone, dtype=torch.float32, **source)
            tokenizer = AutoTokenizer.from_pretrained(alone, **source)
        except ConfigError:
            raise
        except Exception as error:  # a damaged file fails anywhere in the reader
            raise ConfigError(f"transformers cannot read {file}: {type(error).__name__}: {error}") from error
    # The weights are ordinary floats now; transformers refuses to save a model that still counts as quantized.
    quantizer: Any = model.hf_quantizer
    quantizer.remove_quantization_config(model)
    save_model(model, folder)
    save_tokenizer(tokenizer, folder)


def _check_layers(reader: Any, file: Path) -> None:
    """Refuse a file that states more layers than it has weights of: transformers would create them, in quadratic time."""
    architecture = reader.fields["general.architecture"].contents()
    block_count = reader.fields.get(f"{architecture}.block_count")
    if block_count is None:
        raise ConfigError(f"{file} is damaged: it does not state {architecture}.block_count, its number of layers")
    stated = int(block_count.contents())
    layers = {match[1] for tensor in reader.tensors if (match := re.match(r"blk\.(\d+)\.", tensor.name))}
    if stated > len(layers):
        raise ConfigError(f"{file} is damaged: it states {stated:,} layers, and has weights of {len(layers):,}")
