"""Policy losses as pure per-token functions of one signature, and what each token weighs in their sum.

Axes: N trained tokens of a micro-batch. A loss takes the log-probabilities that are trained [N] and what else is known of
their tokens, and returns the loss of every token [N]. The trainer sums loss × weight over all micro-batches of a step; the
weights (`token_weights`) are made before the step is cut, so how it is cut does not change the sum.

Three policies appear: π is trained, π_old is π as it was at the start of the step, μ sampled. r is π/π_old.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import torch

from rove.core.errors import ConfigError, nearest

MAX_LOG_RATIO = 20.0
"""No ratio is above e to the power of this, half a billion: infinity times an advantage of 0 would not be a number."""

AGGREGATIONS = ("token", "sequence", "constant")


class LossTokens(NamedTuple):
    """What a loss may know of a micro-batch's trained tokens beside the log-probabilities that are trained; all [N].

    All tokens of a sample are in the same micro-batch, in any order.
    """

    sampler: torch.Tensor
    """log μ, of the policy that sampled."""
    advantages: torch.Tensor
    sequence_index: torch.Tensor
    """Which sample each token is of: whole numbers, equal for tokens of one sample."""
    old: torch.Tensor | None = None
    """log π_old; None: the sampler's are taken for them, as with one update per batch."""
    reference: torch.Tensor | None = None
    """log-probabilities under a frozen reference policy; only with a KL penalty."""

    @property
    def start(self) -> torch.Tensor:
        """log π_old [N], what ratios are taken to."""
        return self.sampler if self.old is None else self.old


Loss = Callable[[torch.Tensor, LossTokens], torch.Tensor]
"""(log π [N], tokens) → the loss of every token [N]."""


@dataclass(frozen=True)
class PolicyLoss:
    """A `Loss` that also says which tokens it clips."""

    per_token: Loss
    clip: Callable[[torch.Tensor, LossTokens], torch.Tensor]
    """(log π [N], tokens) → True on tokens whose gradient is cut off or scaled down [N]."""

    def __call__(self, logprobs: torch.Tensor, tokens: LossTokens) -> torch.Tensor:
        """The loss of every token [N]."""
        return self.per_token(logprobs, tokens)


@torch.no_grad()
def clipped_tokens(loss: Loss, logprobs: torch.Tensor, tokens: LossTokens) -> torch.Tensor:
    """True on the tokens that a loss clips [N]; all False for a loss that does not say."""
    if isinstance(loss, PolicyLoss):
        return loss.clip(logprobs, tokens)
    return torch.zeros_like(logprobs, dtype=torch.bool)


def reinforce(logprobs: torch.Tensor, tokens: LossTokens) -> torch.Tensor:
    """−A · log π, right only for tokens that π itself sampled (REINFORCE for language models: arXiv 2402.14740)."""
    return -tokens.advantages * logprobs


def cross_entropy(logprobs: torch.Tensor, tokens: LossTokens) -> torch.Tensor:
    """−A · log π: maximum likelihood with A = 1, as SFT uses it."""
    return -tokens.advantages * logprobs


def cispo(max_ratio: float = 5.0) -> PolicyLoss:
    """−sg(min(r, max_ratio)) · A · log π (MiniMax-M1, arXiv 2506.13585).

    `max_ratio` is an absolute ceiling of the ratio; there is no lower bound. No token loses its gradient.

    Raises:
        ConfigError: `max_ratio` is not above 1, which would scale down every on-policy token.
    """
    if not max_ratio > 1:
        raise ConfigError(
            f"max_ratio is {max_ratio}; it is the absolute ceiling of the ratio, expected more than 1 (5 is usual)"
        )

    def loss(logprobs: torch.Tensor, tokens: LossTokens) -> torch.Tensor:
        ratio = _ratio(logprobs - tokens.start).detach().clamp(max=max_ratio)
        return -ratio * tokens.advantages * logprobs

    def clip(logprobs: torch.Tensor, tokens: LossTokens) -> torch.Tensor:
        return _ratio(logprobs - tokens.start) > max_ratio

    return PolicyLoss(loss, clip)


