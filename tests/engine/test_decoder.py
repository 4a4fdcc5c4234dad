"""The decoder agrees with recomputation from scratch for every model family and any order of requests."""

from __future__ import annotations

import asyncio
from functools import cache

import pytest
import torch
from fakes import generate_naively, tiny_model
from families import FAMILIES, FAST, assert_matches_recomputation, family_model
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import first_quick, some_broad
from transformers import AutoModelForCausalLM, Lfm2Config, LlamaConfig
from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv

from rove.core.protocols import Generation, SamplingParams
from rove.engine.decoder import Convolution, ConvWindow, convolve, supports
from rove.engine.engine import Engine
from rove.engine.kv_cache import CacheShape, KVCache
from rove.engine.scheduler import Chunk, SequenceState, Step
from rove.models.load import LoadedModel

cached_family_model = cache(family_model)
suffixes = st.lists(st.integers(0, 300), max_size=30)
conversation_plans = st.tuples(
    st.integers(0, 2),  # which of three shared prefixes
    suffixes,
    st.integers(1, 12),  # max_tokens
    st.sampled_from([0.0, 0.7, 1.0]),
    st.integers(0, 6),  # passes of the event loop before it arrives
    st.integers(1, 3),  # turns
)


async def converse(
    loaded: LoadedModel, engine: Engine, seed: int, plan: tuple[int, list[int], int, float, int, int]
) -> list[tuple[list[int], Generation, float]]:
    beginning, end, max_tokens, temperature, wait, turns = plan
    prompt = [[7], [*range(40, 65)], [*range(90, 190)]][beginning] + end
    turn_results = []
    for _ in range(turns):
        for _ in range(5 * wait):
            await asyncio.sleep(0)
        generation = await engine.generate(
            prompt, SamplingParams(temperature=temperature, max_tokens=max_tokens), seed=seed
        )
        turn_results.append((prompt, generation, temperature))
        prompt = [*prompt, *generation.ids, *end[:5], 3]
    return turn_results


@pytest.mark.parametrize("family", some_broad(FAMILIES, 6))
def test_every_family_agrees_with_naive_recomputation(family: str):
    loaded = cached_family_model(family)
    assert supports(loaded.model) == (family in FAST)

    @settings(deadline=None, max_examples=15)
    @given(
        st.lists(conversation_plans, min_size=1, max_size=6),
        st.sampled_from([1, 5, 32, 2048]),
        st.integers(1, 6),
        st.sampled_from([1 << 18, 1 << 24]),
        st.booleans(),
    )
    def check(
        requests: list[tuple[int, list[int], int, float, int, int]], chunk: int, batch: int, memory: int, native: bool
    ) -> None:
        engine = Engine(loaded.model, sorted(loaded.renderer.stop_ids), batch, memory, chunk, native=native)

        async def run_all() -> list[list[tuple[list[int], Generation, float]]]:
            return await asyncio.gather(*(converse(loaded, engine, i, plan) for i, plan in enumerate(requests)))

        for i, turn_results in enumerate(asyncio.run(run_all())):
            for prompt, generation, temperature in turn_results:
                assert_matches_recomputation(loaded, prompt, generation, i, temperature)

    check()


