"""Adapters: what they say is what merged weights say, beside whomever they are computed; what cannot be is refused."""

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
from families import FAST, assert_agrees, family_model
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tiers import first_quick

from rove.core.errors import ConfigError
from rove.core.protocols import Generation, SamplingParams
from rove.engine.client import EngineClient
from rove.engine.engine import Engine
from rove.engine.lora import PeftWeights, adapter_hooks, projections
from rove.models.load import LoadedModel
from rove.server import base_url_of, listening, make_app
from tests.server.test_server import post

NAMES = (None, "a", "b")
Asked = tuple[str | None, int, list[int], int, float, int, int]


def adapter_of(loaded: LoadedModel, seed: int, targets: tuple[str, ...] = (), r: int = 3, **config: Any) -> PeftWeights:
    """A random adapter of the projections with these names (default: all), strong enough to be noticed."""
    torch.manual_seed(seed)
    tensors = {}
    modules = [name for own in projections(loaded.model).values() for name in own]
    for name in modules:
        if not targets or name.endswith(targets):
            out, into = loaded.model.get_submodule(name).weight.shape
            tensors[f"base_model.model.{name}.lora_A.weight"] = 0.3 * torch.randn(r, into)
            tensors[f"base_model.model.{name}.lora_B.weight"] = 0.3 * torch.randn(out, r)
    told = {
        "peft_type": "LORA",
        "r": r,
        "lora_alpha": 2 * r,
        "target_modules": list(targets) or modules,
        "bias": "none",
    }
    return PeftWeights(tensors, {**told, "lora_dropout": 0.1, "use_dora": False, "modules_to_save": None, **config})


def merged(loaded: LoadedModel, weights: PeftWeights | None, scale: float = 2.0) -> LoadedModel:
    """A model of its own whose weights the adapter is in."""
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
def three(family: str) -> tuple[LoadedModel, dict[str | None, LoadedModel], dict[str, PeftWeights]]:
    """A model, the same with each adapter merged in, and the adapters: one of everything, one of attention alone."""
    loaded = family_model(family)
    adapters = {"a": adapter_of(loaded, 1), "b": adapter_of(loaded, 2, ("q_proj", "v_proj"), r=2)}
    return loaded, {name: merged(loaded, adapters.get(name or "")) for name in NAMES}, adapters


def engine_with(family: str, **options: Any) -> Engine:
    loaded, _, adapters = three(family)
    engine = Engine(loaded.model, sorted(loaded.renderer.stop_ids), **options)
    for i, (name, weights) in enumerate(adapters.items()):
        engine.load_adapter(name, weights, version=i + 1)
    return engine


@pytest.mark.broad
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("family", first_quick(sorted(FAST)))
async def test_an_adapter_says_what_merged_weights_say(family: str, native: bool):
    _, models, _ = three(family)
    engine = engine_with(family, native=native)
    assert engine.adapters == ["a", "b"]
    prompt = list(range(40, 70))
    said = []
    for version, name in enumerate(NAMES):
        for temperature in (0.0, 1.0):
            asked = SamplingParams(temperature=temperature, max_tokens=16, ignore_eos=True, prompt_logprobs=0)
            made = await engine.generate(prompt, asked, seed=3, adapter=name)
            assert_agrees(models[name], prompt, made, 3, temperature)
            assert made.policy_version == version
            scored = Engine(models[name].model, []).score(prompt)
            assert made.prompt_logprobs == pytest.approx(scored, abs=1e-4)
            said.append(made.ids)
    assert len(set(map(tuple, said))) == len(said)


