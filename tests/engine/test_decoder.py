"""The engine says what computing everything afresh says, for every family, whatever arrives when."""

from __future__ import annotations

import asyncio
from functools import cache

import pytest
import torch
from families import FAMILIES, FAST, assert_agrees, family_model
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import first_quick
from transformers import AutoModelForCausalLM, LlamaConfig

from rove.core.protocols import Generation, SamplingParams
from rove.engine.decoder import supports
from rove.engine.engine import Engine
from rove.models.load import LoadedModel

loaded_family = cache(family_model)
ends = st.lists(st.integers(0, 300), max_size=30)
request = st.tuples(
    st.integers(0, 2),  # which of three shared beginnings
    ends,
    st.integers(1, 12),  # max_tokens
    st.sampled_from([0.0, 0.7, 1.0]),
    st.integers(0, 6),  # passes of the event loop before it arrives
    st.integers(1, 3),  # turns
)


async def converse(
    loaded: LoadedModel, engine: Engine, seed: int, asked: tuple[int, list[int], int, float, int, int]
) -> list[tuple[list[int], Generation, float]]:
    beginning, end, most, temperature, wait, turns = asked
    prompt = [[7], [*range(40, 65)], [*range(90, 190)]][beginning] + end
    said = []
    for _ in range(turns):
        for _ in range(5 * wait):
            await asyncio.sleep(0)
        made = await engine.generate(prompt, SamplingParams(temperature=temperature, max_tokens=most), seed=seed)
        said.append((prompt, made, temperature))
        prompt = [*prompt, *made.ids, *end[:5], 3]
    return said


@pytest.mark.broad
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_agrees_with_naive_recomputation(family: str):
    loaded = loaded_family(family)
    assert supports(loaded.model) == (family in FAST)

    @settings(deadline=None, max_examples=15)
    @given(
        st.lists(request, min_size=1, max_size=6),
        st.sampled_from([1, 5, 32, 2048]),
        st.integers(1, 6),
        st.sampled_from([1 << 18, 1 << 24]),
        st.booleans(),
    )
    def check(
        requests: list[tuple[int, list[int], int, float, int, int]], chunk: int, batch: int, memory: int, native: bool
    ) -> None:
        engine = Engine(loaded.model, sorted(loaded.renderer.stop_ids), batch, memory, chunk, native=native)

        async def every() -> list[list[tuple[list[int], Generation, float]]]:
            return await asyncio.gather(*(converse(loaded, engine, i, asked) for i, asked in enumerate(requests)))

        for i, said in enumerate(asyncio.run(every())):
            for prompt, made, temperature in said:
                assert_agrees(loaded, prompt, made, i, temperature)

    check()


@pytest.mark.parametrize("rope", ["linear", "llama3", "yarn"])
def test_stretched_positions_are_the_models_own(rope: str):
    more = {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if rope == "llama3" else {}
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
            **more,
        },
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    assert supports(model)
    made = asyncio.run(Engine(model, []).generate(list(range(150)), SamplingParams(max_tokens=20), seed=3))
    loaded = loaded_family("llama")._replace(model=model)
    assert_agrees(loaded, list(range(150)), made, 3, 1.0)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("family", first_quick(sorted(FAST), 3))
def test_bf16_stays_close_to_the_models_own_bf16(family: str, native: bool):
    loaded = family_model(family, seed=2)
    loaded.model.to(torch.bfloat16)
    prompt = list(range(40, 80))
    made = asyncio.run(Engine(loaded.model, [], native=native).generate(prompt, SamplingParams(max_tokens=20), seed=1))
    scored = Engine(loaded.model, []).score([*prompt, *made.ids])[-20:]
    assert sum(abs(a - b) for a, b in zip(made.logprobs, scored, strict=True)) / 20 < 0.2


def test_a_model_without_a_fast_path_says_so(caplog: pytest.LogCaptureFixture):
    with caplog.at_level("INFO"):
        assert not Engine(loaded_family("gemma2").model, []).is_fast
    assert "gemma2 has no fast path" in caplog.text