def grpo(clip_low: float = 0.2, clip_high: float = 0.2) -> PolicyLoss:
    """−min(r · A, clip(r, 1 − clip_low, 1 + clip_high) · A) (GRPO, arXiv 2402.03300; with 0.2 and 0.28 DAPO, arXiv 2503.14476).

    Raises:
        ConfigError: a bound is not a distance from 1.
    """
    return _clipped_surrogate(lambda logprobs, tokens: logprobs - tokens.start, clip_low, clip_high)


def gspo(clip_low: float = 3e-4, clip_high: float = 4e-4) -> PolicyLoss:
    """GRPO's loss with one ratio for all tokens of a sample: s = exp(mean of log r over them) (GSPO, arXiv 2507.18071).

    Every token takes s as its value and the gradient s · ∇log π of itself (the paper's GSPO-token: sg(s) · π / sg(π)), so
    tokens may differ in advantage. The paper's objective is this with the weights of "sequence". Its bounds are far
    narrower than GRPO's, since a mean over many tokens hardly moves; where sampler and trainer differ by as much in what
    they compute, it needs `old` log-probabilities, or it clips before anything is trained.

    Raises:
        ConfigError: a bound is not a distance from 1.
    """

    def log_ratio(logprobs: torch.Tensor, tokens: LossTokens) -> torch.Tensor:
        now = logprobs.detach()
        return _sample_means(now - tokens.start, tokens.sequence_index) + (logprobs - now)

    return _clipped_surrogate(log_ratio, clip_low, clip_high)


def _clipped_surrogate(
    log_ratio: Callable[[torch.Tensor, LossTokens], torch.Tensor], clip_low: float, clip_high: float
) -> PolicyLoss:
    if not 0 < clip_low <= 1:
        raise ConfigError(f"clip_low is {clip_low}; the ratio is clipped below 1 − clip_low, expected more than 0 to 1")
    if not clip_high > 0:
        raise ConfigError(f"clip_high is {clip_high}; the ratio is clipped above 1 + clip_high, expected more than 0")
    low, high = 1 - clip_low, 1 + clip_high

    def loss(logprobs: torch.Tensor, tokens: LossTokens) -> torch.Tensor:
        ratio = _ratio(log_ratio(logprobs, tokens))
        return -torch.minimum(ratio * tokens.advantages, ratio.clamp(low, high) * tokens.advantages)

    def clip(logprobs: torch.Tensor, tokens: LossTokens) -> torch.Tensor:
        ratio = _ratio(log_ratio(logprobs, tokens))
        return ((ratio > high) & (tokens.advantages > 0)) | ((ratio < low) & (tokens.advantages < 0))

    return PolicyLoss(loss, clip)


def importance_corrected(per_token: Loss, cap: float) -> Loss:
    """A loss times min(π_old/μ, cap): truncated importance sampling, as ratios are to π_old but the tokens are from μ.

    It corrects for a sampler that computes other log-probabilities than the trainer, or that has older weights. Without
    `old` log-probabilities nothing changes: the ratio is then to μ itself.
    """

    def loss(logprobs: torch.Tensor, tokens: LossTokens) -> torch.Tensor:
        values = per_token(logprobs, tokens)
        return values if tokens.old is None else _ratio(tokens.old - tokens.sampler).clamp(max=cap) * values

    return loss


def kl_penalized(per_token: Loss, weight: float, cap: float) -> Loss:
    """A loss plus `weight` · min(π/μ, cap) · k3, where k3 = π_ref/π − log(π_ref/π) − 1 estimates KL(π‖π_ref).

    The gradient goes through π/μ too. That of k3 alone would be that of KL(π_ref‖π); times π/μ it is that of KL(π‖π_ref)
    (DeepSeek-V3.2, arXiv 2512.02556).
    """

    def loss(logprobs: torch.Tensor, tokens: LossTokens) -> torch.Tensor:
        if tokens.reference is None:
            raise ConfigError("kl_penalty is set, but these tokens come without log-probabilities of a reference model")
        difference = (tokens.reference - logprobs).clamp(max=MAX_LOG_RATIO)
        k3 = difference.expm1() - difference
        return per_token(logprobs, tokens) + weight * _ratio(logprobs - tokens.sampler).clamp(max=cap) * k3

    return loss


