"""Policy losses as pure per-token functions of one signature.

Each takes the trainer's log-probabilities, the sampler's, and the advantages, all [N] over the trained tokens, and returns
the loss of every token [N]. The trainer sums them and divides by the number of trained tokens of the whole step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from rove.errors import ConfigError, nearest

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def cispo(max_ratio: float = 5.0) -> Loss:
    """−sg(min(r, max_ratio)) · A · log π with r = π/μ against the sampler (MiniMax-M1, arXiv 2506.13585).

    `max_ratio` is an absolute ceiling of the ratio; there is no lower bound.

    Raises:
        ConfigError: `max_ratio` is not above 1, which would scale down every on-policy token.
    """
    if max_ratio <= 1:
        raise ConfigError(
            f"max_ratio is {max_ratio}; it is the absolute ceiling of the ratio, expected more than 1 (5 is usual)"
        )

    def loss(logprobs: torch.Tensor, sampler_logprobs: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
        ratio = (logprobs - sampler_logprobs).exp().detach().clamp(max=max_ratio)
        return -ratio * advantages * logprobs

    return loss


def grpo(clip_low: float = 0.2, clip_high: float = 0.2) -> Loss:
    """−min(r · A, clip(r, 1 − clip_low, 1 + clip_high) · A) with r = π/μ against the sampler (GRPO, arXiv 2402.03300)."""

    def loss(logprobs: torch.Tensor, sampler_logprobs: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
        ratio = (logprobs - sampler_logprobs).exp()
        clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
        return -torch.minimum(ratio * advantages, clipped * advantages)

    return loss


def cross_entropy(logprobs: torch.Tensor, sampler_logprobs: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    """−A · log π: maximum likelihood with A = 1, as SFT uses it."""
    return -advantages * logprobs


def make_loss(name: str, max_ratio: float = 5.0, clip_low: float = 0.2, clip_high: float = 0.2) -> Loss:
    """The loss called "cispo" or "grpo".

    Raises:
        ConfigError: no such loss.
    """
    losses: dict[str, Callable[[], Loss]] = {
        "cispo": lambda: cispo(max_ratio),
        "grpo": lambda: grpo(clip_low, clip_high),
    }
    if name not in losses:
        raise ConfigError(f"no loss '{name}'; {nearest(name, losses)}")
    return losses[name]()
