from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import each_row

from rove.core.errors import ConfigError
from rove.train.losses import (
    AGGREGATIONS,
    PRESETS,
    Loss,
    LossTokens,
    choose_aggregation,
    cispo,
    clipped_tokens,
    cross_entropy,
    grpo,
    gspo,
    importance_corrected,
    kl_penalized,
    make_loss,
    reinforce,
    token_weights,
)

RATIOS = [1.0, 1.5, 8.0]
SAMPLER_LOGPROBS = [-1.0, -2.0, -4.0]
ADVANTAGES = [2.0, -1.0, 0.5]
NAMES = sorted(PRESETS)


def tensor(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def loss_tokens(
    sampler: list[float],
    advantages: list[float],
    samples: list[int] | None = None,
    old: list[float] | None = None,
    reference: list[float] | None = None,
) -> LossTokens:
    return LossTokens(
        tensor(sampler),
        tensor(advantages),
        torch.tensor(samples or [0] * len(sampler)),
        None if old is None else tensor(old),
        None if reference is None else tensor(reference),
    )


def current_logprobs() -> list[float]:
    return [p + math.log(r) for p, r in zip(SAMPLER_LOGPROBS, RATIOS, strict=True)]


def loss_gradient(
    loss: Loss, logprobs: torch.Tensor, tokens: LossTokens, weights: torch.Tensor | float = 1.0
) -> torch.Tensor:
    logprobs = logprobs.detach().requires_grad_()
    [gradient] = torch.autograd.grad((loss(logprobs, tokens) * weights).sum(), logprobs)
    return gradient


def values_and_gradient(loss: Loss, advantages: list[float], **fields: Any) -> tuple[list[float], list[float]]:
    """Return losses and gradients of three tokens with the importance ratios 1, 1.5 and 8."""
    logprobs, tokens = tensor(current_logprobs()), loss_tokens(SAMPLER_LOGPROBS, advantages, **fields)
    return loss(logprobs, tokens).tolist(), loss_gradient(loss, logprobs, tokens).tolist()


def test_cispo_matches_values_computed_by_hand():
    # Ratios 1, 1.5 and 8 under a ceiling of 5; log π = log μ + log r.
    values, gradient = values_and_gradient(cispo(5.0), ADVANTAGES)
    assert values == pytest.approx([-1 * 2.0 * -1.0, -1.5 * -1.0 * (-2 + math.log(1.5)), -5 * 0.5 * (-4 + math.log(8))])
    assert gradient == pytest.approx([-2.0, 1.5, -2.5])


def test_grpo_matches_values_computed_by_hand():
    # Ratios are clipped to [0.8, 1.2]: no gradient above it if the advantage is positive, or below it if it is negative.
    values, gradient = values_and_gradient(grpo(0.2, 0.2), ADVANTAGES)
    assert values == pytest.approx([-2.0, 1.5, -0.6])
    assert gradient == pytest.approx([-2.0, 1.5, 0.0])
    low, tokens = tensor([0.5, 0.5]).log(), loss_tokens([0.0, 0.0], [1.0, -1.0])
    assert grpo(0.2, 0.2)(low, tokens).tolist() == pytest.approx([-0.5, 0.8])
    assert loss_gradient(grpo(0.2, 0.2), low, tokens).tolist() == pytest.approx([-0.5, 0.0])


def test_grpo_bounds_are_offsets_from_one():
    values, _ = values_and_gradient(grpo(0.2, 0.6), [1.0, 1.0, 1.0])
    assert values == pytest.approx([-1.0, -1.5, -1.6])


def test_gspo_matches_values_computed_by_hand():
    # The first two tokens are one sequence with the ratio √(1 · 1.5); a token's gradient is the ratio times its advantage.
    values, gradient = values_and_gradient(gspo(0.3, 0.3), ADVANTAGES, samples=[7, 7, 3])
    ratio = math.sqrt(1.5)
    assert values == pytest.approx([-2 * ratio, ratio, -0.5 * 1.3])
    assert gradient == pytest.approx([-2 * ratio, ratio, 0.0])
    narrow = values_and_gradient(gspo(), ADVANTAGES, samples=[7, 7, 3])
    assert narrow[0] == pytest.approx([-2 * 1.0004, ratio, -0.5 * 1.0004])
    assert narrow[1] == pytest.approx([0.0, ratio, 0.0])


def test_reinforce_matches_values_computed_by_hand():
    values, gradient = values_and_gradient(reinforce, ADVANTAGES)
    assert values == pytest.approx([-2.0 * -1.0, -2 + math.log(1.5), -0.5 * (-4 + math.log(8))])
    assert gradient == [-2.0, 1.0, -0.5]


def test_cross_entropy_is_the_negative_log_likelihood():
    values, gradient = values_and_gradient(cross_entropy, [1.0, 1.0, 0.0])
    assert values == pytest.approx([1.0, 2 - math.log(1.5), 0.0])
    assert gradient == [-1.0, -1.0, 0.0]


# π_old/μ = 1, 0.5 and 4, so that π/π_old = 1, 3 and 2; the weights under a ceiling of 2 are 1, 0.5 and 2.
OLD_LOGPROBS = [p + math.log(r) for p, r in zip(SAMPLER_LOGPROBS, [1.0, 0.5, 4.0], strict=True)]


def test_importance_correction_matches_values_computed_by_hand():
    values, gradient = values_and_gradient(importance_corrected(grpo(0.2, 0.2), 2.0), ADVANTAGES, old=OLD_LOGPROBS)
    assert values == pytest.approx([-2.0, 0.5 * 3.0, 2 * -0.6])
    assert gradient == pytest.approx([-2.0, 0.5 * 3.0, 0.0])
    _, gradient = values_and_gradient(make_loss("cispo", max_ratio=2.5), ADVANTAGES, old=OLD_LOGPROBS)
    assert gradient == pytest.approx([-2.0, 0.5 * 2.5, 2 * -0.5 * 2])
    _, gradient = values_and_gradient(make_loss("reinforce", importance_cap=1e30), ADVANTAGES, old=OLD_LOGPROBS)
    assert gradient == pytest.approx([-2.0, 0.5, 4 * -0.5])


@pytest.mark.parametrize("name", NAMES)
def test_sampler_logprobs_are_used_if_old_logprobs_are_missing(name: str):
    assert values_and_gradient(make_loss(name), ADVANTAGES) == values_and_gradient(
        make_loss(name), ADVANTAGES, old=SAMPLER_LOGPROBS
    )


def test_the_kl_penalty_matches_values_computed_by_hand():
    # π_ref/π = 2, 0.5 and 1: k3 = 1 − log 2, log 2 − 0.5 and 0, times π/μ = 1, 1.5 and 2 (capped).
    reference = [p + math.log(r) for p, r in zip(current_logprobs(), [2.0, 0.5, 1.0], strict=True)]
    values, gradient = values_and_gradient(make_loss("grpo", kl_penalty=0.1), [0.0] * 3, reference=reference)
    assert values == pytest.approx([0.1 * (1 - math.log(2)), 0.1 * 1.5 * (math.log(2) - 0.5), 0.0])
    # r · (k3 + 1 − π_ref/π) = −r · log(π_ref/π)
    assert gradient == pytest.approx([-0.1 * math.log(2), 0.1 * 1.5 * math.log(2), 0.0])


def test_the_kl_penalty_has_the_gradient_of_the_kl_divergence():
    """Sum over a whole vocabulary, with tokens of another policy and old log-probabilities."""
    torch.manual_seed(0)
    logits, reference, sampler, old = (torch.randn(5, dtype=torch.float64) for _ in range(4))
    logits.requires_grad_()
    logprobs = logits.log_softmax(-1)
    mu, ref = sampler.log_softmax(-1), reference.log_softmax(-1)
    tokens = LossTokens(mu, torch.zeros(5, dtype=torch.float64), torch.arange(5), old.log_softmax(-1), ref)
    penalty = (mu.exp() * kl_penalized(reinforce, 1.0, math.inf)(logprobs, tokens)).sum()
    divergence = (logprobs.exp() * (logprobs - ref)).sum()
    assert penalty.item() == pytest.approx(divergence.item())
    actual, expected = (torch.autograd.grad(x, logits, retain_graph=True)[0] for x in (penalty, divergence))
    torch.testing.assert_close(actual, expected)


def test_importance_correction_gives_the_expected_loss_of_the_old_policy():
    torch.manual_seed(0)
    logits, sampler, old = (torch.randn(5, dtype=torch.float64) for _ in range(3))
    logits.requires_grad_()
    logprobs, mu, old_logprobs = logits.log_softmax(-1), sampler.log_softmax(-1), old.log_softmax(-1)
    tokens = LossTokens(mu, torch.randn(5, dtype=torch.float64), torch.arange(5), old_logprobs)
    for loss in (grpo(), cispo(), reinforce):
        actual = (mu.exp() * importance_corrected(loss, math.inf)(logprobs, tokens)).sum()
        expected = (old_logprobs.exp() * loss(logprobs, tokens)).sum()
        assert actual.item() == pytest.approx(expected.item())


# Results of TRL 1.16.0: the loss and its gradient with respect to each log-probability, from `GRPOTrainer._compute_loss`
# called with a fake trainer that returns these log-probabilities, on two sequences of three and two tokens. For "tis" the
# inputs have `importance_sampling_ratio` = min(exp(old − mu), 2), as in TRL's vLLM correction with token_truncate.
LOGPROBS_TRL = [-0.5, -1.2, -2.0, -0.9, -1.6]
OLD_LOGPROBS_TRL = [-0.6, -1.0, -2.9, -0.7, -1.5]
REFERENCE_TRL = [-0.8, -1.1, -1.5, -1.4, -1.6]
SAMPLER_TRL = [-0.7, -0.9, -3.9, -0.7, -1.3]
TRL_RESULTS: dict[str, tuple[Loss, str, float, list[float]]] = {
    "loss_type=dapo epsilon_high=.28": (
        make_loss("dapo"),
        "token",
        -0.719870957,
        [-0.331551275, -0.245619226, 0.0, 0.114622305, 0.126677239],
    ),
    "loss_type=grpo": (
        make_loss("grpo"),
        "sequence",
        -0.479350988,
        [-0.27629273, -0.204682688, 0.0, 0.143277882, 0.158346548],
    ),
    "loss_type=dr_grpo max_completion_length=7": (
        make_loss("dr_grpo"),
        "constant",
        -0.248525342,
        [-0.11841117, -0.087721152, 0.0, 0.040936538, 0.045241871],
    ),
    "loss_type=cispo epsilon_high=1.5": (
        make_loss("cispo", max_ratio=1.5),
        "token",
        1.054675052,
        [-0.331551275, -0.245619226, -0.45, 0.114622305, 0.126677239],
    ),
    "loss_type=cispo epsilon_high=5": (
        make_loss("cispo"),
        "token",
        1.630436919,
        [-0.331551275, -0.245619226, -0.737880933, 0.114622305, 0.126677239],
    ),
    "importance_sampling_level=sequence epsilon=3e-4 epsilon_high=4e-4": (
        make_loss("gspo"),
        "sequence",
        -0.400405,
        [0.0] * 5,
    ),
    "importance_sampling_level=sequence epsilon=.2 epsilon_high=.2": (
        make_loss("gspo", clip_low=0.2, clip_high=0.2),
        "sequence",
        -0.598752208,
        [0.0, 0.0, 0.0, 0.150623896, 0.150623896],
    ),
    "importance_sampling_level=sequence epsilon=.2 epsilon_high=.5": (
        make_loss("gspo", clip_low=0.2, clip_high=0.5),
        "sequence",
        -0.677956087,
        [-0.326401293, -0.326401293, -0.326401293, 0.150623896, 0.150623896],
    ),
    "loss_type=dapo epsilon_high=.28 beta=.1 use_bias_correction_kl=True": (
        make_loss("dapo", kl_penalty=0.1, importance_cap=1e30),
        "token",
        -0.709823759,
        [-0.32492025, -0.247256687, -0.024596031, 0.122809613, 0.126677239],
    ),
    "loss_type=dapo epsilon_high=.28 tis": (
        make_loss("dapo"),
        "token",
        -1.138329437,
        [-0.366420827, -0.222245466, 0.0, 0.114622305, 0.103714551],
    ),
}


@each_row("case", TRL_RESULTS)
def test_losses_and_weights_match_trl(case: str):
    loss, aggregation, value, gradient = TRL_RESULTS[case]
    sampler, old = (SAMPLER_TRL, OLD_LOGPROBS_TRL) if "tis" in case else (OLD_LOGPROBS_TRL, None)
    tokens = loss_tokens(sampler, [1.5] * 3 + [-0.7] * 2, [0, 0, 0, 1, 1], old, REFERENCE_TRL)
    weights = tensor(token_weights(aggregation, [3, 2], constant=7))[tokens.sequence_index]
    logprobs = tensor(LOGPROBS_TRL)
    assert (weights * loss(logprobs, tokens)).sum().item() == pytest.approx(value, abs=1e-8)
    assert loss_gradient(loss, logprobs, tokens, weights).tolist() == pytest.approx(gradient, abs=1e-8)


def test_clipped_tokens_are_found_for_each_loss():
    logprobs, tokens = tensor(current_logprobs()), loss_tokens(SAMPLER_LOGPROBS, ADVANTAGES, [0, 0, 1])

    def clipped(loss: Loss) -> list[bool]:
        return clipped_tokens(loss, logprobs, tokens).tolist()

    assert clipped(cispo(5.0)) == [False, False, True]
    assert clipped(cispo(1.2)) == [False, True, True]  # scaled down for either sign of the advantage
    assert clipped(grpo(0.2, 0.2)) == [
        False,
        False,
        True,
    ]  # the second has a negative advantage above the range: it keeps its gradient
    assert clipped(grpo(0.2, 8.0)) == [False, False, False]
    assert clipped(gspo(0.2, 0.2)) == [True, False, True]
    assert clipped(make_loss("gspo", kl_penalty=0.1)) == [True, False, True]
    assert clipped(reinforce) == clipped(cross_entropy) == clipped(make_loss("reinforce")) == [False] * 3
    low = tensor(SAMPLER_LOGPROBS) - 1
    assert clipped_tokens(grpo(), low, tokens).tolist() == [False, True, False]


@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_clipped_tokens_are_the_tokens_without_gradient(name: str):
    torch.manual_seed(0)
    logprobs = torch.randn(60, dtype=torch.float64)
    tokens = LossTokens(torch.zeros_like(logprobs), torch.randn(60, dtype=torch.float64), torch.arange(60) // 3)
    loss = make_loss(name, clip_low=0.3, clip_high=0.3)
    without_gradient = loss_gradient(loss, logprobs, tokens) == 0
    assert 0 < without_gradient.sum() < 60
    assert torch.equal(without_gradient, clipped_tokens(loss, logprobs, tokens))


token = st.tuples(st.floats(-12, 0), st.floats(-12, 0), st.floats(-3, 3))
full_token = st.tuples(*[st.floats(-12, 0)] * 4, st.floats(-3, 3), st.integers(0, 3))


def columns(tokens: list[tuple[float, ...]]) -> tuple[torch.Tensor, LossTokens]:
    logprobs, sampler, old, reference, advantages, sequence_index = (
        tensor(column) for column in zip(*tokens, strict=True)
    )
    return logprobs, LossTokens(sampler, advantages, sequence_index.long(), old, reference)


def select_tokens(tokens: LossTokens, index: torch.Tensor) -> LossTokens:
    return LossTokens(*(None if column is None else column[index] for column in tokens))  # pyright: ignore[reportArgumentType]


@settings(deadline=None, max_examples=200)
@given(st.lists(token, min_size=1, max_size=10), st.floats(1.01, 20))
def test_the_gradient_of_cispo_is_the_capped_ratio_times_the_advantage(
    tokens: list[tuple[float, float, float]], ceiling: float
):
    logprobs, sampler, advantages = (list(column) for column in zip(*tokens, strict=True))
    gradient = loss_gradient(cispo(ceiling), tensor(logprobs), loss_tokens(sampler, advantages))
    expected = [-min(math.exp(p - q), ceiling) * a for p, q, a in tokens]
    assert gradient.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=30)
@given(st.lists(full_token, min_size=1, max_size=10), st.booleans())
def test_every_loss_has_the_gradient_of_reinforce_on_policy(name: str, tokens: list[tuple[float, ...]], old: bool):
    logprobs, off_policy = columns(tokens)
    on_policy = off_policy._replace(sampler=logprobs, old=logprobs if old else None)
    gradient = loss_gradient(make_loss(name), logprobs, on_policy)
    torch.testing.assert_close(gradient, loss_gradient(reinforce, logprobs, on_policy))
    assert not clipped_tokens(make_loss(name), logprobs, on_policy).any()


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=30)
@given(st.lists(full_token, min_size=1, max_size=12), st.sampled_from(AGGREGATIONS), st.randoms(use_true_random=False))
def test_token_order_and_micro_batches_do_not_change_gradients(
    name: str, tokens: list[tuple[float, ...]], normalisation: str, rng: Any
):
    logprobs, whole = columns(tokens)
    loss = make_loss(name, kl_penalty=0.1)
    counts = torch.bincount(whole.sequence_index, minlength=4).tolist()
    weights = tensor(token_weights(normalisation, counts, constant=5))[whole.sequence_index]
    expected = loss_gradient(loss, logprobs, whole, weights)

    order = torch.tensor(rng.sample(range(len(tokens)), len(tokens)))
    shuffled = loss_gradient(loss, logprobs[order], select_tokens(whole, order), weights[order])
    torch.testing.assert_close(shuffled, expected[order])

    piece = torch.tensor([rng.randrange(2) for _ in range(4)])[whole.sequence_index]  # sequences are never split
    for part in (0, 1):
        index = (piece == part).nonzero()[:, 0]
        actual = loss_gradient(loss, logprobs[index], select_tokens(whole, index), weights[index])
        torch.testing.assert_close(actual, expected[index])


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=20)
@given(st.lists(full_token, min_size=1, max_size=10))
def test_zero_advantages_give_zero_gradients(name: str, tokens: list[tuple[float, ...]]):
    logprobs, whole = columns(tokens)
    assert not loss_gradient(make_loss(name), logprobs, whole._replace(advantages=torch.zeros_like(logprobs))).any()


