from __future__ import annotations

import math

import pytest
import torch
from fakes import sample
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tiers import each_row, first_quick
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from rove.engine.sampler import apply_temperature, filter_unlikely, sample_ids, score_tokens, top_tokens, uniforms

seeds_63 = st.integers(0, 2**63 - 1)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.long)


def splitmix64(seed: int, position: int) -> float:
    """Return the uniform of the published SplitMix64 generator, computed with Python integers."""
    x = (seed + (position + 1) * 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return ((x ^ (x >> 31)) >> 11) * 2.0**-53


@settings(deadline=None, max_examples=200)
@given(seeds_63, st.integers(0, 10**6))
def test_uniforms_match_splitmix64(seed: int, position: int):
    assert uniforms(ints(seed), ints(position)).item() == splitmix64(seed, position)


@settings(deadline=None)
@given(st.lists(st.tuples(seeds_63, st.integers(0, 5000)), min_size=1, max_size=20))
def test_a_uniform_depends_only_on_its_seed_and_position(rows: list[tuple[int, int]]):
    together = uniforms(ints(*(s for s, _ in rows)), ints(*(p for _, p in rows)))
    assert together.tolist() == [uniforms(ints(s), ints(p)).item() for s, p in rows]
    assert all(0 <= u < 1 for u in together.tolist())


@pytest.mark.parametrize("varied", ["seeds in a row", "positions in a row"])
def test_uniforms_are_uniform_and_uncorrelated(varied: str):
    n = 20_000
    varying, constant = torch.arange(n), torch.full((n,), 7)
    u = uniforms(varying, constant) if varied.startswith("seeds") else uniforms(constant, varying)
    counts = torch.histc(u, bins=20, min=0, max=1)
    chi_squared = ((counts - n / 20) ** 2 / (n / 20)).sum().item()
    assert chi_squared < 43.8  # the 0.999 quantile with 19 degrees of freedom
    correlation = torch.corrcoef(torch.stack([u[:-1], u[1:]]))[0, 1].item()
    assert abs(correlation) < 4 / math.sqrt(n)


def test_greedy_picks_the_most_likely_token_and_reports_logprobs_at_temperature_1():
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, -1.0, 0.0]])
    ids, logprobs = sample(logits, torch.zeros(2), ints(1, 2), ints(0, 0))
    assert ids.tolist() == [1, 0]
    torch.testing.assert_close(logprobs, logits.log_softmax(-1).max(-1).values)


def test_every_row_has_its_own_temperature():
    logits = torch.tensor([0.0, 1.0, 2.0, 0.5]).expand(4, 4)
    temperature = torch.tensor([0.0, 0.5, 1.0, 2.0])
    ids, logprobs = sample(logits, temperature, ints(3, 3, 3, 3), ints(9, 9, 9, 9))
    for row, t in enumerate([1.0, 0.5, 1.0, 2.0]):
        assert logprobs[row].item() == pytest.approx((logits[row] / t).log_softmax(-1)[ids[row]].item(), abs=1e-6)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=8), st.floats(0.125, 3, width=32), seeds_63)
def test_logprobs_are_the_log_softmax_of_logits_divided_by_the_temperature(
    row: list[float], temperature: float, seed: int
):
    logits = torch.tensor([row])
    ids, logprobs = sample(logits, torch.tensor([temperature]), ints(seed), ints(0))
    assert 0 <= ids.item() < len(row)
    torch.testing.assert_close(logprobs[0], (logits[0] / temperature).log_softmax(-1)[ids[0]])


def test_the_token_is_where_the_uniform_falls_in_the_cumulative_distribution():
    probabilities = [0.1, 0.0, 0.2, 0.7, 0.0]
    logits = torch.tensor([probabilities]).log().expand(200, 5)
    seeds = torch.arange(200)
    position = torch.zeros_like(seeds)
    ids, _ = sample(logits, torch.ones(200), seeds, position)
    edges = [0.1, 0.1, 0.3, 1.0, 1.0]
    expected = [next(i for i, edge in enumerate(edges) if u < edge) for u in uniforms(seeds, position).tolist()]
    assert ids.tolist() == expected


@pytest.mark.parametrize("temperature", [1.0, 1.25, 0.5])
def test_frequencies_follow_the_distribution(temperature: float):
    n, logits = 40_000, torch.tensor([0.0, 1.0, -1.0, 2.0, 0.3])
    seeds = torch.full((n,), 11)
    ids, _ = sample(logits.expand(n, 5), torch.full((n,), temperature), seeds, torch.arange(n))
    expected = (logits / temperature).softmax(-1) * n
    chi_squared = ((torch.bincount(ids, minlength=5) - expected) ** 2 / expected).sum().item()
    assert chi_squared < 18.5  # the 0.999 quantile with 4 degrees of freedom; the seed is fixed


