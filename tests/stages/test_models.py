"""Models that commands make."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fakes import tiny_model
from safetensors.torch import load_file

from rove.core.errors import ConfigError
from rove.models.adapter import add_adapter
from rove.stages.models import run_model_merge


def test_a_merged_model_has_the_type_of_its_base(tmp_path: Path):
    loaded = tiny_model()
    loaded.model.to(torch.bfloat16)
    loaded.save(tmp_path / "base")
    base = load_file(tmp_path / "base" / "model.safetensors")
    loaded.model.float()
    adapter = add_adapter(loaded.model, 2, 4.0, 0.0, [], 0, str(tmp_path / "base"))
    adapter.save(tmp_path / "adapter")
    with pytest.raises(ConfigError, match="is a file; expected a folder"):
        run_model_merge(str(tmp_path / "adapter"), tmp_path / "base" / "model.safetensors")
    run_model_merge(str(tmp_path / "adapter"), tmp_path / "merged")
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    assert {tensor.dtype for tensor in merged.values()} == {torch.bfloat16}
    assert all(torch.equal(merged[name], tensor) for name, tensor in base.items())  # the new adapter changes nothing
