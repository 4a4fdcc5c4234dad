from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rove.errors import ConfigError
from rove.train.losses import Loss, cispo, cross_entropy, grpo, make_loss

RATIOS = [1.0, 1.5, 8.0]
SAMPLER = [-1.0, -2.0, -4.0]


def three_tokens() -> tuple[torch.Tensor, torch.Tensor]:
    sampler = torch.tensor(SAMPLER, dtype=torch.float64)
    logprobs = sampler + torch.tensor(RATIOS, dtype=torch.float64).log()
    return logprobs.requires_grad_(), sampler


def values_and_gradient(loss: Loss, advantages: list[float]) -> tuple[list[float], list[float]]:
    logprobs, sampler = three_tokens()
    values = loss(logprobs, sampler, torch.tensor(advantages, dtype=torch.float64))
    [gradient] = torch.autograd.grad(values.sum(), logprobs)
    return values.tolist(), gradient.tolist()


def test_cispo_by_hand():
    # Ratios 1, 1.5 and 8 under a ceiling of 5; log π = log μ + log r.
    values, gradient = values_and_gradient(cispo(5.0), [2.0, -1.0, 0.5])
    assert values == pytest.approx([-1 * 2.0 * -1.0, -1.5 * -1.0 * (-2 + math.log(1.5)), -5 * 0.5 * (-4 + math.log(8))])
    assert gradient == pytest.approx([-2.0, 1.5, -2.5])


def test_grpo_by_hand():
    # Clipped to [0.8, 1.2]: a good token above it and a bad one below it lose their gradient, the others keep it.
    values, gradient = values_and_gradient(grpo(0.2, 0.2), [2.0, -1.0, 0.5])
    assert values == pytest.approx([-2.0, 1.5, -0.6])
    assert gradient == pytest.approx([-2.0, 1.5, 0.0])
    low = torch.tensor([0.5, 0.5], dtype=torch.float64).log().requires_grad_()
    seen = grpo(0.2, 0.2)(low, torch.zeros(2, dtype=torch.float64), torch.tensor([1.0, -1.0], dtype=torch.float64))
    [slope] = torch.autograd.grad(seen.sum(), low)
    assert seen.tolist() == pytest.approx([-0.5, 0.8])
    assert slope.tolist() == pytest.approx([-0.5, 0.0])


def test_grpo_bounds_are_offsets_from_one():
    values, _ = values_and_gradient(grpo(0.2, 0.6), [1.0, 1.0, 1.0])
    assert values == pytest.approx([-1.0, -1.5, -1.6])


def test_cross_entropy_is_the_negative_log_likelihood():
    values, gradient = values_and_gradient(cross_entropy, [1.0, 1.0, 0.0])
    assert values == pytest.approx([1.0, 2 - math.log(1.5), 0.0])
    assert gradient == [-1.0, -1.0, 0.0]


token = st.tuples(st.floats(-12, 0), st.floats(-12, 0), st.floats(-3, 3))


@settings(deadline=None, max_examples=200)
@given(st.lists(token, min_size=1, max_size=10), st.floats(1.01, 20))
def test_the_gradient_of_cispo_is_the_capped_ratio_times_the_advantage(
    tokens: list[tuple[float, float, float]], ceiling: float
):
    now, then, advantages = (torch.tensor(column, dtype=torch.float64) for column in zip(*tokens, strict=True))
    now.requires_grad_()
    [gradient] = torch.autograd.grad(cispo(ceiling)(now, then, advantages).sum(), now)
    expected = [-min(math.exp(p - q), ceiling) * a for p, q, a in tokens]
    assert gradient.tolist() == pytest.approx(expected)


@settings(deadline=None)
@given(st.lists(token, min_size=1, max_size=10))
def test_on_policy_every_loss_has_the_gradient_of_reinforce(tokens: list[tuple[float, float, float]]):
    for loss in (cispo(), grpo()):
        now = torch.tensor([p for p, _, _ in tokens], dtype=torch.float64, requires_grad=True)
        advantages = torch.tensor([a for _, _, a in tokens], dtype=torch.float64)
        [gradient] = torch.autograd.grad(loss(now, now.detach(), advantages).sum(), now)
        assert gradient.tolist() == pytest.approx((-advantages).tolist())


@pytest.mark.parametrize("ceiling", [1.0, 0.2, 0.0, -3.0])
def test_a_ceiling_that_scales_down_on_policy_tokens_is_refused(ceiling: float):
    with pytest.raises(ConfigError, match="absolute ceiling"):
        cispo(ceiling)
    with pytest.raises(ConfigError, match="absolute ceiling"):
        make_loss("cispo", max_ratio=ceiling)


def test_losses_are_found_by_name_with_their_own_settings():
    assert values_and_gradient(make_loss("cispo", max_ratio=2.0), [1.0] * 3)[1] == pytest.approx([-1.0, -1.5, -2.0])
    assert values_and_gradient(make_loss("grpo", clip_high=7.0), [1.0] * 3)[1] == pytest.approx([-1.0, -1.5, -8.0])
    assert make_loss("grpo", max_ratio=0.0)  # only CISPO has a ceiling
    with pytest.raises(ConfigError, match="did you mean 'cispo'"):
        make_loss("cipso")
