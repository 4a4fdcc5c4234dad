"""MLPs and norms that keep fewer activations: cheap activations are computed again in the backward pass.

A Llama layer of width d and MLP width 2.7 d keeps about 20 d numbers per token, or 12 d with these layers. Results and
gradients are equal bit for bit. A small model gains little, but the calls take time, so `rove.models.load` uses these layers
only for large models.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.activations import SiLUActivation
from transformers.models.llama.modeling_llama import LlamaMLP

from rove.models.linear import FastLinear, product


class _GatedProduct(torch.autograd.Function):
    """silu(gate) · up [..., width], without keeping silu(gate)."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        return nn.functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _gated_gradients(grads[0], *ctx.saved_tensors)


class _GatedLinear(torch.autograd.Function):
    """(silu(gate) · up) [..., in] times a weight [out, in], without keeping the product."""

    @staticmethod
    def forward(
        ctx: Any,
        gate: torch.Tensor,
        up: torch.Tensor,
        weight: torch.Tensor,
        forward_dtype: torch.dtype,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        ctx.save_for_backward(gate, up, weight)
        ctx.dtype = dtype
        return product(nn.functional.silu(gate).mul_(up), weight, forward_dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gate, up, weight = ctx.saved_tensors
        grad = grads[0].to(ctx.dtype)
        grad_weight = None
        if ctx.needs_input_grad[2]:
            inner = nn.functional.silu(gate).mul_(up).to(ctx.dtype)
            grad_weight = (grad.flatten(0, -2).t() @ inner.flatten(0, -2)).to(weight.dtype)
            del inner
        grad_product = (grad @ weight.to(ctx.dtype)).to(weight.dtype)
        return *_gated_gradients(grad_product, gate, up), grad_weight, None, None


def _gated_gradients(grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of `gate` and `up` from the gradient of silu(gate) · up."""
    grad_up = nn.functional.silu(gate).mul_(grad)
    return torch.ops.aten.silu_backward(grad * up, gate), grad_up


class _RecomputingMLP(nn.Module):
    """Mixin for an MLP with `gate_proj`, `up_proj`, `down_proj`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up, down = self.gate_proj(x), self.up_proj(x), self.down_proj  # pyright: ignore[reportCallIssue]
        if not torch.is_grad_enabled():
            return down(nn.functional.silu(gate).mul_(up))  # pyright: ignore[reportCallIssue]
        if type(down) is FastLinear:
            return _GatedLinear.apply(gate, up, down.weight, down.forward_dtype, down.backward_dtype)  # pyright: ignore[reportReturnType]
        return down(_GatedProduct.apply(gate, up))  # pyright: ignore[reportCallIssue]


class _RecomputingNorm(nn.Module):
    """Mixin for a norm. Its own code is run twice, because the formula differs between models."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        plain: Any = super().forward  # pyright: ignore[reportAttributeAccessIssue]
        if not torch.is_grad_enabled():
            return plain(x)
        return checkpoint(plain, x, use_reentrant=False, preserve_rng_state=False)  # pyright: ignore[reportReturnType]


@functools.cache
def _with(mixin: type, layer: type) -> type:
    return type(f"Recomputing{layer.__name__}", (mixin, layer), {})


def use_recomputing_layers(model: nn.Module) -> int:
    """Make the gated MLPs and norms of a model keep fewer activations, in place; return the number of these layers."""
    count = 0
    for module in model.modules():
        kind = type(module)
        if isinstance(module, (_RecomputingMLP, _RecomputingNorm)):
            count += 1
        elif kind.__name__.endswith("RMSNorm"):
            module.__class__ = _with(_RecomputingNorm, kind)
            count += 1
        elif _is_gated(module):
            module.__class__ = _with(_RecomputingMLP, kind)
            count += 1
    return count


def _is_gated(module: nn.Module) -> bool:
    """Return whether a module computes down(silu(gate(x)) · up(x)): its `forward` is the code of Llama's MLP."""
    # By its code, not by its class: transformers copies Llama's MLP into the file of each model.
    llama_code, code = LlamaMLP.forward.__code__, getattr(type(module).forward, "__code__", None)
    if code is None or (code.co_code, code.co_names) != (llama_code.co_code, llama_code.co_names):
        return False
    return isinstance(getattr(module, "act_fn", None), (nn.SiLU, SiLUActivation))
