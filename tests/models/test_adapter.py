"""LoRA adapters: equal results in training, merged, in PEFT and in the engine; saving, cloning and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import bpe_tokenizer, tiny_model
from families import FAMILIES, FAST, assert_matches_recomputation, family_model
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners import lora
from safetensors.torch import load_file, save_file
from tiers import first_quick
from tiny_families import tiny_config
from transformers import AutoModelForCausalLM

from rove.core.digest import adapter_base, digest_model
from rove.core.errors import ConfigError
from rove.core.protocols import SamplingParams
from rove.engine.client import EngineClient
from rove.engine.engine import Engine
from rove.models import load
from rove.models.adapter import Adapter, FastLoRA, add_adapter, describe_coverage
from rove.models.linear import FastLinear
from rove.models.load import (
    LoadedModel,
    check_model,
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
    loaded: LoadedModel,
    base: Path | str = "nowhere",
    seed: int = 1,
    *,
    rank: int = 3,
    alpha: float = 6.0,
    **overrides: Any,
) -> LoadedModel:
    """Return the model with a random adapter that changes the logits measurably."""
    options = {"dropout": 0.0, "targets": [], **overrides}
    adapter = add_adapter(loaded.model, rank, alpha, **options, seed=seed, base=str(base))
    generator, strength = torch.Generator().manual_seed(seed), 0.2 * (2 * rank / alpha) ** 0.5
    with torch.no_grad():
        for weight in trainable_parameters(loaded.model).values():
            weight.copy_(strength * torch.randn(weight.shape, generator=generator))
    return loaded._replace(adapter=adapter)


def save_with_adapter(folder: Path, base: LoadedModel, seed: int = 1, **options: Any) -> LoadedModel:
    """Save `base` to folder/base and an adapter to folder/adapter; return the model with the adapter."""
    base.save(folder / "base")
    loaded = with_adapter(base, folder / "base", seed, **options)
    loaded.save(folder / "adapter")
    return loaded


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model(input_ids=IDS, use_cache=False).logits[0].clone()


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Assert equality within 1e-5 of the largest logit."""
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()


