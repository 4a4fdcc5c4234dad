"""Short convolutions in packed batches: each token is mixed with the tokens before it in its own sequence.

In a packed batch, the token before another one in the tensor may belong to another sequence, and a shared prefix is followed by
several sequences. So the earlier tokens are looked up in the structure of the batch.
"""

# Many functions of torch have no types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv

from rove.models.attention import Packing

RECEIVES_PACKING = any(
    parameter.kind is inspect.Parameter.VAR_KEYWORD
    for parameter in inspect.signature(Lfm2ShortConv.forward).parameters.values()
)
"""Whether the layers of this version of transformers pass further arguments to their convolutions; those of 5.12 do not."""


class PackedShortConv(Lfm2ShortConv):
    """LFM2's short convolution, which also takes packed batches."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        *args: Any,
        packing: Packing | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Mix hidden states [1, N, D] of a packed batch, or [B, T, D] as transformers does."""
        if packing is None:
            # The other arguments, such as the cache, have other names in earlier versions of transformers.
            return super().forward(hidden_states, *args, **kwargs)
        input_gate, output_gate, values = self.in_proj(hidden_states[0]).chunk(3, dim=-1)
        values = input_gate * values
        # The last row stands for the tokens before the start of a sequence.
        with_zeros = torch.cat([values, values.new_zeros(1, values.shape[1])])
        weights = self.conv.weight[:, 0]  # [D, K]; the last weight is that of the token itself
        mixed = values * weights[:, -1]
        earlier = packing.previous[:-1]
        for position in range(weights.shape[1] - 2, -1, -1):
            mixed = mixed + with_zeros.index_select(0, earlier) * weights[:, position]
            earlier = packing.previous[earlier]
        if self.conv.bias is not None:
            mixed = mixed + self.conv.bias
        return self.out_proj(output_gate * mixed)[None]


def use_packed_convolutions(model: torch.nn.Module) -> None:
    """Replace the short convolutions of an LFM2 model; the weights stay the same objects."""
    for module in model.modules():
        if type(module) is Lfm2ShortConv:
            module.__class__ = PackedShortConv
