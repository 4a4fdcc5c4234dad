from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from fakes import tiny_model

from rove.core.errors import ConfigError
from rove.models.load import checkpoint_activations, checkpointed_layers
from rove.train.batch import can_pack, count_trained_tokens, micro_batches
from rove.train.losses import cross_entropy
from rove.train.sequences import TrainingSequence
from rove.train.trainer import Trainer, token_logprobs

ARCHITECTURES = ["llama", "qwen3", "lfm2", "gemma2"]
LENGTHS = (17, 9, 4)


def samples() -> list[TrainingSequence]:
    """Three that begin alike."""
    made = []
    for i, length in enumerate(LENGTHS):
        ids = [7, 8, 9, *range(20 + i, 20 + i + length)]
        mask = [False, False, *[True] * (length + 1)]
        made.append(TrainingSequence(ids, mask, [0.0] * len(ids), [float(m) for m in mask]))
    return made


def gradients(model: Any, pack: bool, again: bool) -> dict[str, torch.Tensor]:
    trainer = Trainer(model, 1e-3, activation_checkpointing=again)
    trainer.optimizer.zero_grad(set_to_none=True)
    batches = micro_batches(samples(), 100, pack=pack)
    trainer.accumulate(batches, cross_entropy, count_trained_tokens(samples()), entropy_bonus=0.1)
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("pack", [False, True], ids=["padded", "packed"])
def test_the_gradient_is_the_same(arch: str, pack: bool):
    model = tiny_model(arch).model
    if pack and not can_pack(model):
        pytest.skip(f"{arch} is never packed")
    plain, again = gradients(model, pack, False), gradients(model, pack, True)
    assert plain.keys() == again.keys() == dict(model.named_parameters()).keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(again[name], gradient, rtol=1e-6, atol=1e-6)


def kept(model: Any, layers: list[torch.nn.Module]) -> int:
    """Bytes kept for the backward pass beside the weights."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    sizes: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    [batch] = micro_batches(samples(), 100)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), checkpoint_activations(layers):
        token_logprobs(model, batch)
    return sum(sizes.values())


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_of_each_layer_only_what_goes_into_it_is_kept(arch: str):
    model = tiny_model(arch).model
    layers = checkpointed_layers(model)
    assert len(layers) == model.config.num_hidden_layers == 2
    everything, one, none = (kept(model, layers[:count]) for count in range(3))
    hidden = 4 * 32 * len(LENGTHS) * (max(LENGTHS) + 3)
    assert everything - one > 4 * hidden
    assert one - none > 4 * hidden


def test_afterwards_and_in_copies_a_layer_is_what_it_was():
    model = tiny_model().model
    layers = checkpointed_layers(model)
    forward = [layer.forward for layer in layers]
    with pytest.raises(KeyError), checkpoint_activations(layers):
        assert [layer.forward for layer in layers] != forward
        raise KeyError
    assert [layer.forward for layer in layers] == forward
    assert all("forward" not in vars(layer) for layer in checkpointed_layers(copy.deepcopy(model)))


def test_nothing_is_computed_again_where_there_are_no_gradients():
    model = tiny_model().model
    trainer = Trainer(model, 1e-3, activation_checkpointing=True)
    runs: list[int] = []
    checkpointed_layers(model)[0].register_forward_hook(lambda *_: runs.append(1))
    [batch] = micro_batches(samples(), 100)
    trainer.mean_loss([batch], cross_entropy)
    assert len(runs) == 1


def test_a_model_without_such_layers_is_refused():
    with pytest.raises(ConfigError, match="Linear has no layer"):
        Trainer(torch.nn.Linear(2, 2), 1e-3, activation_checkpointing=True)