@pytest.mark.parametrize("family", first_quick(sorted(FAMILIES), 2))
def test_a_merged_adapter_gives_the_same_logits(family: str, tmp_path: Path):
    loaded = save_with_adapter(tmp_path, family_model(family))
    expected = logits(loaded.model)
    merged = load_model(tmp_path / "adapter", device="cpu")
    assert type(merged.model) is type(loaded.model)
    assert merged.adapter is None
    assert all(parameter.requires_grad for parameter in merged.model.parameters())
    assert not any("lora" in name for name, _ in merged.model.named_modules())
    assert_close(logits(merged.model), expected)
    assert (logits(load_model(tmp_path / "base", device="cpu").model) - expected).abs().max() > 0.1
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
def test_a_merged_adapter_gives_the_same_logits_for_any_settings(
    tmp_path_factory: Any, rank: int, alpha: float, targets: set[str], seed: int
):
    folder = tmp_path_factory.mktemp("any")
    loaded = save_with_adapter(folder, tiny_model(), seed, rank=rank, alpha=alpha, targets=sorted(targets))
    assert_close(logits(load_model(folder / "adapter", device="cpu").model), logits(loaded.model))
    names = {name.split(".lora_")[0].rpartition(".")[2] for name in trainable_parameters(loaded.model)}
    assert names == (targets or {"q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj"})
    config = json.loads((folder / "adapter/adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (rank, alpha, sorted(names))


@pytest.mark.parametrize("arch", first_quick(["llama", "qwen3", "lfm2", "gemma2"]))
def test_peft_can_load_saved_adapters(arch: str, tmp_path: Path):
    loaded = save_with_adapter(tmp_path, tiny_model(arch))
    peft_model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tmp_path / "base"), str(tmp_path / "adapter")
    )
    assert_close(logits(peft_model), logits(loaded.model))
    assert {file.name for file in (tmp_path / "adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "base.txt",
    }
    weights, config = (tmp_path / "adapter" / name for name in ("adapter_model.safetensors", "adapter_config.json"))
    assert weights.stat().st_mode == config.stat().st_mode


@pytest.mark.parametrize("arch", ["llama", "lfm2"])
async def test_the_engine_serves_an_adapter_by_name(arch: str, tmp_path: Path):
    save_with_adapter(tmp_path, tiny_model(arch))
    merged = load_model(tmp_path / "adapter", device="cpu")
    engine = Engine(load_model(tmp_path / "base", device="cpu").model, sorted(merged.renderer.stop_ids))
    engine.load_adapter("mine", tmp_path / "adapter")
    generation = await engine.generate(
        IDS[0].tolist(), SamplingParams(max_tokens=12, ignore_eos=True), seed=5, adapter="mine"
    )
    assert_matches_recomputation(merged, IDS[0].tolist(), generation, 5, 1.0)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("family", first_quick(sorted(FAMILIES)))
async def test_the_engine_samples_with_the_adapter_inside(family: str, native: bool):
    """The native path merges the adapter into its copies of the weights; the other path runs PEFT's modules."""
    loaded = family_model(family)
    engine = Engine(loaded.model, sorted(loaded.renderer.stop_ids), native=native)
    assert engine.is_fast == (family in FAST)
    generation_before = await engine.generate(IDS[0].tolist(), SamplingParams(max_tokens=8, ignore_eos=True), seed=2)
    loaded = with_adapter(loaded)
    engine = Engine(loaded.model, sorted(loaded.renderer.stop_ids), native=native)
    logprobs = []
    for version in (1, 2):
        engine.update_weights(
            version, {name: weight / version for name, weight in trainable_parameters(loaded.model).items()}
        )
        generation = await engine.generate(IDS[0].tolist(), SamplingParams(max_tokens=8, ignore_eos=True), seed=2)
        assert_matches_recomputation(loaded, IDS[0].tolist(), generation, 2, 1.0)
        assert generation.policy_version == version
        logprobs.append(generation.logprobs)
    assert logprobs[0] != logprobs[1] != generation_before.logprobs


@pytest.mark.parametrize("arch", ["llama", "qwen3", "lfm2", "gemma2"])
def test_a_new_adapter_does_not_change_logits_and_only_it_is_trained(arch: str):
    loaded = tiny_model(arch)
    first_logits = logits(loaded.model)
    linear_layers = {name for name, layer in loaded.model.named_modules() if isinstance(layer, torch.nn.Linear)} - {
        "lm_head"
    }
    add_adapter(loaded.model, 2, 32, 0.0, [], 0, "base")
    assert torch.equal(logits(loaded.model), first_logits)
    assert {name.split(".lora_")[0] for name in trainable_parameters(loaded.model)} == linear_layers
    loaded.model(input_ids=IDS).logits.logsumexp(-1).sum().backward()
    with_gradient = {name for name, parameter in loaded.model.named_parameters() if parameter.grad is not None}
    assert with_gradient == trainable_parameters(loaded.model).keys()
    assert all(".lora_" in name for name in with_gradient)


def test_adding_an_adapter_keeps_the_model_class_packing_and_fast_layers():
    """The class, packing and fast linear layers of the model do not change, and the LoRA layers are fast, too."""
    loaded = tiny_model()
    model_class = type(loaded.model)
    fast_layers = sum(isinstance(layer, FastLinear) for layer in loaded.model.modules())
    add_adapter(loaded.model, 2, 32, 0.1, [], 0, "base")
    assert type(loaded.model) is model_class
    assert can_pack(loaded.model)
    assert sum(isinstance(layer, FastLinear) for layer in loaded.model.modules()) == fast_layers
    assert sum(isinstance(layer, FastLoRA) for layer in loaded.model.modules()) == 7 * 2
    assert not any(layer.training for layer in loaded.model.modules())


@settings(deadline=None, max_examples=20)
@given(
    shape=st.sampled_from([(5,), (2, 5), (1, 1), (3, 2, 2)]),
    rank=st.integers(1, 5),
    bf16=st.booleans(),
    first=st.booleans(),
)
def test_a_fast_lora_layer_matches_the_layer_of_peft(shape: tuple[int, ...], rank: int, bf16: bool, first: bool):
    """Outputs and gradients agree up to rounding (of bf16 if set), also without gradients of the inputs."""
    loaded = with_adapter(tiny_model(), rank=rank)
    layer = loaded.model.model.layers[0].mlp.up_proj
    assert type(layer) is FastLoRA
    layer.base_layer.backward_dtype = torch.bfloat16 if bf16 else torch.float32
    x = torch.randn(*shape, 32, generator=torch.Generator().manual_seed(rank))
    results = []
    for forward in (FastLoRA.forward, lora.Linear.forward):
        x_input = x.clone().requires_grad_(not first)
        out = forward(layer, x_input)
        layer.zero_grad()
        (out.tanh() * torch.linspace(-1, 1, 64)).sum().backward()
        assert layer.base_layer.weight.grad is None
        grads = [layer.lora_A["default"].weight.grad, layer.lora_B["default"].weight.grad]
        with torch.no_grad():
            torch.testing.assert_close(forward(layer, x), out.detach(), rtol=0, atol=0)
        results.append([out.detach(), *grads, *([] if first else [x_input.grad])])
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-5, atol=1e-5)
    rove_grads, peft_grads = (torch.cat([grad.flatten() for grad in grads]) for _, *grads in results)
    assert (rove_grads - peft_grads).norm() <= (3e-2 if bf16 else 1e-5) * peft_grads.norm()