def test_low_precision_logits_are_normalized_in_fp32():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    ids, logprobs = sample(logits, torch.ones(3), ints(1, 2, 3), ints(0, 0, 0))
    assert logprobs.dtype == torch.float32
    torch.testing.assert_close(logprobs, logits.float().log_softmax(-1).gather(1, ids[:, None])[:, 0])


def test_a_tiny_temperature_still_yields_a_finite_distribution():
    logits = torch.tensor([[80.0, -80.0, 79.0]])
    ids, logprobs = sample(logits, torch.tensor([1e-38]), ints(1), ints(0))
    assert (ids.item(), logprobs.item()) == (0, 0.0)
    assert torch.isfinite(apply_temperature(logits, torch.tensor([1e-38]))).all()


@settings(deadline=None, max_examples=300)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(any), st.integers(0, 2**20 - 1))
def test_sample_ids_inverts_the_cumulative_distribution_exactly(weights: list[int], numerator: int):
    # All numbers are small multiples of a power of two, so fp32 does not round.
    uniform = numerator / 2**20
    probabilities = torch.tensor([weights]) / 1024
    id = int(sample_ids(probabilities, torch.tensor([uniform], dtype=torch.double)))
    total = sum(weights)
    assert sum(weights[:id]) * 2**20 <= numerator * total < sum(weights[: id + 1]) * 2**20


@settings(deadline=None, max_examples=200)
@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=50).filter(lambda row: sum(row) > 0))
def test_the_largest_uniform_never_samples_a_token_of_probability_zero(row: list[float]):
    probabilities = torch.tensor([[*row, 0.0, 0.0]])
    assume(probabilities.sum() > 1e-30)
    id = int(sample_ids(probabilities, torch.tensor([1 - 2.0**-53], dtype=torch.double)))
    assert probabilities[0, id] > 0


