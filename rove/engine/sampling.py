"""Choosing the next token: pure functions of logits and each row's own random stream.

Axes: B rows, V vocabulary.
"""

from __future__ import annotations

import torch

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift of int64 (torch's is arithmetic)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def uniforms(seeds: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """One number in [0, 1) per row, a function of its seed [B] and position [B] (int64) alone (splitmix64)."""
    x = seeds + (position + 1) * _GOLDEN
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    x = x ^ _shift_right(x, 31)
    return _shift_right(x, 11).double() * 2.0**-53


def sample(
    logits: torch.Tensor, temperature: torch.Tensor, seeds: torch.Tensor, position: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token per row by inverting the cumulative distribution.

    Args:
        logits: [B, V].
        temperature: [B]; 0 = greedy, whose log-probabilities are those at temperature 1.
        seeds, position: [B] int64.

    Returns:
        ids [B] and their log-probabilities [B] under the distribution sampled from.
    """
    device = logits.device
    if device.type == "mps":  # it has no float64
        ids, logprobs = sample(logits.cpu(), temperature.cpu(), seeds.cpu(), position.cpu())
        return ids.to(device), logprobs.to(device)
    greedy = temperature == 0
    logprobs = (logits.float() / torch.where(greedy, 1.0, temperature)[:, None]).log_softmax(-1)
    cumulative = logprobs.double().exp().cumsum(-1)
    target = uniforms(seeds, position) * cumulative[:, -1]
    drawn = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0].clamp_(max=logits.shape[1] - 1)
    ids = torch.where(greedy, logprobs.argmax(-1), drawn)
    return ids, logprobs.gather(1, ids[:, None])[:, 0]
