from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rove.core.errors import ConfigError
from rove.models.device import check_device_of_processes, choose_device, describe_device
from rove.models.from_scratch import new_model
from rove.models.load import load_model


def machine(monkeypatch: pytest.MonkeyPatch, cuda: int = 0, mps: bool = False) -> None:
    """Pretend that this machine has these devices."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(
    ("cuda", "mps", "name", "expected"),
    [
        (0, False, "auto", "cpu"),
        (0, True, "auto", "cpu"),  # a Mac uses MPS only by request
        (2, False, "auto", "cuda"),
        (2, False, "cpu", "cpu"),
        (2, False, "cuda", "cuda"),
        (2, False, "cuda:1", "cuda:1"),
        (0, True, "mps", "mps"),
    ],
)
def test_a_device_that_is_available_is_chosen(
    monkeypatch: pytest.MonkeyPatch, cuda: int, mps: bool, name: str, expected: str
):
    machine(monkeypatch, cuda, mps)
    assert str(choose_device(name)) == expected


@pytest.mark.parametrize(
    ("cuda", "name", "message"),
    [
        (0, "cuda", "device is 'cuda', but PyTorch finds no CUDA device on this machine.*; expected auto or cpu"),
        (0, "cuda:0", "device is 'cuda:0', but PyTorch finds no CUDA device"),
        (2, "cuda:2", "device is 'cuda:2', but this machine has 2 CUDA device.*; expected cuda:0 to cuda:1"),
        (2, "mps", "device is 'mps', but PyTorch finds no MPS device on this machine; expected auto, cpu, or cuda"),
        (0, "gpu", "device is 'gpu'; expected auto, cpu, cuda, cuda:N, or mps"),
        (0, "cuda:-1", "device is 'cuda:-1'; expected auto"),
        (0, "CPU", "device is 'CPU'; expected auto"),
        (0, "", "device is ''; expected auto"),
    ],
)
def test_another_device_is_an_error(monkeypatch: pytest.MonkeyPatch, cuda: int, name: str, message: str):
    machine(monkeypatch, cuda)
    with pytest.raises(ConfigError, match=message):
        choose_device(name)


def test_a_device_is_checked_before_the_weights_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    machine(monkeypatch)
    with pytest.raises(ConfigError, match="no CUDA device"):
        load_model(tmp_path / "none", "cuda")


def test_a_model_is_loaded_on_the_device(tmp_path: Path):
    new_model(["one"], size="tiny").save(tmp_path)
    assert load_model(tmp_path, "cpu").model.device.type == "cpu"


@pytest.mark.parametrize("name", ["cuda:0", "cuda:1", "mps"])
def test_one_device_for_several_processes_is_an_error(name: str):
    check_device_of_processes(name, 1)
    with pytest.raises(ConfigError, match=f"device is '{name}', but torchrun started 2 processes"):
        check_device_of_processes(name, 2)


@pytest.mark.parametrize("name", ["auto", "cpu", "cuda"])
def test_several_processes_use_the_devices_of_their_ranks(name: str):
    check_device_of_processes(name, 8)


def test_mps_is_described_as_not_tested(monkeypatch: pytest.MonkeyPatch):
    machine(monkeypatch)
    assert describe_device(torch.device("cpu")) == "cpu"
    machine(monkeypatch, mps=True)
    assert describe_device(torch.device("mps")) == "mps (the project has not tested rove on MPS)"
    assert "set device to mps; the project has not tested rove on MPS" in describe_device(torch.device("cpu"))
