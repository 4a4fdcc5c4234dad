"""Choosing the next token: pure functions of logits and each row's own random stream.

Axes: B rows, V vocabulary, F rows with a filter.
"""

from __future__ import annotations

import numpy as np
import torch

COLDEST = 1e-5
"""Temperatures above 0 count as this at least: below, logits divided by them overflow, and nothing is left to chance."""
SMALL_VOCAB = 8192
"""Up to this vocabulary, CPUs draw from cumulative sums of all probabilities; above, from sums of blocks first."""
BLOCK = 512

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


def temper(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Logits [B, V] over temperature [B], in fp32; greedy rows (0) as at temperature 1."""
    divisor = torch.where(temperature == 0, 1.0, temperature.clamp_min(COLDEST))
    return logits.float() / divisor[:, None]


def draw(probabilities: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """One id per row [B]: where the row's number in [0, 1) falls in its cumulative distribution [B, V].

    The probabilities of a row need not sum to exactly 1; an id of probability 0 is never drawn.
    """
    vocab = probabilities.shape[1]
    if probabilities.is_cuda or vocab <= SMALL_VOCAB:
        cumulative = probabilities.cumsum(-1, dtype=torch.float64)
        return _falls_in(cumulative, uniform[:, None] * cumulative[:, -1:])[:, 0]
    # First a block, then an id inside it. fp64 over the whole vocabulary takes 14 times as long as fp32, and fp32 rounds
    # sums near 1 by about as much as a rare token has.
    sums = _block_sums(probabilities).double()
    cumulative = sums.cumsum(-1)
    target = uniform[:, None] * cumulative[:, -1:]
    block = _falls_in(cumulative, target)
    size = sums.gather(1, block)
    share = (target - (cumulative.gather(1, block) - size)) / size
    ids = block * BLOCK + torch.arange(BLOCK, device=probabilities.device)
    inside = (probabilities.gather(1, ids.clamp_max(vocab - 1)).double() * (ids < vocab)).cumsum(-1)
    return ids.gather(1, _falls_in(inside, share * inside[:, -1:]))[:, 0].clamp_max_(vocab - 1)


def _falls_in(cumulative: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the index [B, 1] at which each cumulative sum [B, N] first exceeds the target [B, 1]."""
    total = cumulative[:, -1:]
    below = torch.nextafter(total, torch.zeros_like(total))  # a target rounded up to the total would be behind the last
    found = torch.searchsorted(cumulative, target.minimum(below), right=True)
    return found.clamp_max_(cumulative.shape[1] - 1)  # only reached if there are NaNs


def _block_sums(probabilities: torch.Tensor) -> torch.Tensor:
    """Return the sums of each `BLOCK` successive probabilities [B, V]; the last block may be shorter."""
    whole = probabilities.shape[1] // BLOCK * BLOCK
    sums = probabilities[:, :whole].unflatten(1, (-1, BLOCK)).sum(-1)
    rest = probabilities[:, whole:]
    return torch.cat([sums, rest.sum(-1, keepdim=True)], 1) if rest.shape[1] else sums


def keep_likely(
    probabilities: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """The distributions [F, V] without their unlikely tokens, normalised again.

    In the order of vLLM: tokens less likely than `min_p` times the likeliest go first, then those that are not among the
    `top_k` likeliest, then those that are not needed for the likeliest to reach `top_p` of what is left. Tokens as likely
    as one that stays, stay too: which of them come first is an accident of their ids. The likeliest always stays.

    Args:
        probabilities: [F, V].
        top_k: [F] int64, 1 to V (V: off).
        top_p: [F], above 0 to 1 (off).
        min_p: [F], 0 (off) to 1.
    """
    ordered = _ascending(probabilities)
    vocab = ordered.shape[1]
    least = torch.maximum(ordered[:, -1:] * min_p[:, None], ordered.gather(1, (vocab - top_k)[:, None]))
    mass = ordered.cumsum(-1)
    count = torch.searchsorted(ordered, least)  # of tokens less likely than that
    gone = mass.gather(1, (count - 1).clamp_min_(0)) * (count > 0)
    unneeded = gone + (mass[:, -1:] - gone) * (1 - top_p[:, None])
    first = torch.searchsorted(mass, unneeded, right=True).clamp_max_(vocab - 1)
    least = ordered.gather(1, first)
    kept = probabilities * (probabilities >= least)
    return kept / kept.sum(-1, keepdim=True)


def _ascending(values: torch.Tensor) -> torch.Tensor:
    if values.device.type == "cpu":  # torch's own sort takes thirty times as long as numpy's here
        return torch.from_numpy(np.sort(values.numpy(), axis=-1))
    return values.sort(-1).values


def alternatives(probabilities: torch.Tensor, counts: list[int]) -> list[list[tuple[int, float]]]:
    """The likeliest ids of each row [B, V] with their log-probabilities, likeliest first.

    Args:
        probabilities: [B, V].
        counts: how many of each row; fewer are returned where fewer have a probability above 0.
    """
    values, ids = probabilities.topk(min(max(counts, default=0), probabilities.shape[1]))
    rows = zip(ids.tolist(), values.log().tolist(), counts, strict=True)
    return [
        [(id, logprob) for id, logprob in zip(ids[:count], logprobs[:count]) if logprob > -float("inf")]
        for ids, logprobs, count in rows
    ]


def score_tokens(
    logits: torch.Tensor, ids: torch.Tensor, top: int = 0
) -> tuple[list[float], list[list[tuple[int, float]]]]:
    """What a model makes of given tokens, such as those of a prompt.

    Args:
        logits: [N, V], those that came before each token.
        ids: [N].
        top: how many of the likeliest ids to name in the place of each.

    Returns:
        log-probabilities of the ids at temperature 1, and the likeliest ids (see `alternatives`).
    """
    logprobs = logits.float().log_softmax(-1)
    return logprobs.gather(1, ids[:, None])[:, 0].tolist(), alternatives(logprobs.exp(), [top] * len(ids))