def boundary(row: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return, by bisection, the smallest uniform that samples each id or a later one."""
    low, high = torch.zeros(len(ids), dtype=torch.double), torch.ones(len(ids), dtype=torch.double)
    probabilities = row.expand(len(ids), -1)
    for _ in range(46):
        middle = (low + high) / 2
        is_later = sample_ids(probabilities, middle) >= ids
        low, high = torch.where(is_later, low, middle), torch.where(is_later, middle, high)
    return high


@pytest.mark.parametrize("likely", first_quick([75_000, 0, 149_999], broad=None))
def test_rare_tokens_of_a_large_vocabulary_are_sampled_with_their_probability(likely: int):
    weights = torch.rand(150_000, generator=torch.Generator().manual_seed(likely)) + 0.5
    weights[likely] = 9 * weights.sum()
    row = weights / weights.sum()
    ids = torch.tensor([1, 510, 511, 512, 74_999, 75_001, 149_503, 149_504, 149_997])
    implied = boundary(row, ids + 1) - boundary(row, ids)
    torch.testing.assert_close(implied, row[ids].double(), rtol=1e-3, atol=0)


def test_sampling_from_a_large_vocabulary_does_not_depend_on_the_batch():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(24, 20_000, generator=generator).softmax(-1)
    draws = torch.rand(24, generator=generator, dtype=torch.double)
    single = [int(sample_ids(rows[i : i + 1].clone(), draws[i : i + 1])) for i in range(24)]
    assert sample_ids(rows, draws).tolist() == single
    assert sample_ids(rows[::2], draws[::2]).tolist() == single[::2]


@each_row("only", [0, 511, 512, 8_703, 8_704, 8_999])
def test_the_only_possible_token_of_a_large_vocabulary_is_sampled(only: int):
    row = torch.zeros(1, 9_000)
    row[0, only] = 0.3
    for uniform in (0.0, 0.5, 1 - 2.0**-53):
        assert int(sample_ids(row, torch.tensor([uniform], dtype=torch.double))) == only


def test_an_all_nan_row_of_a_large_vocabulary_samples_a_valid_id():
    assert 0 <= int(sample_ids(torch.full((1, 9_000), torch.nan), torch.tensor([0.5], dtype=torch.double))) < 9_000


def distribution(seed: int, vocab: int) -> torch.Tensor:
    return (2 * torch.randn(1, vocab, generator=torch.Generator().manual_seed(seed))).softmax(-1)


def filtered(probabilities: torch.Tensor, k: int = 0, p: float = 1.0, least: float = 0.0) -> torch.Tensor:
    k = k or probabilities.shape[1]
    return filter_unlikely(probabilities, torch.tensor([k]), torch.tensor([p]), torch.tensor([least]))


@settings(deadline=None, max_examples=200)
@given(
    st.integers(0, 10**6),
    st.integers(2, 40),
    st.integers(1, 40),
    st.floats(0.03125, 1, width=32),
    st.floats(0, 1, width=32),
)
def test_filters_agree_with_transformers(seed: int, vocab: int, k: int, p: float, least: float):
    probabilities, k = distribution(seed, vocab), min(k, vocab)
    filters = LogitsProcessorList([MinPLogitsWarper(least), TopKLogitsWarper(k), TopPLogitsWarper(p)])
    scores = LogitsProcessorList(filters[:2])(torch.zeros(1, 0, dtype=torch.long), probabilities.log())
    edges = scores.softmax(-1).sort().values.cumsum(-1) - (1 - p)
    assume(edges.abs().min() > 1e-5)  # at the edge itself, rounding decides
    assume(((probabilities / probabilities.max()) - least).abs().min() > 1e-5 or least in (0, 1))
    expected = filters(torch.zeros(1, 0, dtype=torch.long), probabilities.log()).softmax(-1)
    torch.testing.assert_close(filtered(probabilities, k, p, least), expected)


@settings(deadline=None, max_examples=100)
@given(
    st.integers(0, 10**6),
    st.integers(1, 60),
    st.integers(1, 60),
    st.floats(2**-100, 1, width=32),
    st.floats(0, 1, width=32),
)
def test_a_filtered_distribution_is_normalized_and_keeps_the_most_likely_tokens(
    seed: int, vocab: int, k: int, p: float, least: float
):
    probabilities = distribution(seed, vocab)
    result = filtered(probabilities, min(k, vocab), p, least)
    assert result.sum().item() == pytest.approx(1, abs=1e-5)
    assert result.argmax() == probabilities.argmax()
    assert (result > 0).sum() <= k
    removed = probabilities[result == 0]
    assert len(removed) == 0 or removed.max() < probabilities[result > 0].min()
    assert probabilities[result > 0].min() >= least * probabilities.max() * (1 - 1e-6)
    without_least_likely = probabilities[result > 0].sum() - probabilities[result > 0].min()
    assert without_least_likely < p + 1e-5  # without the least likely kept token, less than p would remain


def test_disabled_filters_change_nothing():
    probabilities = distribution(3, 30)
    torch.testing.assert_close(filtered(probabilities), probabilities)


def test_filters_keep_all_tokens_tied_with_the_last_kept_one():
    probabilities = torch.tensor([[0.2, 0.3, 0.2, 0.3, 0.0]])
    for filters in ({"k": 1}, {"p": 0.1}, {"p": 0.55}, {"least": 1.0}):
        assert filtered(probabilities, **filters).tolist()[0] == pytest.approx([0, 0.5, 0, 0.5, 0])
    assert (filtered(probabilities, p=0.7) > 0).tolist() == [[True, True, True, True, False]]


def test_top_p_applies_to_the_distribution_left_by_top_k():
    probabilities = torch.tensor([[0.4, 0.3, 0.2, 0.1]])
    assert (filtered(probabilities, p=0.55) > 0).sum() == 2
    assert (filtered(probabilities, k=2, p=0.55) > 0).sum() == 1  # 0.4 of 0.7 is enough


def test_top_tokens_are_the_most_likely_and_have_nonzero_probability():
    probabilities = torch.tensor([[0.1, 0.0, 0.6, 0.3], [0.0, 1.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]])
    first, second, third = top_tokens(probabilities, [2, 3, 0])
    assert [id for id, _ in first] == [2, 3]
    assert [logprob for _, logprob in first] == pytest.approx([math.log(0.6), math.log(0.3)])
    assert (second, third) == ([(1, 0.0)], [])
    assert [len(row) for row in top_tokens(probabilities, [9, 9, 9])] == [3, 1, 4]


def test_score_tokens_returns_logprobs_and_top_tokens_of_the_logits():
    logits = torch.randn(5, 12, generator=torch.Generator().manual_seed(1)).bfloat16()
    ids = ints(3, 0, 11, 4, 4)
    logprobs, top = score_tokens(logits, ids, 2)
    expected = logits.float().log_softmax(-1)
    assert logprobs == pytest.approx([expected[i, id].item() for i, id in enumerate(ids.tolist())])
    assert [row[0][0] for row in top] == logits.argmax(-1).tolist()
    assert [len(row) for row in top] == [2] * 5
    assert score_tokens(logits, ids)[1] == [[]] * 5
