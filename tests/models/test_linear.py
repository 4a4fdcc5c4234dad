from __future__ import annotations

import os
import runpy

import pytest
import torch
from fakes import tiny_model
from torch import nn

import rove.models.linear
from rove.models.linear import CACHE_SIZES, FastLinear, linear, pack_weight, use_fast_linear

SHAPES = [(5, 8), (2, 5, 8), (1, 1, 8), (3, 2, 2, 8)]


def linear_pair(bf16_backward: bool = False, bf16_forward: bool = False) -> tuple[nn.Linear, FastLinear]:
    torch.manual_seed(0)
    plain, fast = nn.Linear(8, 6, bias=False), nn.Sequential(nn.Linear(8, 6, bias=False))
    fast.load_state_dict({"0.weight": plain.weight})
    if use_fast_linear(fast, bf16_backward, bf16_forward) == 0:
        pytest.skip("this PyTorch has no oneDNN")
    layer = fast[0]
    assert isinstance(layer, FastLinear)
    return plain, layer


def gradients(layer: nn.Linear, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = x.clone().requires_grad_()
    out = layer(x)
    layer.weight.grad = None
    (out.tanh() * torch.linspace(-1, 1, 6)).sum().backward()
    assert x.grad is not None and layer.weight.grad is not None
    return out.detach(), x.grad, layer.weight.grad


@pytest.mark.parametrize("shape", SHAPES)
def test_forward_and_backward_match_a_linear_layer(shape: tuple[int, ...]):
    plain, fast = linear_pair()
    x = torch.randn(shape)
    for ours, theirs in zip(gradients(fast, x), gradients(plain, x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    with torch.inference_mode():
        torch.testing.assert_close(fast(x), plain(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_bf16_backward_changes_only_gradients_by_less_than_1_percent(shape: tuple[int, ...]):
    plain, fast = linear_pair(bf16_backward=True)
    x = torch.randn(shape)
    (out, *grads), (expected, *exact_grads) = gradients(fast, x), gradients(plain, x)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
    for actual, exact in zip(grads, exact_grads, strict=True):
        assert actual.dtype == torch.float32
        assert 0 < (actual - exact).norm() / exact.norm() < 0.01


@pytest.mark.parametrize("shape", SHAPES)
def test_bf16_forward_and_backward_change_results_by_less_than_2_percent(shape: tuple[int, ...]):
    plain, fast = linear_pair(bf16_backward=True, bf16_forward=True)
    if fast.forward_dtype == torch.float32:
        pytest.skip("this CPU has no bf16 products")
    x = torch.randn(shape)
    for actual, exact in zip(gradients(fast, x), gradients(plain, x), strict=True):
        assert actual.dtype == torch.float32
        assert 0 < (actual - exact).norm() / exact.norm() < 0.02
    out = gradients(fast, x)[0]
    with torch.inference_mode():
        assert torch.equal(fast(x), out)


def test_the_backward_precision_can_be_changed():
    _, fast = linear_pair(bf16_backward=True)
    assert use_fast_linear(nn.Sequential(fast)) == 1
    assert fast.backward_dtype == torch.float32


def test_only_bias_free_fp32_layers_are_replaced():
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2, bias=False, dtype=torch.bfloat16), nn.Embedding(2, 2)])
    assert use_fast_linear(model) == 0
    assert [type(module) for module in model] == [nn.Linear, nn.Linear, nn.Embedding]


def test_a_model_with_fast_layers_has_the_same_gradients():
    fast, plain = tiny_model().model, tiny_model().model
    for module in plain.modules():
        if isinstance(module, FastLinear):
            module.__class__ = nn.Linear  # pyright: ignore[reportAttributeAccessIssue]
    assert sum(isinstance(module, FastLinear) for module in fast.modules()) == 15  # 7 per layer, and the tied head
    ids = torch.arange(24).view(2, 12)
    for model in (fast, plain):
        model(input_ids=ids).logits.log_softmax(-1)[..., 3].sum().backward()
    for ours, theirs in zip(fast.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


def test_a_model_may_change_the_output_of_a_layer_in_place():
    """Gemma 3n does; autograd refuses this for a view that a custom function returns."""
    layer, x = nn.Linear(8, 4, bias=False), torch.randn(2, 3, 8)
    use_fast_linear(layer)
    y = layer(x)
    y *= 2
    y.sum().backward()
    torch.testing.assert_close(layer.weight.grad, 2 * x.sum((0, 1)).expand(4, 8))


def test_fast_layers_do_not_change_weight_names():
    assert "model.layers.0.mlp.up_proj.weight" in tiny_model().model.state_dict()


@pytest.mark.parametrize("rows", [1, 7, 8, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_linear_matches_pytorch_for_all_row_counts_and_biases(rows: int, dtype: torch.dtype):
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(shape).to(dtype) for shape in ((rows, 8), (6, 8), (6,)))
    with torch.inference_mode():
        torch.testing.assert_close(linear(x, weight), nn.functional.linear(x, weight))
        torch.testing.assert_close(linear(x, weight, bias), nn.functional.linear(x, weight, bias))


@pytest.mark.parametrize("bias", [None, torch.randn(24)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 7, 300])
def test_packed_weights_give_the_same_products(rows: int, dtype: torch.dtype, bias: torch.Tensor | None):
    torch.manual_seed(0)
    weight, x = torch.randn(24, 40).to(dtype), torch.randn(rows, 40).to(dtype)
    bias = None if bias is None else bias.to(dtype)
    packed = pack_weight(weight)
    expected = linear(x, weight, bias)
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(linear(x, packed, bias), expected, rtol=tolerance, atol=tolerance)
    if packed.is_mkldnn:  # otherwise the CPU has no products of this type and the weight itself is used
        weight.zero_()
    torch.testing.assert_close(linear(x, packed, bias), expected, rtol=tolerance, atol=tolerance)
    assert packed.is_mkldnn or dtype != torch.float32
    assert pack_weight(weight.double()).dtype == torch.float64


@pytest.mark.parametrize(("variables", "expected"), [({}, ["16", "16"]), ({"LRU_CACHE_CAPACITY": "7"}, ["7", "16"])])
def test_matrix_product_caches_are_small_unless_the_user_sets_them(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: list[str]
):
    for name in CACHE_SIZES:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    runpy.run_path(str(rove.models.linear.__file__))
    assert [os.environ[name] for name in CACHE_SIZES] == expected