@pytest.mark.parametrize("rope", ["linear", "llama3", "yarn"])
def test_scaled_rope_agrees_with_naive_recomputation(rope: str):
    extra_parameters = {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if rope == "llama3" else {}
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        initializer_range=0.2,
        rope_parameters={
            "rope_type": rope,
            "rope_theta": 100.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            **extra_parameters,
        },
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    assert supports(model)
    generation = asyncio.run(Engine(model, []).generate(list(range(150)), SamplingParams(max_tokens=20), seed=3))
    loaded = cached_family_model("llama")._replace(model=model)
    assert_matches_recomputation(loaded, list(range(150)), generation, 3, 1.0)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("family", first_quick(sorted(FAST), 3))
def test_bf16_logprobs_stay_close_to_scored_bf16_logprobs(family: str, native: bool):
    loaded = family_model(family, seed=2)
    loaded.model.to(torch.bfloat16)
    prompt = list(range(40, 80))
    generation = asyncio.run(
        Engine(loaded.model, [], native=native).generate(prompt, SamplingParams(max_tokens=20), seed=1)
    )
    scored = Engine(loaded.model, []).score([*prompt, *generation.ids])[-20:]
    assert sum(abs(a - b) for a, b in zip(generation.logprobs, scored, strict=True)) / 20 < 0.2


def test_a_model_without_a_fast_path_is_logged(caplog: pytest.LogCaptureFixture):
    with caplog.at_level("INFO"):
        assert not Engine(cached_family_model("gemma2").model, []).is_fast
    assert "gemma2 has no fast path" in caplog.text


CPU = torch.device("cpu")
WIDTH = 8


def short_convolution(length: int, bias: bool, dtype: torch.dtype) -> Lfm2ShortConv:
    config = Lfm2Config(
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=1,
        full_attn_idxs=[],
        conv_L_cache=length,
        conv_bias=bias,
    )
    torch.manual_seed(0)
    return Lfm2ShortConv(config, 0).to(dtype).eval()


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=5), min_size=1, max_size=4),
    st.booleans(),
    st.integers(1, 5),
    st.booleans(),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
@torch.inference_mode()
def test_convolution_equals_the_models_own_for_any_split_into_steps(
    cuts: list[list[int]], apart: bool, length: int, bias: bool, dtype: torch.dtype
):
    """Row i processes cuts[i][k] tokens in step k: a single token as a decode row, several as a chunk."""
    module = short_convolution(length, bias, dtype)
    shape = CacheShape(1, 1, 1, dtype, CPU, frozenset({0}), WIDTH)
    cache = KVCache(shape, 1 << 20, 99)
    inputs = [torch.randn(sum(sizes), WIDTH, dtype=dtype) for sizes in cuts]
    rows = [SequenceState(i, [], 1) for i in range(len(cuts))]
    for i, row in enumerate(rows):
        row.slot = cache.allocate(64 if i % 2 == 0 or not apart else 100)  # from two pools
        assert row.slot is not None
        row.slot.pool.values[0][row.slot.index] = 1e4  # garbage
    outputs: list[list[torch.Tensor]] = [[] for _ in cuts]
    for k in range(max(map(len, cuts))):
        step, x = Step([], []), []
        active = sorted((i for i in range(len(cuts)) if k < len(cuts[i])), key=lambda i: cuts[i][k] > 1)
        for i in active:
            start, size = sum(cuts[i][:k]), cuts[i][k]
            rows[i].tokens = [0] * (start + size)
            if size == 1:
                step.decode.append(rows[i])
            else:
                step.chunks.append(Chunk(rows[i], start, size))
            x.append(inputs[i][start : start + size])
        step_output = convolve(
            0, Convolution.from_module(module), torch.cat(x), ConvWindow.from_step(step, length, CPU)
        )
        for i, part in zip(active, step_output.split([len(part) for part in x]), strict=True):
            outputs[i].append(part)
    for row_input, row_outputs in zip(inputs, outputs, strict=True):
        expected = module(row_input[None])[0]
        torch.testing.assert_close(
            torch.cat(row_outputs), expected, atol=1e-6 if dtype == torch.float32 else 1e-2, rtol=1e-2
        )


@pytest.mark.parametrize("chunk", first_quick([2, 1, 3, 4, 64]))
def test_a_chunk_may_end_inside_the_convolution_window(chunk: int):
    loaded = cached_family_model("lfm2")
    engine = Engine(loaded.model, [], chunk=chunk)
    prompts = [list(range(10, 10 + length)) for length in range(1, 10)]

    async def run_all() -> list[Generation]:
        requests = (engine.generate(prompt, SamplingParams(max_tokens=6), seed=i) for i, prompt in enumerate(prompts))
        return await asyncio.gather(*requests)

    for turn in range(2):
        for i, (prompt, generation) in enumerate(zip(prompts, asyncio.run(run_all()), strict=True)):
            assert_matches_recomputation(loaded, prompt, generation, i, 1.0)
            prompts[i] = [*prompt, *generation.ids, *range(turn + i % 3)]


