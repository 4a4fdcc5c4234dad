"""Memory, time and disk space that a run needs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes import tiny_model
from flat_settings import with_tables

from rove.core.config import convert
from rove.core.findings import HIGH, MEDIUM, OK, Severity
from rove.core.messages import UserMessage
from rove.core.protocols import Request, SamplingParams
from rove.doctor import machine
from rove.doctor.machine import (
    LAZY_BYTES,
    Trial,
    check_disk,
    check_drift,
    check_memory,
    check_time,
    memory_free,
    memory_needed,
    position_bytes,
    resident_memory,
    try_training,
)
from rove.engine.client import EngineClient
from rove.models.load import clone_model, trainable_parameters
from rove.train.config import RLConfig
from rove.train.learner import add_lora
from rove.train.sequences import TrainingSequence

NEEDED = {"weights": 4e9, "gradients": 4e9, "AdamW": 8e9, "activations": 3e9, "keys and values": 1e9}


def config(**over: Any) -> RLConfig:
    return convert(RLConfig, with_tables({"env": "tictactoe", "model": "models/x", **over}))


@pytest.mark.parametrize("arch", ["llama", "lfm2", "gemma2"])
def test_a_trial_does_not_change_the_model(arch: str):
    loaded = tiny_model(arch)
    first_weights = {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}
    trial = try_training(config(), loaded)
    assert trial.tokens == machine.SYNTHETIC_TOKENS
    assert trial.seconds > 0
    assert trial.drift is None
    hidden = 4 * 32 * trial.tokens
    assert trial.saved > 2 * hidden  # at least the inputs of the two layers
    assert all(torch.equal(first_weights[name], tensor) for name, tensor in loaded.model.state_dict().items())
    assert all(p.grad is None for p in loaded.model.parameters())


def test_activation_memory_grows_with_the_number_of_tokens():
    loaded = tiny_model()
    short_trial, long_trial = (try_training(config(micro_batch_tokens=n), loaded) for n in (128, 512))
    assert (short_trial.tokens, long_trial.tokens) == (128, 512)
    assert 3 < long_trial.saved / short_trial.saved < 6


def test_activation_checkpointing_needs_less_memory():
    loaded = tiny_model()
    plain, recomputed = (try_training(config(activation_checkpointing=on), loaded) for on in (False, True))
    hidden = 4 * 32 * machine.SYNTHETIC_TOKENS
    assert (
        plain.saved - recomputed.saved > 4 * hidden
    )  # one of two layers; the other is in memory while it is recomputed
    needed = [
        memory_needed(config(max_off_policy_steps=1), loaded, trial, machine.SYNTHETIC_TOKENS)["activations"]
        for trial in (plain, recomputed)
    ]
    assert needed[1] < needed[0]


async def test_drift_between_sampler_and_trainer_is_checked():
    loaded = tiny_model()
    client = EngineClient.from_model(loaded)
    tokens = (
        await client.respond(Request([UserMessage("0 1")], SamplingParams(max_tokens=12, temperature=1.0)))
    ).tokens
    assert tokens is not None
    mask = [False] * len(tokens.prompt_ids) + [True] * len(tokens.completion_ids)
    logprobs = [0.0] * len(tokens.prompt_ids) + tokens.logprobs
    trial = try_training(config(), loaded, [TrainingSequence(tokens.ids, mask, logprobs, [1.0] * len(mask))])
    assert check_drift(trial).severity == OK
    wrong = [p - 1 for p in logprobs]
    assert (
        check_drift(
            try_training(config(), loaded, [TrainingSequence(tokens.ids, mask, wrong, [1.0] * len(mask))])
        ).severity
        == MEDIUM
    )
    assert check_drift(Trial(1, 1.0, 1, 1, float("nan"))).severity == MEDIUM


def test_memory_needed_has_the_expected_parts():
    loaded = tiny_model()
    size = sum(p.nbytes for p in loaded.model.parameters())
    settings = config(micro_batch_tokens=1000, max_off_policy_steps=1)
    needed = memory_needed(settings, loaded, Trial(100, 1.0, 5000, 50, None), longest=50)
    assert needed["weights"] == needed["gradients"] == needed["AdamW"] / 2 == size
    assert needed["sampler's weights"] == needed["joined weights"] == size
    assert needed["activations"] == 60_000
    vocabulary = loaded.model.get_output_embeddings().weight.shape[0]
    assert needed["logits"] == 2 * 4 * vocabulary * 500  # half of the positions are trained
    assert position_bytes(loaded.model) == 2 * 1 * 8 * 2 * 4  # K and V, one head of size 8, two layers, fp32
    assert needed["keys and values"] == 2 * 256 * 50 * position_bytes(loaded.model)
    assert position_bytes(tiny_model("lfm2").model) == position_bytes(loaded.model) / 2  # one layer is a convolution


@pytest.mark.parametrize(("batch_size", "is_larger"), [(8, False), (4096, True)])
def test_a_synchronous_run_needs_memory_for_sampling_or_training_only(batch_size: int, is_larger: bool):
    loaded, trial = tiny_model(), Trial(100, 1.0, 5000, 50, None)
    asynchronous, synchronous = (
        memory_needed(config(batch_size=batch_size, max_off_policy_steps=ahead), loaded, trial, longest=50)
        for ahead in (1, 0)
    )
    sampling, training = ("joined weights", "keys and values"), ("gradients", "activations", "logits")
    needed, not_needed = (sampling, training) if is_larger else (training, sampling)
    assert all(synchronous[name] == asynchronous[name] > 0 for name in needed)
    assert all(synchronous[name] == 0 < asynchronous[name] for name in not_needed)


def test_a_step_that_does_not_fill_a_micro_batch_needs_less_memory():
    loaded, trial = tiny_model(), Trial(100, 1.0, 5000, 50, None)
    full, part = (
        memory_needed(config(micro_batch_tokens=1000), loaded, trial, longest=50, tokens=tokens, libraries=7)
        for tokens in (3000, 500)
    )
    assert part["activations"] == full["activations"] / 2 and part["logits"] == full["logits"] / 2
    assert part["Python and its libraries"] == 7 + LAZY_BYTES
    assert resident_memory() > sum(p.nbytes for p in loaded.model.parameters())


@pytest.mark.usefixtures("bf16_products")
@pytest.mark.parametrize(("ahead", "bf16", "share"), [(0, False, 0.0), (1, False, 1.0), (0, True, 0.5), (1, True, 0.5)])
def test_memory_needed_includes_the_sampler_weights(ahead: int, bf16: bool, share: float):
    """The sampler has its own weights if they are in bf16 or if it samples while the model trains."""
    loaded = tiny_model()
    settings = config(max_off_policy_steps=ahead, bf16_sampling=bf16)
    needed = memory_needed(settings, loaded, Trial(100, 1.0, 5000, 50, None), longest=50)
    assert needed["sampler's weights"] == share * needed["weights"]
    if ahead:
        assert needed["joined weights"] == needed["weights"] / (2 if bf16 else 1)


@pytest.mark.usefixtures("bf16_products")
@pytest.mark.parametrize("overrides", [{}, {"max_off_policy_steps": 1}, {"bf16_sampling": True}], ids=str)
def test_an_adapter_needs_training_memory_only_for_its_own_weights(overrides: dict[str, Any]):
    """The base needs no gradients, optimizer state or reference, but the sampler may need its weights in bf16."""
    settings = config(loss__kl_penalty=1.0, lora__rank=2, batch_size=8, rollouts_per_example=8, **overrides)
    loaded = add_lora(settings, tiny_model())
    base = sum(p.nbytes for p in tiny_model().model.parameters())
    adapter_bytes = sum(p.nbytes for p in trainable_parameters(loaded.model).values())
    needed = memory_needed(settings, loaded, Trial(100, 1.0, 5000, 50, None), longest=50)
    assert needed["weights"] == base + adapter_bytes
    assert needed["gradients"] == needed["AdamW"] / 2 == needed["reference model"] == adapter_bytes < base / 4
    weights = (
        adapter_bytes
        if "max_off_policy_steps" in overrides
        else (base + adapter_bytes) / 2
        if "bf16_sampling" in overrides
        else 0
    )
    assert needed["sampler's weights"] == weights
    shared = clone_model(loaded.model)
    own_storage = {p.data_ptr() for p in shared.parameters()} - {p.data_ptr() for p in loaded.model.parameters()}
    assert sum(p.nbytes for p in shared.parameters() if p.data_ptr() in own_storage) == adapter_bytes


@pytest.mark.parametrize(("free", "status"), [(40e9, OK), (17e9, MEDIUM), (8e9, HIGH), (None, OK)])
def test_check_memory_compares_needed_and_free_memory(free: float | None, status: str):
    assert check_memory(NEEDED, None if free is None else int(free)).severity == status


def test_memory_free_returns_a_plausible_value():
    free = memory_free(torch.device("cpu"))
    assert free is None or free > 1 << 20


@pytest.mark.parametrize(("seconds", "status"), [(1, OK), (400, MEDIUM), (1000, MEDIUM)])
def test_check_time_warns_about_long_runs(seconds: float, status: str):
    finding = check_time(100, 10, seconds, seconds)
    assert finding.severity == status
    if seconds == 400:
        assert "an interruption may cost 2.2 h" in repr(finding)


def test_check_disk_compares_needed_and_free_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def status_with(free: float) -> Severity:
        monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
        return check_disk(config(), NEEDED, 4000.0, tmp_path / "not" / "there").severity

    assert [status_with(free) for free in (100e9, 41e9, 10e9)] == [OK, MEDIUM, HIGH]


def test_a_synced_reference_is_counted_in_every_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1e12))
    needed = {**NEEDED, "reference model": 4e9}
    texts = [
        check_disk(config(loss__kl_penalty=1.0, **overrides), needed, 0.0, tmp_path).text
        for overrides in ({}, {"loss__sync_reference_every": 5})
    ]
    assert [text.split(";")[0] for text in texts] == ["checkpoints 40 GB", "checkpoints 52 GB"]
