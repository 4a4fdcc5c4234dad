from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import tiny_model
from tiers import each_row, first_quick

from rove.core.errors import ConfigError, RunError
from rove.train.trainer import SKIPPED_METRIC, Trainer, TrainingError, consecutive_skips, read_non_finite_batch
from tests.train.test_rl import Killed, metrics_of, settings, train, two_turns, weights_of
from tests.train.test_sft import learnable_rollouts
from tests.train.test_sft import settings as sft_settings
from tests.train.test_sft import train as train_sft

ORIGINAL_ACCUMULATE = Trainer.accumulate


@each_row(("skipped", "expected"), [([], 0), ([0], 0), ([1], 1), ([1, 0], 0), ([0, 1, None, 1], 2), ([1, 1, 0, 1], 1)])
def test_consecutive_skips_counts_the_last_run_of_skipped_steps(skipped: Any, expected: int):
    history = [{} if value is None else {SKIPPED_METRIC: float(value)} for value in skipped]
    assert consecutive_skips(history) == expected


def make_steps_non_finite(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, steps: set[int], quantity: str) -> None:
    """Make the loss or the gradient of these steps of the run in `tmp_path` not finite."""

    def accumulate(self: Trainer, *args: Any, **kwargs: Any) -> dict[str, float]:
        sums = ORIGINAL_ACCUMULATE(self, *args, **kwargs)
        file = tmp_path / "metrics.jsonl"
        if (file.read_bytes().count(b"\n") if file.exists() else 0) + 1 in steps:
            if quantity == "loss":
                sums["loss"] = float("inf")
            else:
                next(self.model.parameters()).grad[0] = float("nan")
        return sums

    monkeypatch.setattr(Trainer, "accumulate", accumulate)


@pytest.mark.parametrize("quantity", first_quick(["gradient", "loss"]))
def test_a_non_finite_step_is_skipped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantity: str):
    make_steps_non_finite(monkeypatch, tmp_path, {1, 2, 4}, quantity)
    loaded = train(tmp_path, settings(), two_turns())
    metrics = metrics_of(tmp_path)
    assert [m[SKIPPED_METRIC] for m in metrics] == [1, 1, 0, 1, 0]
    assert ["loss" in m for m in metrics] == [False, False, True, False, True]
    assert all(torch.isfinite(p).all() for p in loaded.model.parameters())
    with pytest.raises(RunError, match="did not stop"):
        read_non_finite_batch(tmp_path)


def test_a_skipped_step_does_not_change_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make_steps_non_finite(monkeypatch, tmp_path, {1, 2}, "gradient")
    loaded = train(tmp_path, settings(steps=2), two_turns())
    fresh = tiny_model().model.state_dict()
    assert all(torch.equal(fresh[name], tensor) for name, tensor in loaded.model.state_dict().items())


@pytest.mark.parametrize(("most", "stops_at"), first_quick([(1, 2), (2, 5), (3, None)]))
def test_too_many_consecutive_skips_stop_training_and_save_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, stops_at: int | None
):
    make_steps_non_finite(monkeypatch, tmp_path, {2, 4, 5}, "gradient")
    if stops_at is None:
        train(tmp_path, settings(max_non_finite_steps=most), two_turns())
        return
    with pytest.raises(TrainingError, match=rf"step {stops_at}: .*nan.*{most} skipped.*bad_batch\.msgpack") as error:
        train(tmp_path, settings(max_non_finite_steps=most), two_turns())
    assert str(tmp_path / "bad_batch.msgpack") in str(error.value)
    batch = read_non_finite_batch(tmp_path)
    assert batch.step == stops_at
    assert sum(len(sequence.ids) for sequence in batch.samples) > 0
    assert "nan" in batch.reason


@pytest.mark.broad
def test_a_resumed_run_continues_the_count_of_skips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Kill the run at step 3 after the checkpoint of step 2. Steps 2 and 3 are skipped; step 4 would be the third."""
    for folder in ("whole", "killed"):
        make_steps_non_finite(monkeypatch, tmp_path / folder, {2, 3, 4}, "gradient")
        if folder == "killed":
            with pytest.raises(Killed):
                train(tmp_path / folder, settings(), two_turns(), kill_at=3)
        with pytest.raises(TrainingError, match="step 4"):
            train(tmp_path / folder, settings(), two_turns())
    for folder in ("whole", "killed"):
        make_steps_non_finite(monkeypatch, tmp_path / folder, {2, 3}, "gradient")
        train(tmp_path / folder, settings(), two_turns())
    assert weights_of(tmp_path / "whole") == weights_of(tmp_path / "killed")
    assert metrics_of(tmp_path / "whole") == metrics_of(tmp_path / "killed")


def test_sft_skips_non_finite_steps_and_stops_after_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make_steps_non_finite(monkeypatch, tmp_path, {1, 3, 4}, "gradient")
    with pytest.raises(TrainingError, match="step 4: .*max_non_finite_steps = 2"):
        train_sft(tmp_path, sft_settings(max_non_finite_steps=2), learnable_rollouts())
    assert [m[SKIPPED_METRIC] for m in metrics_of(tmp_path)] == [1, 0, 1]
    assert read_non_finite_batch(tmp_path).step == 4


def test_max_non_finite_steps_must_be_positive():
    for make in (settings, sft_settings):
        with pytest.raises(ConfigError, match="max_non_finite_steps is 0; expected an integer, 1 or more"):
            make(max_non_finite_steps=0)