def test_initial_adapter_weights_depend_only_on_the_seed():
    states = []
    for seed, global_seed in ((0, 0), (0, 3), (1, 0)):
        torch.manual_seed(global_seed)
        loaded = tiny_model()
        rng_state_before = torch.get_rng_state()
        add_adapter(loaded.model, 2, 32, 0.0, [], seed, "base")
        assert torch.equal(torch.get_rng_state(), rng_state_before)
        states.append(torch.cat([weight.detach().flatten() for weight in trainable_parameters(loaded.model).values()]))
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_unknown_target_layers_are_rejected():
    for name in ("q_prog", "lm_head", "embed_tokens"):
        loaded = tiny_model()
        with pytest.raises(ConfigError, match=f"lora.targets has '{name}'.*q_proj"):
            add_adapter(loaded.model, 2, 32, 0.0, ["q_proj", name], 0, "base")
        assert all(parameter.requires_grad for parameter in loaded.model.parameters())


def test_a_clone_shares_all_weights_but_the_adapter():
    loaded = with_adapter(tiny_model())
    clone = clone_model(loaded.model)
    ours, cloned = dict(loaded.model.named_parameters()), dict(clone.named_parameters())
    assert ours.keys() == cloned.keys()
    not_shared = {name for name in ours if ours[name].data_ptr() != cloned[name].data_ptr()}
    assert not_shared == trainable_parameters(loaded.model).keys()
    expected = logits(loaded.model)
    assert torch.equal(logits(clone), expected)
    with torch.no_grad():
        for weight in trainable_parameters(clone).values():
            weight.mul_(2)
    assert torch.equal(logits(loaded.model), expected)
    copy_weights(clone, trainable_parameters(loaded.model))
    assert torch.equal(logits(clone), expected)


def test_a_clone_of_a_fully_trained_model_shares_no_weights():
    model = tiny_model().model
    ours, cloned = ({p.data_ptr() for p in m.parameters()} for m in (model, clone_model(model)))
    assert not ours & cloned


@pytest.mark.parametrize("arch", first_quick(["llama", "lfm2", "gemma2"]))
async def test_with_adapters_disabled_the_model_equals_the_base_exactly(arch: str):
    expected = logits(tiny_model(arch).model)
    loaded = with_adapter(tiny_model(arch))
    disabled = clone_model(loaded.model)
    disable_adapters(disabled)
    assert torch.equal(logits(disabled), expected)
    assert not torch.equal(logits(loaded.model), expected)
    generations = [
        await EngineClient.from_model(loaded._replace(model=model)).engine.generate(
            [5, 6, 7], SamplingParams(max_tokens=6), seed=1
        )
        for model in (disabled, tiny_model(arch).model)
    ]
    assert generations[0].logprobs == generations[1].logprobs


def test_the_engine_accepts_adapter_weights_or_all_weights():
    loaded = with_adapter(tiny_model())
    engine = Engine(clone_model(loaded.model), [])
    incomplete = dict(list(trainable_parameters(loaded.model).items())[1:])
    for wrong in (incomplete, {**trainable_parameters(loaded.model), "other": torch.zeros(1)}):
        with pytest.raises(ConfigError, match="weights do not match the model"):
            engine.update_weights(1, wrong)
    engine.update_weights(1, {name: weight * 3 for name, weight in trainable_parameters(loaded.model).items()})
    engine.update_weights(2, dict(loaded.model.named_parameters()))  # all weights are accepted, too
    assert torch.equal(logits(engine.model), logits(loaded.model))


@pytest.mark.broad
def test_the_base_of_an_adapter_can_be_an_adapter(tmp_path: Path):
    """For example SFT with one adapter and RL with the next: the base of each folder is the previous one."""
    save_with_adapter(tmp_path, tiny_model())
    first = load_model(tmp_path / "adapter", device="cpu")
    with_both = with_adapter(first, tmp_path / "adapter", seed=2)
    with_both.save(tmp_path / "second")
    assert_close(logits(load_model(tmp_path / "second", device="cpu").model), logits(with_both.model))


