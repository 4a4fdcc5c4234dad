from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fakes import tiny_model

from rove.core.errors import RunError
from rove.models.load import LoadedModel, load_model
from rove.train.batch import micro_batches
from rove.train.checkpoint import STATE, restore_checkpoint, restore_weights, save_checkpoint
from rove.train.losses import cross_entropy
from rove.train.sequences import TrainingSequence
from rove.train.trainer import Trainer

ARCHITECTURES = ["llama", "qwen3", "lfm2"]


def steps(loaded: LoadedModel, trainer: Trainer, count: int, start: int = 0) -> None:
    for step in range(start, start + count):
        samples = [TrainingSequence([step, 7, 8, 9], [False, True, True, True], [0.0] * 4, [0.0, 1.0, 1.0, 1.0])]
        trainer.step(micro_batches(samples, 100), cross_entropy, 3, lr_scale=1 / (step + 1))


def weights(loaded: LoadedModel) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}


def assert_equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_two_steps_and_two_steps_are_four_steps_to_the_bit(arch: str, tmp_path: Path):
    loaded = tiny_model(arch)
    trainer = Trainer(loaded.model, 1e-2, weight_decay=0.1)
    steps(loaded, trainer, 2)
    save_checkpoint(tmp_path, loaded, trainer)
    steps(loaded, trainer, 2, start=2)

    other = tiny_model(arch, seed=5)  # another process: other weights, a fresh optimizer
    resumed = Trainer(other.model, 1e-2, weight_decay=0.1)
    restore_checkpoint(tmp_path, other, resumed)
    steps(other, resumed, 2, start=2)
    assert_equal(weights(other), weights(loaded))


def test_the_optimizers_moments_matter(tmp_path: Path):
    loaded = tiny_model()
    trainer = Trainer(loaded.model, 1e-2)
    steps(loaded, trainer, 2)
    save_checkpoint(tmp_path, loaded, trainer)
    steps(loaded, trainer, 1, start=2)
    other = tiny_model()
    restore_weights(tmp_path, other)
    steps(other, Trainer(other.model, 1e-2), 1, start=2)
    assert not torch.equal(other.model.lm_head.weight, loaded.model.lm_head.weight)


def test_a_reference_comes_back_and_is_missed_where_it_is_not(tmp_path: Path):
    loaded, other, reference = tiny_model(), tiny_model(), tiny_model(seed=3)
    trainer = Trainer(loaded.model, 1e-2)
    steps(loaded, trainer, 1)
    save_checkpoint(tmp_path / "with", loaded, trainer, reference.model)
    save_checkpoint(tmp_path / "without", loaded, trainer)
    again = tiny_model(seed=4)
    restore_checkpoint(tmp_path / "with", other, Trainer(other.model, 1e-2), again.model)
    assert_equal(weights(again), weights(reference))
    assert_equal(weights(other), weights(loaded))
    with pytest.raises(RunError, match="no reference model"):
        restore_checkpoint(tmp_path / "without", other, Trainer(other.model, 1e-2), again.model)


def test_a_checkpoint_is_an_ordinary_model_folder(tmp_path: Path):
    loaded = tiny_model()
    save_checkpoint(tmp_path, loaded, Trainer(loaded.model, 1e-2))
    again = load_model(tmp_path, device="cpu")
    assert_equal(weights(again), weights(loaded))
    assert again.renderer.encode("hello") == loaded.renderer.encode("hello")


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_tied_weights_stay_tied(arch: str, tmp_path: Path):
    loaded, other = tiny_model(arch), tiny_model(arch, seed=1)
    loaded.save(tmp_path)
    restore_weights(tmp_path, other)
    assert_equal(weights(other), weights(loaded))
    assert other.model.lm_head.weight is other.model.get_input_embeddings().weight


def test_restored_weights_are_the_ones_the_optimizer_moves(tmp_path: Path):
    loaded = tiny_model()
    trainer = Trainer(loaded.model, 1e-2)
    save_checkpoint(tmp_path, loaded, trainer)
    restore_checkpoint(tmp_path, loaded, trainer)
    before = weights(loaded)
    steps(loaded, trainer, 1)
    assert not torch.equal(loaded.model.lm_head.weight, before["lm_head.weight"])


def test_a_folder_without_trainer_state_cannot_be_resumed_from(tmp_path: Path):
    loaded = tiny_model()
    loaded.save(tmp_path)
    before = weights(loaded)
    with pytest.raises(RunError, match=STATE):
        restore_checkpoint(tmp_path, loaded, Trainer(loaded.model, 1e-2))
    assert_equal(weights(loaded), before)


def test_another_models_weights_are_refused(tmp_path: Path):
    tiny_model("llama").save(tmp_path / "llama")
    with pytest.raises(RunError, match="another model"):
        restore_weights(tmp_path / "llama", tiny_model("qwen3"))
    with pytest.raises(RunError, match="another model"):
        restore_weights(tmp_path / "nothing here", tiny_model())
