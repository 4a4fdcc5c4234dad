from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
import transformers
from fakes import tiny_model
from families import family_model
from tiers import first_quick

from rove.core.protocols import SamplingParams
from rove.core.records import RolloutRecord
from rove.engine.client import EngineClient
from rove.envs.loading import load_environment
from rove.models.kernels import softmax_kernels
from rove.models.load import LoadedModel
from rove.rollouts.groups import run_groups
from rove.rollouts.runner import plan
from rove.train import trainer as trainer_module
from rove.train.batch import can_pack, count_trained_tokens, micro_batches
from rove.train.losses import cispo, cross_entropy, grpo
from rove.train.sequences import TrainingSequence, sequences_from_record
from rove.train.trainer import Trainer, TrainingError, token_logprobs

LOSS = cispo()


def ragged_sequences(count: int = 16, temperature: float = 1.0) -> list[TrainingSequence]:
    """Return sequences of many lengths with plausible log-probabilities."""
    rng = random.Random(0)
    sequences = []
    for _ in range(count):
        mask = [rng.random() < 0.4 for _ in range(rng.randrange(3, 40))]
        mask[0] = False
        sequences.append(
            TrainingSequence(
                ids=[rng.randrange(320) for _ in mask],
                mask=mask,
                logprobs=[rng.uniform(-8, -3) if m else 0.0 for m in mask],
                advantages=[rng.uniform(-1, 1) if m else 0.0 for m in mask],
                temperature=temperature,
            )
        )
    return sequences


def flat_gradient(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def gradient(
    loaded: LoadedModel,
    samples: list[TrainingSequence],
    budget: int,
    loss: Any = LOSS,
    entropy_bonus: float = 0.01,
    pack: bool = False,
) -> torch.Tensor:
    trainer = Trainer(loaded.model, 1e-3)
    trainer.optimizer.zero_grad()
    batches = micro_batches(samples, budget, pack=pack)
    trainer.accumulate(batches, loss, count_trained_tokens(samples), entropy_bonus)
    return flat_gradient(loaded.model)


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize("loss", [cispo(), grpo(), cross_entropy])
@pytest.mark.parametrize("arch", first_quick(["llama", "qwen3", "lfm2"]))
def test_micro_batches_and_order_do_not_change_the_gradient(arch: str, loss: Any):
    loaded = tiny_model(arch)
    sequences = ragged_sequences()
    expected = gradient(loaded, sequences, 10_000, loss)
    assert expected.norm() > 0
    for pieces, budget in ((2, 400), (8, 70)):
        assert abs(len(micro_batches(sequences, budget)) - pieces) <= pieces // 4
        assert difference(gradient(loaded, sequences, budget, loss), expected) <= 1e-5
    shuffled = random.Random(1).sample(sequences, len(sequences))
    assert difference(gradient(loaded, shuffled, 10_000, loss), expected) <= 1e-5
    assert difference(gradient(loaded, shuffled, 1, loss), expected) <= 1e-5


def shared_prefix_sequences(count: int = 12) -> list[TrainingSequence]:
    """Return sequences that share prompts and parts of their responses, with two temperatures."""
    rng = random.Random(3)
    sequences = []
    for i in range(count):
        prompt = [5 + i % 3] * 20 + [9] * (i % 2)
        ids = [*prompt, *(rng.randrange(2) for _ in range(rng.randrange(1, 30)))]
        mask = [t >= len(prompt) and rng.random() < 0.8 for t in range(len(ids))]
        values = [[rng.uniform(low, high) if m else 0.0 for m in mask] for low, high in ((-8, -3), (-1, 1))]
        sequences.append(TrainingSequence(ids, mask, *values, temperature=[1.0, 1.25][i % 2]))
    return sequences


@pytest.mark.parametrize("loss", first_quick([cispo(), grpo(), cross_entropy]))
@pytest.mark.parametrize("family", first_quick(["lfm2", "llama", "smollm", "qwen2", "qwen3"]))
@pytest.mark.parametrize("make", [shared_prefix_sequences, ragged_sequences])
def test_packed_padded_and_single_sequences_give_the_same_gradient(make: Any, family: str, loss: Any, monkeypatch: Any):
    loaded = family_model(family)
    sequences = make()
    one_by_one = gradient(loaded, sequences, 1, loss)
    assert one_by_one.norm() > 0
    assert difference(gradient(loaded, sequences, 10_000, loss), one_by_one) <= 1e-5
    if not can_pack(loaded.model):
        pytest.skip(
            f"transformers {transformers.__version__} does not pass the structure of packed batches to {family}"
        )
    for budget in (1, 70, 10_000):
        assert difference(gradient(loaded, sequences, budget, loss, pack=True), one_by_one) <= 1e-5
    monkeypatch.setattr(trainer_module, "LARGE_VOCABULARY", 1)  # use the path for large vocabularies
    assert difference(gradient(loaded, sequences, 10_000, loss, pack=True), one_by_one) <= 1e-5
    monkeypatch.setattr(trainer_module, "MAX_LOGITS_BYTES", 4 * 7 * 320)  # a few rows of logits at a time
    assert difference(gradient(loaded, sequences, 10_000, loss, pack=True), one_by_one) <= 1e-5
    monkeypatch.setattr(trainer_module, "LARGE_VOCABULARY", 10_000)
    assert difference(gradient(loaded, sequences, 10_000, loss, pack=True), one_by_one) <= 1e-5


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("temperature", "bonus"), [(1.0, 0.0), (1.25, 0.0), (1.25, 0.5)])
def test_a_large_vocabulary_has_the_same_gradient(temperature: float, bonus: float, chunked: bool, monkeypatch: Any):
    loaded, sequences = family_model("llama"), ragged_sequences(6, temperature)
    small = gradient(loaded, sequences, 10_000, entropy_bonus=bonus, pack=True)
    monkeypatch.setattr(trainer_module, "LARGE_VOCABULARY", 1)
    if chunked:
        monkeypatch.setattr(trainer_module, "MAX_LOGITS_BYTES", 4 * 7 * 320)
    assert 0 < difference(gradient(loaded, sequences, 10_000, entropy_bonus=bonus, pack=True), small) <= 1e-5


