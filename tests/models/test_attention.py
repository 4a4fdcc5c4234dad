"""Attention for packed sequences, whole models and decoding, compared with reference implementations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from fakes import bpe_tokenizer, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version
from tiers import each_row, first_quick
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM, Gemma2Config, GptOssConfig, LlamaConfig, MistralConfig, Qwen2Config

from rove.models import kernels
from rove.models.attention import Packing, attend_chunk, attend_decode, grouped_attention, is_plain, packed_attention
from rove.models.load import prepare

SHAPES = st.sampled_from([(4, 2, 16), (2, 2, 8), (8, 1, 32), (3, 1, 24)])


@st.composite
def packings(draw: st.DrawFn) -> tuple[Packing, int]:
    """Generate a packing of sequences that may share prefixes, and its total number of tokens."""
    paths: list[np.ndarray] = []
    shared, count = [], 0
    for _ in range(draw(st.integers(1, 6))):
        source = paths[draw(st.integers(0, len(paths) - 1))] if paths and draw(st.booleans()) else np.empty(0, np.int64)
        prefix_length = draw(st.integers(0, len(source)))
        new = draw(st.integers(0 if prefix_length else 1, 40))
        paths.append(np.concatenate([source[:prefix_length], np.arange(count, count + new)]))
        shared.append(prefix_length)
        count += new
    return Packing(paths, np.array(shared), torch.device("cpu")), count


def separate_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: Packing, scale: float
) -> torch.Tensor:
    out: dict[int, torch.Tensor] = {}
    groups = query.shape[1] // key.shape[1]
    for path, shared in zip(packing.paths, packing.shared_lengths, strict=True):
        for i in range(shared, len(path)):
            keys, values = (x[0][:, path[: i + 1]].repeat_interleave(groups, 0) for x in (key, value))
            weights = (torch.einsum("hd,htd->ht", query[0, :, path[i]], keys) * scale).softmax(-1)
            out[int(path[i])] = torch.einsum("ht,htd->hd", weights, values)
    return torch.stack([out[i] for i in range(len(out))])[None]


@pytest.mark.broad
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("native", [True, False])
@settings(deadline=None, max_examples=40)
@given(packings(), SHAPES, st.integers(0, 1000))
def test_packed_attention_equals_separate_attention_of_each_sequence(
    native: bool, threads: int, packed: tuple[Packing, int], shape: tuple[int, int, int], seed: int
):
    packing, count = packed
    queries, keys, size = shape
    generator = torch.Generator().manual_seed(seed)
    given_tensors = [
        torch.randn(1, heads, count, size, generator=generator, dtype=torch.float64) for heads in (queries, keys, keys)
    ]
    weights = torch.randn(1, count, queries, size, generator=generator)
    results = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: threads)
        if not native:
            patch.setattr(kernels, "load_kernels", lambda *args: None)
        elif kernels.load_kernels("attention", queries // keys, size) is None:
            pytest.skip("there is no C compiler")
        for attend, dtype in ((packed_attention, torch.float32), (separate_attention, torch.float64)):
            inputs = [x.to(dtype).requires_grad_() for x in given_tensors]
            out = attend(*inputs, packing, 0.3)
            (out * weights).sum().backward()
            results.append([out.detach(), *(x.grad for x in inputs)])
    for ours, exact in zip(*results, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-5)


def test_packed_attention_propagates_nan():
    packing = Packing([np.arange(3)], np.array([0]), torch.device("cpu"))
    query, key, value = (torch.zeros(1, 2, 3, 16) for _ in range(3))
    key[0, 0, 1, 0] = float("nan")
    out = packed_attention(query + 1, key, value, packing, 1.0)
    assert not out[0, 0].isnan().any() and out[0, 1:, 0].isnan().all() and not out[0, :, 1].isnan().any()


HEADS = 4


def inputs(kv_heads: int, queries: int, keys: int, rows: int = 3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(queries * 100 + keys)
    shapes = ((HEADS, queries), (kv_heads, keys), (kv_heads, keys))
    query, key, value = (torch.randn(rows, heads, length, 8, generator=generator) for heads, length in shapes)
    return query, key, value


def reference(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float | None = None
) -> torch.Tensor:
    out = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=True)
    return out.transpose(1, 2)


def causal(queries: int, keys: int) -> torch.Tensor:
    """Return a causal mask in which the last query is at the position of the last key."""
    return torch.arange(keys) <= torch.arange(keys - queries, keys)[:, None]


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, **kwargs: Any
) -> torch.Tensor:
    out, weights = grouped_attention(torch.nn.Module(), query, key, value, mask, **kwargs)
    assert weights is None
    return out


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize(("queries", "keys"), [(6, 6), (1, 6), (3, 7), (1, 1)])
def test_attention_without_a_mask_is_causal_and_aligned_to_the_last_key(kv_heads: int, queries: int, keys: int):
    query, key, value = inputs(kv_heads, queries, keys)
    torch.testing.assert_close(attend(query, key, value, None), reference(query, key, value, causal(queries, keys)))


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize(("queries", "keys"), [(6, 6), (1, 9), (4, 9)])
def test_attention_applies_the_mask_of_each_row_and_query(kv_heads: int, queries: int, keys: int):
    query, key, value = inputs(kv_heads, queries, keys)
    mask = torch.rand(3, 1, queries, keys, generator=torch.Generator().manual_seed(1)) < 0.5
    mask[..., 0] = True
    torch.testing.assert_close(attend(query, key, value, mask), reference(query, key, value, mask))


def test_values_of_masked_keys_do_not_matter():
    query, key, value = inputs(1, 1, 6)
    mask = (torch.arange(6) < 4).expand(3, 1, 1, 6)
    clean = attend(query, key, value, mask)
    key[:, :, 4:], value[:, :, 4:] = 1e4, -1e4
    assert torch.equal(attend(query, key, value, mask), clean)


def test_the_scaling_of_the_model_is_used():
    query, key, value = inputs(2, 5, 5)
    expected = reference(query, key, value, causal(5, 5), scale=0.5)
    torch.testing.assert_close(attend(query, key, value, None, scaling=0.5), expected)
    torch.testing.assert_close(
        attend(query, key, value, causal(5, 5)[None, None].expand(3, 1, 5, 5), scaling=0.5), expected
    )


def test_gradients_match_the_reference():
    q, k, v = (x.requires_grad_() for x in inputs(2, 5, 5))
    expected = torch.autograd.grad(reference(q, k, v, causal(5, 5)).square().sum(), [q, k, v])
    for mask in (None, causal(5, 5).expand(3, 1, 5, 5)):
        actual = torch.autograd.grad(attend(q, k, v, mask).square().sum(), [q, k, v])
        for grad, reference_grad in zip(actual, expected, strict=True):
            torch.testing.assert_close(grad, reference_grad)


@pytest.mark.parametrize("arch", ["llama", "qwen3", "lfm2"])
@pytest.mark.parametrize("kv_heads", first_quick([4, 2, 1]))
def test_models_give_the_same_logits_as_with_attention_of_transformers(arch: str, kv_heads: int):
    if arch == "lfm2" and Version(transformers.__version__) < Version("5.18"):
        pytest.skip("its cache in transformers 5.12 forgets earlier tokens when a prompt is read in parts")
    loaded = tiny_model(arch, kv_heads=kv_heads)
    ids = torch.randint(0, 300, (2, 12), generator=torch.Generator().manual_seed(0))
    assert loaded.model.config._attn_implementation == "rove"
    results = {}
    for name in ("rove", "eager", "sdpa"):
        loaded.model.set_attn_implementation(name)
        with torch.inference_mode():
            first = loaded.model(input_ids=ids[:, :5], use_cache=True)  # chunked prefill with the cache of transformers
            second = loaded.model(input_ids=ids[:, 5:11], past_key_values=first.past_key_values, use_cache=True)
            third = loaded.model(input_ids=ids[:, 11:], past_key_values=second.past_key_values, use_cache=True)
            whole = loaded.model(input_ids=ids, use_cache=False).logits
        chunked = torch.cat([first.logits, second.logits, third.logits], dim=1)
        torch.testing.assert_close(chunked, whole, rtol=1e-4, atol=1e-5)
        results[name] = whole
    torch.testing.assert_close(results["rove"], results["eager"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(results["rove"], results["sdpa"], rtol=1e-4, atol=1e-5)


def test_a_padding_mask_is_rejected():
    model = tiny_model().model
    ids = torch.ones(2, 4, dtype=torch.long)
    padding_mask = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    with pytest.raises(ValueError, match="padding mask"):
        model(input_ids=ids, attention_mask=padding_mask)
    assert torch.equal(model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits, model(input_ids=ids).logits)


@each_row(
    ("config", "ours"),
    [
        (LlamaConfig(), True),
        (Qwen2Config(), True),
        (Qwen2Config(use_sliding_window=True, sliding_window=8, max_window_layers=1), False),
        (MistralConfig(sliding_window=None), True),
        (MistralConfig(sliding_window=4096), False),
        (Gemma2Config(), False),  # soft caps
        (GptOssConfig(), False),  # attention sinks
    ],
)
def test_is_plain_accepts_only_plain_attention(config: Any, ours: bool):
    assert is_plain(config) is ours


def test_a_model_with_sliding_windows_keeps_its_own_attention():
    tokenizer = bpe_tokenizer()
    config = MistralConfig(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=4,
        initializer_range=0.2,
    )
    model = AutoModelForCausalLM.from_config(config)
    ids = torch.arange(20)[None]
    with torch.inference_mode():
        logits_before = model(input_ids=ids).logits
        logits_after = prepare(model, tokenizer).model(input_ids=ids).logits
    torch.testing.assert_close(logits_after, logits_before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_attend_decode_matches_the_reference(kv_heads: int):
    query, key, value = inputs(kv_heads, 1, 9)
    visible = torch.arange(9) < torch.tensor([[9], [3], [1]])
    bias = torch.zeros(3, 9).masked_fill(~visible, float("-inf"))
    actual = attend_decode(query[:, :, 0] * 8**-0.5, key.transpose(-1, -2).contiguous(), value, bias)
    torch.testing.assert_close(actual, reference(query, key, value, visible[:, None, None])[:, 0])
    without_bias = attend_decode(query[:, :, 0] * 8**-0.5, key.transpose(-1, -2), value, None)
    torch.testing.assert_close(without_bias, reference(query, key, value, torch.ones(1, 9, dtype=torch.bool))[:, 0])


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_attend_chunk_matches_the_reference(kv_heads: int):
    query, key, value = inputs(kv_heads, 4, 9)
    starts = torch.tensor([0, 2, 5])
    mask = torch.arange(9) <= (starts[:, None] + torch.arange(4))[:, :, None]
    actual = attend_chunk(query.transpose(1, 2) * 8**-0.5, key, value, starts)
    torch.testing.assert_close(actual, reference(query, key, value, mask[:, None]))
    query, key, value = inputs(kv_heads, 6, 6)
    actual = attend_chunk(*(x.transpose(1, 2) for x in (query * 8**-0.5, key, value)))
    torch.testing.assert_close(actual, reference(query, key, value, causal(6, 6)))