def _ratio(log_ratio: torch.Tensor) -> torch.Tensor:
    return log_ratio.clamp(max=MAX_LOG_RATIO).exp()


def _sample_means(values: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
    """Every token's value [N] replaced by the mean over its sample [N]."""
    _, index, counts = samples.unique(return_inverse=True, return_counts=True)
    sums = values.new_zeros(len(counts)).index_add(0, index, values)
    return (sums / counts)[index]


class Preset(NamedTuple):
    """What a loss's name stands for where settings leave it open."""

    make: Callable[..., PolicyLoss]
    bounds: Mapping[str, float] = MappingProxyType({})
    """Settings of `make` and what they are if not given."""
    aggregation: str = "token"


def _no_clipping(logprobs: torch.Tensor, tokens: LossTokens) -> torch.Tensor:
    return torch.zeros_like(logprobs, dtype=torch.bool)


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "cispo": Preset(cispo, {"max_ratio": 5.0}),
        "reinforce": Preset(lambda: PolicyLoss(reinforce, _no_clipping)),
        "grpo": Preset(grpo, {"clip_low": 0.2, "clip_high": 0.2}),
        "dapo": Preset(grpo, {"clip_low": 0.2, "clip_high": 0.28}),
        "dr_grpo": Preset(grpo, {"clip_low": 0.2, "clip_high": 0.2}, "constant"),  # arXiv 2503.20783
        "gspo": Preset(gspo, {"clip_low": 3e-4, "clip_high": 4e-4}, "sequence"),
    }
)
"""Losses by name. A name does not choose the estimator of the advantages: it is the mean unless another is asked for, though the
papers of all but Dr. GRPO and REINFORCE divide by the group's deviation ("std")."""


def make_loss(
    name: str,
    max_ratio: float | None = None,
    clip_low: float | None = None,
    clip_high: float | None = None,
    kl_penalty: float = 0.0,
    importance_cap: float = 2.0,
) -> PolicyLoss:
    """A loss by name, with its importance-sampling correction and its KL penalty.

    Args:
        name: one of `PRESETS`, or "package.module:function" of your own function with the signature of `Loss`.
        max_ratio: of "cispo"; None: its own default, as for the other bounds. Losses without a bound ignore it.
        clip_low: of the losses with a clip range.
        clip_high: likewise.
        kl_penalty: weight of the KL divergence to the reference model, 0 for none.
        importance_cap: ceiling of the weights π_old/μ of `corrected` and π/μ of `kl_penalised`.

    Raises:
        ConfigError: no such loss, a setting is out of range, or your function cannot be used.
    """
    if not (kl_penalty >= 0 and math.isfinite(kl_penalty)):
        raise ConfigError(f"kl_penalty is {kl_penalty}; expected 0 (no reference model) or more")
    if not importance_cap >= 1:
        raise ConfigError(f"importance_cap is {importance_cap}; it is the ceiling of a ratio, expected 1 or more")
    if ":" in name:
        loss = _import_loss(name, with_reference=kl_penalty > 0)
    elif name in PRESETS:
        given = {"max_ratio": max_ratio, "clip_low": clip_low, "clip_high": clip_high}
        usual = PRESETS[name].bounds
        loss = PRESETS[name].make(**{key: usual[key] if given[key] is None else given[key] for key in usual})
    else:
        own = "a function of your own is given as package.module:function"
        raise ConfigError(f"no loss '{name}' ({own}); {nearest(name, PRESETS)}")
    per_token = importance_corrected(loss.per_token, importance_cap)
    return replace(loss, per_token=kl_penalized(per_token, kl_penalty, importance_cap) if kl_penalty else per_token)


