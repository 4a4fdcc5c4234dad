"""Adapters generate the same tokens as merged weights in any batch; unsupported adapters are refused."""

from __future__ import annotations

import asyncio
import copy
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import torch
from fakes import tiny_model
from families import FAST, assert_matches_recomputation, family_model
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tiers import each_row, first_quick, some_broad

from rove.core.errors import ConfigError
from rove.core.protocols import Generation, SamplingParams
from rove.engine.client import EngineClient
from rove.engine.engine import Engine
from rove.engine.lora import PeftWeights, adapter_hooks, projections
from rove.models.load import LoadedModel
from rove.server import base_url_of, listening, make_app
from tests.server.test_server import post

ADAPTERS = (None, "a", "b")
ConversationPlan = tuple[str | None, int, list[int], int, float, int, int]


def adapter_of(loaded: LoadedModel, seed: int, targets: tuple[str, ...] = (), r: int = 3, **config: Any) -> PeftWeights:
    """Return a random adapter of the projections in `targets` (default: all), large enough to change the output."""
    torch.manual_seed(seed)
    tensors = {}
    modules = [name for projection in projections(loaded.model).values() for name in projection]
    for name in modules:
        if not targets or name.endswith(targets):
            out, into = loaded.model.get_submodule(name).weight.shape
            tensors[f"base_model.model.{name}.lora_A.weight"] = 0.3 * torch.randn(r, into)
            tensors[f"base_model.model.{name}.lora_B.weight"] = 0.3 * torch.randn(out, r)
    config_fields = {
        "peft_type": "LORA",
        "r": r,
        "lora_alpha": 2 * r,
        "target_modules": list(targets) or modules,
        "bias": "none",
    }
    return PeftWeights(
        tensors, {**config_fields, "lora_dropout": 0.1, "use_dora": False, "modules_to_save": None, **config}
    )


def merge_adapter(loaded: LoadedModel, weights: PeftWeights | None, scale: float = 2.0) -> LoadedModel:
    """Return a copy of the model with the adapter merged into its weights."""
    model = copy.deepcopy(loaded.model)
    tensors = weights.tensors if weights else {}
    with torch.no_grad():
        for key, a in tensors.items():
            if ".lora_A." in key:
                weight = model.get_submodule(key.removeprefix("base_model.model.").split(".lora_A")[0]).weight
                weight += (scale * tensors[key.replace(".lora_A.", ".lora_B.")] @ a).to(weight.dtype)
    return loaded._replace(model=model)


