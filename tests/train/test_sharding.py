from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import tiny_model
from processes import relative_difference, run_in_process, run_with_torchrun
from ranks_program import Job

from rove.train import sharding
from rove.train.sharding import full_tensor, is_sharded
from rove.train.worker_group import Ranks


def test_a_model_in_one_process_is_not_sharded():
    model = tiny_model().model
    assert not is_sharded(model)
    assert full_tensor(model.lm_head.weight) is model.lm_head.weight


def test_a_model_without_checkpointable_layers_is_sharded_as_a_whole(monkeypatch: pytest.MonkeyPatch):
    sharded: list[Any] = []
    monkeypatch.setattr(sharding, "init_device_mesh", lambda *_: None)
    monkeypatch.setattr(sharding, "fully_shard", lambda module, **_: sharded.append(module))
    monkeypatch.setattr(sharding, "register_fsdp_forward_method", lambda *_: None)
    model = torch.nn.Linear(2, 2)
    sharding.shard_model(model, Ranks(0, 2, "cpu"), lambda model, batch: batch)
    assert sharded == [model]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "config"),
    [
        *itertools.product(["llama", "qwen3", "lfm2"], [{}, {"lora__rank": 4}, {"activation_checkpointing": True}]),
        ("mixtral", {}),  # its files hold a matrix per expert, and the model one for all experts
    ],
    ids=str,
)
def test_a_checkpoint_can_be_resumed_with_another_number_of_processes(
    tmp_path: Path, arch: str, config: dict[str, Any]
):
    def job(name: str, **fields: Any) -> Job:
        return Job(str(tmp_path / name), arch=arch, config=config, **fields)

    uninterrupted = run_in_process(job("whole"))["weights"]
    run_in_process(job("one", steps=(0, 3), save=str(tmp_path / "of one")))
    run_with_torchrun(2, job("two", steps=(0, 3), save=str(tmp_path / "of two")))
    for size, checkpoint in ((4, "of two"), (1, "of two"), (2, "of one"), (2, "of two")):
        resumed_job = job(f"{size} {checkpoint}", steps=(3, 6), restore=str(tmp_path / checkpoint))
        result = (run_in_process if size == 1 else lambda resumed, size=size: run_with_torchrun(size, resumed))(
            resumed_job
        )
        assert relative_difference(result["weights"], uninterrupted) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("config", [{}, {"lora__rank": 4}], ids=str)
def test_several_processes_restore_the_best_weights_like_one(tmp_path: Path, config: dict[str, Any]):
    best = tmp_path / "best"
    run_in_process(Job(str(tmp_path / "first"), steps=(0, 2), config=config, save=str(best)))
    one_process = run_in_process(Job(str(tmp_path / "whole"), config=config, replace_weights=(3, str(best))))
    two_processes = run_with_torchrun(2, Job(str(tmp_path / "two"), config=config, replace_weights=(3, str(best))))
    without_restoring = run_in_process(Job(str(tmp_path / "without"), config=config))
    assert (
        relative_difference(two_processes["weights"], one_process["weights"])
        <= 1e-5
        < relative_difference(without_restoring["weights"], one_process["weights"])
    )
