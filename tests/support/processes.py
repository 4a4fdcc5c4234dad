"""Starting several processes with torchrun, and comparing what they come to with what one does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import torch
from ranks_program import Job, run

HERE = Path(__file__).parent
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def start(size: int, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command in so many processes; a port of their own, so that tests may run side by side."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment}
    asked = [*TORCHRUN, "--nproc-per-node", str(size), "--master-port", str(port), *command]
    return subprocess.run(asked, capture_output=True, text=True, timeout=570, env=env, check=False)


def several(size: int, job: Job) -> dict[str, Any]:
    file = Path(f"{job.out}.json")
    file.write_bytes(msgspec.json.encode(job))
    if job.save is not None:
        Path(job.save).mkdir()
    done = start(size, str(HERE / "ranks_program.py"), str(file))
    assert done.returncode == 0, done.stderr
    return torch.load(job.out)


def alone(job: Job) -> dict[str, Any]:
    if job.save is not None:
        Path(job.save).mkdir()
    run(job)
    return torch.load(job.out)


def difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Relative L2 norm."""
    assert a.keys() == b.keys()
    one, other = (torch.cat([tensors[name].flatten() for name in a]) for tensors in (a, b))
    return ((one - other).norm() / other.norm()).item()
