"""Adapters inside models: what they compute, merged, written, read by PEFT and by rove's engine, is one and the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import tiny_model
from families import FAMILIES, FAST, assert_agrees, family_model
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import PeftModel
from peft.tuners import lora
from safetensors.torch import load_file, save_file
from tiers import first_quick
from transformers import AutoModelForCausalLM

from rove.core.digest import adapter_base, digest_model
from rove.core.errors import ConfigError
from rove.core.protocols import SamplingParams
from rove.engine.client import EngineClient
from rove.engine.engine import Engine
from rove.models import load
from rove.models.adapter import Adapter, FastLoRA, add_adapter
from rove.models.linear import FastLinear
from rove.models.load import (
    LoadedModel,
    clone_model,
    copy_weights,
    disable_adapters,
    load_adapter,
    load_model,
    trainable_parameters,
)
from rove.train.batch import can_pack

IDS = torch.arange(3, 43)[None]


def with_adapter(
    loaded: LoadedModel, base: Path | str = "nowhere", seed: int = 1, *, rank: int = 3, alpha: float = 6.0, **more: Any
) -> LoadedModel:
    """The model with an adapter strong enough to be noticed."""
    given = {"dropout": 0.0, "targets": [], **more}
    adapter = add_adapter(loaded.model, rank, alpha, **given, seed=seed, base=str(base))
    generator, strength = torch.Generator().manual_seed(seed), 0.2 * (2 * rank / alpha) ** 0.5
    with torch.no_grad():
        for weight in trainable_parameters(loaded.model).values():
            weight.copy_(strength * torch.randn(weight.shape, generator=generator))
    return loaded._replace(adapter=adapter)


def written(folder: Path, base: LoadedModel, seed: int = 1, **more: Any) -> LoadedModel:
    """`base` in folder/base, and an adapter of it in folder/adapter; returns the model with the adapter inside."""
    base.save(folder / "base")
    loaded = with_adapter(base, folder / "base", seed, **more)
    loaded.save(folder / "adapter")
    return loaded


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model(input_ids=IDS, use_cache=False).logits[0].clone()


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Within 1e-5 of the largest logit, in fp32."""
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()


@pytest.mark.parametrize("family", first_quick(sorted(FAMILIES), 2))
def test_a_merged_adapter_is_the_adapter(family: str, tmp_path: Path):
    loaded = written(tmp_path, family_model(family))
    wanted = logits(loaded.model)
    merged = load_model(tmp_path / "adapter", device="cpu")
    assert type(merged.model) is type(loaded.model)
    assert merged.adapter is None
    assert all(parameter.requires_grad for parameter in merged.model.parameters())
    assert not any("lora" in name for name, _ in merged.model.named_modules())
    assert_close(logits(merged.model), wanted)
    assert (logits(load_model(tmp_path / "base", device="cpu").model) - wanted).abs().max() > 0.1
    merged.save(tmp_path / "merged")
    assert torch.equal(logits(load_model(tmp_path / "merged", device="cpu").model), logits(merged.model))