extreme = st.sampled_from([0.0, -1e-6, -1.0, -20.0, -90.0, -200.0, -1e4, -1e30])


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(*[extreme] * 4, st.sampled_from([0.0, 1.0, -1.0, 3.0]), st.integers(0, 2)), min_size=1, max_size=8
    ),
    st.booleans(),
    st.floats(1, 1e6),
)
def test_extreme_log_probabilities_give_finite_losses_and_gradients(
    name: str, tokens: list[tuple[float, ...]], old: bool, cap: float
):
    logprobs, whole = columns(tokens)
    single = LossTokens(*(c.float() if c is not None and c.is_floating_point() else c for c in whole))  # pyright: ignore[reportArgumentType]
    if not old:
        single = single._replace(old=None)
    loss = make_loss(name, kl_penalty=0.1, importance_cap=cap)
    assert loss(logprobs.float(), single).isfinite().all()
    assert loss_gradient(loss, logprobs.float(), single).isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_without_tokens_has_an_empty_loss(name: str):
    logprobs = torch.zeros(0, requires_grad=True)
    tokens = LossTokens(torch.zeros(0), torch.zeros(0), torch.zeros(0, dtype=torch.long), reference=torch.zeros(0))
    assert make_loss(name, kl_penalty=0.1)(logprobs, tokens).shape == (0,)
    assert clipped_tokens(make_loss(name), logprobs, tokens).shape == (0,)


