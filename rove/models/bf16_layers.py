"""Mixed precision in training: Llama-style decoder layers that compute in bf16 on a CPU, and autocast on an NVIDIA GPU.

Weights, the residual stream, norms, attention and sums are fp32; matrix products and what lies between them are bf16. A layer is
one autograd function: its steps between products are C kernels (`kernels/layer.c`), and it keeps few activations. For a layer of
width d with an MLP of width 2.7 d these are about 20 d bytes per token, where transformers' fp32 layer keeps 80 d.

Axes: N tokens of a packed batch, D width, H query heads, K key/value heads, d head size, F width of the MLP.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from rove.models import attention
from rove.models.attention import Packing, run_attention
from rove.models.kernels import load_kernels, pointers, run_rows, vector_floats
from rove.models.linear import fast_product, has_bf16_products

MODEL_TYPES = frozenset({"llama", "qwen2", "qwen3", "mistral"})
"""Model types whose layers are norm, attention, norm and gated MLP, each with a residual connection."""


class Adapter(NamedTuple):
    """The LoRA adapter of a linear layer: it adds scale · x aᵀ bᵀ to the layer's output."""

    a: nn.Parameter
    """[r, in]"""
    b: nn.Parameter
    """[out, r]"""
    scale: float


def adapter_of(layer: Any) -> Adapter | None:
    """Return the enabled adapter of a linear layer, if it has one."""
    if not hasattr(layer, "get_delta_weight") or layer.disable_adapters:
        return None
    (name,) = layer.active_adapters
    return Adapter(layer.lora_A[name].weight, layer.lora_B[name].weight, layer.scaling[name])


def _no_adapter(weight: nn.Parameter) -> Adapter:
    """Return an adapter of rank 0 for a weight [out, in]."""
    out, width = weight.shape
    return Adapter(nn.Parameter(weight.new_empty(0, width), False), nn.Parameter(weight.new_empty(out, 0), False), 1.0)


class Projection:
    """Linear layers that read the same input, as one matrix product in bf16.

    Args:
        layers: Linear layers. All or none have a bias; any may have an adapter.
    """

    def __init__(self, *layers: Any):
        bases = [getattr(layer, "base_layer", layer) for layer in layers]
        self.sizes = [base.weight.shape[0] for base in bases]
        self.weights = [base.weight for base in bases]
        self.biases = [base.bias for base in bases if base.bias is not None]
        adapters = list(map(adapter_of, layers))
        self.adapters = (
            [a or _no_adapter(w) for a, w in zip(adapters, self.weights, strict=True)] if any(adapters) else []
        )
        self.weight = _joined(self.weights)
        self.bias = _joined(self.biases) if self.biases else None
        if self.adapters:
            self.a = _joined([adapter.a for adapter in self.adapters])
            self.b = torch.block_diag(*(adapter.b.detach() * adapter.scale for adapter in self.adapters)).bfloat16()

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All parameters, in the order of `gradients`."""
        return [*self.weights, *self.biases, *(a for a, _, _ in self.adapters), *(b for _, b, _ in self.adapters)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs [N, out] of all layers for x [N, in]."""
        y = fast_product(x, self.weight)
        if self.bias is not None:
            y += self.bias
        if self.adapters:
            y.addmm_(fast_product(x, self.a), self.b.t())
        return y

    def input_gradient(self, grad: torch.Tensor) -> torch.Tensor:
        """Return the gradient of x [N, in] for that of the output [N, out]."""
        grad_x = grad @ self.weight
        return grad_x.addmm_(grad @ self.b, self.a) if self.adapters else grad_x

    def gradients(self, x: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor | None]:
        """Return the gradients of the parameters in fp32; None for frozen ones."""
        grads: list[torch.Tensor | None] = [None] * (len(self.weights) + len(self.biases))
        if self.weights[0].requires_grad:
            grads[: len(self.weights)] = (grad.t() @ x).float().split(self.sizes)
        if self.biases and self.biases[0].requires_grad:
            grads[len(self.weights) :] = grad.sum(0, dtype=torch.float32).split(self.sizes)
        if not self.adapters:
            return grads
        ranks = [len(adapter.a) for adapter in self.adapters]
        grad_a = ((grad @ self.b).t() @ x).float().split(ranks)
        grad_b = (grad.t() @ fast_product(x, self.a)).float()
        blocks = zip(grad_b.split(self.sizes), ranks, np.cumsum([0, *ranks[:-1]]).tolist(), self.adapters, strict=True)
        return [*grads, *grad_a, *(rows[:, at : at + rank] * one.scale for rows, rank, at, one in blocks)]


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().to(torch.bfloat16) for tensor in tensors])


