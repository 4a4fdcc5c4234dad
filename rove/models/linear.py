"""Faster linear layers on CPUs: oneDNN in fp32, and optionally bf16 matrix products in the backward pass or in both passes.

PyTorch's fp32 matrix product uses MKL's slow path on AMD processors; oneDNN is as exact and up to twice as fast. The bf16
backward products are twice as fast again and change gradients only in the third digit. Weights, activations and
log-probabilities stay fp32, so sampler and trainer still agree. If the forward pass uses bf16 products, too, they agree only to
about two digits. See docs/decisions/bf16_training.md.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

CACHE_SIZES = {"LRU_CACHE_CAPACITY": "16", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16"}
"""Environment variables that limit how many compiled matrix products PyTorch and oneDNN keep (by default, 1,024 each). In
training, shapes rarely repeat: after 50 steps of a model with 0.5 M parameters, these caches took 850 MB, and a small cache was
as fast."""
for _name, _size in CACHE_SIZES.items():  # read at the first matrix product
    os.environ.setdefault(_name, _size)

PACK_ROWS = 256
"""Number of input rows for which packed weights are optimized; other numbers work, too."""
_HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
_ONEDNN_DTYPES = [torch.float32] if _HAS_ONEDNN else []
if _HAS_ONEDNN and torch.ops.mkldnn._is_mkldnn_bf16_supported():  # oneDNN's bf16 needs AVX-512 on x86
    _ONEDNN_DTYPES.append(torch.bfloat16)
# Without hardware support, bf16 products are emulated and several times slower than fp32.
HAS_BF16_PRODUCTS = _HAS_ONEDNN and (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
"""Whether this CPU multiplies bf16 matrices faster than fp32 matrices."""


def has_bf16_products(device: torch.device) -> bool:
    """Return whether a device multiplies bf16 matrices faster than fp32 matrices."""
    if device.type == "cuda":  # older GPUs emulate them
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type != "cpu" or HAS_BF16_PRODUCTS


def fast_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return x [..., in] times a weight [out, in], without gradients."""
    if x.dtype not in _ONEDNN_DTYPES:
        return torch.nn.functional.linear(x, weight)
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