@pytest.mark.broad
@settings(deadline=None, max_examples=10)
@given(
    rank=st.integers(1, 8),
    alpha=st.floats(0.5, 64),
    targets=st.sets(st.sampled_from(["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj"])),
    seed=st.integers(0, 99),
)
def test_whatever_its_settings(tmp_path_factory: Any, rank: int, alpha: float, targets: set[str], seed: int):
    folder = tmp_path_factory.mktemp("any")
    loaded = written(folder, tiny_model(), seed, rank=rank, alpha=alpha, targets=sorted(targets))
    assert_close(logits(load_model(folder / "adapter", device="cpu").model), logits(loaded.model))
    names = {name.split(".lora_")[0].rpartition(".")[2] for name in trainable_parameters(loaded.model)}
    assert names == (targets or {"q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj"})
    config = json.loads((folder / "adapter/adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (rank, alpha, sorted(names))


@pytest.mark.parametrize("arch", ["llama", "qwen3", "lfm2", "gemma2"])
def test_peft_reads_what_is_written(arch: str, tmp_path: Path):
    loaded = written(tmp_path, tiny_model(arch))
    theirs = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tmp_path / "base"), str(tmp_path / "adapter")
    )
    assert_close(logits(theirs), logits(loaded.model))
    assert {file.name for file in (tmp_path / "adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "base.txt",
    }
    weights, config = (tmp_path / "adapter" / name for name in ("adapter_model.safetensors", "adapter_config.json"))
    assert weights.stat().st_mode == config.stat().st_mode


@pytest.mark.parametrize("arch", ["llama", "lfm2"])
async def test_the_engine_serves_it_by_name(arch: str, tmp_path: Path):
    written(tmp_path, tiny_model(arch))
    merged = load_model(tmp_path / "adapter", device="cpu")
    engine = Engine(load_model(tmp_path / "base", device="cpu").model, sorted(merged.renderer.stop_ids))
    engine.load_adapter("mine", tmp_path / "adapter")
    made = await engine.generate(
        IDS[0].tolist(), SamplingParams(max_tokens=12, ignore_eos=True), seed=5, adapter="mine"
    )
    assert_agrees(merged, IDS[0].tolist(), made, 5, 1.0)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("family", first_quick(sorted(FAMILIES), 2))
async def test_the_engine_samples_with_the_adapter_inside(family: str, native: bool):
    """Both of its ways of computing do: the fast one adds it to its copies of the weights, the slow one runs PEFT's modules."""
    loaded = family_model(family)
    engine = Engine(loaded.model, sorted(loaded.renderer.stop_ids), native=native)
    assert engine.is_fast == (family in FAST)
    before = await engine.generate(IDS[0].tolist(), SamplingParams(max_tokens=8, ignore_eos=True), seed=2)
    loaded = with_adapter(loaded)
    engine = Engine(loaded.model, sorted(loaded.renderer.stop_ids), native=native)
    said = []
    for version in (1, 2):
        engine.update_weights(
            version, {name: weight / version for name, weight in trainable_parameters(loaded.model).items()}
        )
        made = await engine.generate(IDS[0].tolist(), SamplingParams(max_tokens=8, ignore_eos=True), seed=2)
        assert_agrees(loaded, IDS[0].tolist(), made, 2, 1.0)
        assert made.policy_version == version
        said.append(made.logprobs)
    assert said[0] != said[1] != before.logprobs


@pytest.mark.parametrize("arch", ["llama", "qwen3", "lfm2", "gemma2"])
def test_a_new_adapter_changes_nothing_and_is_all_that_is_trained(arch: str):
    loaded = tiny_model(arch)
    before = logits(loaded.model)
    wide = {name for name, layer in loaded.model.named_modules() if isinstance(layer, torch.nn.Linear)} - {"lm_head"}
    add_adapter(loaded.model, 2, 32, 0.0, [], 0, "base")
    assert torch.equal(logits(loaded.model), before)
    assert {name.split(".lora_")[0] for name in trainable_parameters(loaded.model)} == wide
    loaded.model(input_ids=IDS).logits.logsumexp(-1).sum().backward()
    held = {name for name, parameter in loaded.model.named_parameters() if parameter.grad is not None}
    assert held == trainable_parameters(loaded.model).keys()
    assert all(".lora_" in name for name in held)


def test_the_model_stays_what_it_was():
    """Its class, its attention, the way it is packed and its fast linear layers; PEFT's, too, become fast."""
    loaded = tiny_model()
    kind = type(loaded.model)
    fast = sum(isinstance(layer, FastLinear) for layer in loaded.model.modules())
    add_adapter(loaded.model, 2, 32, 0.1, [], 0, "base")
    assert type(loaded.model) is kind
    assert can_pack(loaded.model)
    assert sum(isinstance(layer, FastLinear) for layer in loaded.model.modules()) == fast
    assert sum(isinstance(layer, FastLoRA) for layer in loaded.model.modules()) == 7 * 2
    assert not any(layer.training for layer in loaded.model.modules())


@settings(deadline=None, max_examples=20)
@given(
    shape=st.sampled_from([(5,), (2, 5), (1, 1), (3, 2, 2)]),
    rank=st.integers(1, 5),
    bf16=st.booleans(),
    first=st.booleans(),
)
def test_a_fast_layer_says_what_pefts_says(shape: tuple[int, ...], rank: int, bf16: bool, first: bool):
    """Forward to rounding, and gradients, in bf16 to that of its eight bits; also where inputs have no gradient."""
    loaded = with_adapter(tiny_model(), rank=rank)
    layer = loaded.model.model.layers[0].mlp.up_proj
    assert type(layer) is FastLoRA
    layer.base_layer.backward_dtype = torch.bfloat16 if bf16 else torch.float32
    x = torch.randn(*shape, 32, generator=torch.Generator().manual_seed(rank))
    results = []
    for forward in (FastLoRA.forward, lora.Linear.forward):
        given = x.clone().requires_grad_(not first)
        out = forward(layer, given)
        layer.zero_grad()
        (out.tanh() * torch.linspace(-1, 1, 64)).sum().backward()
        assert layer.base_layer.weight.grad is None
        grads = [layer.lora_A["default"].weight.grad, layer.lora_B["default"].weight.grad]
        with torch.no_grad():
            torch.testing.assert_close(forward(layer, x), out.detach(), rtol=0, atol=0)
        results.append([out.detach(), *grads, *([] if first else [given.grad])])
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-5, atol=1e-5)
    ours, theirs = (torch.cat([grad.flatten() for grad in grads]) for _, *grads in results)
    assert (ours - theirs).norm() <= (3e-2 if bf16 else 1e-5) * theirs.norm()