@pytest.mark.broad
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma", "lfm2"])
def test_adapters_in_one_batch_say_what_each_says_alone(family: str, native: bool):
    _, models, _ = three(family)
    request = st.tuples(
        st.sampled_from(NAMES),
        st.integers(0, 2),  # which of three shared beginnings
        st.lists(st.integers(0, 300), max_size=30),
        st.integers(1, 12),  # max_tokens
        st.sampled_from([0.0, 0.7, 1.0]),
        st.integers(0, 6),  # passes of the event loop before it arrives
        st.integers(1, 3),  # turns
    )

    async def converse(engine: Engine, seed: int, asked: Asked) -> list[tuple[list[int], Generation]]:
        adapter, beginning, end, most, temperature, wait, turns = asked
        prompt = [[7], [*range(40, 65)], [*range(90, 190)]][beginning] + end
        said = []
        for _ in range(turns):
            for _ in range(5 * wait):
                await asyncio.sleep(0)
            sampling = SamplingParams(temperature=temperature, max_tokens=most)
            made = await engine.generate(prompt, sampling, seed=seed, adapter=adapter)
            said.append((prompt, made))
            prompt = [*prompt, *made.ids, *end[:5], 3]
        return said

    @settings(deadline=None, max_examples=12)
    @given(
        st.lists(request, min_size=2, max_size=8),
        st.sampled_from([1, 5, 32, 2048]),
        st.integers(2, 8),
        st.sampled_from([1 << 18, 1 << 24]),
    )
    def check(requests: list[Asked], chunk: int, batch: int, memory: int) -> None:
        engine = engine_with(family, max_batch=batch, cache_bytes=memory, chunk=chunk, native=native)

        async def every() -> list[list[tuple[list[int], Generation]]]:
            return await asyncio.gather(*(converse(engine, i, asked) for i, asked in enumerate(requests)))

        for i, said in enumerate(asyncio.run(every())):
            name, temperature = requests[i][0], requests[i][4]
            for prompt, made in said:
                assert_agrees(models[name], prompt, made, i, temperature)
                assert made.policy_version == NAMES.index(name)

    check()


@pytest.mark.broad
@pytest.mark.parametrize("native", first_quick([True, False]))
async def test_who_is_set_aside_comes_back_with_his_adapter(native: bool):
    _, models, _ = three("qwen3")
    engine = engine_with("qwen3", native=native, cache_bytes=384 * 512)  # keys and values of 384 positions
    asked = SamplingParams(max_tokens=100, ignore_eos=True)
    prompts = [[*range(i, i + 40)] for i in range(6)]
    made = await asyncio.gather(
        *(engine.generate(prompt, asked, seed=i, adapter=NAMES[i % 3]) for i, prompt in enumerate(prompts))
    )
    assert engine.computed_tokens > 6 * 139  # some was computed twice
    for i, prompt in enumerate(prompts):
        assert_agrees(models[NAMES[i % 3]], prompt, made[i], i, 1.0)


async def test_beginnings_are_shared_by_those_with_the_same_adapter_alone():
    engine = engine_with("qwen3")
    prompt = list(range(10, 50))
    one = SamplingParams(max_tokens=1)
    await asyncio.gather(*(engine.generate(prompt, one, seed=i, adapter=NAMES[i % 3]) for i in range(9)))
    assert engine.computed_tokens == 3 * (40 + 2)
    await engine.generate([*prompt, 5], one, adapter="a")
    assert engine.computed_tokens == 3 * (40 + 2) + 1


@pytest.mark.broad
async def test_a_row_that_grows_stays_its_adapters():
    _, models, _ = three("qwen3")
    engine = engine_with("qwen3")
    prompt, said = list(range(10, 50)), []
    long = asyncio.create_task(
        engine.generate(prompt, SamplingParams(max_tokens=150, ignore_eos=True), 1, lambda *_: said.append(1), "a")
    )
    while len(said) < 120:  # noqa: ASYNC110  until it has moved to a larger row
        await asyncio.sleep(0)
    beside = await engine.generate(prompt, SamplingParams(max_tokens=4), seed=2)
    assert not long.done()
    assert_agrees(models[None], prompt, beside, 2, 1.0)
    longer = [*prompt, *(await long).ids, 5]
    for name in NAMES:
        assert_agrees(
            models[name], longer, await engine.generate(longer, SamplingParams(max_tokens=4), 3, None, name), 3, 1.0
        )


