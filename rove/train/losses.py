"""Policy losses as pure functions per token, and the aggregation of token losses.

Axes: N trained tokens of a micro-batch. A loss maps the log-probabilities being trained [N], and a `LossTokens` about
the same tokens, to a loss per token [N]. The trainer sums loss × weight over all micro-batches of a step; the weights
(`token_weights`) are computed before the step is cut, so the cut does not change the sum.

There are three policies: π is being trained, π_old is π at the start of the step, and μ sampled the tokens. r =
π/π_old.
"""

# Many functions of torch have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import torch

from rove.core.checks import checked
from rove.core.config import import_function
from rove.core.errors import ConfigError, nearest
from rove.core.ranges import FloatAbove1, FloatFrom1, NonNegativeFloat, PositiveFloat, PositiveFraction

MAX_LOG_RATIO = 20.0
"""Upper bound of log r, so that no ratio is infinite: infinity times an advantage of 0 is NaN."""

AGGREGATIONS = ("token", "sequence", "constant")


class LossTokens(NamedTuple):
    """Inputs of a loss in addition to the trained log-probabilities; all tensors are [N].

    All tokens of a sequence are in the same micro-batch, in any order.
    """

    sampler: torch.Tensor
    """log μ."""
    advantages: torch.Tensor
    sequence_index: torch.Tensor
    """Sequence of each token; equal numbers belong together."""
    old: torch.Tensor | None = None
    """log π_old; if it is None, log μ is used instead, as with one iteration per batch."""
    reference: torch.Tensor | None = None
    """Log-probabilities under the frozen reference model; None without a KL penalty."""

    @property
    def start(self) -> torch.Tensor:
        """log π_old [N], the denominator of ratios."""
        return self.sampler if self.old is None else self.old


Loss = Callable[[torch.Tensor, LossTokens], torch.Tensor]
"""(log π [N], tokens) → loss per token [N]."""


@dataclass(frozen=True)
class PolicyLoss:
    """A `Loss` that also reports which tokens it clips."""

    per_token: Loss
    clip: Callable[[torch.Tensor, LossTokens], torch.Tensor] | None = None
    """(log π [N], tokens) → [N], which is True for tokens whose gradient is zeroed or scaled down. None clips no tokens."""

    def __call__(self, logprobs: torch.Tensor, tokens: LossTokens) -> torch.Tensor:
        """Return the loss per token [N]."""
        return self.per_token(logprobs, tokens)


@torch.no_grad()
def clipped_tokens(loss: Loss, logprobs: torch.Tensor, tokens: LossTokens) -> torch.Tensor:
    """Return which tokens a loss clips [N]; all False if the loss does not report it."""
    if isinstance(loss, PolicyLoss) and loss.clip is not None:
        return loss.clip(logprobs, tokens)
    return torch.zeros_like(logprobs, dtype=torch.bool)


def reinforce(logprobs: torch.Tensor, tokens: LossTokens) -> torch.Tensor:
    """−A · log π, unbiased only for on-policy tokens (REINFORCE for language models: Ahmadian et al. 2024, arXiv 2402.14740)."""
    return -tokens.advantages * logprobs


cross_entropy = reinforce
"""Maximum likelihood, for SFT: −A · log π with A = 1."""


def cispo(max_ratio: float = 5.0) -> PolicyLoss:
    """−sg(min(r, max_ratio)) · A · log π (CISPO, MiniMax-M1, arXiv 2506.13585; sg stops the gradient).

    There is no lower bound, and no token loses its gradient.
    """
    checked("max_ratio", max_ratio, FloatAbove1)

    def loss(logprobs: torch.Tensor, tokens: LossTokens) -> torch.Tensor:
        ratio = _ratio(logprobs - tokens.start).detach().clamp(max=max_ratio)
        return -ratio * tokens.advantages * logprobs

    def clip(logprobs: torch.Tensor, tokens: LossTokens) -> torch.Tensor:
        return _ratio(logprobs - tokens.start) > max_ratio

    return PolicyLoss(loss, clip)