def test_its_seed_alone_decides_how_it_starts():
    states = []
    for seed, drawn in ((0, 0), (0, 3), (1, 0)):
        torch.manual_seed(drawn)
        loaded = tiny_model()
        before = torch.get_rng_state()
        add_adapter(loaded.model, 2, 32, 0.0, [], seed, "base")
        assert torch.equal(torch.get_rng_state(), before)
        states.append(torch.cat([weight.detach().flatten() for weight in trainable_parameters(loaded.model).values()]))
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_layers_that_are_not_there_are_refused():
    for name in ("q_prog", "lm_head", "embed_tokens"):
        loaded = tiny_model()
        with pytest.raises(ConfigError, match=f"lora_targets has '{name}'.*q_proj"):
            add_adapter(loaded.model, 2, 32, 0.0, ["q_proj", name], 0, "base")
        assert all(parameter.requires_grad for parameter in loaded.model.parameters())


def test_a_twin_shares_all_but_the_adapter():
    loaded = with_adapter(tiny_model())
    other = clone_model(loaded.model)
    ours, theirs = dict(loaded.model.named_parameters()), dict(other.named_parameters())
    assert ours.keys() == theirs.keys()
    own = {name for name in ours if ours[name].data_ptr() != theirs[name].data_ptr()}
    assert own == trainable_parameters(loaded.model).keys()
    wanted = logits(loaded.model)
    assert torch.equal(logits(other), wanted)
    with torch.no_grad():
        for weight in trainable_parameters(other).values():
            weight.mul_(2)
    assert torch.equal(logits(loaded.model), wanted)
    copy_weights(other, trainable_parameters(loaded.model))
    assert torch.equal(logits(other), wanted)


def test_a_twin_of_a_model_that_is_trained_as_a_whole_shares_nothing():
    model = tiny_model().model
    ours, theirs = ({p.data_ptr() for p in one.parameters()} for one in (model, clone_model(model)))
    assert not ours & theirs


@pytest.mark.parametrize("arch", ["llama", "lfm2", "gemma2"])
async def test_switched_off_it_is_the_base_to_the_bit(arch: str):
    wanted = logits(tiny_model(arch).model)
    loaded = with_adapter(tiny_model(arch))
    other = clone_model(loaded.model)
    disable_adapters(other)
    assert torch.equal(logits(other), wanted)
    assert not torch.equal(logits(loaded.model), wanted)
    said = [
        await EngineClient.from_model(loaded._replace(model=model)).engine.generate(
            [5, 6, 7], SamplingParams(max_tokens=6), seed=1
        )
        for model in (other, tiny_model(arch).model)
    ]
    assert said[0].logprobs == said[1].logprobs


def test_weights_of_the_adapter_alone_travel():
    loaded = with_adapter(tiny_model())
    engine = Engine(clone_model(loaded.model), [])
    some = dict(list(trainable_parameters(loaded.model).items())[1:])
    for wrong in (some, {**trainable_parameters(loaded.model), "other": torch.zeros(1)}):
        with pytest.raises(ConfigError, match="weights do not match the model"):
            engine.update_weights(1, wrong)
    engine.update_weights(1, {name: weight * 3 for name, weight in trainable_parameters(loaded.model).items()})
    engine.update_weights(2, dict(loaded.model.named_parameters()))  # or all of them
    assert torch.equal(logits(engine.model), logits(loaded.model))


