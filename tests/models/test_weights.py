"""Weights of model folders: names and shapes that transformers converts, and types."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tiers import some_quick
from tiny_families import save_published
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from rove.core.errors import ConfigError
from rove.engine.engine import Engine
from rove.models.load import LoadedModel, load_model
from rove.models.weights import read_weights
from rove.train.checkpoint import restore_weights
from rove.vllm.weights import write_served

MECHANISMS = {
    "llama": "no conversion",
    "gpt_neox": "another name for the head",
    "mixtral": "a matrix for all experts",
    "deepseek_v3": "experts, and a buffer that is saved",
    "lfm3": "a renamed part of a layer",
    "qwen3_5": "a prefix, since the published model sees images",
    "gemma3": "parts of a model that sees images",
}
"""Family → what transformers converts between file and model."""


@pytest.fixture(scope="module", params=some_quick(MECHANISMS, 2))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param not in CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} does not have {request.param}")
    path = tmp_path_factory.mktemp(request.param) / "published"
    save_published(request.param, path)
    return path


def change(loaded: LoadedModel) -> None:
    """Change all weights, as training does."""
    with torch.no_grad():
        for index, parameter in enumerate(loaded.model.parameters()):
            parameter.add_(0.01 * (index + 1))


def copies(model: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_equal(model: Any, weights: dict[str, torch.Tensor]) -> None:
    assert model.state_dict().keys() == weights.keys()
    different = [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, weights[name])]
    assert not different


def test_weights_survive_a_checkpoint_and_a_file(folder: Path, tmp_path: Path):
    trained = load_model(folder, "cpu")
    published = copies(trained.model)
    change(trained)
    weights = copies(trained.model)
    trained.save(tmp_path)
    assert_equal(load_model(tmp_path, "cpu").model, weights)
    restored = load_model(folder, "cpu")
    assert_equal(restored.model, published)
    state = torch.random.get_rng_state()
    restore_weights(tmp_path, restored)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert_equal(restored.model, weights)
    Engine(restored.model, []).update_weights(1, folder)
    assert_equal(restored.model, published)
    Engine(restored.model, []).update_weights(2, weights)
    assert_equal(restored.model, weights)
    # Other programs expect the names and shapes of the published model.
    files = [load_file(path / "model.safetensors") for path in (folder, tmp_path)]
    shapes = [{name: tensor.shape for name, tensor in file.items() if ".v" not in name} for file in files]
    assert shapes[1].items() <= shapes[0].items()


def test_served_weights_can_be_loaded(folder: Path, tmp_path: Path):
    loaded = load_model(folder, "cpu")
    write_served(loaded, tmp_path)
    served = load_model(tmp_path, "cpu").model
    ids = torch.arange(5, 25)[None]
    with torch.inference_mode():
        logits = loaded.model(input_ids=ids, use_cache=False).logits
        torch.testing.assert_close(served(input_ids=ids, use_cache=False).logits, logits, atol=1e-4, rtol=1e-4)


def test_the_result_of_a_training_has_the_types_of_the_model_that_it_began_with(folder: Path, tmp_path: Path):
    original = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    original.save_pretrained(tmp_path / "bf16")
    load_model(folder, "cpu").tokenizer.save_pretrained(tmp_path / "bf16")
    trained = load_model(tmp_path / "bf16", "cpu")
    change(trained)
    assert trained.model.dtype == torch.float32
    trained.save_final(tmp_path / "final")
    assert json.loads((tmp_path / "final/config.json").read_bytes())["dtype"] == "bfloat16"
    old_weights, new_weights = (load_file(tmp_path / name / "model.safetensors") for name in ("bf16", "final"))
    assert {name: tensor.dtype for name, tensor in new_weights.items()} == {
        name: tensor.dtype for name, tensor in old_weights.items()
    }
    reloaded = load_model(tmp_path / "final", "cpu").model
    for name, tensor in reloaded.state_dict().items():
        torch.testing.assert_close(tensor, trained.model.state_dict()[name], atol=1e-6, rtol=2**-8)


def test_each_weight_keeps_its_own_type(tmp_path: Path):
    save_published("llama", tmp_path / "base", dtype=torch.bfloat16)
    loaded = load_model(tmp_path / "base", "cpu")
    dtypes = {**(loaded.file_dtypes or {}), "model.norm.weight": torch.float32}
    loaded._replace(file_dtypes=dtypes).save_final(tmp_path / "final")
    weights = load_file(tmp_path / "final/model.safetensors")
    assert {name for name, tensor in weights.items() if tensor.dtype == torch.float32} == {"model.norm.weight"}


def test_weights_of_another_model_are_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    save_published("mixtral", tmp_path / "mixtral")
    save_published("llama", tmp_path / "llama")
    loaded = load_model(tmp_path / "mixtral", "cpu")
    old_weights = copies(loaded.model)
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(ConfigError, match=r"llama holds another model: .* missing, unknown"),
    ):
        read_weights(tmp_path / "llama", loaded.model)
    assert not caplog.records
    assert_equal(loaded.model, old_weights)
