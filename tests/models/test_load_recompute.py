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


def training_sequences() -> list[TrainingSequence]:
    """Return three sequences that share a prefix."""
    sequences = []
    for i, length in enumerate(LENGTHS):
        ids = [7, 8, 9, *range(20 + i, 20 + i + length)]
        mask = [False, False, *[True] * (length + 1)]
        sequences.append(TrainingSequence(ids, mask, [0.0] * len(ids), [float(m) for m in mask]))
    return sequences


def gradients(model: Any, pack: bool, recompute: bool) -> dict[str, torch.Tensor]:
    trainer = Trainer(model, 1e-3, activation_checkpointing=recompute)
    trainer.optimizer.zero_grad(set_to_none=True)
    batches = micro_batches(training_sequences(), 100, pack=pack)
    trainer.accumulate(batches, cross_entropy, count_trained_tokens(training_sequences()), entropy_bonus=0.1)
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("pack", [False, True], ids=["padded", "packed"])
def test_activation_checkpointing_does_not_change_gradients(arch: str, pack: bool):
    model = tiny_model(arch).model
    if pack and not can_pack(model):
        pytest.skip(f"{arch} is never packed")
    expected, recomputed = gradients(model, pack, False), gradients(model, pack, True)
    assert expected.keys() == recomputed.keys() == dict(model.named_parameters()).keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(recomputed[name], gradient, rtol=1e-6, atol=1e-6)


def saved_bytes(model: Any, layers: list[torch.nn.Module]) -> int:
    """Return the bytes saved for the backward pass, without the weights."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    sizes: dict[int, int] = {}

    def record_size(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    [batch] = micro_batches(training_sequences(), 100)
    with torch.autograd.graph.saved_tensors_hooks(record_size, lambda tensor: tensor), checkpoint_activations(layers):
        token_logprobs(model, batch)
    return sum(sizes.values())


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_only_the_inputs_of_checkpointed_layers_are_saved(arch: str):
    model = tiny_model(arch).model
    layers = checkpointed_layers(model)
    assert len(layers) == model.config.num_hidden_layers == 2
    bytes_0, bytes_1, bytes_2 = (saved_bytes(model, layers[:count]) for count in range(3))
    hidden = 4 * 32 * len(LENGTHS) * (max(LENGTHS) + 3)
    assert bytes_0 - bytes_1 > 4 * hidden
    assert bytes_1 - bytes_2 > 4 * hidden


def test_layers_are_restored_after_checkpointing_and_in_copies():
    model = tiny_model().model
    layers = checkpointed_layers(model)
    forward = [layer.forward for layer in layers]
    with pytest.raises(KeyError), checkpoint_activations(layers):
        assert [layer.forward for layer in layers] != forward
        raise KeyError
    assert [layer.forward for layer in layers] == forward
    assert all("forward" not in vars(layer) for layer in checkpointed_layers(copy.deepcopy(model)))


def test_layers_are_not_recomputed_without_gradients():
    model = tiny_model().model
    trainer = Trainer(model, 1e-3, activation_checkpointing=True)
    runs: list[int] = []
    checkpointed_layers(model)[0].register_forward_hook(lambda *_: runs.append(1))
    [batch] = micro_batches(training_sequences(), 100)
    trainer.mean_loss([batch], cross_entropy)
    assert len(runs) == 1


def test_a_model_without_checkpointable_layers_is_rejected():
    with pytest.raises(ConfigError, match="Linear has no layer"):
        Trainer(torch.nn.Linear(2, 2), 1e-3, activation_checkpointing=True)