def grpo(clip_low: float = 0.2, clip_high: float = 0.2) -> PolicyLoss:
    """−min(r · A, clip(r, 1 − clip_low, 1 + clip_high) · A) (GRPO, arXiv 2402.03300; with clip_high 0.28, DAPO, arXiv
    2503.14476).
    """
    return _clipped_surrogate(lambda logprobs, tokens: logprobs - tokens.start, clip_low, clip_high)


def gspo(clip_low: float = 3e-4, clip_high: float = 4e-4) -> PolicyLoss:
    """GRPO's loss with one ratio per sequence: s = exp(mean of log r over its tokens) (GSPO, arXiv 2507.18071).

    Every token has the value s, but its own gradient s · ∇log π (GSPO-token in the paper: sg(s) · π / sg(π)), so tokens may
    differ in advantage. With the aggregation "sequence", this is the paper's objective. The bounds are far narrower
    than GRPO's, because a mean over many tokens hardly moves. If sampler and trainer differ numerically by as much as
    the bounds, the loss needs `old` log-probabilities: without them, it clips tokens before any weight has changed.
    """

    def log_ratio(logprobs: torch.Tensor, tokens: LossTokens) -> torch.Tensor:
        # The last term is 0. It gives each token the gradient of its own log-probability.
        constant = logprobs.detach()
        return _sequence_means(constant - tokens.start, tokens.sequence_index) + (logprobs - constant)

    return _clipped_surrogate(log_ratio, clip_low, clip_high)


def _clipped_surrogate(
    log_ratio: Callable[[torch.Tensor, LossTokens], torch.Tensor], clip_low: float, clip_high: float
) -> PolicyLoss:
    checked("clip_low", clip_low, PositiveFraction)
    checked("clip_high", clip_high, PositiveFloat)
    low, high = 1 - clip_low, 1 + clip_high

    def loss(logprobs: torch.Tensor, tokens: LossTokens) -> torch.Tensor:
        ratio = _ratio(log_ratio(logprobs, tokens))
        return -torch.minimum(ratio * tokens.advantages, ratio.clamp(low, high) * tokens.advantages)

    def clip(logprobs: torch.Tensor, tokens: LossTokens) -> torch.Tensor:
        ratio = _ratio(log_ratio(logprobs, tokens))
        # The minimum takes the clipped term only where the update would move the ratio further away from 1.
        is_too_high = (ratio > high) & (tokens.advantages > 0)
        is_too_low = (ratio < low) & (tokens.advantages < 0)
        return is_too_high | is_too_low

    return PolicyLoss(loss, clip)


def importance_corrected(per_token: Loss, cap: float) -> Loss:
    """Multiply a loss by min(π_old/μ, cap): truncated importance sampling (Espeholt et al. 2018, arXiv 1802.01561).

    Ratios are relative to π_old, but μ sampled the tokens. The factor corrects for a sampler with other numerics or older
    weights. Without `old` log-probabilities, the loss stays the same, because the ratio is then relative to μ itself.
    """

    def loss(logprobs: torch.Tensor, tokens: LossTokens) -> torch.Tensor:
        values = per_token(logprobs, tokens)
        if tokens.old is None:
            return values
        return _ratio(tokens.old - tokens.sampler).clamp(max=cap) * values

    return loss


def kl_penalized(per_token: Loss, weight: float, cap: float) -> Loss:
    """Add `weight` · min(π/μ, cap) · k3 to a loss; k3 = π_ref/π − log(π_ref/π) − 1 estimates KL(π‖π_ref) (Schulman 2020,
    joschu.net/blog/kl-approx.html).

    The gradient also flows through π/μ: k3 alone would give the gradient of KL(π_ref‖π), and k3 times π/μ gives the gradient of
    KL(π‖π_ref) (DeepSeek-V3.2, arXiv 2512.02556).
    """

    def loss(logprobs: torch.Tensor, tokens: LossTokens) -> torch.Tensor:
        if tokens.reference is None:
            raise ConfigError("kl_penalty is set, but these tokens come without log-probabilities of a reference model")
        difference = (tokens.reference - logprobs).clamp(max=MAX_LOG_RATIO)
        k3 = difference.expm1() - difference  # expm1 keeps the digits of small differences
        importance = _ratio(logprobs - tokens.sampler).clamp(max=cap)
        return per_token(logprobs, tokens) + weight * importance * k3

    return loss


