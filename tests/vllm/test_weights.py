"""Weights in the layout that vLLM servers load."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from fakes import tiny_model
from safetensors.torch import load_file

from rove.models.adapter import add_adapter, merge_adapter
from rove.models.load import load_model
from rove.train.backends import parity_check
from rove.vllm.weights import BODY_FILE, HEAD_FILE, folder_bytes, merged_weights, write_adapter, write_served

PROMPT = [7, 30, 31, 40, 9, 100]


@pytest.mark.parametrize("arch", ["llama", "qwen3", "lfm2"])
def test_served_weights_have_a_separate_head_and_equal_logprobs(tmp_path: Path, arch: str):
    loaded = tiny_model(arch)
    write_served(loaded, tmp_path)
    assert list(load_file(tmp_path / HEAD_FILE)) == ["lm_head.weight"]
    reloaded = load_model(tmp_path, "cpu")
    assert not reloaded.model.config.tie_word_embeddings
    if arch == "lfm2":
        assert (reloaded.model.config.conv_dim, reloaded.model.config.block_dim) == (32, 32)
    assert reloaded.model.lm_head.weight is not reloaded.model.get_input_embeddings().weight
    original, served = (parity_check(model, PROMPT) for model in (loaded.model, reloaded.model))
    assert served.logprobs == pytest.approx(original.logprobs, abs=1e-6)
    assert served.next_logprobs == pytest.approx(original.next_logprobs, abs=1e-5)


def test_an_adapter_is_merged_into_the_weights(tmp_path: Path):
    loaded = tiny_model()
    base_logprobs = parity_check(loaded.model, PROMPT).logprobs
    adapter = add_adapter(loaded.model, 2, 8.0, 0.0, [], 0, "somewhere")
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in loaded.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)  # with a larger std, rounding errors exceed 1e-5
    expected = parity_check(loaded.model, PROMPT).logprobs
    assert expected != pytest.approx(base_logprobs, abs=0.1)
    write_served(loaded._replace(adapter=adapter), tmp_path)
    reloaded = load_model(tmp_path, "cpu")
    assert parity_check(reloaded.model, PROMPT).logprobs == pytest.approx(expected, abs=1e-5)
    assert merged_weights(loaded.model).keys() == tiny_model().model.state_dict().keys()


def test_an_adapter_is_written_separately_from_its_base(tmp_path: Path):
    loaded = tiny_model()
    base_logprobs = parity_check(loaded.model, PROMPT).logprobs
    adapter = add_adapter(loaded.model, 2, 8.0, 0.0, [], 0, "somewhere")
    for seed in (1, 2):  # the second overwrites the first
        torch.manual_seed(seed)
        with torch.no_grad():
            for name, parameter in loaded.model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_()
        write_adapter(adapter, tmp_path / "adapter")
    write_served(loaded._replace(adapter=adapter), tmp_path / "base", merged=False)
    base = load_model(tmp_path / "base", "cpu")
    assert parity_check(base.model, PROMPT).logprobs == pytest.approx(base_logprobs, abs=1e-6)
    merge_adapter(base.model, tmp_path / "adapter")
    assert parity_check(base.model, PROMPT).logprobs == pytest.approx(
        parity_check(loaded.model, PROMPT).logprobs, abs=1e-5
    )
    assert sorted(file.name for file in tmp_path.iterdir()) == ["adapter", "base"]
    assert folder_bytes(tmp_path / "adapter") < folder_bytes(tmp_path / "base") / 2


def test_a_sharded_model_gets_an_additional_head_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    loaded = tiny_model()
    save = type(loaded.model).save_pretrained
    monkeypatch.setattr(
        type(loaded.model), "save_pretrained", lambda self, *a, **k: save(self, *a, **k, max_shard_size="40KB")
    )
    write_served(loaded, tmp_path)
    assert len(list(tmp_path.glob("model-0*.safetensors"))) > 1
    assert not (tmp_path / BODY_FILE).exists()
    reloaded = load_model(tmp_path, "cpu")
    assert parity_check(reloaded.model, PROMPT).logprobs == pytest.approx(
        parity_check(loaded.model, PROMPT).logprobs, abs=1e-6
    )


def test_an_untied_head_is_kept(tmp_path: Path):
    loaded = tiny_model()
    config = loaded.model.config
    config.tie_word_embeddings = False
    loaded.model.lm_head.weight = torch.nn.Parameter(loaded.model.lm_head.weight.detach() * 2)
    write_served(loaded, tmp_path)
    assert not (tmp_path / HEAD_FILE).exists()
    assert not msgspec.json.decode((tmp_path / "config.json").read_bytes())["tie_word_embeddings"]
    assert torch.equal(load_file(tmp_path / "model.safetensors")["lm_head.weight"], loaded.model.lm_head.weight)