OPTIONS: list[tuple[str, dict[str, float]]] = [
    ("cispo", {"max_ratio": 2.0}),
    *((name, {"clip_low": 0.1}) for name in ("grpo", "dapo", "dr_grpo", "gspo")),
    *((name, {"clip_high": 0.1}) for name in ("grpo", "dapo", "dr_grpo", "gspo")),
    *((name, {"kl_penalty": 0.1}) for name in NAMES),
    *((name, {"importance_cap": 1.1}) for name in NAMES),
]


@each_row(("name", "options"), OPTIONS)
def test_every_option_changes_the_loss(name: str, options: dict[str, float]):
    logprobs = tensor([-1.0, -2.0, -0.5, -3.0])
    old = (logprobs - tensor([6.0, -0.5, 0.05, -0.9])).tolist()
    sampler = (tensor(old) - 0.5).tolist()
    tokens = loss_tokens(sampler, [1.0, -1.0, 1.0, -1.0], [0, 1, 2, 3], old, [-2.0] * 4)
    default, changed = (make_loss(name, **arguments)(logprobs, tokens) for arguments in ({}, options))
    assert not torch.equal(default, changed)


def test_all_losses_and_aggregations_differ():
    logprobs = tensor([-1.0, -2.0, -0.5, -3.0])
    sampler = (logprobs - tensor([0.25, -0.5, 6.0, 0.1])).tolist()
    tokens = loss_tokens(sampler, [1.0, -1.0, 1.0, 1.0], [0, 0, 1, 2])
    results = {name: (make_loss(name)(logprobs, tokens).tolist(), choose_aggregation(name)) for name in NAMES}
    for first_loss, second_loss in itertools.combinations(NAMES, 2):
        assert results[first_loss] != results[second_loss]
    for first_loss, second_loss in itertools.combinations(AGGREGATIONS, 2):
        assert token_weights(first_loss, [3, 1], constant=5) != token_weights(second_loss, [3, 1], constant=5)


