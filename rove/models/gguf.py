"""Convert GGUF files to ordinary Hugging Face model folders."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from rove.core.errors import ConfigError, missing_train_package
from rove.core.plain import Arguments
from rove.models.folder_check import Weights, check_parameters, check_sizes
from rove.models.older_releases import save_model, save_tokenizer
from rove.utils.systems import link_or_copy

try:
    import gguf as _gguf
except ImportError:
    _gguf = None

MAGIC = b"GGUF"
MAX_NAMED = 3
"""Maximum number of missing weights that an error names."""
MIN_USED_SHARE = 0.5
"""Minimum share of a file's weights that its model must have. Some files have further layers, which transformers leaves out."""


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
            config = AutoConfig.from_pretrained(alone, **source)
            weights = _weights(_gguf.GGUFReader(file))
            check_sizes(file, config.to_dict(), weights)
            used = check_parameters(file, config, weights)
            if used < MIN_USED_SHARE * weights.elements:
                raise ConfigError(
                    f"{file} describes {used:,} parameters, but has weights of {weights.elements:,}; expected a description of "
                    "all of them: download the file again"
                )
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                alone, config=config, dtype=torch.float32, output_loading_info=True, **source
            )
            model, report = loaded
            if missing := sorted(report["missing_keys"]):  # transformers would use random weights
                named = ", ".join(missing[:MAX_NAMED]) + (", …" if len(missing) > MAX_NAMED else "")
                raise ConfigError(
                    f"{file} lacks weights of its model ({named}); expected all of them: download the file again"
                )
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


def _weights(reader: Any) -> Weights:
    tensors = reader.tensors
    elements = sum(int(tensor.n_elements) for tensor in tensors)
    return Weights(len(tensors), elements, sum(int(tensor.n_bytes) for tensor in tensors))
