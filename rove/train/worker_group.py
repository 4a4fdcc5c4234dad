"""Processes that train one model together under torchrun.

The first process runs the program: it collects rollouts, evaluates and writes the run folder. The other processes hold their
parts of the model and repeat the first process's calls, because computing with the whole model needs all processes at the same
time. docs/decisions/ranks.md gives the reasons.
"""

# Many functions of torch have no types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from itertools import chain
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

import torch
import torch.distributed as dist

from rove.core.errors import ConfigError, Error
from rove.models.device import check_device_of_processes, choose_device

P = ParamSpec("P")
T = TypeVar("T")
W = TypeVar("W")

CALL_TIMEOUT = timedelta(days=7)
"""Maximum time that the other processes wait for the next call: the first process may collect rollouts or evaluate for long."""


class Ranks(NamedTuple):
    """This process's place among the processes that train together."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"
    """Type of the device that the processes compute on: "cpu" or "cuda"."""

    @property
    def is_first(self) -> bool:
        """Whether this process runs the program."""
        return self.rank == 0

    def total(self, values: Mapping[str, float], largest: Collection[str] = ()) -> dict[str, float]:
        """Return the sums of all processes' values; the maximum for the names in `largest`."""
        if self.size == 1:
            return dict(values)
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, dict(values))
        totals: dict[str, float] = {}
        for name in values:
            of_processes = [process[name] for process in everyone]
            totals[name] = max(of_processes) if name in largest else sum(of_processes)
        return totals

    def all_gather(self, values: list[Any]) -> list[Any]:
        """Return the lists of all processes, joined."""
        if self.size == 1:
            return values
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, values)
        return list(chain.from_iterable(everyone))

    def broadcast_continue(self, proceed: bool = True) -> bool:
        """Return whether to train, as the first process decides; every process must call this."""
        return _broadcast(proceed) if self.size > 1 else proceed


SINGLE_PROCESS = Ranks()


def join_process_group(device: str = "auto") -> Ranks:
    """Join the processes that torchrun started, if it did.

    On GPUs, the processes communicate over NCCL, each with the GPU of its local rank; on CPUs, over gloo.

    Args:
        device: The setting `device`: "auto", "cpu", or "cuda" if there are several processes.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    check_device_of_processes(device, size)
    if size == 1:
        return SINGLE_PROCESS
    has_gpus = choose_device(device).type == "cuda"
    if has_gpus:
        processes, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", size)), torch.cuda.device_count()
        if processes > gpus:
            raise ConfigError(
                f"torchrun started {processes} processes on a machine with {gpus} GPU(s); expected at most one process per GPU: "
                f"use --nproc-per-node {gpus}, or train on the CPU with --device cpu"
            )
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # gloo too, because objects such as the calls are sent between CPUs.
    dist.init_process_group("cpu:gloo,cuda:nccl" if has_gpus else "gloo", timeout=CALL_TIMEOUT)
    return Ranks(dist.get_rank(), size, "cuda" if has_gpus else "cpu")


class WorkerGroup(Generic[W]):
    """Calls methods of a worker in all processes at once.

    Example:
        group = WorkerGroup(ranks, learner)
        metrics = group.call_all(Learner.update, step, sequences, lr_scale)

    Args:
        worker: The worker of this process; the workers of the other processes have the same class.
    """

    def __init__(self, ranks: Ranks, worker: W):
        self.ranks = ranks
        self.worker = worker
        self._in_call = False

    def call_all(self, method: Callable[Concatenate[W, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method with the same arguments in every process; return the result of this process."""
        # After an interruption, the processes may be at different places in a call, where another broadcast would never end.
        self._in_call = True
        if self.ranks.size > 1:
            _broadcast((method, args, kwargs))
        try:
            result = method(self.worker, *args, **kwargs)
        except Error:  # raised by all processes alike, so that they still wait for the next call
            self._in_call = False
            raise
        self._in_call = False
        return result

    def serve(self) -> None:
        """Repeat the calls of the first process until it closes the group."""
        while (call := _broadcast(None)) is not None:
            method, args, kwargs = call
            try:
                method(self.worker, *args, **kwargs)
            except Error:
                continue

    def close(self) -> None:
        """End `serve` in the other processes; torchrun ends processes that were interrupted in a call."""
        if self.ranks.size > 1 and self.ranks.is_first and not self._in_call:
            _broadcast(None)


def _broadcast(value: Any) -> Any:
    """Return the value of the first process."""
    box = [value]
    dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
    return box[0]