def save(weights: PeftWeights, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(dict(weights.tensors), folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(weights.config))
    return folder


@cache
def model_with_adapters(family: str) -> tuple[LoadedModel, dict[str | None, LoadedModel], dict[str, PeftWeights]]:
    """Return a model, its merged variants by adapter name, and two adapters: one of all modules, one of attention only."""
    loaded = family_model(family)
    adapters = {"a": adapter_of(loaded, 1), "b": adapter_of(loaded, 2, ("q_proj", "v_proj"), r=2)}
    return loaded, {name: merge_adapter(loaded, adapters.get(name or "")) for name in ADAPTERS}, adapters


def engine_with(family: str, **options: Any) -> Engine:
    loaded, _, adapters = model_with_adapters(family)
    engine = Engine(loaded.model, sorted(loaded.renderer.stop_ids), **options)
    for i, (name, weights) in enumerate(adapters.items()):
        engine.load_adapter(name, weights, version=i + 1)
    return engine


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("family", some_broad(sorted(FAST), 4))
async def test_an_adapter_generates_the_same_as_merged_weights(family: str, native: bool):
    _, models, _ = model_with_adapters(family)
    engine = engine_with(family, native=native)
    assert engine.adapters == ["a", "b"]
    prompt = list(range(40, 70))
    generated_ids = []
    for version, name in enumerate(ADAPTERS):
        for temperature in (0.0, 1.0):
            sampling = SamplingParams(temperature=temperature, max_tokens=16, ignore_eos=True, prompt_logprobs=0)
            generation = await engine.generate(prompt, sampling, seed=3, adapter=name)
            assert_matches_recomputation(models[name], prompt, generation, 3, temperature)
            assert generation.policy_version == version
            scored = Engine(models[name].model, []).score(prompt)
            assert generation.prompt_logprobs == pytest.approx(scored, abs=1e-4)
            generated_ids.append(generation.ids)
    assert len(set(map(tuple, generated_ids))) == len(generated_ids)


@pytest.mark.parametrize("native", some_broad([True, False], 2))
@pytest.mark.parametrize("family", some_broad(["llama", "qwen3", "gemma", "lfm2"], 4))
def test_adapters_in_one_batch_generate_the_same_as_each_alone(family: str, native: bool):
    _, models, _ = model_with_adapters(family)
    plans = st.tuples(
        st.sampled_from(ADAPTERS),
        st.integers(0, 2),  # which of three shared prefixes
        st.lists(st.integers(0, 300), max_size=30),
        st.integers(1, 12),  # max_tokens
        st.sampled_from([0.0, 0.7, 1.0]),
        st.integers(0, 6),  # passes of the event loop before it arrives
        st.integers(1, 3),  # turns
    )

    async def converse(engine: Engine, seed: int, conversation: ConversationPlan) -> list[tuple[list[int], Generation]]:
        adapter, beginning, end, max_tokens, temperature, wait, turns = conversation
        prompt = [[7], [*range(40, 65)], [*range(90, 190)]][beginning] + end
        turn_results = []
        for _ in range(turns):
            for _ in range(5 * wait):
                await asyncio.sleep(0)
            sampling = SamplingParams(temperature=temperature, max_tokens=max_tokens)
            generation = await engine.generate(prompt, sampling, seed=seed, adapter=adapter)
            turn_results.append((prompt, generation))
            prompt = [*prompt, *generation.ids, *end[:5], 3]
        return turn_results

    @settings(deadline=None, max_examples=12)
    @given(
        st.lists(plans, min_size=2, max_size=8),
        st.sampled_from([1, 5, 32, 2048]),
        st.integers(2, 8),
        st.sampled_from([1 << 18, 1 << 24]),
    )
    def check(requests: list[ConversationPlan], chunk: int, batch: int, memory: int) -> None:
        engine = engine_with(family, max_batch=batch, cache_bytes=memory, chunk=chunk, native=native)

        async def run_all() -> list[list[tuple[list[int], Generation]]]:
            return await asyncio.gather(*(converse(engine, i, plan) for i, plan in enumerate(requests)))

        for i, turn_results in enumerate(asyncio.run(run_all())):
            name, temperature = requests[i][0], requests[i][4]
            for prompt, generation in turn_results:
                assert_matches_recomputation(models[name], prompt, generation, i, temperature)
                assert generation.policy_version == ADAPTERS.index(name)

    check()


@pytest.mark.broad
@pytest.mark.parametrize("native", first_quick([True, False], broad=0))
async def test_preempted_requests_resume_with_their_adapter(native: bool):
    _, models, _ = model_with_adapters("qwen3")
    engine = engine_with("qwen3", native=native, cache_bytes=384 * 512)  # keys and values of 384 positions
    sampling = SamplingParams(max_tokens=100, ignore_eos=True)
    prompts = [[*range(i, i + 40)] for i in range(6)]
    generations = await asyncio.gather(
        *(engine.generate(prompt, sampling, seed=i, adapter=ADAPTERS[i % 3]) for i, prompt in enumerate(prompts))
    )
    assert engine.computed_tokens > 6 * 139  # some tokens were computed twice
    for i, prompt in enumerate(prompts):
        assert_matches_recomputation(models[ADAPTERS[i % 3]], prompt, generations[i], i, 1.0)


async def test_prefixes_are_shared_only_between_requests_with_the_same_adapter():
    engine = engine_with("qwen3")
    prompt = list(range(10, 50))
    one_token = SamplingParams(max_tokens=1)
    await asyncio.gather(*(engine.generate(prompt, one_token, seed=i, adapter=ADAPTERS[i % 3]) for i in range(9)))
    assert engine.computed_tokens == 3 * (40 + 2)
    await engine.generate([*prompt, 5], one_token, adapter="a")
    assert engine.computed_tokens == 3 * (40 + 2) + 1


@pytest.mark.broad
async def test_a_row_that_moves_to_a_larger_row_keeps_its_adapter():
    _, models, _ = model_with_adapters("qwen3")
    engine = engine_with("qwen3")
    prompt, sampled = list(range(10, 50)), []
    long = asyncio.create_task(
        engine.generate(prompt, SamplingParams(max_tokens=150, ignore_eos=True), 1, lambda *_: sampled.append(1), "a")
    )
    while len(sampled) < 120:  # noqa: ASYNC110  until the request has moved to a larger row
        await asyncio.sleep(0)
    other_generation = await engine.generate(prompt, SamplingParams(max_tokens=4), seed=2)
    assert not long.done()
    assert_matches_recomputation(models[None], prompt, other_generation, 2, 1.0)
    longer = [*prompt, *(await long).ids, 5]
    for name in ADAPTERS:
        assert_matches_recomputation(
            models[name], longer, await engine.generate(longer, SamplingParams(max_tokens=4), 3, None, name), 3, 1.0
        )


async def test_loading_an_adapter_under_the_same_name_replaces_it():
    loaded, models, adapters = model_with_adapters("qwen3")
    engine = engine_with("qwen3")
    prompt, one_token = list(range(10, 50)), SamplingParams(max_tokens=1)
    for name in ADAPTERS:
        await engine.generate(prompt, one_token, adapter=name)
    assert engine.adapters == ["a", "b"]
    reusable = engine._runner.cache.reusable  # pyright: ignore[reportAttributeAccessIssue]
    assert len(reusable) == 3
    engine.load_adapter("a", adapters["b"], version=7)
    assert len(reusable) == 2
    assert engine.adapters == ["a", "b"]
    computed_tokens_before = engine.computed_tokens
    generation = await engine.generate(prompt, SamplingParams(max_tokens=8), seed=1, adapter="a")
    assert_matches_recomputation(models["b"], prompt, generation, 1, 1.0)
    assert (generation.policy_version, engine.policy_version) == (7, 0)
    # No keys and values of the old adapter were used.
    assert engine.computed_tokens - computed_tokens_before == 40 + len(generation.ids) - 1
    computed_tokens_before = engine.computed_tokens
    for name in (None, "b"):
        await engine.generate(prompt, one_token, adapter=name)
    assert engine.computed_tokens - computed_tokens_before == 2  # keys and values of the other adapters are kept
    engine.drop_adapter("a")
    assert engine.adapters == ["b"]
    with pytest.raises(ConfigError, match="no adapter 'a' is loaded; known: b"):
        engine.drop_adapter("a")
    with pytest.raises(ConfigError, match="no adapter 'a' is loaded"):
        await engine.generate(prompt, one_token, adapter="a")
    assert not [h for module in loaded.model.modules() for h in module._forward_hooks]


async def test_an_adapter_in_use_cannot_be_replaced_or_dropped():
    _, models, adapters = model_with_adapters("qwen3")
    engine = engine_with("qwen3")
    running = asyncio.create_task(engine.generate([5], SamplingParams(max_tokens=30, ignore_eos=True), adapter="a"))
    await asyncio.sleep(0)
    for forbidden in (lambda: engine.load_adapter("a", adapters["b"]), lambda: engine.drop_adapter("a")):
        with pytest.raises(ConfigError, match="1 requests with the adapter 'a' are running"):
            forbidden()
    engine.load_adapter("b", adapters["a"])
    engine.drop_adapter("b")
    assert_matches_recomputation(models["a"], [5], await running, 0, 1.0)
    cancelled = asyncio.create_task(engine.generate([5], SamplingParams(max_tokens=30), adapter="a"))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    engine.drop_adapter("a")
    assert engine.adapters == []


async def test_adapters_are_kept_when_the_base_weights_change():
    loaded = family_model("qwen3")
    adapter = adapter_of(loaded, 1)
    engine = Engine(loaded.model, [])
    engine.load_adapter("a", adapter, version=4)
    prompt = list(range(10, 50))
    await engine.generate(prompt, SamplingParams(max_tokens=2), adapter="a")
    engine.update_weights(1, dict(family_model("qwen3", seed=5).model.named_parameters()))
    generation = await engine.generate(prompt, SamplingParams(max_tokens=8), seed=1, adapter="a")
    assert generation.policy_version == 4
    assert_matches_recomputation(merge_adapter(loaded, adapter), prompt, generation, 1, 1.0)


@pytest.mark.parametrize(
    ("config", "scales"),
    [
        ({}, {}),
        ({"use_rslora": True}, {".": 8 / math.sqrt(4)}),
        ({"alpha_pattern": {"layers.1.mlp.up_proj": 2, "k_proj": 1}}, {"1.mlp.up_proj": 0.5, "k_proj": 0.25}),
        ({"target_modules": "all-linear"}, {}),
        ({"target_modules": r".*\.(self_attn|mlp)\.\w+_proj"}, {}),
        ({"rank_pattern": {r"layers\.\d+\.mlp\.up_proj": 4, "other": 9}, "init_lora_weights": "gaussian"}, {}),
    ],
)
async def test_peft_config_fields_have_their_peft_meaning(
    config: dict[str, Any], scales: dict[str, float], tmp_path: Path
):
    loaded, _, _ = model_with_adapters("llama")
    adapter = adapter_of(loaded, 3, r=4, **config)
    expected = merge_adapter(loaded, None)
    for key in adapter.tensors:
        scale = next((value for end, value in scales.items() if end in key), 2.0)
        module_tensors = {
            name: tensor
            for name, tensor in adapter.tensors.items()
            if name.split(".lora_")[0] == key.split(".lora_")[0]
        }
        if ".lora_A." in key:
            expected = merge_adapter(expected, PeftWeights(module_tensors, {}), scale)
    engine = Engine(loaded.model, [])
    engine.load_adapter("a", save(adapter, tmp_path / "a"))
    generation = await engine.generate([5, 6, 7], SamplingParams(max_tokens=16), seed=2, adapter="a")
    assert_matches_recomputation(expected, [5, 6, 7], generation, 2, 1.0)
    engine.load_adapter("a", str(tmp_path / "a"))


async def test_ranks_may_differ_between_modules():
    loaded, _, _ = model_with_adapters("qwen3")
    first, second = adapter_of(loaded, 1, ("q_proj",), r=1), adapter_of(loaded, 2, ("k_proj", "up_proj"), r=5)
    config_fields = {"target_modules": ["q_proj", "k_proj", "up_proj"], "r": 5, "lora_alpha": 10}
    adapter = PeftWeights(
        {**first.tensors, **second.tensors},
        {**second.config, **config_fields, "rank_pattern": {"q_proj": 1}, "alpha_pattern": {"q_proj": 2}},
    )
    engine = Engine(loaded.model, [])
    engine.load_adapter("a", adapter)
    generation = await engine.generate([5, 6, 7], SamplingParams(max_tokens=16), seed=2, adapter="a")
    assert_matches_recomputation(merge_adapter(loaded, adapter), [5, 6, 7], generation, 2, 1.0)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("family", first_quick(["qwen3", "gemma", "lfm2"]))
async def test_bf16_stays_close_to_merged_bf16(family: str, native: bool):
    loaded = family_model(family, seed=2)
    adapter = adapter_of(loaded, 1)
    merged_model = merge_adapter(loaded, adapter)
    for model in (loaded.model, merged_model.model):
        model.to(torch.bfloat16)
    engine = Engine(loaded.model, [], native=native)
    engine.load_adapter("a", adapter)
    prompt = list(range(40, 80))
    generation, base_generation = await asyncio.gather(
        engine.generate(prompt, SamplingParams(max_tokens=20), seed=1, adapter="a"),
        engine.generate(prompt, SamplingParams(max_tokens=20), seed=1),
    )
    for model, result in ((merged_model.model, generation), (loaded.model, base_generation)):
        scored = Engine(model, []).score([*prompt, *result.ids])[-20:]
        assert sum(abs(a - b) for a, b in zip(result.logprobs, scored, strict=True)) / 20 < 0.2


def replace_tensors(adapter: PeftWeights, **tensors: torch.Tensor | None) -> PeftWeights:
    """Return a copy with tensors added, or removed if None; in names, `__` stands for a dot."""
    tensors_by_name = {**adapter.tensors, **{name.replace("__", "."): tensor for name, tensor in tensors.items()}}
    return adapter._replace(tensors={name: tensor for name, tensor in tensors_by_name.items() if tensor is not None})


Q_PROJ = "base_model__model__model__layers__0__self_attn__q_proj__lora_"


@each_row(
    ("config", "tensors", "reason"),
    [
        ({"peft_type": "LOHA"}, {}, "peft_type is 'LOHA'; expected 'LORA'"),
        ({"peft_type": None}, {}, "peft_type is None"),
        ({"use_dora": True}, {}, "use_dora = True; expected a plain LoRA"),
        ({"modules_to_save": ["lm_head"]}, {}, "modules_to_save = "),
        ({"bias": "all"}, {}, "bias = 'all'"),
        ({"lora_bias": True}, {}, "lora_bias = True"),
        ({"fan_in_fan_out": True}, {}, "fan_in_fan_out"),
        ({"trainable_token_indices": [1]}, {}, "trainable_token_indices"),
        ({"something_new": {"x": 1}}, {}, "something_new"),
        ({"init_lora_weights": "pissa_niter_4"}, {}, "init_lora_weights = 'pissa_niter_4'"),
        ({"r": "three"}, {}, "adapter_config.json: Expected `int`"),
        ({"r": None}, {}, "required field `r`"),
        ({"r": 0}, {}, "1 or more"),
        ({"r": 4}, {}, r"shapes \(3, 32\) and \(64, 3\); expected \(4, 32\) and \(64, 4\)"),
        ({"alpha_pattern": {"(": 1}}, {}, "invalid pattern"),
        ({"target_modules": ["q_proj"]}, {}, "k_proj', which target_modules"),
        ({"target_modules": r".*q_proj"}, {}, "k_proj', which target_modules"),
        ({"target_modules": ["_proj", "qkv_proj"]}, {}, "which target_modules"),
        ({}, {f"{Q_PROJ}B__weight": None}, "has no model.layers.0.self_attn.q_proj.lora_B.weight"),
        ({}, {f"{Q_PROJ}A__weight": torch.zeros(3, 33)}, "is it an adapter of another model"),
        ({}, {f"{Q_PROJ}B__weight": torch.zeros(3)}, "is it an adapter of another model"),
        ({}, {f"{Q_PROJ}B__bias": torch.zeros(64)}, "biases, embeddings and whole modules"),
        ({}, {"base_model__model__lm_head__weight": torch.zeros(2)}, "biases, embeddings and whole modules"),
        (
            {},
            {"base_model__model__lm_head__lora_A__weight": torch.zeros(2)},
            "changes 'lm_head', which is not a projection",
        ),
        ({}, {"model__layers__2__mlp__up_proj__lora_A__weight": torch.zeros(2)}, "layers 0 to 1"),
    ],
)
def test_adapters_that_are_unsupported_or_do_not_match_the_model_are_refused(
    config: dict[str, Any], tensors: dict[str, Any], reason: str
):
    loaded, _, _ = model_with_adapters("qwen3")
    engine = engine_with("qwen3")
    with pytest.raises(ConfigError, match=reason):
        adapter = adapter_of(loaded, 1)
        engine.load_adapter("c", replace_tensors(adapter._replace(config={**adapter.config, **config}), **tensors))
    assert engine.adapters == ["a", "b"]


def test_a_target_module_without_tensors_is_refused():
    loaded, _, _ = model_with_adapters("qwen3")
    adapter = adapter_of(loaded, 1, ("q_proj",), target_modules=["q_proj", "v_proj"])
    with pytest.raises(ConfigError, match=r"no tensors for \['v_proj'\]"):
        Engine(loaded.model, []).load_adapter("a", adapter)
    with pytest.raises(ConfigError, match="no tensors"):
        Engine(loaded.model, []).load_adapter("a", adapter._replace(tensors={}))


def test_target_modules_of_other_families_need_no_tensors():
    loaded, _, _ = model_with_adapters("qwen3")
    adapter = adapter_of(loaded, 1, ("q_proj", "v_proj"), target_modules=["q_proj", "v_proj", "dense", "fc1"])
    engine = Engine(loaded.model, [])
    engine.load_adapter("a", adapter)
    assert engine.adapters == ["a"]


def test_a_folder_without_a_valid_adapter_is_refused(tmp_path: Path):
    loaded, _, _ = model_with_adapters("qwen3")
    engine = Engine(loaded.model, [])
    folder = save(adapter_of(loaded, 1), tmp_path / "a")
    with pytest.raises(ConfigError, match="nothing is not an adapter: it has no adapter_config.json"):
        engine.load_adapter("a", folder / "nothing")
    with pytest.raises(ConfigError, match="the adapter name is empty"):
        engine.load_adapter("", folder)
    for name, content, reason in (
        ("adapter_config.json", b"{", "cannot be read"),
        ("adapter_config.json", b"[]", "holds list; expected a JSON object"),
        ("adapter_model.safetensors", b"", "cannot be read"),
    ):
        original = (folder / name).read_bytes()
        (folder / name).write_bytes(content)
        with pytest.raises(ConfigError, match=reason):
            engine.load_adapter("a", folder)
        (folder / name).write_bytes(original)
    engine.load_adapter("a", folder)
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"has no adapter_model.safetensors; expected a folder"):
        engine.load_adapter("a", folder)
    assert engine.adapters == ["a"]