@each_row("ceiling", [1.0, 0.2, 0.0, -3.0, math.nan])
def test_a_ceiling_that_scales_down_on_policy_tokens_is_rejected(ceiling: float):
    with pytest.raises(ConfigError, match="max_ratio is .*; expected a .*number, more than 1"):
        cispo(ceiling)
    with pytest.raises(ConfigError, match="max_ratio is .*; expected a .*number, more than 1"):
        make_loss("cispo", max_ratio=ceiling)


@pytest.mark.parametrize("name", ["grpo", "dapo", "dr_grpo", "gspo"])
@pytest.mark.parametrize(
    ("bound", "value"),
    [("clip_low", 0.0), ("clip_low", -0.1), ("clip_low", 1.2), ("clip_high", 0.0), ("clip_high", -0.2)],
)
def test_invalid_clip_bounds_are_rejected(name: str, bound: str, value: float):
    for wrong in (value, math.nan):
        with pytest.raises(ConfigError, match=f"{bound} is"):
            make_loss(name, **{bound: wrong})


@pytest.mark.parametrize(
    ("setting", "wrong"),
    [("kl_penalty", -0.1), ("kl_penalty", math.nan), ("kl_penalty", math.inf), ("importance_cap", 0.5)],
)
def test_other_settings_out_of_range_are_rejected(setting: str, wrong: float):
    with pytest.raises(ConfigError, match=setting):
        make_loss("grpo", **{setting: wrong})