def test_an_adapter_of_an_adapter(tmp_path: Path):
    """SFT with one and RL with the next: each folder's base is the one before."""
    written(tmp_path, tiny_model())
    first = load_model(tmp_path / "adapter", device="cpu")
    both = with_adapter(first, tmp_path / "adapter", seed=2)
    both.save(tmp_path / "second")
    assert_close(logits(load_model(tmp_path / "second", device="cpu").model), logits(both.model))


def test_what_tells_its_weights_from_others_is_its_bases_too(tmp_path: Path):
    loaded = written(tmp_path, tiny_model())
    adapter, name = tmp_path / "adapter", digest_model(tmp_path / "adapter")
    assert adapter_base(adapter) == str(tmp_path / "base")
    assert adapter_base(tmp_path / "base") is None
    assert load_model(adapter, device="cpu").name == name
    assert name.endswith(f" on {digest_model(tmp_path / 'base')}")
    loaded.save(adapter)
    assert digest_model(adapter) == name
    tiny_model(seed=7).save(tmp_path / "base")
    assert digest_model(adapter) != name


def spoil(folder: Path, what: str) -> None:
    config, weights = folder / "adapter/adapter_config.json", folder / "adapter/adapter_model.safetensors"
    told, held = json.loads(config.read_text()), load_file(weights)
    if what == "base gone":
        (folder / "base").rename(folder / "elsewhere")
    elif what == "no base":
        config.write_text(json.dumps({**told, "base_model_name_or_path": None}))
    elif what == "torn":
        config.write_text("{")
    elif what == "no weights":
        weights.unlink()
    elif what == "torn weights":
        weights.write_bytes(b"none")
    elif what == "other shape":
        config.write_text(json.dumps({**told, "r": 5}))
    elif what == "some missing":
        held.popitem()
        save_file(held, weights)
    elif what == "other model":
        tiny_model("lfm2").save(folder / "base")
        (folder / "adapter/base.txt").unlink()  # as PEFT writes it
    elif what == "other weights":
        tiny_model(seed=7).save(folder / "base")


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("base gone", "expected a folder.*set base_model_name_or_path in .*adapter_config.json"),
        ("no base", "has no base_model_name_or_path"),
        ("torn", "adapter_config.json cannot be read"),
        ("no weights", "cannot be put into its base model.*adapter_model.safetensors"),
        ("torn weights", "cannot be put into its base model"),
        ("other shape", "cannot be put into its base model.*size mismatch"),
        ("some missing", "does not fit its base model: .*'.*lora_"),
        ("other model", "does not fit its base model|cannot be put into its base"),
        (
            "other weights",
            r"was trained on another model \(folder#\w+\) than .*/base \(folder#\w+\).*delete .*base.txt",
        ),
    ],
)
def test_what_cannot_be_loaded_is_told(tmp_path: Path, what: str, said: str):
    written(tmp_path, tiny_model())
    spoil(tmp_path, what)
    with pytest.raises(ConfigError, match=said):
        load_model(tmp_path / "adapter", device="cpu")


def test_where_there_is_none_it_is_told_where_one_is(tmp_path: Path):
    written(tmp_path, tiny_model())
    with pytest.raises(ConfigError, match="is not an adapter: it has no adapter_config.json"):
        load_adapter(tmp_path / "base")
    (tmp_path / "adapter").rename(tmp_path / "final")
    with pytest.raises(ConfigError, match="did you mean .*final"):
        load_adapter(tmp_path)
    with pytest.raises(ConfigError, match="did you mean .*final"):
        load_model(tmp_path)


def test_without_peft_what_to_install_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    written(tmp_path, tiny_model())
    monkeypatch.setattr(load, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'rove\[train\]'"):
        load_model(tmp_path / "adapter")


def test_its_tensors_are_the_weights_themselves():
    loaded = with_adapter(tiny_model())
    assert isinstance(loaded.adapter, Adapter)
    places = {tensor.data_ptr() for tensor in loaded.tensors().values()}
    assert places == {weight.data_ptr() for weight in trainable_parameters(loaded.model).values()}