async def test_loading_under_the_same_name_swaps():
    loaded, models, adapters = three("qwen3")
    engine = engine_with("qwen3")
    prompt, one = list(range(10, 50)), SamplingParams(max_tokens=1)
    for name in NAMES:
        await engine.generate(prompt, one, adapter=name)
    assert engine.adapters == ["a", "b"]
    kept = engine._runner.cache.reusable  # pyright: ignore[reportAttributeAccessIssue]
    assert len(kept) == 3
    engine.load_adapter("a", adapters["b"], version=7)
    assert len(kept) == 2
    assert engine.adapters == ["a", "b"]
    before = engine.computed_tokens
    made = await engine.generate(prompt, SamplingParams(max_tokens=8), seed=1, adapter="a")
    assert_agrees(models["b"], prompt, made, 1, 1.0)
    assert (made.policy_version, engine.policy_version) == (7, 0)
    assert engine.computed_tokens - before == 40 + len(made.ids) - 1  # nothing of the old one was used
    before = engine.computed_tokens
    for name in (None, "b"):
        await engine.generate(prompt, one, adapter=name)
    assert engine.computed_tokens - before == 2  # the others' stays
    engine.drop_adapter("a")
    assert engine.adapters == ["b"]
    with pytest.raises(ConfigError, match="no adapter 'a' is loaded; known: b"):
        engine.drop_adapter("a")
    with pytest.raises(ConfigError, match="no adapter 'a' is loaded"):
        await engine.generate(prompt, one, adapter="a")
    assert not [h for module in loaded.model.modules() for h in module._forward_hooks]


async def test_an_adapter_is_not_taken_from_those_who_use_it():
    _, models, adapters = three("qwen3")
    engine = engine_with("qwen3")
    running = asyncio.create_task(engine.generate([5], SamplingParams(max_tokens=30, ignore_eos=True), adapter="a"))
    await asyncio.sleep(0)
    for forbidden in (lambda: engine.load_adapter("a", adapters["b"]), lambda: engine.drop_adapter("a")):
        with pytest.raises(ConfigError, match="1 requests with the adapter 'a' are running"):
            forbidden()
    engine.load_adapter("b", adapters["a"])
    engine.drop_adapter("b")
    assert_agrees(models["a"], [5], await running, 0, 1.0)
    cancelled = asyncio.create_task(engine.generate([5], SamplingParams(max_tokens=30), adapter="a"))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    engine.drop_adapter("a")
    assert engine.adapters == []


async def test_adapters_stay_when_the_weights_beneath_change():
    loaded = family_model("qwen3")
    adapter = adapter_of(loaded, 1)
    engine = Engine(loaded.model, [])
    engine.load_adapter("a", adapter, version=4)
    prompt = list(range(10, 50))
    await engine.generate(prompt, SamplingParams(max_tokens=2), adapter="a")
    engine.update_weights(1, dict(family_model("qwen3", seed=5).model.named_parameters()))
    made = await engine.generate(prompt, SamplingParams(max_tokens=8), seed=1, adapter="a")
    assert made.policy_version == 4
    assert_agrees(merged(loaded, adapter), prompt, made, 1, 1.0)


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
async def test_settings_of_peft_mean_what_they_mean_there(
    config: dict[str, Any], scales: dict[str, float], tmp_path: Path
):
    loaded, _, _ = three("llama")
    adapter = adapter_of(loaded, 3, r=4, **config)
    wanted = merged(loaded, None)
    for key in adapter.tensors:
        scale = next((value for end, value in scales.items() if end in key), 2.0)
        one = {
            name: tensor
            for name, tensor in adapter.tensors.items()
            if name.split(".lora_")[0] == key.split(".lora_")[0]
        }
        if ".lora_A." in key:
            wanted = merged(wanted, PeftWeights(one, {}), scale)
    engine = Engine(loaded.model, [])
    engine.load_adapter("a", save(adapter, tmp_path / "a"))
    made = await engine.generate([5, 6, 7], SamplingParams(max_tokens=16), seed=2, adapter="a")
    assert_agrees(wanted, [5, 6, 7], made, 2, 1.0)
    engine.load_adapter("a", str(tmp_path / "a"))


