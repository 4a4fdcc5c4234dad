from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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
SAMPLER = [-1.0, -2.0, -4.0]
ADVANTAGES = [2.0, -1.0, 0.5]
NAMES = sorted(PRESETS)


def tensor(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def made(
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


def three_logprobs() -> list[float]:
    return [p + math.log(r) for p, r in zip(SAMPLER, RATIOS, strict=True)]


def slope(loss: Loss, logprobs: torch.Tensor, tokens: LossTokens, weights: torch.Tensor | float = 1.0) -> torch.Tensor:
    logprobs = logprobs.detach().requires_grad_()
    [gradient] = torch.autograd.grad((loss(logprobs, tokens) * weights).sum(), logprobs)
    return gradient


def values_and_gradient(loss: Loss, advantages: list[float], **more: Any) -> tuple[list[float], list[float]]:
    """Of three tokens whose ratios to the sampler are 1, 1.5 and 8."""
    logprobs, tokens = tensor(three_logprobs()), made(SAMPLER, advantages, **more)
    return loss(logprobs, tokens).tolist(), slope(loss, logprobs, tokens).tolist()


def test_cispo_by_hand():
    # Ratios 1, 1.5 and 8 under a ceiling of 5; log π = log μ + log r.
    values, gradient = values_and_gradient(cispo(5.0), ADVANTAGES)
    assert values == pytest.approx([-1 * 2.0 * -1.0, -1.5 * -1.0 * (-2 + math.log(1.5)), -5 * 0.5 * (-4 + math.log(8))])
    assert gradient == pytest.approx([-2.0, 1.5, -2.5])


def test_grpo_by_hand():
    # Clipped to [0.8, 1.2]: a good token above it and a bad one below it lose their gradient, the others keep it.
    values, gradient = values_and_gradient(grpo(0.2, 0.2), ADVANTAGES)
    assert values == pytest.approx([-2.0, 1.5, -0.6])
    assert gradient == pytest.approx([-2.0, 1.5, 0.0])
    low, tokens = tensor([0.5, 0.5]).log(), made([0.0, 0.0], [1.0, -1.0])
    assert grpo(0.2, 0.2)(low, tokens).tolist() == pytest.approx([-0.5, 0.8])
    assert slope(grpo(0.2, 0.2), low, tokens).tolist() == pytest.approx([-0.5, 0.0])


def test_grpo_bounds_are_offsets_from_one():
    values, _ = values_and_gradient(grpo(0.2, 0.6), [1.0, 1.0, 1.0])
    assert values == pytest.approx([-1.0, -1.5, -1.6])


def test_gspo_by_hand():
    # The first two tokens are one sample: its ratio is √(1 · 1.5), each token's gradient that times its own advantage.
    values, gradient = values_and_gradient(gspo(0.3, 0.3), ADVANTAGES, samples=[7, 7, 3])
    both = math.sqrt(1.5)
    assert values == pytest.approx([-2 * both, both, -0.5 * 1.3])
    assert gradient == pytest.approx([-2 * both, both, 0.0])
    narrow = values_and_gradient(gspo(), ADVANTAGES, samples=[7, 7, 3])
    assert narrow[0] == pytest.approx([-2 * 1.0004, both, -0.5 * 1.0004])
    assert narrow[1] == pytest.approx([0.0, both, 0.0])


def test_reinforce_by_hand():
    values, gradient = values_and_gradient(reinforce, ADVANTAGES)
    assert values == pytest.approx([-2.0 * -1.0, -2 + math.log(1.5), -0.5 * (-4 + math.log(8))])
    assert gradient == [-2.0, 1.0, -0.5]


def test_cross_entropy_is_the_negative_log_likelihood():
    values, gradient = values_and_gradient(cross_entropy, [1.0, 1.0, 0.0])
    assert values == pytest.approx([1.0, 2 - math.log(1.5), 0.0])
    assert gradient == [-1.0, -1.0, 0.0]


# π_old/μ = 1, 0.5 and 4, so that π/π_old = 1, 3 and 2; the weights under a ceiling of 2 are 1, 0.5 and 2.
OLD = [p + math.log(r) for p, r in zip(SAMPLER, [1.0, 0.5, 4.0], strict=True)]


def test_the_correction_by_hand():
    values, gradient = values_and_gradient(importance_corrected(grpo(0.2, 0.2), 2.0), ADVANTAGES, old=OLD)
    assert values == pytest.approx([-2.0, 0.5 * 3.0, 2 * -0.6])
    assert gradient == pytest.approx([-2.0, 0.5 * 3.0, 0.0])
    _, gradient = values_and_gradient(make_loss("cispo", max_ratio=2.5), ADVANTAGES, old=OLD)
    assert gradient == pytest.approx([-2.0, 0.5 * 2.5, 2 * -0.5 * 2])
    _, gradient = values_and_gradient(make_loss("reinforce", importance_cap=math.inf), ADVANTAGES, old=OLD)
    assert gradient == pytest.approx([-2.0, 0.5, 4 * -0.5])


@pytest.mark.parametrize("name", NAMES)
def test_without_old_log_probabilities_the_samplers_stand_for_them(name: str):
    assert values_and_gradient(make_loss(name), ADVANTAGES) == values_and_gradient(
        make_loss(name), ADVANTAGES, old=SAMPLER
    )


def test_the_kl_penalty_by_hand():
    # π_ref/π = 2, 0.5 and 1: k3 = 1 − log 2, log 2 − 0.5 and 0, times π/μ = 1, 1.5 and (cut) 2.
    reference = [p + math.log(r) for p, r in zip(three_logprobs(), [2.0, 0.5, 1.0], strict=True)]
    values, gradient = values_and_gradient(make_loss("grpo", kl_penalty=0.1), [0.0] * 3, reference=reference)
    assert values == pytest.approx([0.1 * (1 - math.log(2)), 0.1 * 1.5 * (math.log(2) - 0.5), 0.0])
    # r · (k3 + 1 − π_ref/π) = −r · log(π_ref/π)
    assert gradient == pytest.approx([-0.1 * math.log(2), 0.1 * 1.5 * math.log(2), 0.0])


def test_the_kl_penalty_has_the_gradient_of_the_divergence_from_the_reference():
    """Summed over a whole vocabulary, with tokens from another policy and several updates old."""
    torch.manual_seed(0)
    logits, reference, sampler, old = (torch.randn(5, dtype=torch.float64) for _ in range(4))
    logits.requires_grad_()
    now = logits.log_softmax(-1)
    mu, ref = sampler.log_softmax(-1), reference.log_softmax(-1)
    tokens = LossTokens(mu, torch.zeros(5, dtype=torch.float64), torch.arange(5), old.log_softmax(-1), ref)
    penalty = (mu.exp() * kl_penalized(reinforce, 1.0, math.inf)(now, tokens)).sum()
    divergence = (now.exp() * (now - ref)).sum()
    assert penalty.item() == pytest.approx(divergence.item())
    got, wanted = (torch.autograd.grad(x, logits, retain_graph=True)[0] for x in (penalty, divergence))
    torch.testing.assert_close(got, wanted)


def test_the_correction_makes_tokens_of_the_sampler_stand_for_those_of_the_old_policy():
    torch.manual_seed(0)
    logits, sampler, old = (torch.randn(5, dtype=torch.float64) for _ in range(3))
    logits.requires_grad_()
    now, mu, start = logits.log_softmax(-1), sampler.log_softmax(-1), old.log_softmax(-1)
    tokens = LossTokens(mu, torch.randn(5, dtype=torch.float64), torch.arange(5), start)
    for loss in (grpo(), cispo(), reinforce):
        got = (mu.exp() * importance_corrected(loss, math.inf)(now, tokens)).sum()
        wanted = (start.exp() * loss(now, tokens)).sum()
        assert got.item() == pytest.approx(wanted.item())


# TRL 1.16.0: `GRPOTrainer._compute_loss` itself, called with a stand-in for the trainer that returns these
# log-probabilities, on two sequences of three and two tokens: the loss and its gradient by each log-probability.
# For "tis" the inputs have `importance_sampling_ratio` = min(exp(old − mu), 2), as its vLLM correction with token_truncate.
NEW = [-0.5, -1.2, -2.0, -0.9, -1.6]
START = [-0.6, -1.0, -2.9, -0.7, -1.5]
REF = [-0.8, -1.1, -1.5, -1.4, -1.6]
MU = [-0.7, -0.9, -3.9, -0.7, -1.3]
GOLDEN: dict[str, tuple[Loss, str, float, list[float]]] = {
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
        make_loss("dapo", kl_penalty=0.1, importance_cap=math.inf),
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


@pytest.mark.parametrize("case", GOLDEN)
def test_losses_and_weights_are_those_of_trl(case: str):
    loss, normalisation, value, gradient = GOLDEN[case]
    sampler, old = (MU, START) if "tis" in case else (START, None)
    tokens = made(sampler, [1.5] * 3 + [-0.7] * 2, [0, 0, 0, 1, 1], old, REF)
    weights = tensor(token_weights(normalisation, [3, 2], constant=7))[tokens.sequence_index]
    logprobs = tensor(NEW)
    assert (weights * loss(logprobs, tokens)).sum().item() == pytest.approx(value, abs=1e-8)
    assert slope(loss, logprobs, tokens, weights).tolist() == pytest.approx(gradient, abs=1e-8)


def test_which_tokens_are_clipped():
    logprobs, tokens = tensor(three_logprobs()), made(SAMPLER, ADVANTAGES, [0, 0, 1])

    def seen(loss: Loss) -> list[bool]:
        return clipped_tokens(loss, logprobs, tokens).tolist()

    assert seen(cispo(5.0)) == [False, False, True]
    assert seen(cispo(1.2)) == [False, True, True]  # scaled down, whichever way it goes
    assert seen(grpo(0.2, 0.2)) == [False, False, True]  # the second is bad and above: it keeps its gradient
    assert seen(grpo(0.2, 8.0)) == [False, False, False]
    assert seen(gspo(0.2, 0.2)) == [True, False, True]
    assert seen(make_loss("gspo", kl_penalty=0.1)) == [True, False, True]
    assert seen(reinforce) == seen(cross_entropy) == seen(make_loss("reinforce")) == [False] * 3
    low = tensor(SAMPLER) - 1
    assert clipped_tokens(grpo(), low, tokens).tolist() == [False, True, False]


@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_a_clipped_token_is_one_without_gradient(name: str):
    torch.manual_seed(0)
    logprobs = torch.randn(60, dtype=torch.float64)
    tokens = LossTokens(torch.zeros_like(logprobs), torch.randn(60, dtype=torch.float64), torch.arange(60) // 3)
    loss = make_loss(name, clip_low=0.3, clip_high=0.3)
    without = slope(loss, logprobs, tokens) == 0
    assert 0 < without.sum() < 60
    assert torch.equal(without, clipped_tokens(loss, logprobs, tokens))


token = st.tuples(st.floats(-12, 0), st.floats(-12, 0), st.floats(-3, 3))
full_token = st.tuples(*[st.floats(-12, 0)] * 4, st.floats(-3, 3), st.integers(0, 3))


def columns(tokens: list[tuple[float, ...]]) -> tuple[torch.Tensor, LossTokens]:
    now, sampler, old, reference, advantages, samples = (tensor(column) for column in zip(*tokens, strict=True))
    return now, LossTokens(sampler, advantages, samples.long(), old, reference)


def picked(tokens: LossTokens, index: torch.Tensor) -> LossTokens:
    return LossTokens(*(None if column is None else column[index] for column in tokens))  # pyright: ignore[reportArgumentType]


@settings(deadline=None, max_examples=200)
@given(st.lists(token, min_size=1, max_size=10), st.floats(1.01, 20))
def test_the_gradient_of_cispo_is_the_capped_ratio_times_the_advantage(
    tokens: list[tuple[float, float, float]], ceiling: float
):
    now, then, advantages = (list(column) for column in zip(*tokens, strict=True))
    gradient = slope(cispo(ceiling), tensor(now), made(then, advantages))
    expected = [-min(math.exp(p - q), ceiling) * a for p, q, a in tokens]
    assert gradient.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=30)
@given(st.lists(full_token, min_size=1, max_size=10), st.booleans())
def test_on_policy_every_loss_has_the_gradient_of_reinforce(name: str, tokens: list[tuple[float, ...]], old: bool):
    now, columned = columns(tokens)
    on_policy = columned._replace(sampler=now, old=now if old else None)
    gradient = slope(make_loss(name), now, on_policy)
    torch.testing.assert_close(gradient, slope(reinforce, now, on_policy))
    assert not clipped_tokens(make_loss(name), now, on_policy).any()


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=30)
@given(st.lists(full_token, min_size=1, max_size=12), st.sampled_from(AGGREGATIONS), st.randoms(use_true_random=False))
def test_neither_order_nor_cut_changes_a_gradient(
    name: str, tokens: list[tuple[float, ...]], normalisation: str, rng: Any
):
    now, whole = columns(tokens)
    loss = make_loss(name, kl_penalty=0.1)
    counts = torch.bincount(whole.sequence_index, minlength=4).tolist()
    weights = tensor(token_weights(normalisation, counts, constant=5))[whole.sequence_index]
    wanted = slope(loss, now, whole, weights)

    order = torch.tensor(rng.sample(range(len(tokens)), len(tokens)))
    shuffled = slope(loss, now[order], picked(whole, order), weights[order])
    torch.testing.assert_close(shuffled, wanted[order])

    piece = torch.tensor([rng.randrange(2) for _ in range(4)])[whole.sequence_index]  # samples are never cut
    for part in (0, 1):
        index = (piece == part).nonzero()[:, 0]
        got = slope(loss, now[index], picked(whole, index), weights[index])
        torch.testing.assert_close(got, wanted[index])


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=20)
@given(st.lists(full_token, min_size=1, max_size=10))
def test_no_advantage_no_gradient(name: str, tokens: list[tuple[float, ...]]):
    now, whole = columns(tokens)
    assert not slope(make_loss(name), now, whole._replace(advantages=torch.zeros_like(now))).any()


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
    now, whole = columns(tokens)
    single = LossTokens(*(c.float() if c is not None and c.is_floating_point() else c for c in whole))  # pyright: ignore[reportArgumentType]
    if not old:
        single = single._replace(old=None)
    loss = make_loss(name, kl_penalty=0.1, importance_cap=cap)
    assert loss(now.float(), single).isfinite().all()
    assert slope(loss, now.float(), single).isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_without_tokens_has_no_loss(name: str):
    nothing = torch.zeros(0, requires_grad=True)
    tokens = LossTokens(torch.zeros(0), torch.zeros(0), torch.zeros(0, dtype=torch.long), reference=torch.zeros(0))
    assert make_loss(name, kl_penalty=0.1)(nothing, tokens).shape == (0,)
    assert clipped_tokens(make_loss(name), nothing, tokens).shape == (0,)


OPTIONS: list[tuple[str, dict[str, float]]] = [
    ("cispo", {"max_ratio": 2.0}),
    *((name, {"clip_low": 0.1}) for name in ("grpo", "dapo", "dr_grpo", "gspo")),
    *((name, {"clip_high": 0.1}) for name in ("grpo", "dapo", "dr_grpo", "gspo")),
    *((name, {"kl_penalty": 0.1}) for name in NAMES),
    *((name, {"importance_cap": 1.1}) for name in NAMES),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_every_option_changes_something(name: str, options: dict[str, float]):
    logprobs = tensor([-1.0, -2.0, -0.5, -3.0])
    start = (logprobs - tensor([6.0, -0.5, 0.05, -0.9])).tolist()
    sampler = (tensor(start) - 0.5).tolist()
    tokens = made(sampler, [1.0, -1.0, 1.0, -1.0], [0, 1, 2, 3], start, [-2.0] * 4)
    plain, changed = (make_loss(name, **given)(logprobs, tokens) for given in ({}, options))
    assert not torch.equal(plain, changed)


def test_no_two_losses_are_the_same():
    logprobs = tensor([-1.0, -2.0, -0.5, -3.0])
    start = (logprobs - tensor([0.25, -0.5, 6.0, 0.1])).tolist()
    tokens = made(start, [1.0, -1.0, 1.0, 1.0], [0, 0, 1, 2])
    seen = {name: (make_loss(name)(logprobs, tokens).tolist(), choose_aggregation(name)) for name in NAMES}
    for one, other in itertools.combinations(NAMES, 2):
        assert seen[one] != seen[other]
    for one, other in itertools.combinations(AGGREGATIONS, 2):
        assert token_weights(one, [3, 1], constant=5) != token_weights(other, [3, 1], constant=5)


@pytest.mark.parametrize("ceiling", [1.0, 0.2, 0.0, -3.0, math.nan])
def test_a_ceiling_that_scales_down_on_policy_tokens_is_refused(ceiling: float):
    with pytest.raises(ConfigError, match="absolute ceiling"):
        cispo(ceiling)
    with pytest.raises(ConfigError, match="absolute ceiling"):
        make_loss("cispo", max_ratio=ceiling)


@pytest.mark.parametrize("name", ["grpo", "dapo", "dr_grpo", "gspo"])
@pytest.mark.parametrize(
    ("bound", "value"),
    [("clip_low", 0.0), ("clip_low", -0.1), ("clip_low", 1.2), ("clip_high", 0.0), ("clip_high", -0.2)],
)
def test_clip_ranges_that_are_none_are_refused(name: str, bound: str, value: float):
    for wrong in (value, math.nan):
        with pytest.raises(ConfigError, match=f"{bound} is"):
            make_loss(name, **{bound: wrong})


@pytest.mark.parametrize(
    ("setting", "wrong"),
    [("kl_penalty", -0.1), ("kl_penalty", math.nan), ("kl_penalty", math.inf), ("importance_cap", 0.5)],
)
def test_other_settings_out_of_range_are_refused(setting: str, wrong: float):
    with pytest.raises(ConfigError, match=setting):
        make_loss("grpo", **{setting: wrong})


def test_a_kl_penalty_without_a_reference_is_refused():
    with pytest.raises(ConfigError, match="reference model"):
        make_loss("grpo", kl_penalty=0.1)(tensor([-1.0]), made([-1.0], [1.0]))


def test_losses_are_found_by_name_with_their_own_settings():
    assert values_and_gradient(make_loss("cispo", max_ratio=2.0), [1.0] * 3)[1] == pytest.approx([-1.0, -1.5, -2.0])
    assert values_and_gradient(make_loss("grpo", clip_high=7.0), [1.0] * 3)[1] == pytest.approx([-1.0, -1.5, -8.0])
    assert make_loss("grpo", max_ratio=0.0)  # only CISPO has a ceiling
    with pytest.raises(ConfigError, match="did you mean 'cispo'"):
        make_loss("cipso")
    with pytest.raises(ConfigError, match="package.module:function"):
        make_loss("mine.loss")


def test_what_a_name_stands_for():
    same = {"grpo": grpo(0.2, 0.2), "dapo": grpo(0.2, 0.28), "dr_grpo": grpo(0.2, 0.2), "gspo": gspo(3e-4, 4e-4)}
    same |= {"cispo": cispo(5.0)}
    for name, loss in same.items():
        assert values_and_gradient(make_loss(name), [1.0] * 3) == values_and_gradient(loss, [1.0] * 3)
    kinds = {name: choose_aggregation(name) for name in NAMES}
    assert {name for name, kind in kinds.items() if kind == "token"} == {"cispo", "reinforce", "grpo", "dapo"}
    assert (kinds["dr_grpo"], kinds["gspo"]) == ("constant", "sequence")
    assert choose_aggregation("package.module:function") == "token"
    assert choose_aggregation("gspo", "token") == "token"


OWN = """
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
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    module = f"own_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(OWN)
    (tmp_path / f"{module}_broken.py").write_text("import nothing_of_this_name")
    monkeypatch.syspath_prepend(tmp_path)
    return module


def test_a_loss_of_ones_own(own: str):
    assert values_and_gradient(make_loss(f"{own}:half"), ADVANTAGES)[1] == pytest.approx([-1.0, 0.5, -0.25])
    # It is corrected and penalised like any other.
    corrected_gradient = values_and_gradient(make_loss(f"{own}:half"), ADVANTAGES, old=OLD)[1]
    assert corrected_gradient == pytest.approx([-1.0, 0.5 * 0.5, 2 * -0.25])
    assert make_loss(f"{own}:needs_reference", kl_penalty=0.1)
    logprobs, tokens = tensor(three_logprobs()), made(SAMPLER, ADVANTAGES)
    assert not clipped_tokens(make_loss(f"{own}:half"), logprobs, tokens).any()
    assert clipped_tokens(make_loss(f"{own}:capped"), logprobs, tokens).tolist() == [False, False, True]


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
        ("rove.train.losses:cispo", "failed on two tokens with TypeError"),  # it makes a loss, it is none
    ],
)
def test_a_loss_of_ones_own_that_cannot_be_used_is_refused_before_anything_is_sampled(
    own: str, path: str, message: str
):
    with pytest.raises(ConfigError, match=message):
        make_loss(path.format(own))


def test_weights_by_hand():
    assert token_weights("token", [3, 1]) == [0.25, 0.25]
    assert token_weights("sequence", [3, 1]) == pytest.approx([1 / 6, 1 / 2])
    assert token_weights("constant", [3, 1], constant=10) == [0.05, 0.05]
    # The first and the third sample are of one rollout of five tokens.
    assert token_weights("token", [3, 1, 2], [7, 5, 7]) == pytest.approx([1 / 6] * 3)
    assert token_weights("sequence", [3, 1, 2], [7, 5, 7]) == pytest.approx([1 / 10, 1 / 2, 1 / 10])
    assert token_weights("constant", [3, 1, 2], [7, 5, 7], constant=10) == [0.05] * 3


lengths = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 4)), max_size=12)


@given(lengths)
def test_what_weights_sum_to(samples: list[tuple[int, int]]):
    counts, rollouts = [count for count, _ in samples], [rollout for _, rollout in samples]
    trained = {rollout for count, rollout in samples if count}
    if not trained:
        assert all(math.isfinite(w) for name in AGGREGATIONS for w in token_weights(name, counts, rollouts, 4))
        return
    for name in ("token", "sequence"):
        weights = token_weights(name, counts, rollouts)
        assert sum(w * c for w, c in zip(weights, counts, strict=True)) == pytest.approx(1)
    each = dict.fromkeys(trained, 0.0)
    for weight, count, rollout in zip(token_weights("sequence", counts, rollouts), counts, rollouts, strict=True):
        if count:
            each[rollout] += weight * count
    assert list(each.values()) == pytest.approx([1 / len(trained)] * len(trained))
    assert token_weights("constant", counts, rollouts, 4) == [1 / (4 * len(trained))] * len(counts)


@given(st.integers(1, 9), st.integers(1, 50))
def test_rollouts_of_one_length_weigh_the_same_either_way(number: int, length: int):
    weights = [token_weights(name, [length] * number, constant=length) for name in AGGREGATIONS]
    assert weights[0] == pytest.approx(weights[1])
    assert weights[0] == pytest.approx(weights[2])


def test_wrong_normalisations_are_refused():
    with pytest.raises(ConfigError, match="did you mean 'sequence'"):
        choose_aggregation("grpo", "sequenze")
    with pytest.raises(ConfigError, match="did you mean 'token'"):
        token_weights("tokens", [1])
    for wrong in (None, 0.0, -1.0, math.nan):
        with pytest.raises(ConfigError, match="divides by"):
            token_weights("constant", [1], constant=wrong)
    with pytest.raises(ValueError):
        token_weights("token", [1, 2], [0])