@pytest.mark.parametrize("prompt", [[5], [5, 6]])
async def test_prompts_may_be_shorter_than_the_convolution_kernel(prompt: list[int]):
    loaded = tiny_model("lfm2", seed=1)
    engine = Engine(loaded.model, sorted(loaded.renderer.stop_ids))
    assert engine.is_fast
    for seed in range(3):
        generation = await engine.generate(prompt, SamplingParams(max_tokens=12), seed=seed)
        expected = generate_naively(loaded, prompt, seed, max_tokens=12)
        assert generation.ids == expected.ids
        assert generation.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


async def test_a_next_turn_computes_only_its_new_tokens():
    engine = Engine(tiny_model("lfm2").model, [])
    prompt = list(range(10, 50))
    first = await engine.generate(prompt, SamplingParams(max_tokens=5), seed=1)
    computed_tokens_before = engine.computed_tokens
    await engine.generate([*prompt, *first.ids, 1, 2, 3], SamplingParams(max_tokens=1), seed=2)
    assert engine.computed_tokens - computed_tokens_before == 4


@pytest.mark.broad
@pytest.mark.parametrize("rows", first_quick([3, 5], broad=0))
async def test_a_small_cache_causes_recomputation_but_never_a_wrong_token(rows: int):
    loaded = tiny_model("lfm2", seed=8)
    row_bytes = (32 + 2 * 8) * 4 * 64  # (convolution input + key and value) * bytes * positions
    engine = Engine(loaded.model, [], cache_bytes=rows * row_bytes, chunk=32)
    prompts = [[i + 1] * (5 * i + 2) for i in range(8)]
    for turn in range(2):
        generations = await asyncio.gather(
            *(engine.generate(prompt, SamplingParams(max_tokens=70), seed=i) for i, prompt in enumerate(prompts))
        )
        cache = engine._runner.cache  # pyright: ignore[reportAttributeAccessIssue]
        assert cache.shape.position_bytes * 64 == row_bytes and cache.allocated_bytes <= rows * row_bytes
        for i, (prompt, generation) in enumerate(zip(prompts, generations, strict=True)):
            assert_matches_recomputation(loaded, prompt, generation, i, 1.0)
        prompts = [[*p, *g.ids, 9][: 100 + turn] for p, g in zip(prompts, generations, strict=True)]


async def test_bf16_logprobs_are_close_to_fp32():
    loaded = family_model("lfm2", seed=2)
    prompt = list(range(40, 80))
    with torch.inference_mode():
        loaded.model.to(torch.bfloat16)
        generation = await Engine(loaded.model, [], chunk=7).generate(prompt, SamplingParams(max_tokens=20), seed=1)
        loaded.model.to(torch.float32)
    exact = Engine(loaded.model, []).score([*prompt, *generation.ids])[-20:]
    assert sum(abs(a - b) for a, b in zip(generation.logprobs, exact, strict=True)) / 20 < 0.2


async def test_a_changed_convolution_kernel_takes_effect_after_update_weights():
    loaded = family_model("lfm2")
    engine = Engine(loaded.model, [])
    await engine.generate([5, 6, 7], SamplingParams(max_tokens=3))
    with torch.no_grad():
        loaded.model.model.layers[0].conv.conv.weight.neg_()
    engine.update_weights(1)
    generation = await engine.generate([5, 6, 7], SamplingParams(max_tokens=8), seed=1)
    assert_matches_recomputation(loaded, [5, 6, 7], generation, 1, 1.0)
