"""Conversion of GGUF files to model folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from packaging.version import Version

from rove.core.errors import ConfigError
from rove.models.gguf import convert_gguf
from rove.models.load import load_model

gguf = pytest.importorskip("gguf", reason="pip install 'rove[train]'")


@pytest.mark.parametrize(
    ("content", "message"), [(b"PK", "is not a GGUF file: it starts with b'PK'"), (b"GGUF", "transformers cannot read")]
)
def test_invalid_gguf_files_are_rejected(tmp_path: Path, content: bytes, message: str):
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")


def write_tiny(file: Path, block_count: int | None = 1, feed_forward: int = 16) -> None:
    """Write a Llama of one layer and 8 tokens, in fp32."""
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(32)
    writer.add_embedding_length(8)
    if block_count is not None:
        writer.add_block_count(block_count)
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(8)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<end>", *"abcdef", "ab"])
    writer.add_token_types([gguf.TokenType.CONTROL, *[gguf.TokenType.NORMAL] * 7])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    shapes = {"attn_q": (8, 8), "attn_k": (4, 8), "attn_v": (4, 8), "attn_output": (8, 8)}
    shapes |= {"ffn_gate": (16, 8), "ffn_up": (16, 8), "ffn_down": (8, 16), "attn_norm": (8,), "ffn_norm": (8,)}
    for name, shape in shapes.items():
        writer.add_tensor(f"blk.0.{name}.weight", np.ones(shape, dtype=np.float32))
    for name, shape in {"token_embd": (8, 8), "output": (8, 8), "output_norm": (8,)}.items():
        writer.add_tensor(f"{name}.weight", np.full(shape, 2, dtype=np.float32))
    writer.add_chat_template("{% for m in messages %}{{ m.content }}<end>{% endfor %}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        (3, "describes 1,912 parameters, but the weights have 728"),
        (None, "num_hidden_layers = 32, but the weights have 12 tensors"),
        (0, "describes 136 parameters, but has weights of 728"),
    ],
)
def test_a_gguf_file_without_the_weights_of_all_layers_is_refused(tmp_path: Path, stated: int | None, message: str):
    """transformers would create the missing layers, which took 7 seconds for 32 of them, as fuzzing found."""
    write_tiny(tmp_path / "m.gguf", block_count=stated)
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match=message):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")


@pytest.mark.parametrize(
    ("feed_forward", "message"),
    [
        (16, "lacks weights of its model \\(model.norm.weight\\)"),
        (100_000_000, "says intermediate_size = 100,000,000, but the weights have 728 numbers"),
    ],
)
def test_a_gguf_file_without_a_weight_is_refused(tmp_path: Path, feed_forward: int, message: str):
    """transformers would use random weights, and reserve memory for any size that the file states."""
    write_tiny(tmp_path / "m.gguf", feed_forward=feed_forward)
    content = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(content.replace(b"output_norm", b"output_none"))
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match=message):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")


@pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.18"), reason="transformers 5.12 refuses a vocabulary without merges"
)
def test_a_gguf_file_is_converted_and_files_next_to_it_are_ignored(tmp_path: Path):
    write_tiny(tmp_path / "m.gguf")
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "none"}')
    (tmp_path / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["evil.Evil", null]}}')
    (tmp_path / "out").mkdir()
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    loaded = load_model(tmp_path / "out", device="cpu")
    assert loaded.model.config.num_hidden_layers == 1 and loaded.tokenizer.eos_token_id == 0
    assert torch.equal(loaded.model.lm_head.weight, torch.full((8, 8), 2.0))
