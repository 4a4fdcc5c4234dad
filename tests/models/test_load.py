"""Loading of model folders, and errors for invalid ones."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import torch
from fakes import tiny_model
from safetensors.torch import load_file, save_file
from train_folders import write_train_folder

from rove.core.errors import ConfigError
from rove.models import load
from rove.models.from_scratch import new_model
from rove.models.linear import FastLinear
from rove.models.load import PYTORCH_THREADS, check_model, default_threads, load_model


def test_a_saved_model_is_loaded_with_rove_attention_and_stop_tokens(tmp_path: Path) -> None:
    original = new_model(["one two three"], size="tiny", seed=3)
    original.save(tmp_path)
    loaded = load_model(tmp_path, device="cpu")
    assert loaded.model.config._attn_implementation == "rove"
    assert loaded.renderer.stop_ids == {loaded.tokenizer.eos_token_id}
    assert any(isinstance(module, FastLinear) for module in loaded.model.modules())
    ids = torch.tensor([[7, 8, 9]])
    assert torch.equal(loaded.model(input_ids=ids).logits, original.model(input_ids=ids).logits)


def test_an_unsupported_type_of_model_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "rwkv"}')
    for check in (check_model, load_model):
        with pytest.raises(
            ConfigError, match="has the type rwkv, which rove does not support: outside of training mode"
        ):
            check(tmp_path)


def test_a_run_folder_is_an_error_that_suggests_the_model_folder(tmp_path: Path) -> None:
    new_model(["one"], size="tiny").save(tmp_path / "final")
    with pytest.raises(ConfigError, match=r"did you mean .*final"):
        load_model(tmp_path)


def test_a_folder_of_rove_train_is_an_error_that_names_its_newest_model(tmp_path: Path) -> None:
    write_train_folder(tmp_path)
    with pytest.raises(ConfigError, match=r"no config\.json; it is a folder of rove train, without a trained model$"):
        check_model(tmp_path)
    for model in ("sft/final", "rl1/checkpoints/best", "rl1/final"):
        (tmp_path / model).mkdir(parents=True)
        (tmp_path / model / "config.json").write_text("{}")
        with pytest.raises(ConfigError) as raised:
            check_model(tmp_path)
        assert str(raised.value).endswith(f"; it is a folder of rove train, whose newest model is {tmp_path / model}")


def test_an_empty_folder_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        load_model(tmp_path)


def test_a_tilde_in_the_path_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_model(["one"], size="tiny").save(tmp_path / "mine")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_model("~/mine", "cpu").name == load_model(tmp_path / "mine", "cpu").name


def test_the_default_number_of_threads() -> None:
    small, large = torch.nn.Linear(8, 8), torch.nn.Linear(8_000, 8_000, device="meta")
    assert default_threads(small) == max(1, min(PYTORCH_THREADS, (os.cpu_count() or 1) // 2))
    assert default_threads(large) == PYTORCH_THREADS >= 1


def test_small_models_use_no_more_threads_than_pytorch_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "PYTORCH_THREADS", 2)  # OMP_NUM_THREADS=2 on a machine with 64 cores
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert default_threads(torch.nn.Linear(8, 8)) == 2


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "base_model.model.", "base_model."])
def test_weights_under_names_with_a_prefix_are_refused(tmp_path: Path, prefix: str):
    tiny_model().save(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    renamed = {prefix + name: tensor for name, tensor in weights.items()}
    save_file(renamed, tmp_path / "model.safetensors", metadata={"format": "pt"})
    message = f"they have '{prefix}model.embed_tokens.weight' with the prefix '{prefix}'"
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_model(tmp_path, "cpu")


def test_a_missing_weight_is_refused(tmp_path: Path):
    tiny_model().save(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["further"] = weights.pop("model.norm.weight")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"lack 'model.norm.weight', .* they have 'further', which the model lacks"):
        load_model(tmp_path, "cpu")


def test_a_model_with_truncated_weights_is_an_error(tmp_path: Path):
    tiny_model().save(tmp_path)
    os.truncate(tmp_path / "model.safetensors", 5000)
    with pytest.raises(ConfigError, match=r"model\.safetensors has [\d,]+ bytes of tensors, but its header describes"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "bert", "architectures": ["BertForMaskedLM"]},
        {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True},
        {"model_type": "clip", "architectures": ["CLIPModel"]},
        {"model_type": "whisper", "is_encoder_decoder": True},
        {"model_type": "idefics3", "architectures": ["Idefics3ForConditionalGeneration"]},
    ],
)
def test_a_model_that_does_not_continue_texts_is_refused_by_name(tmp_path: Path, config: dict[str, object]):
    (tmp_path / "config.json").write_text(json.dumps(config))
    message = f"has the type {config['model_type']} and is not a causal language model, which rove needs"
    with pytest.raises(ConfigError, match=message):
        load_model(tmp_path, "cpu")


def test_decoders_with_their_own_code_and_unknown_types_are_left_to_transformers(tmp_path: Path):
    configs: list[dict[str, object]] = [
        {"model_type": "clip", "auto_map": {"AutoModelForCausalLM": "modeling.Model"}},
        {"model_type": "bert", "architectures": ["BertLMHeadModel"], "is_decoder": True},
        {"model_type": "no-such-type"},
    ]
    for config in configs:
        (tmp_path / "config.json").write_text(json.dumps(config))
        check_model(tmp_path)