def test_a_kl_penalty_without_a_reference_is_rejected():
    with pytest.raises(ConfigError, match="reference model"):
        make_loss("grpo", kl_penalty=0.1)(tensor([-1.0]), loss_tokens([-1.0], [1.0]))


def test_losses_are_created_by_name_with_their_settings():
    assert values_and_gradient(make_loss("cispo", max_ratio=2.0), [1.0] * 3)[1] == pytest.approx([-1.0, -1.5, -2.0])
    assert values_and_gradient(make_loss("grpo", clip_high=7.0), [1.0] * 3)[1] == pytest.approx([-1.0, -1.5, -8.0])
    assert make_loss("grpo", max_ratio=0.0)  # only CISPO has a ceiling
    with pytest.raises(ConfigError, match="did you mean 'cispo'"):
        make_loss("cipso")
    with pytest.raises(ConfigError, match="package.module:function"):
        make_loss("mine.loss")


@each_row(
    ("name", "lower", "upper"),
    [
        ("cispo", None, 5.0),
        ("grpo", 0.8, 1.2),
        ("dapo", 0.8, 1.28),
        ("dr_grpo", 0.8, 1.2),
        ("gspo", 0.9997, 1.0004),
        ("reinforce", None, None),
    ],
)
def test_presets_clip_at_the_bounds_of_their_papers(name: str, lower: float | None, upper: float | None):
    assert set(NAMES) == {"cispo", "grpo", "dapo", "dr_grpo", "gspo", "reinforce"}
    ratios = [0.1, *(bound * factor for bound in (lower, upper) if bound for factor in (1 - 1e-6, 1 + 1e-6)), 9.0]
    for sign in (1.0, -1.0):
        tokens = loss_tokens([-1.0] * len(ratios), [sign] * len(ratios), samples=[*range(len(ratios))])
        clipped = clipped_tokens(make_loss(name), tensor([math.log(ratio) - 1.0 for ratio in ratios]), tokens)
        is_too_high = [upper is not None and (sign > 0 or name == "cispo") and ratio > upper for ratio in ratios]
        is_too_low = [lower is not None and sign < 0 and ratio < lower for ratio in ratios]
        assert clipped.tolist() == [high or low for high, low in zip(is_too_high, is_too_low, strict=True)]