@pytest.mark.parametrize("temperature", [1.0, 1.25])
def test_a_large_vocabulary_has_the_same_log_probabilities_and_entropies(temperature: float, monkeypatch: Any):
    model = family_model("llama").model
    [batch] = micro_batches(ragged_sequences(6, temperature), 10_000, pack=True)
    with torch.inference_mode():
        small = token_logprobs(model, batch)
        monkeypatch.setattr(trainer_module, "LARGE_VOCABULARY", 1)
        large = token_logprobs(model, batch)
    torch.testing.assert_close(large, small, rtol=0, atol=1e-5)


@pytest.mark.parametrize("arch", ["gemma2", "mixtral"])
def test_large_padded_batches_compute_no_more_logits_than_needed(arch: str, monkeypatch: pytest.MonkeyPatch):
    loaded, sequences = tiny_model(arch), ragged_sequences(6, 1.25)
    single_rows, rows = gradient(loaded, sequences, 1), gradient(loaded, sequences, 10_000)
    monkeypatch.setattr(trainer_module, "MAX_LOGITS_BYTES", 8 * 5 * 320)
    computed_rows: list[int] = []
    loaded.model.lm_head.register_forward_hook(lambda module, inputs, y: computed_rows.append(y.shape[1]))
    assert difference(gradient(loaded, sequences, 1), single_rows) <= 1e-5
    assert max(computed_rows) <= max(sum(sequence.mask) for sequence in sequences)
    assert torch.equal(gradient(loaded, sequences, 10_000), rows)