async def test_ranks_may_differ_between_modules():
    loaded, _, _ = three("qwen3")
    some, more = adapter_of(loaded, 1, ("q_proj",), r=1), adapter_of(loaded, 2, ("k_proj", "up_proj"), r=5)
    told = {"target_modules": ["q_proj", "k_proj", "up_proj"], "r": 5, "lora_alpha": 10}
    both = PeftWeights(
        {**some.tensors, **more.tensors},
        {**more.config, **told, "rank_pattern": {"q_proj": 1}, "alpha_pattern": {"q_proj": 2}},
    )
    engine = Engine(loaded.model, [])
    engine.load_adapter("a", both)
    made = await engine.generate([5, 6, 7], SamplingParams(max_tokens=16), seed=2, adapter="a")
    assert_agrees(merged(loaded, both), [5, 6, 7], made, 2, 1.0)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("family", first_quick(["qwen3", "gemma", "lfm2"]))
async def test_bf16_stays_close_to_merged_bf16(family: str, native: bool):
    loaded = family_model(family, seed=2)
    adapter = adapter_of(loaded, 1)
    wanted = merged(loaded, adapter)
    for model in (loaded.model, wanted.model):
        model.to(torch.bfloat16)
    engine = Engine(loaded.model, [], native=native)
    engine.load_adapter("a", adapter)
    prompt = list(range(40, 80))
    made, plain = await asyncio.gather(
        engine.generate(prompt, SamplingParams(max_tokens=20), seed=1, adapter="a"),
        engine.generate(prompt, SamplingParams(max_tokens=20), seed=1),
    )
    for model, said in ((wanted.model, made), (loaded.model, plain)):
        scored = Engine(model, []).score([*prompt, *said.ids])[-20:]
        assert sum(abs(a - b) for a, b in zip(said.logprobs, scored, strict=True)) / 20 < 0.2


def changed(adapter: PeftWeights, **tensors: torch.Tensor | None) -> PeftWeights:
    """The same with further tensors, or without some; names are shortened."""
    kept = {**adapter.tensors, **{name.replace("__", "."): tensor for name, tensor in tensors.items()}}
    return adapter._replace(tensors={name: tensor for name, tensor in kept.items() if tensor is not None})


Q = "base_model__model__model__layers__0__self_attn__q_proj__lora_"


@pytest.mark.parametrize(
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
        ({}, {f"{Q}B__weight": None}, "has no model.layers.0.self_attn.q_proj.lora_B.weight"),
        ({}, {f"{Q}A__weight": torch.zeros(3, 33)}, "is it an adapter of another model"),
        ({}, {f"{Q}B__weight": torch.zeros(3)}, "is it an adapter of another model"),
        ({}, {f"{Q}B__bias": torch.zeros(64)}, "biases, embeddings and whole modules"),
        ({}, {"base_model__model__lm_head__weight": torch.zeros(2)}, "biases, embeddings and whole modules"),
        (
            {},
            {"base_model__model__lm_head__lora_A__weight": torch.zeros(2)},
            "changes 'lm_head', which is not a projection",
        ),
        ({}, {"model__layers__2__mlp__up_proj__lora_A__weight": torch.zeros(2)}, "layers 0 to 1"),
    ],
)
def test_what_is_no_plain_adapter_of_this_model_is_refused(
    config: dict[str, Any], tensors: dict[str, Any], reason: str
):
    loaded, _, _ = three("qwen3")
    engine = engine_with("qwen3")
    with pytest.raises(ConfigError, match=reason):
        adapter = adapter_of(loaded, 1)
        engine.load_adapter("c", changed(adapter._replace(config={**adapter.config, **config}), **tensors))
    assert engine.adapters == ["a", "b"]


def test_a_target_without_tensors_is_refused():
    loaded, _, _ = three("qwen3")
    adapter = adapter_of(loaded, 1, ("q_proj",), target_modules=["q_proj", "v_proj"])
    with pytest.raises(ConfigError, match=r"no tensors for \['v_proj'\]"):
        Engine(loaded.model, []).load_adapter("a", adapter)
    with pytest.raises(ConfigError, match="no tensors"):
        Engine(loaded.model, []).load_adapter("a", adapter._replace(tensors={}))


