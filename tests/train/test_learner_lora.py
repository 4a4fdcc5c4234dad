"""LoRA training: changed and saved weights, sampling, exact resumption and the reference model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import tiny_model
from safetensors.torch import load_file
from tiers import first_quick

from rove.core.errors import ConfigError
from rove.engine.engine import Engine
from rove.models import load
from rove.models.linear import FastLinear
from rove.models.load import LoadedModel, clone_model, load_model, trainable_parameters
from rove.train.batch import micro_batches
from rove.train.config import LoRAConfig
from rove.train.learner import Learner, adapter_dropout, add_lora
from rove.train.losses import cross_entropy
from rove.train.sequences import TrainingSequence
from rove.train.trainer import Trainer, frozen_logprobs, make_trainer
from tests.train.test_rl import Killed, metrics_of, rollouts_of, settings, train, two_turns
from tests.train.test_sft import Killed as KilledSFT
from tests.train.test_sft import learnable_rollouts
from tests.train.test_sft import settings as sft_settings
from tests.train.test_sft import train as train_sft

LORA = {"lora__rank": 3, "learning_rate": 3e-2}
SEQUENCES = [
    TrainingSequence([*range(10, 30), 40 + i, 50, 60 + i], [False] * 20 + [True] * 3, [0.0] * 23, [1.0] * 23)
    for i in range(3)
]


def adapter_bytes(path: Path) -> bytes:
    return (path / "final" / "adapter_model.safetensors").read_bytes()


def flatten(weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in weights.values()])


def trained_model(**fields: Any) -> tuple[LoadedModel, Trainer]:
    """Return a model with an adapter after one training step, and its trainer."""
    config = settings(**LORA, **fields)
    loaded = add_lora(config, tiny_model())
    trainer = make_trainer(config, loaded)
    trainer.step(micro_batches(SEQUENCES, 100, pack=True), cross_entropy, 9)
    return loaded, trainer


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ahead": {"max_off_policy_steps": 1},
    "bf16": {"bf16_sampling": True, "bf16_backward": True},
    "reference": {"loss__kl_penalty": 1.0, "num_iterations": 2},
    "moving reference": {"loss__kl_penalty": 1.0, "loss__sync_reference_every": 2, "checkpoint_every": 3},
    "dropout": {"lora__dropout": 0.3},
    "recomputed": {"lora__dropout": 0.3, "activation_checkpointing": True, "num_iterations": 2},
}


@pytest.mark.broad
@pytest.mark.usefixtures("bf16_products")
@pytest.mark.parametrize("kind", first_quick(KINDS, broad=0))
def test_a_killed_run_ends_with_exactly_the_same_adapter(tmp_path: Path, kind: str):
    config = settings(**LORA, **KINDS[kind])
    train(tmp_path / "whole", config, two_turns())
    for kill_at in (1, 4):
        with pytest.raises(Killed):
            train(tmp_path / "killed", config, two_turns(), kill_at)
        torch.manual_seed(kill_at)  # a new process has another random state
    train(tmp_path / "killed", config, two_turns())
    assert adapter_bytes(tmp_path / "killed") == adapter_bytes(tmp_path / "whole")
    assert metrics_of(tmp_path / "killed") == metrics_of(tmp_path / "whole")
    assert rollouts_of(tmp_path / "killed") == rollouts_of(tmp_path / "whole")


@pytest.mark.broad
def test_rollouts_are_sampled_with_the_trained_adapter(tmp_path: Path):
    train(tmp_path, settings(**LORA, temperature=1.25), two_turns())
    for m in metrics_of(tmp_path):
        assert m["logprob_diff/max"] <= 1e-4
        assert m["ratio/mean"] == pytest.approx(1, abs=1e-5)
        assert m["tokens"] > 0
    for record in rollouts_of(tmp_path):
        assert record.step is not None
        assert {step.tokens.policy_version for step in record.steps if step.tokens} == {record.step - 1}
    assert flatten(load_file(tmp_path / "final/adapter_model.safetensors")).abs().max() > 0.05


@pytest.mark.usefixtures("bf16_products")
@pytest.mark.parametrize("kind", first_quick(["plain", "ahead", "bf16", "moving reference"]))
def test_only_the_adapter_is_changed_and_saved(tmp_path: Path, kind: str):
    loaded = train(tmp_path, settings(**LORA, **KINDS[kind]), two_turns())
    initial = tiny_model().model.state_dict()
    trained = {name.replace(".base_layer", ""): weight for name, weight in loaded.model.state_dict().items()}
    assert all(torch.equal(trained[name], weight) for name, weight in initial.items())
    files = {file.name for folder in tmp_path.rglob("checkpoints/*") for file in folder.iterdir()}
    assert files == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "base.txt",
        "trainer.pt",
        "progress.json",
        "CHECKSUMS",
    }
    assert {file.name for file in (tmp_path / "final").iterdir()} == {
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
        "base.txt",
        "CHECKSUMS",
    }
    state = torch.load(next(tmp_path.rglob("trainer.pt")), weights_only=True)
    assert len(state["optimizer"]["state"]) == len(trainable_parameters(loaded.model))
    assert state.get("reference", {}).keys() == (
        trainable_parameters(loaded.model).keys() if kind == "moving reference" else set()
    )


@pytest.mark.broad
def test_a_saved_adapter_gives_the_same_logits_as_the_trained_model(tmp_path: Path):
    tiny_model().save(tmp_path / "base")
    loaded = train(tmp_path / "run", settings(**LORA, model=str(tmp_path / "base")), two_turns())
    merged = load_model(tmp_path / "run" / "final", device="cpu")
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        ours, theirs = (model(input_ids=ids, use_cache=False).logits for model in (merged.model, loaded.model))
        base = tiny_model().model(input_ids=ids, use_cache=False).logits
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    assert (ours - base).abs().max() > 1e-2


@pytest.mark.broad
@pytest.mark.usefixtures("bf16_products")
@pytest.mark.parametrize("kind", first_quick(["plain", "ahead", "bf16"], broad=0))
def test_only_the_adapter_weights_are_sent_to_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str):
    sent: list[Any] = []
    original_update = Engine.update_weights

    def update(self: Engine, version: int, weights: Any = None) -> None:
        sent.append(None if weights is None else weights.keys())
        original_update(self, version, weights)

    monkeypatch.setattr(Engine, "update_weights", update)
    loaded = train(tmp_path, settings(**LORA, **KINDS[kind]), two_turns())
    assert len(sent) > 5
    assert set(map(str, sent)) == {str(None if kind == "plain" else trainable_parameters(loaded.model).keys())}


@pytest.mark.broad
@pytest.mark.parametrize("every", first_quick([None, 2], broad=0))
def test_the_reference_shares_the_base_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int | None):
    """Log-probabilities equal those of the base model exactly or, with syncs, those of the model at the last sync."""
    update, matches, versions = Learner.update, [], [tiny_model().model]

    def checked_update(self: Learner, step: int, samples: Any, lr_scale: float, entropy_bonus: float) -> Any:
        trainer, reference = self.trainer, self.reference
        reference_storage = {p.data_ptr() for p in reference.parameters()} - {
            p.data_ptr() for p in trainer.model.parameters()
        }
        assert len(reference_storage) == sum(".lora_" in name for name, _ in reference.named_parameters())
        [batch, *_] = micro_batches(samples, 8192, pack=True)
        logprobs = [frozen_logprobs(model, batch) for model in (reference, *versions)]
        matches.append([torch.equal(logprobs[0], logprob) for logprob in logprobs[1:]])
        result = update(self, step, samples, lr_scale, entropy_bonus)
        versions.append(clone_model(trainer.model))
        return result

    monkeypatch.setattr(Learner, "update", checked_update)
    train(tmp_path, settings(**LORA, loss__kl_penalty=1.0, loss__sync_reference_every=every), two_turns())
    assert [equal.index(True) for equal in matches] == ([0] * 5 if every is None else [0, 0, 2, 2, 4])


@pytest.mark.broad
def test_the_kl_penalty_limits_the_change_of_the_adapter(tmp_path: Path):
    norms = []
    for penalty in (0.0, 10.0):
        loaded = train(tmp_path / str(penalty), settings(**LORA, loss__kl_penalty=penalty), two_turns())
        norms.append(
            flatten({n: w for n, w in trainable_parameters(loaded.model).items() if "lora_B" in n}).norm().item()
        )
    assert norms[1] < norms[0]


@pytest.mark.parametrize("arch", first_quick(["llama", "qwen3"]))
def test_packing_and_micro_batches_do_not_change_the_gradient(arch: str):
    config, gradients = settings(**LORA), []
    for size, pack in ((1000, True), (40, True), (1000, False), (40, False)):
        loaded = add_lora(config, tiny_model(arch))
        trainer = make_trainer(config, loaded)
        with torch.no_grad():
            for weight in trainable_parameters(loaded.model).values():
                weight.fill_(0.05)
        trainer.accumulate(micro_batches(SEQUENCES, size, pack=pack), cross_entropy, 9)
        frozen = [p.grad for p in loaded.model.parameters() if not p.requires_grad]
        assert frozen and not any(grad is not None for grad in frozen)
        grads = {name: weight.grad for name, weight in trainable_parameters(loaded.model).items()}
        assert all(grad is not None for grad in grads.values())
        gradients.append(flatten(grads))  # pyright: ignore[reportArgumentType]
    for gradient in gradients[1:]:
        assert (gradient - gradients[0]).norm() <= 1e-5 * gradients[0].norm()


def test_all_linear_layers_are_fast_and_frozen_ones_save_no_inputs():
    config = settings(**LORA)
    loaded = add_lora(config, tiny_model())
    make_trainer(config, loaded)
    layers = [layer for layer in loaded.model.modules() if isinstance(layer, torch.nn.Linear)]
    assert all(type(layer) is FastLinear for layer in layers)
    layer = next(layer for layer in layers if not layer.weight.requires_grad)
    x = torch.randn(5, layer.in_features, requires_grad=True)
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = layer(x)
    assert [t.data_ptr() for t in saved] == [layer.weight.data_ptr()]
    [grad] = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(grad, layer.weight.sum(0).expand(5, -1))


def test_dropout_is_active_only_in_its_context_and_depends_only_on_its_seed():
    loaded, _ = trained_model(lora__dropout=0.5)
    [batch] = micro_batches(SEQUENCES, 1000, pack=True)
    without_dropout = frozen_logprobs(loaded.model, batch)
    with_dropout, old_rng_state = [], torch.get_rng_state()
    for seed in (1, 1, 2):
        torch.manual_seed(7)
        with adapter_dropout(loaded.model, seed):
            with_dropout.append(frozen_logprobs(loaded.model, batch))
        assert torch.equal(frozen_logprobs(loaded.model, batch), without_dropout)
    assert torch.equal(with_dropout[0], with_dropout[1])
    assert not torch.equal(with_dropout[0], with_dropout[2])
    assert not torch.equal(with_dropout[0], without_dropout)
    torch.set_rng_state(old_rng_state)
    with pytest.raises(Killed), adapter_dropout(loaded.model, 1):
        raise Killed
    assert not any(layer.training for layer in loaded.model.modules())


def test_without_dropout_the_random_state_is_not_isolated():
    loaded, _ = trained_model()
    rng_state_before = torch.get_rng_state()
    with adapter_dropout(loaded.model, 1):
        assert not any(layer.training for layer in loaded.model.modules())
        torch.rand(1)
    assert not torch.equal(torch.get_rng_state(), rng_state_before)  # the global random state is used


@pytest.mark.broad
@pytest.mark.parametrize("overrides", first_quick([{}, {"lora__dropout": 0.3}], broad=0), ids=["plain", "dropout"])
def test_sft_reduces_the_loss_and_resumes_exactly(tmp_path: Path, overrides: dict[str, Any]):
    config = sft_settings(lora__rank=4, learning_rate=3e-2, epochs=6, **overrides)
    train_sft(tmp_path / "whole", config, learnable_rollouts())
    losses = [m["validation_loss"] for m in metrics_of(tmp_path / "whole") if "validation_loss" in m]
    assert min(losses) < 0.8 * losses[0]
    for kill_at in (3, 9):
        with pytest.raises(KilledSFT):
            train_sft(tmp_path / "killed", config, learnable_rollouts(), kill_at)
    train_sft(tmp_path / "killed", config, learnable_rollouts())
    assert adapter_bytes(tmp_path / "killed") == adapter_bytes(tmp_path / "whole")
    assert metrics_of(tmp_path / "killed") == metrics_of(tmp_path / "whole")


def test_rank_0_adds_no_adapter():
    loaded = tiny_model()
    assert add_lora(settings(), loaded) is loaded
    assert all(parameter.requires_grad for parameter in loaded.model.parameters())


def test_a_local_base_is_saved_as_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tiny_model().save(tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    for model, base in (("base", str(tmp_path / "base")), ("someone/model", "someone/model")):
        adapter = add_lora(settings(**LORA, model=model), tiny_model()).adapter
        assert adapter is not None
        assert adapter.base == base


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lora__rank": -1}, "rank is -1; expected an integer, 0 or more"),
        ({"lora__rank": 2, "lora__alpha": 0.0}, "alpha is 0.0; expected a number, more than 0"),
        ({"lora__rank": 2, "lora__dropout": 1.0}, "dropout is 1.0; expected a number, 0 or more and less than 1"),
        ({"lora__rank": 2, "lora__dropout": -0.1}, "lora.dropout is -0.1"),
        ({"lora__dropout": 0.1}, "lora.dropout is 0.1, but lora.rank is 0"),
        ({"lora__targets": ["q_proj"]}, r"lora.targets is \['q_proj'\], but lora.rank is 0"),
    ],
)
@pytest.mark.parametrize("make_settings", [settings, sft_settings])
def test_invalid_settings_are_rejected(make_settings: Any, fields: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        make_settings(**fields).check()


def test_a_missing_peft_package_is_an_error_in_the_settings_check(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(load, "find_spec", lambda name: None)
    settings().check()
    with pytest.raises(ConfigError, match=r"needs the package 'peft'.*pip install 'rove\[train\]'"):
        settings(lora=LoRAConfig(rank=2)).check()