def test_presets_have_their_documented_losses_and_aggregations():
    expected = {"grpo": grpo(0.2, 0.2), "dapo": grpo(0.2, 0.28), "dr_grpo": grpo(0.2, 0.2), "gspo": gspo(3e-4, 4e-4)}
    expected |= {"cispo": cispo(5.0)}
    for name, loss in expected.items():
        assert values_and_gradient(make_loss(name), [1.0] * 3) == values_and_gradient(loss, [1.0] * 3)
    kinds = {name: choose_aggregation(name) for name in NAMES}
    assert {name for name, kind in kinds.items() if kind == "token"} == {"cispo", "reinforce", "grpo", "dapo"}
    assert (kinds["dr_grpo"], kinds["gspo"]) == ("constant", "sequence")
    assert choose_aggregation("package.module:function") == "token"
    assert choose_aggregation("gspo", "token") == "token"


CUSTOM_LOSSES = """
import torch
from rove.train.losses import cispo

def half(logprobs, tokens):
    return -0.5 * tokens.advantages * (logprobs - tokens.start)

def needs_reference(logprobs, tokens):
    return logprobs - tokens.reference

capped = cispo(3.0)
def one_argument(logprobs): return logprobs
def scalar(logprobs, tokens): return logprobs.sum()
def text(logprobs, tokens): return "loss"
def constant(logprobs, tokens): return tokens.advantages
number = 3
"""