def product(x: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return x [..., in] times a weight [out, in] without gradients, computed in `dtype` and converted to the dtype of x."""
    return fast_product(x.to(dtype), weight.to(dtype)).to(x.dtype)


def pack_weight(weight: torch.Tensor) -> torch.Tensor:
    """Return a copy of a weight [out, in] in the layout that `linear` reads fastest; the weight itself if there is none."""
    if weight.device.type != "cpu" or weight.dtype not in _ONEDNN_DTYPES:
        return weight.detach()
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), PACK_ROWS)


def effective_weight(layer: Any) -> torch.Tensor:
    """Return a linear layer's weight [out, in] including its PEFT adapter."""
    weight = layer.weight.detach()
    if not getattr(layer, "disable_adapters", False):
        for name in getattr(layer, "active_adapters", ()):
            weight = weight + layer.get_delta_weight(name).detach()
    return weight


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return x [N, in] times a weight [out, in] (packed or not), without gradients."""
    if weight.is_mkldnn:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return torch.nn.functional.linear(x, weight, bias)


def _as_own_tensor(y: torch.Tensor) -> torch.Tensor:
    """Return the same data as a tensor that a model may change in place. Gemma 3n changes the output of a layer in place.

    oneDNN returns a view of its rows, and autograd refuses to change a view that a custom function returns.
    """
    return torch.ops.aten._unsafe_view(y, y.shape)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, forward_dtype: torch.dtype, dtype: torch.dtype
    ) -> torch.Tensor:
        saved = x.to(dtype)
        # Inputs are needed for the weight's gradient only; a weight under an adapter has none.
        ctx.save_for_backward(saved if ctx.needs_input_grad[1] else None, weight)
        ctx.dtype = dtype
        # With equal types, the converted inputs serve both passes.
        y = product(saved if dtype == forward_dtype else x, weight, forward_dtype)
        return _as_own_tensor(y.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        grad = grads[0].to(ctx.dtype)
        grad_x = grad_weight = None
        # PyTorch's products: oneDNN is faster in the forward pass, but not in these two together (benchmarks/LOG.md).
        if ctx.needs_input_grad[0]:
            grad_x = (grad @ weight.to(ctx.dtype)).to(weight.dtype)
        if x is not None:
            grad_weight = (grad.flatten(0, -2).t() @ x.flatten(0, -2)).to(weight.dtype)
        return grad_x, grad_weight, None, None


class FastLinear(nn.Linear):
    """A fast fp32 linear layer on a CPU, without a bias: its weights are the original ones, its results equal up to rounding."""

    forward_dtype = torch.float32
    backward_dtype = torch.float32

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """x [..., in] → [..., out]."""
        if torch.is_grad_enabled():
            return _Linear.apply(input, self.weight, self.forward_dtype, self.backward_dtype)  # pyright: ignore[reportReturnType]
        return product(input, self.weight, self.forward_dtype)


class _LoRALinear(torch.autograd.Function):
    """x [..., in] times a frozen weight, plus the trained change by a [r, in] and b [out, r]."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, base: FastLinear, a: torch.Tensor, b: torch.Tensor, scale: float
    ) -> torch.Tensor:
        dtype = base.backward_dtype
        inner = fast_product(x, a)
        ctx.save_for_backward(x.to(dtype), inner.to(dtype), base.weight, a, b)
        ctx.scale, ctx.dtype = scale, dtype
        return _as_own_tensor(add_low_rank(x, base, inner, b, scale))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, inner, weight, a, b = ctx.saved_tensors
        grad = grads[0].to(ctx.dtype).flatten(0, -2)
        grad_inner = (grad @ b.to(ctx.dtype)).mul_(ctx.scale)
        grad_a = grad_inner.t() @ x.flatten(0, -2)
        grad_b = (grad.t() @ inner.flatten(0, -2)).mul_(ctx.scale)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_base = grad @ weight.to(ctx.dtype)
            grad_x = grad_base.addmm_(grad_inner, a.to(ctx.dtype)).to(weight.dtype).view(x.shape)
        return grad_x, None, grad_a.to(a.dtype), grad_b.to(b.dtype), None


def add_low_rank(x: torch.Tensor, base: FastLinear, inner: torch.Tensor, b: torch.Tensor, scale: float) -> torch.Tensor:
    """Return x Wᵀ + scale · inner bᵀ with the weight W of `base`, and inner [..., r] = x aᵀ."""
    y = product(x, base.weight, base.forward_dtype)
    y.view(-1, y.shape[-1]).addmm_(inner.flatten(0, -2), b.t(), alpha=scale)
    return y


def lora_linear(x: torch.Tensor, base: FastLinear, a: torch.Tensor, b: torch.Tensor, scale: float) -> torch.Tensor:
    """Return the output [..., out] of a linear layer with an adapter for x [..., in]."""
    if torch.is_grad_enabled():
        return _LoRALinear.apply(x, base, a, b, scale)  # pyright: ignore[reportReturnType]
    return add_low_rank(x, base, fast_product(x, a), b, scale)


def use_fast_linear(model: nn.Module, bf16_backward: bool = False, bf16_forward: bool = False) -> int:
    """Convert the model's fp32 bias-free CPU linear layers to `FastLinear`, in place; return their number.

    Args:
        bf16_backward: Whether to compute the products of the backward pass in bf16; ignored if the CPU has no bf16 products.
    """
    if not _HAS_ONEDNN:
        return 0
    forward = torch.bfloat16 if bf16_forward and HAS_BF16_PRODUCTS else torch.float32
    backward = torch.bfloat16 if bf16_backward and HAS_BF16_PRODUCTS else torch.float32
    count = 0
    for module in model.modules():
        if isinstance(module, nn.Linear) and type(module) in (nn.Linear, FastLinear) and _fits(module):
            module.__class__ = FastLinear
            setattr(module, "forward_dtype", forward)  # noqa: B010
            setattr(module, "backward_dtype", backward)  # noqa: B010
            count += 1
    return count


def _fits(module: nn.Linear) -> bool:
    weight = module.weight
    return module.bias is None and weight.dtype == torch.float32 and weight.device.type == "cpu"