class LayerWeights:
    """The weights of a decoder layer, ready for `DecoderLayer`; matrices are bf16 copies."""

    def __init__(self, layer: Any):
        block, mlp = layer.self_attn, layer.mlp
        self.norm, self.mlp_norm = layer.input_layernorm, layer.post_attention_layernorm
        self.head_norms = [block.q_norm, block.k_norm] if hasattr(block, "q_norm") else []
        self.size: int = block.head_dim
        self.qkv = Projection(block.q_proj, block.k_proj, block.v_proj)
        self.out = Projection(block.o_proj)
        self.gate_up = Projection(mlp.gate_proj, mlp.up_proj)
        self.down = Projection(mlp.down_proj)
        self.heads, self.key_heads = (size // self.size for size in self.qkv.sizes[:2])
        self.scale: float = block.scaling
        self.head_epsilon: float = self.head_norms[0].variance_epsilon if self.head_norms else 0.0
        counts = (self.heads, self.key_heads)
        self.head_norm_weights = (
            torch.cat([norm.weight.detach().expand(count, -1) for norm, count in zip(self.head_norms, counts)])
            if self.head_norms
            else None
        )
        groups = self.heads // self.key_heads
        self.kernels = _library("layer", groups, self.size, bf16=True)
        self.attention_kernels = _library("attention", groups, self.size)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All parameters, in the order in which `DecoderLayer` returns their gradients."""
        norms = [norm.weight for norm in (self.norm, self.mlp_norm, *self.head_norms)]
        parts = (self.qkv, self.out, self.gate_up, self.down)
        return [*norms, *(parameter for part in parts for parameter in part.parameters)]

    def normed(self, norm: Any, x: torch.Tensor, more: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return x + more (x [N, D] itself without `more`), and its norm in bf16."""
        out = torch.empty_like(x, dtype=torch.bfloat16)
        total = x if more is None else torch.empty_like(x)
        given = (*pointers(x, more, norm.weight), norm.variance_epsilon, *pointers(total, out), x.shape[1])
        run_rows(len(x), partial(self.kernels.norm, *given))
        return total, out

    def norm_backward(self, norm: Any, x: torch.Tensor, grad: torch.Tensor, total: torch.Tensor) -> torch.Tensor | None:
        """Add the gradient of x [N, D] to `total`, and return that of the norm's weight; `grad` is that of the output."""
        weight = norm.weight
        given = (*pointers(x, weight), norm.variance_epsilon, *pointers(grad, total))

        def some(first: int, last: int) -> torch.Tensor | None:
            sums = torch.zeros_like(weight) if weight.requires_grad else None
            self.kernels.norm_backward(*given, *pointers(sums), x.shape[1], first, last)
            return sums

        return _sum(run_rows(len(x), some))

    def gated(self, both: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) · up [N, F] of both [N, 2 F]."""
        out = both.new_empty(len(both), both.shape[1] // 2)
        run_rows(len(both), partial(self.kernels.gate, *pointers(both, out), out.shape[1]))
        return out

    def gated_backward(self, both: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what `gated` returns, and the gradient of `both` for its gradient."""
        out, both_grad = torch.empty_like(grad), torch.empty_like(both)
        given = (*pointers(both, grad, both_grad, out), out.shape[1])
        run_rows(len(both), partial(self.kernels.gate_backward, *given))
        return out, both_grad

    def rotated(self, qkv: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return rotated queries [N, H, d] and keys [N, K, d], and values [N, K, d], in fp32."""
        counts = (self.heads, self.key_heads, self.key_heads)
        heads = tuple(qkv.new_empty(len(qkv), count, self.size, dtype=torch.float32) for count in counts)
        given = (*pointers(qkv, self.head_norm_weights), self.head_epsilon, *pointers(*angles, *heads), self.key_heads)
        run_rows(len(qkv), partial(self.kernels.rotate, *given))
        return heads

    def rotated_backward(
        self, qkv: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], grads: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the gradients of qkv and of the head norms' weights for those of the heads."""
        qkv_grad, norms = torch.empty_like(qkv), self.head_norm_weights
        given = (*pointers(qkv, norms), self.head_epsilon, *pointers(*angles, *grads, qkv_grad))

        def some(first: int, last: int) -> torch.Tensor | None:
            sums = None if norms is None else torch.zeros_like(norms)
            self.kernels.rotate_backward(*given, *pointers(sums), self.key_heads, first, last)
            return sums

        sums = _sum(run_rows(len(qkv), some))
        return qkv_grad, [] if sums is None else [part.sum(0) for part in sums.split([self.heads, self.key_heads])]


def _library(name: str, groups: int, size: int, bf16: bool = False) -> ctypes.CDLL:
    library = load_kernels(name, groups, size, bf16)
    assert library is not None, "checked by `supports`"
    return library


def _sum(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    return None if parts[0] is None else torch.stack([part for part in parts if part is not None]).sum(0)


class DecoderLayer(torch.autograd.Function):
    """x [N, D] in fp32 → the layer's output [N, D] in fp32."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any,
        x: torch.Tensor,
        weights: LayerWeights,
        packing: Packing,
        cosine: torch.Tensor,
        sine: torch.Tensor,
        *parameters: nn.Parameter,
    ) -> torch.Tensor:
        _, normed = weights.normed(weights.norm, x)
        qkv = weights.qkv.forward(normed)
        heads = weights.rotated(qkv, (cosine, sine))
        seen, lse = torch.empty_like(heads[0]), x.new_empty(heads[0].shape[:2])
        run_attention(weights.attention_kernels.forward, heads, weights.scale, packing, (seen, lse))
        seen = seen.flatten(1).bfloat16()
        middle, normed = weights.normed(weights.mlp_norm, x, weights.out.forward(seen))
        both = weights.gate_up.forward(normed)
        ctx.save_for_backward(x, qkv, seen, lse, both, cosine, sine)
        ctx.weights, ctx.packing = weights, packing
        return middle.add_(weights.down.forward(weights.gated(both)))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: D102
        x, qkv, seen, lse, both, cosine, sine = ctx.saved_tensors
        weights: LayerWeights = ctx.weights
        total = grads[0].clone()  # the gradient of the residual stream
        middle, normed = weights.normed(weights.mlp_norm, x, weights.out.forward(seen))

        grad = total.bfloat16()
        gated, grad_both = weights.gated_backward(both, weights.down.input_gradient(grad))
        down_grads = weights.down.gradients(gated, grad)
        gate_up_grads = weights.gate_up.gradients(normed, grad_both)
        grad = weights.gate_up.input_gradient(grad_both)
        mlp_norm_grad = weights.norm_backward(weights.mlp_norm, middle, grad, total)
        del gated, grad_both, middle

        grad = total.bfloat16()
        out_grads = weights.out.gradients(seen, grad)
        grad_seen = weights.out.input_gradient(grad).float()
        heads = weights.rotated(qkv, (cosine, sine))
        head_grads = (torch.empty_like(heads[0]), *map(torch.zeros_like, heads[1:]))
        wanted = (seen.float(), lse, grad_seen, *head_grads)
        run_attention(weights.attention_kernels.backward, heads, weights.scale, ctx.packing, wanted)
        grad, head_norm_grads = weights.rotated_backward(qkv, (cosine, sine), head_grads)
        _, normed = weights.normed(weights.norm, x)
        qkv_grads = weights.qkv.gradients(normed, grad)
        norm_grad = weights.norm_backward(weights.norm, x, weights.qkv.input_gradient(grad), total)
        norm_grads = (norm_grad, mlp_norm_grad, *head_norm_grads)
        return total, None, None, None, None, *norm_grads, *qkv_grads, *out_grads, *gate_up_grads, *down_grads


def supports(model: Any) -> bool:
    """Return whether a model's layers can compute in bf16 on this machine."""
    config = model.config
    if config.model_type not in MODEL_TYPES or config._attn_implementation != attention.NAME:
        return False
    layers = list(model.model.layers)
    size, groups = layers[0].self_attn.head_dim, config.num_attention_heads // config.num_key_value_heads
    width = vector_floats(size)
    return (
        width > 0
        and config.hidden_act == "silu"
        and config.hidden_size % width == config.intermediate_size % width == 0
        and all(p.dtype == torch.float32 and p.device.type == "cpu" for p in model.parameters())
        and has_bf16_products(torch.device("cpu"))
        and all(_has_uniform_projections(layer) for layer in layers)
        and load_kernels("layer", groups, size, bf16=True) is not None
        and load_kernels("attention", groups, size) is not None
    )


def _has_uniform_projections(layer: Any) -> bool:
    """Return whether all or none of the linear layers that read the same input have a bias, and no adapter has dropout."""
    block, mlp = layer.self_attn, layer.mlp
    for layers in (
        (block.q_proj, block.k_proj, block.v_proj),
        (block.o_proj,),
        (mlp.gate_proj, mlp.up_proj),
        (mlp.down_proj,),
    ):
        bases = [getattr(one, "base_layer", one) for one in layers]
        dropouts = [dropout for one in layers for dropout in getattr(one, "lora_dropout", {}).values()]
        if len({base.bias is None for base in bases}) > 1 or not all(isinstance(one, nn.Identity) for one in dropouts):
            return False
    return True


def _forward(
    weights: LayerWeights,
    hidden_states: torch.Tensor,
    *,
    position_embeddings: tuple[torch.Tensor, torch.Tensor],
    packing: Packing,
    **kwargs: Any,
) -> torch.Tensor:
    """Compute transformers' decoder layer for a packed batch [1, N, D]."""
    cosine, sine = (angles[0].contiguous() for angles in position_embeddings)
    x = hidden_states[0].contiguous()
    out: Any = DecoderLayer.apply(x, weights, packing, cosine, sine, *weights.parameters)
    return out[None]


def mixed_precision(model: Any) -> AbstractContextManager[object]:
    """Return a context in which the layers of a model compute in bf16, if the model's device has fast bf16 products.

    On a CPU, see `bf16_layers`. On an NVIDIA GPU, PyTorch's autocast converts weights and inputs of matrix products.
    """
    if model.device.type != "cuda":
        return bf16_layers(model)
    if not has_bf16_products(model.device):
        return nullcontext()
    # Without the cache of converted weights: weights converted without gradients would be used where gradients are needed.
    return torch.autocast("cuda", torch.bfloat16, cache_enabled=False)


@contextmanager
def bf16_layers(model: Any) -> Iterator[None]:
    """Return a context in which the layers of a model compute packed batches in bf16, if it `supports` that.

    The weights are copied to bf16 on entry; later changes have no effect.
    """
    if not supports(model):
        yield
        return
    layers = list(model.model.layers)
    try:
        for layer in layers:
            layer.forward = partial(_forward, LayerWeights(layer))
        yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)