def test_the_loss_is_averaged_over_all_trained_tokens_of_the_step():
    loaded = tiny_model()
    sequences = ragged_sequences(4)
    total = torch.zeros(())
    for sequence in sequences:
        logits = loaded.model(input_ids=torch.tensor([sequence.ids]), use_cache=False).logits[0]
        for t, trained in enumerate(sequence.mask):
            if trained:
                logprob = logits[t - 1].log_softmax(-1)[sequence.ids[t]]
                weight = (logprob.detach() - sequence.logprobs[t]).exp().clamp(max=5)
                total = total - weight * sequence.advantages[t] * logprob / sum(sum(s.mask) for s in sequences)
    expected = torch.autograd.grad(total, list(loaded.model.parameters()))
    actual = gradient(loaded, sequences, 50, entropy_bonus=0.0)
    assert difference(actual, torch.cat([g.flatten() for g in expected])) <= 1e-5


@pytest.mark.parametrize("arch", ["llama", "qwen3", "lfm2"])
@pytest.mark.parametrize("temperature", [1.0, 1.25])
def test_padding_does_not_change_log_probabilities(arch: str, temperature: float):
    model = tiny_model(arch).model
    sequences = ragged_sequences(6, temperature)
    with torch.inference_mode():
        [batch] = micro_batches(sequences, 10_000)
        padded, padded_entropy = token_logprobs(model, batch)
        ordered = sorted(sequences, key=lambda s: -len(s.ids))
        alone = [token_logprobs(model, micro_batches([sequence], 1)[0]) for sequence in ordered]
    torch.testing.assert_close(padded, torch.cat([a[0] for a in alone]), rtol=0, atol=1e-5)
    torch.testing.assert_close(padded_entropy, torch.cat([a[1] for a in alone]), rtol=0, atol=2e-5)


def test_log_probabilities_and_entropy_use_the_sampling_temperature():
    model = tiny_model().model
    sequence = ragged_sequences(1, temperature=1.25)[0]
    with torch.inference_mode():
        logprobs, entropy = token_logprobs(model, micro_batches([sequence], 1)[0])
        rows = (model(input_ids=torch.tensor([sequence.ids])).logits[0] / 1.25).softmax(-1)
    positions = [t for t, m in enumerate(sequence.mask) if m]
    expected = torch.stack([rows[t - 1, sequence.ids[t]].log() for t in positions])
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(
        entropy, torch.stack([-(rows[t - 1] * rows[t - 1].log()).sum() for t in positions]), rtol=0, atol=1e-5
    )


async def collect_rollouts(loaded: LoadedModel, temperature: float) -> list[RolloutRecord]:
    """Collect two groups of tic-tac-toe rollouts, as in training."""
    env = load_environment("tictactoe", num_examples=2, seed=1)
    groups = list(plan(env.get_dataset(), 4, seed=3))
    sampling = SamplingParams(temperature=temperature, max_tokens=12)
    return [record async for record in run_groups(env, EngineClient.from_model(loaded), groups, sampling=sampling)]


@pytest.mark.parametrize("arch", first_quick(["llama", "qwen3", "lfm2"]))
@pytest.mark.parametrize("temperature", [1.0, 1.25])
async def test_trainer_and_sampler_have_the_same_log_probabilities_on_policy(arch: str, temperature: float):
    loaded = tiny_model(arch, seed=2, context=2048)
    records = await collect_rollouts(loaded, temperature)
    assert all(record.error is None for record in records)
    sequences = [s for i, record in enumerate(records) for s in sequences_from_record(record, (-1.0) ** i)]
    assert len(sequences) == len(records) == 8  # every game is one growing sequence
    assert {s.temperature for s in sequences} == {temperature}
    assert count_trained_tokens(sequences) == sum(r.usage.completion_tokens for r in records) > 200
    metrics = Trainer(loaded.model, 0.0).step(micro_batches(sequences, 2000), LOSS, count_trained_tokens(sequences))
    assert metrics["tokens"] == count_trained_tokens(sequences)
    assert metrics["logprob_diff/max"] <= 1e-4
    assert abs(metrics["ratio/mean"] - 1) <= 1e-5
    assert metrics["ratio/max"] == pytest.approx(1, abs=1e-4)


