"""Layers that compute in bf16: gradients agree with fp32 to about two digits."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from families import family_model
from tiers import first_quick, some_quick

from rove.models.bf16_layers import bf16_layers, supports
from rove.models.load import LoadedModel
from rove.train.batch import count_trained_tokens, micro_batches
from rove.train.losses import cross_entropy
from rove.train.sequences import TrainingSequence
from rove.train.trainer import Trainer, frozen_logprobs

FAMILIES = ["llama", "smollm", "mistral", "qwen2", "qwen3"]

pytestmark = pytest.mark.usefixtures("bf16_products")


def model_of(family: str) -> LoadedModel:
    loaded = family_model(family)
    if not supports(loaded.model):
        pytest.skip("there are no kernels: no C compiler")
    return loaded


def sequences(count: int = 6) -> list[TrainingSequence]:
    """Return sequences of different lengths that share a prefix of 10 tokens."""
    rng = random.Random(0)
    prefix = [rng.randrange(320) for _ in range(10)]
    result = []
    for i in range(count):
        ids = prefix + [rng.randrange(320) for _ in range(3 + 5 * i)]
        mask = [position >= len(prefix) for position in range(len(ids))]
        result.append(TrainingSequence(ids, mask, [0.0] * len(ids), [1.0] * len(ids)))
    return result


def gradients(loaded: LoadedModel, mixed: bool, **options: Any) -> tuple[dict[str, torch.Tensor], float]:
    """Return the gradients by parameter and the mean loss."""
    training_sequences = sequences()
    trainer = Trainer(copy.deepcopy(loaded.model), 1e-3, mixed_precision=mixed, **options)
    count = count_trained_tokens(training_sequences)
    sums = trainer.accumulate(micro_batches(training_sequences, 10_000, pack=True), cross_entropy, count)
    grads = {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}
    return grads, sums["loss"] / count


def largest_difference(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    assert ours.keys() == theirs.keys()
    # Gradients that are zero in exact arithmetic (of key biases) are compared with the norm of the whole gradient.
    total_norm = torch.cat([grad.flatten() for grad in theirs.values()]).norm().item()
    pairs = ((ours[name] - grad, grad) for name, grad in theirs.items())
    return max((difference.norm() / max(grad.norm().item(), 1e-3 * total_norm)).item() for difference, grad in pairs)


@pytest.mark.parametrize("family", some_quick(FAMILIES, 3))
@pytest.mark.parametrize("threads", first_quick([2, 1]))
def test_gradients_are_close_to_fp32(family: str, threads: int):
    thread_count = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        loaded = model_of(family)
        exact, expected_loss = gradients(loaded, mixed=False)
        ours, loss = gradients(loaded, mixed=True)
    finally:
        torch.set_num_threads(thread_count)
    assert loss == pytest.approx(expected_loss, abs=0.03) and loss != expected_loss
    assert 0 < largest_difference(ours, exact) < 0.1


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_recomputed_activations_give_equal_gradients(family: str):
    loaded = model_of(family)
    expected, _ = gradients(loaded, mixed=True)
    recomputed, _ = gradients(loaded, mixed=True, activation_checkpointing=True)
    assert all(torch.equal(recomputed[name], grad) for name, grad in expected.items())


@pytest.mark.parametrize("targets", [[], ["q_proj", "v_proj"]], ids=["all", "queries and values"])
def test_gradients_of_adapters_are_close_to_fp32(targets: list[str]):
    pytest.importorskip("peft", reason="pip install 'rove[train]'")
    from rove.models.adapter import add_adapter

    loaded = model_of("llama")
    add_adapter(loaded.model, 4, 8.0, 0.0, targets, seed=0, base="")
    for name, parameter in loaded.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    assert supports(loaded.model)
    exact, _ = gradients(loaded, mixed=False)
    ours, _ = gradients(loaded, mixed=True)
    assert all("lora_" in name for name in ours)
    assert 0 < largest_difference(ours, exact) < 0.1


def test_adapters_with_dropout_keep_their_own_layers():
    pytest.importorskip("peft", reason="pip install 'rove[train]'")
    from rove.models.adapter import add_adapter

    loaded = model_of("llama")
    add_adapter(loaded.model, 4, 8.0, 0.1, [], seed=0, base="")
    assert not supports(loaded.model)


@pytest.mark.parametrize("family", ["gemma", "lfm2"])
def test_unsupported_models_keep_their_layers(family: str):
    loaded = family_model(family)
    assert not supports(loaded.model)
    with bf16_layers(loaded.model):
        assert all("forward" not in vars(layer) for layer in loaded.model.model.layers)


def test_layers_are_restored_after_an_error():
    loaded = model_of("llama")
    [batch] = micro_batches(sequences(), 10_000, pack=True)
    exact = frozen_logprobs(loaded.model, batch)
    with pytest.raises(ZeroDivisionError), bf16_layers(loaded.model):
        assert not torch.equal(frozen_logprobs(loaded.model, batch), exact)
        raise ZeroDivisionError
    assert torch.equal(frozen_logprobs(loaded.model, batch), exact)


def test_layers_are_restored_if_there_is_no_memory_for_copies(monkeypatch: pytest.MonkeyPatch):
    loaded = model_of("llama")
    layers: list[Any] = []

    def failing(layer: Any) -> None:
        layers.append(layer)
        if len(layers) == 2:
            raise MemoryError

    monkeypatch.setattr("rove.models.bf16_layers.LayerWeights", failing)
    with pytest.raises(MemoryError), bf16_layers(loaded.model):
        pass
    assert all("forward" not in vars(layer) for layer in loaded.model.model.layers)