def save_peft_adapter(folder: Path, tied: bool, **settings: Any) -> torch.Tensor:
    """Save a model and an adapter of it as a program that uses plain PEFT does; return the logits with the adapter."""
    base = tiny_model("qwen3")
    base.model.config.tie_word_embeddings = tied
    if not tied:
        base.model.lm_head.weight = torch.nn.Parameter(2.0 * base.model.lm_head.weight.detach())
    base.save(folder / "base")
    plain: Any = AutoModelForCausalLM.from_pretrained(folder / "base")
    wrapped: Any = get_peft_model(plain, LoraConfig(r=3, task_type="CAUSAL_LM", **settings))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in trainable_parameters(wrapped).values():
            weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    wrapped.save_pretrained(str(folder / "adapter"))
    wrapped.eval()
    return logits(wrapped)


@pytest.mark.broad
def test_an_adapter_of_plain_peft_may_change_embeddings_and_head(tmp_path: Path):
    rows: dict[str, tuple[bool, dict[str, Any]]] = {
        "low rank": (False, {"target_modules": ["q_proj", "embed_tokens", "lm_head"]}),
        "saved whole": (False, {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]}),
        "saved whole, tied": (True, {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}),
    }
    for name, (tied, adapter_settings) in rows.items():
        expected = save_peft_adapter(tmp_path / name, tied, **adapter_settings)
        merged = load_model(tmp_path / name / "adapter", device="cpu")
        assert_close(logits(merged.model), expected)
        merged.save(tmp_path / name / "merged")
        assert_close(logits(AutoModelForCausalLM.from_pretrained(tmp_path / name / "merged")), expected)


@pytest.mark.parametrize("changed", ["embed_tokens", "lm_head"])
def test_a_low_rank_change_of_a_tied_head_or_its_embeddings_is_refused(changed: str, tmp_path: Path):
    save_peft_adapter(tmp_path, tied=True, target_modules=["q_proj", changed])
    with pytest.raises(
        ConfigError, match=rf"changes .*{changed}, whose weight is also that of the .* tie_word_embeddings = false"
    ):
        load_model(tmp_path / "adapter", device="cpu")


def test_the_digest_of_an_adapter_includes_its_base(tmp_path: Path):
    loaded = save_with_adapter(tmp_path, tiny_model())
    adapter, name = tmp_path / "adapter", digest_model(tmp_path / "adapter")
    assert adapter_base(adapter) == str(tmp_path / "base")
    assert adapter_base(tmp_path / "base") is None
    assert load_model(adapter, device="cpu").name == name
    assert name.endswith(f" on {digest_model(tmp_path / 'base')}")
    loaded.save(adapter)
    assert digest_model(adapter) == name
    tiny_model(seed=7).save(tmp_path / "base")
    assert digest_model(adapter) != name


@pytest.mark.parametrize("length", [1, 2, 3])
def test_adapters_that_are_each_others_base_are_an_error(tmp_path: Path, length: int):
    folders = [tmp_path / f"adapter{number}" for number in range(length)]
    for folder, base in zip(folders, [*folders[1:], folders[0]], strict=True):
        folder.mkdir()
        (folder / "adapter_config.json").write_text(f'{{"base_model_name_or_path": "{base.as_posix()}"}}')
    for read in (adapter_base, digest_model, check_model, load_model):
        with pytest.raises(ConfigError, match=r"its bases form a cycle: .*adapter0 -> .*adapter0; set"):
            read(folders[0])


def damage(folder: Path, damage_name: str) -> None:
    config, weights = folder / "adapter/adapter_config.json", folder / "adapter/adapter_model.safetensors"
    values, tensors = json.loads(config.read_text()), load_file(weights)
    if damage_name == "base gone":
        (folder / "base").rename(folder / "elsewhere")
    elif damage_name == "no base":
        config.write_text(json.dumps({**values, "base_model_name_or_path": None}))
    elif damage_name == "torn":
        config.write_text("{")
    elif damage_name == "no weights":
        weights.unlink()
    elif damage_name == "torn weights":
        weights.write_bytes(b"none")
    elif damage_name == "other shape":
        config.write_text(json.dumps({**values, "r": 5}))
    elif damage_name == "some missing":
        tensors.popitem()
        save_file(tensors, weights)
    elif damage_name == "other model":
        tiny_model("lfm2").save(folder / "base")
        (folder / "adapter/base.txt").unlink()  # PEFT does not write this file
    elif damage_name == "other weights":
        tiny_model(seed=7).save(folder / "base")