@pytest.mark.broad
async def test_a_wrong_temperature_changes_the_log_probabilities():
    loaded = tiny_model(seed=2)
    records = await collect_rollouts(loaded, 1.25)
    sequences = [s for record in records for s in sequences_from_record(record, 1.0)]
    wrong = [TrainingSequence(s.ids, s.mask, s.logprobs, s.advantages, 1.0) for s in sequences]
    metrics = Trainer(loaded.model, 0.0).step(micro_batches(wrong, 2000), LOSS, count_trained_tokens(wrong))
    assert metrics["logprob_diff/max"] > 0.1


def test_a_step_moves_log_probabilities_in_the_direction_of_the_advantages():
    loaded = tiny_model()
    sequences = ragged_sequences(4)
    [batch] = micro_batches(sequences, 10_000)
    with torch.no_grad():
        old_logprobs = token_logprobs(loaded.model, batch)[0]
    batch = batch._replace(logprobs=old_logprobs)
    metrics = Trainer(loaded.model, 1e-3).step([batch], LOSS, count_trained_tokens(sequences))
    assert metrics["ratio/mean"] == pytest.approx(1, abs=1e-5)
    with torch.no_grad():
        change = token_logprobs(loaded.model, batch)[0] - old_logprobs
    assert (change * batch.advantages).sum() > 0


def test_metrics_do_not_depend_on_micro_batches():
    sequences = ragged_sequences()
    metrics = [
        Trainer(tiny_model().model, 1e-3).step(
            micro_batches(sequences, b), LOSS, count_trained_tokens(sequences), lr_scale=0.5
        )
        for b in (10_000, 70)
    ]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-4)
    assert metrics[0]["optim/lr"] == 5e-4
    assert metrics[0]["ratio/max"] >= metrics[0]["ratio/mean"] > 0


def test_the_gradient_is_clipped_to_the_maximum_norm():
    sequences = ragged_sequences()
    grads = []
    for max_norm in (1e-3, 1e9):
        loaded = tiny_model()
        trainer = Trainer(loaded.model, 0.0, max_grad_norm=max_norm)
        trainer.optimizer.register_step_pre_hook(lambda *_, model=loaded.model: grads.append(flat_gradient(model)))
        norm = trainer.step(micro_batches(sequences, 10_000), LOSS, count_trained_tokens(sequences))["optim/grad_norm"]
        assert all(
            p.grad is None for p in loaded.model.parameters()
        )  # gradients are freed because sampling needs the memory
        assert norm == pytest.approx(grads[-1].norm().item() if max_norm > 1 else norm)
    assert grads[0].norm().item() == pytest.approx(1e-3, rel=1e-3)
    assert difference(grads[0] / grads[0].norm(), grads[1] / grads[1].norm()) < 1e-5


