"""Choose the device that a model computes on.

Rule: `auto` is CUDA if PyTorch finds a CUDA device, else the CPU. MPS (Apple GPUs) is used only on request, because
none of rove's tests run on it. A device that is not available is an error; rove never uses another device instead. Under
torchrun, each of several processes uses the CUDA device of its local rank, so the setting cannot name a single device.
"""

from __future__ import annotations

import torch

from rove.core.checks import checked
from rove.core.errors import ConfigError
from rove.core.ranges import Device

MPS_NOTE = "the project has not tested rove on MPS"


def choose_device(name: str = "auto") -> torch.device:
    """Return the device of a setting `device`: "auto", "cpu", "cuda", "cuda:N", or "mps"."""
    checked("device", name, Device)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda"):
        _check_cuda(name)
    if name == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(
            "device is 'mps', but PyTorch finds no MPS device on this machine; expected auto, cpu, or cuda"
        )
    return torch.device(name)


def _check_cuda(name: str) -> None:
    if not torch.cuda.is_available():
        reason = "" if torch.backends.cuda.is_built() else ": this PyTorch was built without CUDA"
        raise ConfigError(
            f"device is '{name}', but PyTorch finds no CUDA device on this machine{reason}; expected auto or cpu"
        )
    count = torch.cuda.device_count()
    number = int(name.partition(":")[2] or 0)
    if number >= count:
        raise ConfigError(
            f"device is '{name}', but this machine has {count} CUDA device(s); expected cuda:0 to cuda:{count - 1}"
        )


def check_device_of_processes(name: str, processes: int) -> None:
    """Check the device of several processes that train one model."""
    if processes > 1 and name not in ("auto", "cpu", "cuda"):
        raise ConfigError(
            f"device is '{name}', but torchrun started {processes} processes, each of which uses the CUDA device of its local "
            "rank; expected auto, cpu, or cuda (choose GPUs with the environment variable CUDA_VISIBLE_DEVICES)"
        )


def describe_device(device: torch.device) -> str:
    """Return a readable name of a device, such as "cuda:0 (NVIDIA H100)"."""
    if device.type == "cuda":
        number = torch.cuda.current_device() if device.index is None else device.index
        return f"cuda:{number} ({torch.cuda.get_device_name(number)})"
    if device.type == "mps":
        return f"mps ({MPS_NOTE})"
    if torch.backends.mps.is_available():
        return f"{device} (MPS is available: set device to mps; {MPS_NOTE})"
    return str(device)