def test_a_model_without_a_fast_path_refuses_adapters():
    adapter = adapter_of(model_with_adapters("qwen3")[0], 1)
    with pytest.raises(ConfigError, match="gemma2 has no fast path.*merge the adapter"):
        Engine(family_model("gemma2").model, []).load_adapter("a", adapter)


def test_load_adapter_copies_the_tensors():
    loaded, models, adapters = model_with_adapters("qwen3")
    weights = PeftWeights({name: t.clone() for name, t in adapters["a"].tensors.items()}, adapters["a"].config)
    engine = Engine(loaded.model, [])
    engine.load_adapter("a", weights)
    for tensor in weights.tensors.values():
        tensor.zero_()
    generation = asyncio.run(engine.generate([5, 6], SamplingParams(max_tokens=8), adapter="a"))
    assert_matches_recomputation(models["a"], [5, 6], generation, 0, 1.0)


def test_adapter_hooks_are_removed_after_an_error():
    loaded, _, _ = model_with_adapters("qwen3")
    engine = engine_with("qwen3")
    with pytest.raises(ZeroDivisionError), adapter_hooks(loaded.model, engine._adapters["a"]):
        _ = 1 / 0
    assert not [hook for module in loaded.model.modules() for hook in module._forward_hooks]


@pytest.mark.broad
async def test_an_adapter_is_selected_by_its_name_over_http():
    loaded = tiny_model("qwen3", seed=1)
    client = EngineClient.from_model(loaded, max_batch=8)
    adapter = adapter_of(loaded, 1)
    client.engine.load_adapter("pirate", adapter, version=5)
    merged_client = EngineClient.from_model(merge_adapter(loaded, adapter), max_batch=8)
    messages: list[Any] = [{"role": "user", "content": "0 1 2"}]
    outputs = {}
    async with (
        listening(make_app(client, ["tiny", "pirate"])) as runner,
        listening(make_app(merged_client, "merged")) as merged_runner,
        openai.AsyncOpenAI(base_url=base_url_of(runner), api_key="k", max_retries=0) as sdk,
        openai.AsyncOpenAI(base_url=base_url_of(merged_runner), api_key="k", max_retries=0) as sdk_of_merged,
    ):
        assert [model.id async for model in await sdk.models.list()] == ["tiny", "pirate"]
        for name, api_client in (("tiny", sdk), ("pirate", sdk), ("merged", sdk_of_merged)):
            create: Any = api_client.chat.completions.create
            chat = await create(model=name, messages=messages, seed=4, max_tokens=8)
            completion = await api_client.completions.create(model=name, prompt=[5, 6, 7], seed=4, max_tokens=8)
            assert chat.model == completion.model == name
            outputs[name] = chat.choices[0].message.content, completion.choices[0].text
        with pytest.raises(openai.NotFoundError, match="no model 'pirat' here; did you mean 'pirate'"):
            await sdk.chat.completions.create(model="pirat", messages=messages)
    assert outputs["tiny"] != outputs["pirate"] == outputs["merged"]


async def test_generate_returns_the_version_of_the_adapter():
    loaded = tiny_model("qwen3", seed=1)
    client = EngineClient.from_model(loaded, max_batch=8)
    client.engine.load_adapter("pirate", adapter_of(loaded, 1), version=5)
    async with listening(make_app(client, ["tiny", "pirate"])) as runner:
        url = base_url_of(runner).removesuffix("/v1")
        async with aiohttp.ClientSession(url) as http:
            for name, version in (("tiny", 0), ("pirate", 5)):
                _, body = await post(http, "/generate", {"model": name, "prompt_ids": [5, 6], "max_tokens": 2})
                assert body["choices"][0]["policy_version"] == version