@pytest.fixture
def loss_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    module = f"own_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(CUSTOM_LOSSES)
    (tmp_path / f"{module}_broken.py").write_text("import nothing_of_this_name")
    monkeypatch.syspath_prepend(tmp_path)
    return module


def test_a_custom_loss_is_imported_and_corrected(loss_module: str):
    assert values_and_gradient(make_loss(f"{loss_module}:half"), ADVANTAGES)[1] == pytest.approx([-1.0, 0.5, -0.25])
    # Importance correction and KL penalty apply to it.
    corrected_gradient = values_and_gradient(make_loss(f"{loss_module}:half"), ADVANTAGES, old=OLD_LOGPROBS)[1]
    assert corrected_gradient == pytest.approx([-1.0, 0.5 * 0.5, 2 * -0.25])
    assert make_loss(f"{loss_module}:needs_reference", kl_penalty=0.1)
    logprobs, tokens = tensor(current_logprobs()), loss_tokens(SAMPLER_LOGPROBS, ADVANTAGES)
    assert not clipped_tokens(make_loss(f"{loss_module}:half"), logprobs, tokens).any()
    assert clipped_tokens(make_loss(f"{loss_module}:capped"), logprobs, tokens).tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("{}:haf", "did you mean 'half'"),
        ("{}:number", "is of type int; expected a function"),
        ("{}:", "is not of the form package.module:function"),
        (":half", "is not of the form"),
        ("{}:a:b", "is not of the form"),
        ("{}/x:half", "is not of the form"),
        ("{}_missing:half", "ModuleNotFoundError.*PYTHONPATH"),
        ("{}_broken:half", "nothing_of_this_name"),
        ("{}:one_argument", r"failed on two tokens with TypeError.*function\(logprobs, tokens\)"),
        ("{}:needs_reference", "failed on two tokens"),
        ("{}:scalar", r"returned the shape \[\] for two tokens"),
        ("{}:text", "returned a str"),
        ("{}:constant", "does not depend on logprobs"),
        ("rove.train.losses:cispo", "failed on two tokens with TypeError"),  # it returns a loss but is not one
    ],
)
def test_an_invalid_custom_loss_is_rejected(loss_module: str, path: str, message: str):
    with pytest.raises(ConfigError, match=message):
        make_loss(path.format(loss_module))


