"""Layers that save fewer activations give exactly the same results and gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from transformers import FalconH1Config, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.models.falcon_h1.modeling_falcon_h1 import FalconH1MLP
from transformers.models.mistral.modeling_mistral import MistralMLP
from transformers.models.qwen2.modeling_qwen2 import Qwen2MLP

from rove.models.linear import use_fast_linear
from rove.models.recompute import use_recomputing_layers

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
}


def llama(**changes: Any) -> nn.Module:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**{**SIZES, **changes}))


def qwen() -> nn.Module:
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8))


def with_adapter() -> nn.Module:
    """Return a model with LoRA layers for the down and query projections; all other weights are frozen."""
    peft = pytest.importorskip("peft", reason="pip install 'rove[train]'")
    model: Any = llama()
    config = peft.LoraConfig(r=2, target_modules=["down_proj", "q_proj"], init_lora_weights=False)
    return peft.get_peft_model(model, config).base_model.model


def gradients(model: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    ids = torch.arange(2 * 11).reshape(2, 11) % 50
    logits = model(input_ids=ids).logits
    logits.log_softmax(-1)[..., 3].sum().backward()
    return logits, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def saved_bytes(model: Any) -> int:
    storages: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = model(input_ids=torch.arange(40)[None]).logits
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    assert out.requires_grad
    return sum(size for address, size in storages.items() if address not in weights)


@pytest.mark.parametrize("new", [llama, qwen, with_adapter])
@pytest.mark.parametrize("fast", [False, True])
def test_results_and_gradients_are_equal_and_less_memory_is_saved(new: Any, fast: bool):
    plain = new()
    if fast:
        use_fast_linear(plain)
    lean = copy.deepcopy(plain)
    assert use_recomputing_layers(lean) == use_recomputing_layers(lean) > 0
    lean = copy.deepcopy(lean)  # like a reference model
    (logits, grads), (lean_logits, lean_grads) = gradients(plain), gradients(lean)
    assert torch.equal(logits, lean_logits)
    assert grads.keys() == lean_grads.keys()
    assert all(torch.equal(grads[name], lean_grads[name]) for name in grads)
    assert saved_bytes(lean) < 0.95 * saved_bytes(plain)
    with torch.inference_mode():
        assert torch.equal(lean(input_ids=torch.arange(9)[None]).logits, plain(input_ids=torch.arange(9)[None]).logits)
    assert lean.state_dict().keys() == plain.state_dict().keys()


def test_an_mlp_with_another_formula_is_not_replaced():
    layer = FalconH1MLP(FalconH1Config(hidden_size=8, intermediate_size=16, mlp_multipliers=[0.5, 0.25]))
    assert use_recomputing_layers(nn.ModuleList([layer])) == 0


@pytest.mark.parametrize("layer", [MistralMLP, Qwen2MLP])
def test_an_mlp_with_the_llama_formula_is_replaced(layer: Any):
    config = LlamaConfig(**SIZES)
    assert use_recomputing_layers(nn.ModuleList([layer(config)])) == 1


def test_an_mlp_with_another_activation_is_not_replaced():
    model: Any = llama(hidden_act="gelu")
    mlp_class = type(model.model.layers[0].mlp)
    assert use_recomputing_layers(model) == 5  # the norms
    assert type(model.model.layers[0].mlp) is mlp_class
