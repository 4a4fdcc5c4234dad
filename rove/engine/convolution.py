"""Short convolutions (LFM2): layers that mix every token with the few before it, where others have attention.

What such a layer needs of a sequence's past are its own inputs at the last L−1 positions. The cache holds them for every
position, as it holds values for attention, so a sequence can be continued from any position, by anybody.

Axes: N tokens of a step, n of them in one pool, L kernel length, D width of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from rove.engine.kv_cache import Pool
from rove.engine.lora import Adapted, adapt
from rove.engine.scheduler import Chunk, Step
from rove.models.linear import effective_weight, linear, pack_weight


class Convolution(NamedTuple):
    """The weights of one layer."""

    into: torch.Tensor
    """[3 · D, D]: gates of the input, gates of the output, input."""
    into_bias: torch.Tensor | None
    kernel: torch.Tensor
    """[L, D] in fp32, oldest position first: each channel is convolved alone."""
    bias: torch.Tensor | None
    out: torch.Tensor
    out_bias: torch.Tensor | None

    @staticmethod
    def of(module: Any) -> Convolution:
        """The weights of transformers' module."""
        return Convolution(
            into=pack_weight(effective_weight(module.in_proj)),
            into_bias=module.in_proj.bias,
            kernel=module.conv.weight.detach()[:, 0].t().float().contiguous(),
            bias=module.conv.bias,
            out=pack_weight(effective_weight(module.out_proj)),
            out_bias=module.out_proj.bias,
        )


class Window(NamedTuple):
    """What the tokens of a step that lie in one pool see through the kernel."""

    pool: Pool
    tokens: torch.Tensor
    """[n] where they are in the step."""
    rows: torch.Tensor
    """[n, 1]"""
    positions: torch.Tensor
    """[n, L], each token's own last; 0 where they would lie before the sequence."""
    outside: torch.Tensor
    """[n, L, 1] whether they would."""

    @staticmethod
    def of(step: Step, length: int, device: torch.device) -> list[Window]:
        """One for each pool; tokens are counted in the step's order, decoded rows first."""
        places: dict[Pool, list[tuple[int, int, int]]] = {}
        token = 0
        for row, start, size in [*(Chunk(row, len(row.tokens) - 1, 1) for row in step.decode), *step.chunks]:
            assert row.slot is not None
            index = row.slot.index
            places.setdefault(row.slot.pool, []).extend((token + i, index, start + i) for i in range(size))
            token += size
        windows = []
        for pool, every in places.items():
            tokens, rows, own = torch.tensor(every, device=device).T
            positions = own[:, None] + torch.arange(1 - length, 1, device=device)
            windows.append(Window(pool, tokens, rows[:, None], positions.clamp(min=0), (positions < 0)[..., None]))
        return windows


def convolve(
    layer: int, weights: Convolution, x: torch.Tensor, windows: list[Window], adapted: Sequence[Adapted] = ()
) -> torch.Tensor:
    """Write the inputs of this layer's convolution into the cache; the layer's output for x [N, D], normed already: [N, D].

    Products are summed in fp32, as convolutions in 16 bits do.
    """
    three = adapt(linear(x, weights.into, weights.into_bias), x, adapted, (layer, "conv_in"))
    input_gate, output_gate, x = three.chunk(3, dim=-1)
    x = input_gate * x
    mixed = torch.empty_like(x)
    for pool, tokens, rows, positions, outside in windows:
        inputs = pool.values[layer][:, 0]
        inputs[rows[:, 0], positions[:, -1]] = x[tokens]
        seen = inputs[rows, positions].masked_fill_(outside, 0).float() * weights.kernel
        total = seen.sum(1) if weights.bias is None else seen.sum(1) + weights.bias
        mixed[tokens] = total.to(x.dtype)
    gated = output_gate * mixed
    return adapt(linear(gated, weights.out, weights.out_bias), gated, adapted, (layer, "conv_out"))