@pytest.mark.parametrize(
    ("defect", "message"),
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
def test_adapters_that_cannot_be_loaded_are_rejected_with_the_cause(tmp_path: Path, defect: str, message: str):
    save_with_adapter(tmp_path, tiny_model())
    damage(tmp_path, defect)
    with pytest.raises(ConfigError, match=message):
        load_model(tmp_path / "adapter", device="cpu")


def test_a_missing_adapter_is_an_error_that_suggests_a_folder(tmp_path: Path):
    save_with_adapter(tmp_path, tiny_model())
    with pytest.raises(ConfigError, match="is not an adapter: it has no adapter_config.json"):
        load_adapter(tmp_path / "base")
    (tmp_path / "adapter").rename(tmp_path / "final")
    with pytest.raises(ConfigError, match="did you mean .*final"):
        load_adapter(tmp_path)
    with pytest.raises(ConfigError, match="did you mean .*final"):
        load_model(tmp_path)


def test_a_missing_peft_package_is_an_error_that_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    save_with_adapter(tmp_path, tiny_model())
    monkeypatch.setattr(load, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'rove\[train\]'"):
        load_model(tmp_path / "adapter")


def test_adapter_tensors_share_memory_with_the_weights():
    loaded = with_adapter(tiny_model())
    assert isinstance(loaded.adapter, Adapter)
    addresses = {tensor.data_ptr() for tensor in loaded.tensors().values()}
    assert addresses == {weight.data_ptr() for weight in trainable_parameters(loaded.model).values()}


def family_on_meta(family: str) -> Any:
    """Return a family's tiny model without memory for its weights."""
    config = tiny_config(family, bpe_tokenizer())
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize(
    ("family", "targets"),
    [
        ("llama", ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]),
        ("gpt2", ["c_attn", "c_fc", "c_proj"]),
        # Without the router, whose output is a tuple.
        ("llama4_text", ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]),
        ("phimoe", ["k_proj", "o_proj", "q_proj", "v_proj"]),
        # Without dt_proj, whose weight is read past the adapter, and out_proj, which PEFT refuses.
        ("mamba", ["in_proj", "x_proj"]),
        ("mamba2", ["in_proj"]),
        ("nemotron_h", ["down_proj", "in_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]),
    ],
)
def test_the_default_targets_are_the_linear_layers_that_peft_adapts(family: str, targets: list[str]):
    model = family_on_meta(family)
    add_adapter(model, 2, 4.0, 0.0, [], seed=0, base="nowhere")
    assert sorted(model.peft_config["default"].target_modules) == targets


def test_layers_are_named_in_full_if_another_module_has_the_same_last_part():
    model = family_on_meta("zamba2")
    add_adapter(model, 2, 4.0, 0.0, [], seed=0, base="nowhere")
    numbered = {name for name in model.peft_config["default"].target_modules if name.endswith((".0", ".1"))}
    block = "model.layers.1.shared_transformer.feed_forward.gate_up_proj_adapter_list.0"
    assert numbered == {f"{block}.0", f"{block}.1"}


def test_layers_with_shared_weights_are_not_adapted():
    model = tiny_model().model
    first, second = model.model.layers
    second.mlp.up_proj.weight = first.mlp.up_proj.weight
    with pytest.raises(ConfigError, match=r"lora.targets has 'up_proj', but .* shares its weight with other layers"):
        add_adapter(model, 2, 4.0, 0.0, ["up_proj"], seed=0, base="nowhere")
    add_adapter(model, 2, 4.0, 0.0, [], seed=0, base="nowhere")
    assert "up_proj" not in model.peft_config["default"].target_modules


def test_a_layer_that_peft_cannot_adapt_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match=r"lora.targets has 'dt_proj', but .* is used by its weight alone"):
        add_adapter(family_on_meta("jamba"), 2, 4.0, 0.0, ["dt_proj"], seed=0, base="nowhere")


def test_an_adapter_leaves_out_the_layers_that_read_images():
    model = family_on_meta("gemma3")
    assert any("vision_tower" in path for path, _ in model.named_modules())
    add_adapter(model, 2, 4.0, 0.0, [], seed=0, base="nowhere")
    adapted = [path for path, module in model.named_modules() if isinstance(module, lora.Linear)]
    assert adapted
    assert all("language_model" in path for path in adapted)


def test_the_coverage_counts_adapted_layers_and_experts():
    dense = describe_coverage(family_on_meta("llama"), ["q_proj"])
    assert dense == "the adapter covers 2 layers with 5.2% of the model's parameters"
    experts = describe_coverage(family_on_meta("mixtral"), [])
    assert experts.endswith("8.1% of the model's parameters; the experts, 64.5%, stay as they are")
