"""Mixed precision in training: Llama-style decoder layers that compute in bf16 on a CPU, and autocast on an NVIDIA GPU.

Weights, the residual stream, norms, attention and sums are fp32; matrix products and the operations between them are
bf16. A layer is one autograd function: its steps between products are C kernels (`kernels/layer.c`), and it keeps few
activations. For a layer of width d with an MLP of width 2.7 d, it keeps about 20 d bytes per token; transformers' fp32 layer
keeps 80 d. See docs/decisions/bf16_training.md.

Axes: N tokens of a packed batch, D width, H query heads, K key/value heads, d head size, F width of the MLP.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

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
    """[r, in] matrix a."""
    b: nn.Parameter
    """[out, r] matrix b."""
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
    a, b = weight.new_empty(0, width), weight.new_empty(out, 0)
    return Adapter(nn.Parameter(a, requires_grad=False), nn.Parameter(b, requires_grad=False), 1.0)


class Projection:
    """Linear layers that read the same input, computed as one matrix product in bf16.

    Args:
        layers: Linear layers. All or none of them have a bias; each may have an adapter.
    """

    def __init__(self, *layers: Any):
        bases = [getattr(layer, "base_layer", layer) for layer in layers]
        self.sizes = [base.weight.shape[0] for base in bases]
        self.weights = [base.weight for base in bases]
        self.biases = [base.bias for base in bases if base.bias is not None]
        adapters = [adapter_of(layer) for layer in layers]
        self.adapters: list[Adapter] = []
        if any(adapters):
            pairs = zip(adapters, self.weights, strict=True)
            self.adapters = [adapter or _no_adapter(weight) for adapter, weight in pairs]
        self.weight = _joined(self.weights)
        self.bias = _joined(self.biases) if self.biases else None
        if self.adapters:
            self.a = _joined([adapter.a for adapter in self.adapters])
            blocks = [adapter.b.detach() * adapter.scale for adapter in self.adapters]
            self.b = torch.block_diag(*blocks).bfloat16()

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All parameters, in the order of `gradients`."""
        a, b = [adapter.a for adapter in self.adapters], [adapter.b for adapter in self.adapters]
        return [*self.weights, *self.biases, *a, *b]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs [N, out] of all layers for x [N, in]."""
        y = fast_product(x, self.weight)
        if self.bias is not None:
            y += self.bias
        if self.adapters:
            y.addmm_(fast_product(x, self.a), self.b.t())
        return y

    def input_gradient(self, grad: torch.Tensor) -> torch.Tensor:
        """Return the gradient of x [N, in], given the gradient of the output [N, out]."""
        grad_x = grad @ self.weight
        return grad_x.addmm_(grad @ self.b, self.a) if self.adapters else grad_x

    def gradients(self, x: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor | None]:
        """Return the gradients of the parameters in fp32; None for frozen parameters."""
        grads: list[torch.Tensor | None] = [None] * (len(self.weights) + len(self.biases))
        if self.weights[0].requires_grad:
            grads[: len(self.weights)] = (grad.t() @ x).float().split(self.sizes)
        if self.biases and self.biases[0].requires_grad:
            grads[len(self.weights) :] = grad.sum(0, dtype=torch.float32).split(self.sizes)
        if not self.adapters:
            return grads
        ranks = [len(adapter.a) for adapter in self.adapters]
        grad_a = ((grad @ self.b).t() @ x).float().split(ranks)
        # One product gives the gradients of the whole of `b`, of which only the blocks on the diagonal are parameters.
        grad_blocks = (grad.t() @ fast_product(x, self.a)).float().split(self.sizes)
        grad_b: list[torch.Tensor] = []
        first = 0
        for adapter, rank, rows in zip(self.adapters, ranks, grad_blocks, strict=True):
            grad_b.append(rows[:, first : first + rank] * adapter.scale)
            first += rank
        return [*grads, *grad_a, *grad_b]


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
        self.head_norm_weights: torch.Tensor | None = None
        if self.head_norms:
            query_norm, key_norm = (norm.weight.detach() for norm in self.head_norms)
            self.head_norm_weights = torch.cat([query_norm.expand(self.heads, -1), key_norm.expand(self.key_heads, -1)])
        groups = self.heads // self.key_heads
        self.kernels = _library("layer", groups, self.size, bf16=True)
        self.attention_kernels = _library("attention", groups, self.size)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All parameters, in the order in which `DecoderLayer` returns their gradients."""
        norms = [norm.weight for norm in (self.norm, self.mlp_norm, *self.head_norms)]
        return [
            *norms,
            *self.qkv.parameters,
            *self.out.parameters,
            *self.gate_up.parameters,
            *self.down.parameters,
        ]

    def normed(
        self, norm: Any, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum x + residual (without `residual`, x [N, D] itself), and the norm of the sum in bf16."""
        out = torch.empty_like(x, dtype=torch.bfloat16)
        total = x if residual is None else torch.empty_like(x)
        inputs, outputs = pointers(x, residual, norm.weight), pointers(total, out)
        run_rows(len(x), partial(self.kernels.norm, *inputs, norm.variance_epsilon, *outputs, x.shape[1]))
        return total, out

    def norm_backward(self, norm: Any, x: torch.Tensor, grad: torch.Tensor, total: torch.Tensor) -> torch.Tensor | None:
        """Add the gradient of x [N, D] to `total`, and return the gradient of the norm's weight; `grad` is the gradient
        of the output.
        """
        weight = norm.weight
        arguments = (*pointers(x, weight), norm.variance_epsilon, *pointers(grad, total))

        # Each thread has its own sums, added in order: sums in one place would depend on the order of the threads.
        def backward_rows(first: int, last: int) -> torch.Tensor | None:
            sums = torch.zeros_like(weight) if weight.requires_grad else None
            self.kernels.norm_backward(*arguments, *pointers(sums), x.shape[1], first, last)
            return sums

        return _sum(run_rows(len(x), backward_rows))

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) · up [N, F] of gate_up [N, 2 F]."""
        out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
        run_rows(len(gate_up), partial(self.kernels.gate, *pointers(gate_up, out), out.shape[1]))
        return out

    def gated_backward(self, gate_up: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the output of `gated`, and the gradient of `gate_up`, given the gradient `grad` of this output."""
        out, gate_up_grad = torch.empty_like(grad), torch.empty_like(gate_up)
        addresses = pointers(gate_up, grad, gate_up_grad, out)
        run_rows(len(gate_up), partial(self.kernels.gate_backward, *addresses, out.shape[1]))
        return out, gate_up_grad

    def rotated(self, qkv: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return rotated queries [N, H, d] and keys [N, K, d], and values [N, K, d], in fp32."""
        counts = (self.heads, self.key_heads, self.key_heads)
        heads = tuple(qkv.new_empty(len(qkv), count, self.size, dtype=torch.float32) for count in counts)
        inputs, outputs = pointers(qkv, self.head_norm_weights), pointers(*angles, *heads)
        run_rows(len(qkv), partial(self.kernels.rotate, *inputs, self.head_epsilon, *outputs, self.key_heads))
        return heads

    def rotated_backward(
        self, qkv: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], grads: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the gradients of qkv and of the head norms' weights, given the gradients of the heads."""
        qkv_grad, norms = torch.empty_like(qkv), self.head_norm_weights
        arguments = (*pointers(qkv, norms), self.head_epsilon, *pointers(*angles, *grads, qkv_grad))

        def backward_rows(first: int, last: int) -> torch.Tensor | None:
            sums = None if norms is None else torch.zeros_like(norms)
            self.kernels.rotate_backward(*arguments, *pointers(sums), self.key_heads, first, last)
            return sums

        sums = _sum(run_rows(len(qkv), backward_rows))
        if sums is None:
            return qkv_grad, []
        return qkv_grad, [heads.sum(0) for heads in sums.split([self.heads, self.key_heads])]


def _library(name: str, groups: int, size: int, bf16: bool = False) -> ctypes.CDLL:
    library = load_kernels(name, groups, size, bf16)
    assert library is not None, "checked by `supports`"
    return library


def _sum(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    tensors = [part for part in parts if part is not None]
    return torch.stack(tensors).sum(0) if tensors else None


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
        attended, lse = torch.empty_like(heads[0]), x.new_empty(heads[0].shape[:2])
        run_attention(weights.attention_kernels.forward, heads, weights.scale, packing, (attended, lse))
        attended = attended.flatten(1).bfloat16()
        middle, normed = weights.normed(weights.mlp_norm, x, weights.out.forward(attended))
        gate_up = weights.gate_up.forward(normed)
        # The results of products are kept; norms, rotations and gates take one pass each and are computed again.
        ctx.save_for_backward(x, qkv, attended, lse, gate_up, cosine, sine)
        ctx.weights, ctx.packing = weights, packing
        return middle.add_(weights.down.forward(weights.gated(gate_up)))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: D102
        x, qkv, attended, lse, gate_up, cosine, sine = ctx.saved_tensors
        weights: LayerWeights = ctx.weights
        total = grads[0].clone()  # the gradient of the residual stream, in fp32: both halves of the layer add to it
        middle, normed = weights.normed(weights.mlp_norm, x, weights.out.forward(attended))

        grad = total.bfloat16()
        gated, gate_up_grad = weights.gated_backward(gate_up, weights.down.input_gradient(grad))
        down_grads = weights.down.gradients(gated, grad)
        gate_up_grads = weights.gate_up.gradients(normed, gate_up_grad)
        grad = weights.gate_up.input_gradient(gate_up_grad)
        mlp_norm_grad = weights.norm_backward(weights.mlp_norm, middle, grad, total)
        del gated, gate_up_grad, middle  # the widest tensors of the layer: the attention half needs the memory

        grad = total.bfloat16()
        out_grads = weights.out.gradients(attended, grad)
        attended_grad = weights.out.input_gradient(grad).float()
        heads = weights.rotated(qkv, (cosine, sine))
        head_grads = (torch.empty_like(heads[0]), *map(torch.zeros_like, heads[1:]))
        tensors = (attended.float(), lse, attended_grad, *head_grads)
        run_attention(weights.attention_kernels.backward, heads, weights.scale, ctx.packing, tensors)
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
    size = layers[0].self_attn.head_dim
    groups = config.num_attention_heads // config.num_key_value_heads
    width = vector_floats(size)
    return (
        width > 0
        and config.hidden_act == "silu"
        and config.hidden_size % width == 0
        and config.intermediate_size % width == 0
        and all(p.dtype == torch.float32 and p.device.type == "cpu" for p in model.parameters())
        and has_bf16_products(torch.device("cpu"))
        and all(_has_uniform_projections(layer) for layer in layers)
        and load_kernels("layer", groups, size, bf16=True) is not None
        and load_kernels("attention", groups, size) is not None
    )


def _has_uniform_projections(layer: Any) -> bool:
    """Return whether, among linear layers with the same input, all or none have a bias, and no adapter has dropout."""
    block, mlp = layer.self_attn, layer.mlp
    joined_layers = (
        (block.q_proj, block.k_proj, block.v_proj),
        (block.o_proj,),
        (mlp.gate_proj, mlp.up_proj),
        (mlp.down_proj,),
    )
    for projections in joined_layers:
        bases = [getattr(projection, "base_layer", projection) for projection in projections]
        if len({base.bias is None for base in bases}) > 1:
            return False
        for projection in projections:
            dropouts = getattr(projection, "lora_dropout", {}).values()
            if not all(isinstance(dropout, nn.Identity) for dropout in dropouts):
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
    """Return a context in which the layers of a model compute packed batches in bf16, if `supports(model)` is true.

    The weights are copied to bf16 on entry, so later changes have no effect.
    """
    if not supports(model):
        yield
        return
    layers = list(model.model.layers)
    # The copies live for one step, so none can be older than the weights (docs/decisions/bf16_training.md).
    try:
        for layer in layers:
            layer.forward = partial(_forward, LayerWeights(layer))
        yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)