def test_weight_decay_applies_only_to_matrices():
    loaded = tiny_model()
    trainer = Trainer(loaded.model, 0.1, weight_decay=0.5)
    old_weights = {name: p.detach().clone() for name, p in loaded.model.named_parameters()}
    sequences = [TrainingSequence([1, 2], [False, True], [0.0, -1.0], [0.0, 0.0])]
    trainer.step(micro_batches(sequences, 10), LOSS, 1)
    for name, p in loaded.model.named_parameters():
        torch.testing.assert_close(p.detach(), old_weights[name] * (0.95 if p.ndim > 1 else 1.0))


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_non_finite_gradient_raises_and_does_not_change_the_weights(poison: float):
    loaded = tiny_model()
    trainer = Trainer(loaded.model, 1e-3)
    sequences = ragged_sequences(4)
    trainer.step(micro_batches(sequences, 10_000), LOSS, count_trained_tokens(sequences))
    old_weights = [p.detach().clone() for p in loaded.model.parameters()]
    moments = [s["exp_avg"].clone() for s in trainer.optimizer.state.values()]
    with_poison = [*sequences, TrainingSequence([1, 2], [False, True], [0.0, -1.0], [0.0, poison])]
    with pytest.raises(TrainingError, match="gradient"):
        trainer.step(micro_batches(with_poison, 100), LOSS, count_trained_tokens(with_poison))
    assert all(torch.equal(p, b) for p, b in zip(loaded.model.parameters(), old_weights, strict=True))
    assert all(torch.equal(s["exp_avg"], m) for s, m in zip(trainer.optimizer.state.values(), moments, strict=True))
    trainer.step(micro_batches(sequences, 10_000), LOSS, count_trained_tokens(sequences))  # the trainer can continue
    assert not all(torch.equal(p, b) for p, b in zip(loaded.model.parameters(), old_weights, strict=True))


def test_the_validation_loss_is_a_mean_over_tokens_without_gradients():
    loaded = tiny_model()
    sequences = [TrainingSequence(s.ids, s.mask, s.logprobs, [float(m) for m in s.mask]) for s in ragged_sequences(6)]
    trainer = Trainer(loaded.model, 1e-3)
    losses = [trainer.mean_loss(micro_batches(sequences, budget), cross_entropy) for budget in (10_000, 1)]
    with torch.no_grad():
        expected = -token_logprobs(loaded.model, micro_batches(sequences, 10_000)[0])[0].mean().item()
    assert losses == pytest.approx([expected, expected], rel=1e-5)
    assert all(p.grad is None for p in loaded.model.parameters())
    assert trainer.mean_loss([], cross_entropy) == 0


@pytest.mark.skipif(softmax_kernels(torch.float32) is None, reason="there is no C compiler")
@pytest.mark.parametrize("forward", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("hidden_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("likely", [0.3, 0.99, 0.9995])
def test_gradients_of_likely_tokens_are_accurate_with_bf16(
    likely: float, hidden_dtype: torch.dtype, forward: torch.dtype
):
    """Computing 1 - p of a likely token in bf16 loses precision. Hidden states are bf16 with several processes."""
    width, vocab, rows = 16, 5000, torch.tensor([0, 1, 1, 1, 2])
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(vocab, width, generator=generator) * 0.1
    targets = torch.tensor([7, 4999, 4999, 12, 0])
    hidden = torch.randn(3, width, generator=generator)
    weight[[7, 4999, 0]] = hidden / hidden.square().sum(1, keepdim=True) * math.log(likely / (1 - likely) * vocab)
    temperature, grad = torch.tensor([1.0, 1.0, 1.25]), torch.tensor([1.0, 0.5, 0.25, -1.0, 2.0])
    gradients = []
    for dtypes in [(torch.float32, torch.float32), (forward, forward)]:
        x = hidden.to(hidden_dtype).requires_grad_()
        logits = (x.detach().to(dtypes[0]) @ weight.to(dtypes[0]).t()).float().requires_grad_()
        expected, _ = trainer_module._gather_logprobs(logits, temperature, rows, targets, entropy_gradient=False)
        logprobs, _ = trainer_module._TokenScores.apply(x, weight, temperature, rows, targets, False, *dtypes)
        torch.testing.assert_close(logprobs, expected, rtol=1e-4, atol=1e-4)
        (expected_grad,) = torch.autograd.grad((expected * grad).sum(), logits)
        (hidden_grad,) = torch.autograd.grad((logprobs * grad).sum(), x)
        gradients.append((hidden_grad.float(), expected_grad @ weight))
    for actual, exact in gradients:
        assert (actual - exact).norm(dim=1).div(exact.norm(dim=1)).max() < 0.02
