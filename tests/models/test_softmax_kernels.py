"""The kernels of `softmax.c` compared with PyTorch."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rove.core.protocols import SamplingParams
from rove.engine import sampler as sampler_module
from rove.engine.sampler import SampledTokens, Sampler, SamplerRow
from rove.models.kernels import pointers, run_rows, softmax_kernels

pytestmark = pytest.mark.skipif(softmax_kernels(torch.float32) is None, reason="there is no C compiler")
VOCABULARIES = [1, 15, 16, 511, 513, 1040, 10_007]
DTYPES = [torch.float32, torch.bfloat16]


def random_logits(rows: int, vocab: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return (torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 4).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_softmax_sums_entropies_and_gradients_match_pytorch(vocab: int, dtype: torch.dtype):
    logits, scale = random_logits(5, vocab, dtype), torch.tensor([1.0, 0.5, 2.0, 1.0, 1.25])
    scaled = logits.float() * scale[:, None]
    logprobs = scaled.log_softmax(-1)
    lse, entropy, factor = torch.empty(5), torch.empty(5), torch.tensor([1.0, -2.0, 0.0, 0.5, 3.0])
    slope = torch.tensor([0.0, 0.0, 1.0, 0.5, -2.0])
    library = softmax_kernels(dtype)
    assert library is not None
    run_rows(5, partial(library.softmax, *pointers(logits, scale, lse, entropy), vocab))
    torch.testing.assert_close(lse, scaled.logsumexp(-1), rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(entropy, -(logprobs.exp() * logprobs).sum(-1), rtol=1e-4, atol=1e-5)
    run_rows(5, partial(library.softmax_gradient, *pointers(logits, scale, lse, entropy, factor, slope), vocab))
    entropy_gradient = -slope[:, None] * (logprobs + entropy[:, None])
    expected = (logprobs.exp() * (factor[:, None] + entropy_gradient)).to(dtype)
    torch.testing.assert_close(logits, expected, rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=1e-6)


def sample_native_and_torch(
    logits: torch.Tensor, temperature: list[float], seed: int
) -> tuple[SampledTokens, SampledTokens]:
    """Return the tokens sampled by the kernel and by PyTorch."""
    rows = [SamplerRow(SamplingParams(temperature=t), seed + i, [1]) for i, t in enumerate(temperature)]
    vocab = logits.shape[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler_module, "LARGE_VOCABULARY", 0)
        native = Sampler(vocab, rows=rows).step(logits)
        patch.setattr(sampler_module, "softmax_kernels", lambda dtype: None)
        return native, Sampler(vocab, rows=rows).step(logits)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(VOCABULARIES), st.sampled_from(DTYPES), st.integers(0, 1 << 40))
def test_sampled_tokens_match_pytorch(vocab: int, dtype: torch.dtype, seed: int):
    temperature = [1.0, 0.7, 0.0, 1.3, 1e-9]
    native, torch_ = sample_native_and_torch(random_logits(5, vocab, dtype, seed % 1000), temperature, seed)
    torch.testing.assert_close(native.logprobs, torch_.logprobs, rtol=1e-4, atol=1e-4)
    # Rounding can select either of two adjacent tokens if the random number is at their boundary.
    assert ((native.ids - torch_.ids).abs() <= 1).all()


def test_tokens_of_probability_0_are_not_sampled_and_nan_and_inf_give_nan():
    logits = random_logits(40, 10_007, torch.bfloat16)
    logits[:20, 3:] = -torch.inf
    logits[20, 10_006], logits[21, 5], logits[22, 10_006] = torch.nan, torch.nan, torch.inf
    native, _ = sample_native_and_torch(logits, [1.0] * 40, 0)
    assert native.ids[:20].max() <= 2
    assert native.logprobs[20:23].isnan().all() and native.logprobs[23:].isfinite().all()


@pytest.mark.broad
def test_sampled_tokens_follow_the_distribution():
    vocab, count = 600, 20_000
    logits = random_logits(1, vocab, torch.float32)
    probabilities = logits[0].softmax(-1)
    native, _ = sample_native_and_torch(logits.expand(count, -1).contiguous(), [1.0] * count, 7)
    frequencies = torch.bincount(native.ids, minlength=vocab) / count
    common = probabilities > 0.005
    error = ((frequencies - probabilities) / (probabilities * (1 - probabilities) / count).sqrt())[common]
    assert error.abs().max() < 4.5


def test_a_token_does_not_depend_on_the_options_of_other_rows():
    vocab, count = 10_007, 400
    logits = random_logits(count, vocab, torch.float32)
    plain = [SamplerRow(SamplingParams(temperature=1.0), seed, [1]) for seed in range(count)]
    options = [SamplingParams(top_p=0.9), SamplingParams(logprobs=3), SamplingParams(frequency_penalty=0.5)]
    other_rows = [SamplerRow(params, 5, [1]) for params in options]
    alone, together = (
        Sampler(vocab, rows=plain).step(logits),
        Sampler(vocab, rows=[*plain, *other_rows]).step(torch.cat([logits, logits[:3]])),
    )
    assert torch.equal(together.ids[:count], alone.ids) and torch.equal(together.logprobs[:count], alone.logprobs)
    assert len(together.top[count + 1]) == 3


def test_rows_without_a_possible_token_give_nan():
    for vocab in (9000, 9001):
        rows = [SamplerRow(SamplingParams(temperature=t), 0, [1]) for t in (0.0, 1.0)]
        sampled = Sampler(vocab, rows=rows).step(torch.full((2, vocab), -torch.inf))
        assert sampled.ids.tolist() == [0, 0] and sampled.logprobs.isnan().all()