def _ratio(log_ratio: torch.Tensor) -> torch.Tensor:
    return log_ratio.clamp(max=MAX_LOG_RATIO).exp()


def _sequence_means(values: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
    """Return for every token [N] the mean over its sequence."""
    unique: tuple[torch.Tensor, ...] = samples.unique(return_inverse=True, return_counts=True)
    _, index, counts = unique
    sums = values.new_zeros(len(counts)).index_add(0, index, values)
    return (sums / counts)[index]


class Preset(NamedTuple):
    """Defaults of a named loss."""

    make: Callable[..., PolicyLoss]
    bounds: Mapping[str, float] = MappingProxyType({})
    """Parameters of `make` and their defaults."""
    aggregation: str = "token"


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "cispo": Preset(cispo, {"max_ratio": 5.0}),
        "reinforce": Preset(lambda: PolicyLoss(reinforce)),
        "grpo": Preset(grpo, {"clip_low": 0.2, "clip_high": 0.2}),
        "dapo": Preset(grpo, {"clip_low": 0.2, "clip_high": 0.28}),
        "dr_grpo": Preset(grpo, {"clip_low": 0.2, "clip_high": 0.2}, "constant"),  # arXiv 2503.20783
        # Its paper averages over the tokens of a sequence.
        "gspo": Preset(gspo, {"clip_low": 3e-4, "clip_high": 4e-4}, "sequence"),
    }
)
"""Losses by name. The name does not choose the advantage estimator. The estimator is "mean" by default, although the papers of
all losses except Dr. GRPO and REINFORCE divide by the standard deviation of the group ("std")."""


def make_loss(
    name: str,
    max_ratio: float | None = None,
    clip_low: float | None = None,
    clip_high: float | None = None,
    kl_penalty: float = 0.0,
    importance_cap: float = 2.0,
) -> PolicyLoss:
    """Return a loss by name, with importance correction and KL penalty.

    Args:
        name: One of `PRESETS`, or "package.module:function" of your own function with the signature of `Loss`.
        max_ratio: Bound of "cispo". For this bound and the other bounds, None means the preset's default; a loss without the
            bound ignores it.
        kl_penalty: Weight of the KL divergence from the reference model; 0 adds no penalty.
        importance_cap: Upper bound of π_old/μ in `importance_corrected` and of π/μ in `kl_penalized`.

    Example:
        loss = make_loss("grpo", clip_high=0.28)
        per_token = loss(logprobs, LossTokens(sampler_logprobs, advantages, sequence_index))
    """
    checked("kl_penalty", kl_penalty, NonNegativeFloat)
    checked("importance_cap", importance_cap, FloatFrom1)
    if ":" in name:
        loss = _import_loss(name, with_reference=kl_penalty > 0)
    elif name in PRESETS:
        bounds = {"max_ratio": max_ratio, "clip_low": clip_low, "clip_high": clip_high}
        arguments = dict(PRESETS[name].bounds)
        for bound in arguments:
            value = bounds[bound]
            if value is not None:
                arguments[bound] = value
        loss = PRESETS[name].make(**arguments)
    else:
        advice = "your own function is given as package.module:function"
        raise ConfigError(f"no loss '{name}' ({advice}); {nearest(name, PRESETS)}")
    # Also for a custom loss: it may not know that the sampler's weights are older or in bf16.
    per_token = importance_corrected(loss.per_token, importance_cap)
    if kl_penalty:
        per_token = kl_penalized(per_token, kl_penalty, importance_cap)
    return replace(loss, per_token=per_token)


