from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rove.engine.sampling import sample, uniforms

seeds_63 = st.integers(0, 2**63 - 1)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.long)


def splitmix64(seed: int, position: int) -> float:
    """The published generator in Python's integers."""
    x = (seed + (position + 1) * 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return ((x ^ (x >> 31)) >> 11) * 2.0**-53


@settings(deadline=None, max_examples=200)
@given(seeds_63, st.integers(0, 10**6))
def test_uniforms_are_splitmix64(seed: int, position: int):
    assert uniforms(ints(seed), ints(position)).item() == splitmix64(seed, position)


@settings(deadline=None)
@given(st.lists(st.tuples(seeds_63, st.integers(0, 5000)), min_size=1, max_size=20))
def test_a_uniform_depends_on_its_own_seed_and_position_alone(rows: list[tuple[int, int]]):
    together = uniforms(ints(*(s for s, _ in rows)), ints(*(p for _, p in rows)))
    assert together.tolist() == [uniforms(ints(s), ints(p)).item() for s, p in rows]
    assert all(0 <= u < 1 for u in together.tolist())


@pytest.mark.parametrize("what", ["seeds in a row", "positions in a row"])
def test_uniforms_are_uniform_and_unrelated(what: str):
    n = 20_000
    run, still = torch.arange(n), torch.full((n,), 7)
    u = uniforms(run, still) if what.startswith("seeds") else uniforms(still, run)
    counts = torch.histc(u, bins=20, min=0, max=1)
    chi_squared = ((counts - n / 20) ** 2 / (n / 20)).sum().item()
    assert chi_squared < 43.8  # the 0.999 quantile with 19 degrees of freedom
    neighbours = torch.corrcoef(torch.stack([u[:-1], u[1:]]))[0, 1].item()
    assert abs(neighbours) < 4 / math.sqrt(n)


def test_greedy_takes_the_likeliest_and_reports_temperature_one():
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
def test_log_probabilities_are_log_softmax_of_tempered_logits(row: list[float], temperature: float, seed: int):
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


def test_low_precision_logits_are_normalised_in_fp32():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    ids, logprobs = sample(logits, torch.ones(3), ints(1, 2, 3), ints(0, 0, 0))
    assert logprobs.dtype == torch.float32
    torch.testing.assert_close(logprobs, logits.float().log_softmax(-1).gather(1, ids[:, None])[:, 0])
