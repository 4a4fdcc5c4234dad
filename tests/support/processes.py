"""Run training in several processes with torchrun or in this process, and compare the results."""

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


def start_torchrun(size: int, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in `size` processes; each call uses another port, so that tests can run in parallel."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment}
    arguments = [*TORCHRUN, "--nproc-per-node", str(size), "--master-port", str(port), *command]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=570, env=env, check=False)


def run_with_torchrun(size: int, job: Job) -> dict[str, Any]:
    file = Path(f"{job.out}.json")
    file.write_bytes(msgspec.json.encode(job))
    if job.save is not None:
        Path(job.save).mkdir()
    done = start_torchrun(size, str(HERE / "ranks_program.py"), str(file))
    assert done.returncode == 0, done.stderr
    return torch.load(job.out)


def run_in_process(job: Job) -> dict[str, Any]:
    if job.save is not None:
        Path(job.save).mkdir()
    run(job)
    return torch.load(job.out)


def relative_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Return the L2 norm of the difference relative to that of `b`."""
    assert a.keys() == b.keys()
    flat_a, flat_b = (torch.cat([tensors[name].flatten() for name in a]) for tensors in (a, b))
    return ((flat_a - flat_b).norm() / flat_b.norm()).item()