def _import_loss(name: str, with_reference: bool) -> PolicyLoss:
    """The loss "package.module:function", tried on two tokens so that what is wrong with it shows before anything is sampled."""
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), attribute]):
        raise ConfigError(f"loss '{name}' is not of the form package.module:function")
    try:
        imported = importlib.import_module(module)
    except Exception as error:  # whatever the module does when imported
        raise ConfigError(
            f"loss '{name}': importing {module} failed with {type(error).__name__}: {error}; "
            "it must be installed or in a folder of PYTHONPATH"
        ) from error
    function: Any = getattr(imported, attribute, None)
    if function is None:
        known = [key for key, value in vars(imported).items() if callable(value) and not key.startswith("_")]
        raise ConfigError(f"loss '{name}': {module} has no '{attribute}'; {nearest(attribute, known)}")
    if not callable(function):
        raise ConfigError(f"loss '{name}' is of type {type(function).__name__}; expected a function")
    _check_function(name, function, with_reference)
    return function if isinstance(function, PolicyLoss) else PolicyLoss(cast(Loss, function), _no_clipping)


def _check_function(name: str, function: Callable[..., Any], with_reference: bool) -> None:
    expected = "expected function(logprobs, tokens) → the loss of every token, a tensor of the shape of logprobs"
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    start = logprobs.detach()
    reference = start.clone() if with_reference else None
    tokens = LossTokens(start.clone(), torch.ones(2), torch.tensor([0, 1]), reference=reference)
    try:
        with torch.enable_grad():
            values = function(logprobs, tokens)
    except Exception as error:  # whatever somebody else's function raises
        raise ConfigError(
            f"loss '{name}' failed on two tokens with {type(error).__name__}: {error}; {expected}"
        ) from error
    if not isinstance(values, torch.Tensor):
        raise ConfigError(f"loss '{name}' returned a {type(values).__name__}; {expected}")
    if values.shape != logprobs.shape:
        raise ConfigError(f"loss '{name}' returned the shape {list(values.shape)} for two tokens; {expected}")
    if not values.requires_grad:
        raise ConfigError(f"loss '{name}' does not depend on logprobs, so nothing would be trained; {expected}")


def choose_aggregation(loss: str, aggregation: str | None = None) -> str:
    """How a loss's tokens are weighed: as asked, or as the loss's preset has it; "token" for a function of your own.

    Raises:
        ConfigError: no such normalisation.
    """
    if aggregation is None:
        return PRESETS[loss].aggregation if loss in PRESETS else "token"
    _check_normalisation(aggregation)
    return aggregation


def _check_normalisation(name: str) -> None:
    if name not in AGGREGATIONS:
        raise ConfigError(f"no normalisation '{name}'; {nearest(name, AGGREGATIONS)}")


def token_weights(
    aggregation: str,
    counts: Sequence[int],
    rollouts: Sequence[int] | None = None,
    constant: float | None = None,
) -> list[float]:
    """What each trained token of a sample weighs in the step's sum: one number per sample.

    "token": 1/all tokens: every token counts the same (DAPO, arXiv 2503.14476). "sequence": 1/(rollouts · tokens of its
    rollout), the mean of the rollouts' means, where long rollouts' tokens count less (GRPO, arXiv 2402.03300). "constant":
    1/(rollouts · `constant`), without bias by length; the size of the step then goes with the lengths (Dr. GRPO,
    arXiv 2503.20783).

    Args:
        normalisation: one of `NORMALISATIONS`.
        counts: trained tokens of every sample of the whole step.
        rollouts: which rollout each sample is of, as whole numbers; None: each is a rollout of its own. A rollout of
            several samples counts once, or those with many turns would count more than others.
        constant: of "constant": trained tokens that a rollout could have at most, say.

    Raises:
        ConfigError: no such normalisation, or its constant is missing.
    """
    _check_normalisation(aggregation)
    of = range(len(counts)) if rollouts is None else rollouts
    lengths: dict[int, int] = {}
    for rollout, count in zip(of, counts, strict=True):
        lengths[rollout] = lengths.get(rollout, 0) + count
    trained = sum(length > 0 for length in lengths.values())
    if aggregation == "token":
        return [1 / max(1, sum(counts))] * len(counts)
    if aggregation == "sequence":
        return [1 / max(1, trained * lengths[rollout]) for rollout in of]
    if constant is None or not constant > 0:
        raise ConfigError(f"the normalisation 'constant' divides by {constant}; expected a number more than 0")
    return [1 / (max(1, trained) * constant)] * len(counts)