def test_a_folder_that_is_no_adapter_is_refused(tmp_path: Path):
    loaded, _, _ = three("qwen3")
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
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(content)
        with pytest.raises(ConfigError, match=reason):
            engine.load_adapter("a", folder)
        (folder / name).write_bytes(whole)
    engine.load_adapter("a", folder)
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"has no adapter_model.safetensors; expected a folder"):
        engine.load_adapter("a", folder)
    assert engine.adapters == ["a"]


def test_a_model_without_a_fast_path_takes_none():
    adapter = adapter_of(three("qwen3")[0], 1)
    with pytest.raises(ConfigError, match="gemma2 has no fast path.*merge the adapter"):
        Engine(family_model("gemma2").model, []).load_adapter("a", adapter)


def test_the_giver_may_go_on_training_his_tensors():
    loaded, models, adapters = three("qwen3")
    given_away = PeftWeights({name: t.clone() for name, t in adapters["a"].tensors.items()}, adapters["a"].config)
    engine = Engine(loaded.model, [])
    engine.load_adapter("a", given_away)
    for tensor in given_away.tensors.values():
        tensor.zero_()
    made = asyncio.run(engine.generate([5, 6], SamplingParams(max_tokens=8), adapter="a"))
    assert_agrees(models["a"], [5, 6], made, 0, 1.0)


def test_modules_are_the_models_own_again_after_an_error():
    loaded, _, _ = three("qwen3")
    engine = engine_with("qwen3")
    with pytest.raises(ZeroDivisionError), adapter_hooks(loaded.model, engine._adapters["a"]):
        _ = 1 / 0
    assert not [hook for module in loaded.model.modules() for hook in module._forward_hooks]


@pytest.mark.broad
async def test_an_adapter_is_asked_for_by_its_name_over_http():
    loaded = tiny_model("qwen3", seed=1)
    client = EngineClient.from_model(loaded, max_batch=8)
    adapter = adapter_of(loaded, 1)
    client.engine.load_adapter("pirate", adapter, version=5)
    alone = EngineClient.from_model(merged(loaded, adapter), max_batch=8)
    ask: list[Any] = [{"role": "user", "content": "0 1 2"}]
    said = {}
    async with (
        listening(make_app(client, ["tiny", "pirate"])) as runner,
        listening(make_app(alone, "merged")) as other,
        openai.AsyncOpenAI(base_url=base_url_of(runner), api_key="k", max_retries=0) as sdk,
        openai.AsyncOpenAI(base_url=base_url_of(other), api_key="k", max_retries=0) as sdk_of_merged,
    ):
        assert [model.id async for model in await sdk.models.list()] == ["tiny", "pirate"]
        for name, at in (("tiny", sdk), ("pirate", sdk), ("merged", sdk_of_merged)):
            create: Any = at.chat.completions.create
            made = await create(model=name, messages=ask, seed=4, max_tokens=8)
            text = await at.completions.create(model=name, prompt=[5, 6, 7], seed=4, max_tokens=8)
            assert made.model == text.model == name
            said[name] = made.choices[0].message.content, text.choices[0].text
        with pytest.raises(openai.NotFoundError, match="no model 'pirat' here; did you mean 'pirate'"):
            await sdk.chat.completions.create(model="pirat", messages=ask)
    assert said["tiny"] != said["pirate"] == said["merged"]


async def test_tokens_tell_the_version_of_their_adapter():
    loaded = tiny_model("qwen3", seed=1)
    client = EngineClient.from_model(loaded, max_batch=8)
    client.engine.load_adapter("pirate", adapter_of(loaded, 1), version=5)
    async with listening(make_app(client, ["tiny", "pirate"])) as runner:
        url = base_url_of(runner).removesuffix("/v1")
        async with aiohttp.ClientSession(url) as http:
            for name, version in (("tiny", 0), ("pirate", 5)):
                _, made = await post(http, "/generate", {"model": name, "prompt_ids": [5, 6], "max_tokens": 2})
                assert made["choices"][0]["policy_version"] == version