def _import_loss(name: str, with_reference: bool) -> PolicyLoss:
    """Import the loss "package.module:function" and try it on two tokens, so that mistakes are found before sampling starts."""
    function: Any = import_function("loss", name)
    _check_function(name, function, with_reference)
    if isinstance(function, PolicyLoss):
        return function
    return PolicyLoss(cast(Loss, function))


def _check_function(name: str, function: Callable[..., Any], with_reference: bool) -> None:
    expected = "expected function(logprobs, tokens) → the loss of every token, a tensor of the shape of logprobs"
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    start = logprobs.detach()
    reference = start.clone() if with_reference else None
    tokens = LossTokens(start.clone(), torch.ones(2), torch.tensor([0, 1]), reference=reference)
    try:
        with torch.enable_grad():
            values = function(logprobs, tokens)
    except Exception as error:  # the function is user code
        raise ConfigError(
            f"loss '{name}' failed on two tokens with {type(error).__name__}: {error}; {expected}"
        ) from error
    if not isinstance(values, torch.Tensor):
        raise ConfigError(f"loss '{name}' returned a {type(values).__name__}; {expected}")
    # A mean instead of a loss per token would be weighted again by the aggregation.
    if values.shape != logprobs.shape:
        raise ConfigError(f"loss '{name}' returned the shape {list(values.shape)} for two tokens; {expected}")
    # A detached loss would not fail, but train nothing.
    if not values.requires_grad:
        raise ConfigError(f"loss '{name}' does not depend on logprobs, so it would train nothing; {expected}")


def choose_aggregation(loss: str, aggregation: str | None = None) -> str:
    """Return the loss aggregation: `aggregation` if set, else the preset's; "token" for a custom loss function."""
    if aggregation is None:
        return PRESETS[loss].aggregation if loss in PRESETS else "token"
    _check_aggregation(aggregation)
    return aggregation


def _check_aggregation(name: str) -> None:
    if name not in AGGREGATIONS:
        raise ConfigError(f"no loss aggregation '{name}'; {nearest(name, AGGREGATIONS)}")


def token_weights(
    aggregation: str,
    counts: Sequence[int],
    rollouts: Sequence[int] | None = None,
    constant: float | None = None,
) -> list[float]:
    """Return the weight that each trained token of a sequence has in the sum of a step: one number per sequence.

    - "token": 1 / all tokens. All tokens count equally (DAPO, arXiv 2503.14476).
    - "sequence": 1 / (rollouts · tokens of its rollout), the mean of the rollouts' means. Tokens of long rollouts count less
      (GRPO, arXiv 2402.03300).
    - "constant": 1 / (rollouts · `constant`). No length bias, but longer rollouts make larger steps (Dr. GRPO, arXiv
      2503.20783).

    Args:
        counts: Number of trained tokens of every sequence of the step.
        rollouts: Rollout number of each sequence; None means that each sequence is a rollout. A rollout with several sequences
            counts once; otherwise, rollouts with many turns would count more.
        constant: Divisor for "constant", such as the maximum number of trained tokens of a rollout.
    """
    _check_aggregation(aggregation)
    numbers = range(len(counts)) if rollouts is None else rollouts
    # A rollout may be several sequences, if a turn's prompt does not extend the previous turn.
    lengths: dict[int, int] = {}
    for rollout, count in zip(numbers, counts, strict=True):
        lengths[rollout] = lengths.get(rollout, 0) + count
    trained = sum(length > 0 for length in lengths.values())
    if aggregation == "token":
        return [1 / max(1, sum(counts))] * len(counts)
    if aggregation == "sequence":
        return [1 / max(1, trained * lengths[rollout]) for rollout in numbers]
    checked("constant", constant, PositiveFloat)
    assert constant is not None
    return [1 / (max(1, trained) * constant)] * len(counts)