def test_token_weights_match_values_computed_by_hand():
    assert token_weights("token", [3, 1]) == [0.25, 0.25]
    assert token_weights("sequence", [3, 1]) == pytest.approx([1 / 6, 1 / 2])
    assert token_weights("constant", [3, 1], constant=10) == [0.05, 0.05]
    # The first and third sequences belong to one rollout with five tokens.
    assert token_weights("token", [3, 1, 2], [7, 5, 7]) == pytest.approx([1 / 6] * 3)
    assert token_weights("sequence", [3, 1, 2], [7, 5, 7]) == pytest.approx([1 / 10, 1 / 2, 1 / 10])
    assert token_weights("constant", [3, 1, 2], [7, 5, 7], constant=10) == [0.05] * 3


lengths = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 4)), max_size=12)


@given(lengths)
def test_token_weights_have_the_expected_sums(samples: list[tuple[int, int]]):
    counts, rollouts = [count for count, _ in samples], [rollout for _, rollout in samples]
    trained = {rollout for count, rollout in samples if count}
    if not trained:
        assert all(math.isfinite(w) for name in AGGREGATIONS for w in token_weights(name, counts, rollouts, 4))
        return
    for name in ("token", "sequence"):
        weights = token_weights(name, counts, rollouts)
        assert sum(w * c for w, c in zip(weights, counts, strict=True)) == pytest.approx(1)
    totals = dict.fromkeys(trained, 0.0)
    for weight, count, rollout in zip(token_weights("sequence", counts, rollouts), counts, rollouts, strict=True):
        if count:
            totals[rollout] += weight * count
    assert list(totals.values()) == pytest.approx([1 / len(trained)] * len(trained))
    assert token_weights("constant", counts, rollouts, 4) == [1 / (4 * len(trained))] * len(counts)


@given(st.integers(1, 9), st.integers(1, 50))
def test_aggregations_are_equal_for_rollouts_of_equal_length(number: int, length: int):
    weights = [token_weights(name, [length] * number, constant=length) for name in AGGREGATIONS]
    assert weights[0] == pytest.approx(weights[1])
    assert weights[0] == pytest.approx(weights[2])


def test_invalid_aggregations_are_rejected():
    with pytest.raises(ConfigError, match="did you mean 'sequence'"):
        choose_aggregation("grpo", "sequenze")
    with pytest.raises(ConfigError, match="did you mean 'token'"):
        token_weights("tokens", [1])
    for wrong in (None, 0.0, -1.0, math.nan):
        with pytest.raises(ConfigError, match="constant is .*; expected a .*number, more than 0"):
            token_weights("constant", [1], constant=wrong)
    with pytest.raises(ValueError):
        token_weights("token", [1, 2], [0])
