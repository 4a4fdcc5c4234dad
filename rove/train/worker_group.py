"""Several processes that train one model together, as torchrun starts them.

The first is the program: it plays, measures and keeps the run folder. The others have a part of the model each, and do what
the first one says; what is computed with the whole model, all of them do at once.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from rove.core.errors import Error

PATIENCE = timedelta(days=7)
"""How long the others wait for orders: the first one may play, or measure, for long."""


class Ranks(NamedTuple):
    """Which of so many processes this is."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"
    """What kind of device they compute on."""

    @property
    def is_first(self) -> bool:
        """Whether this one is the program."""
        return self.rank == 0

    def total(self, values: Mapping[str, float], largest: Collection[str] = ()) -> dict[str, float]:
        """The sums of all processes' values; of the `largest` the largest."""
        if self.size == 1:
            return dict(values)
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, dict(values))
        return {name: (max if name in largest else sum)(one[name] for one in everyone) for name in values}

    def all_gather(self, values: list[Any]) -> list[Any]:
        """The lists of all processes as one."""
        if self.size == 1:
            return values
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, values)
        return [value for values in everyone for value in values]

    def broadcast_continue(self, goes_on: bool = True) -> bool:
        """Whether there is anything to train, as the first one says; all must ask."""
        if self.size > 1:
            goes_on = _from_first(goes_on)
        return goes_on


SINGLE_PROCESS = Ranks()


def join_process_group() -> Ranks:
    """Meet the other processes that torchrun has started beside this one, if it has.

    Those on GPUs talk over NCCL, each with the GPU that has its local number; others over gloo.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return SINGLE_PROCESS
    has_gpus = torch.cuda.is_available()
    if has_gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if has_gpus else "gloo", timeout=PATIENCE)
    return Ranks(dist.get_rank(), size, "cuda" if has_gpus else "cpu")


class Team:
    """Lets the methods of a worker be called in all processes at once.

    Args:
        ranks: the processes; with one alone, a method is just called.
        worker: of this process. Arguments and what comes back in the first one must not differ but by `worker`.
    """

    def __init__(self, ranks: Ranks, worker: Any):
        self.ranks = ranks
        self.worker = worker
        self._is_busy = False

    def do(self, method: str, *arguments: Any) -> Any:
        """Call a method of the worker in every process, with the same arguments; what it returns in this one."""
        self._is_busy = True
        if self.ranks.size > 1:
            _from_first((method, arguments))
        try:
            done = getattr(self.worker, method)(*arguments)
        except Error:  # told by all processes alike, which go on
            self._is_busy = False
            raise
        self._is_busy = False
        return done

    def follow(self) -> None:
        """Do what the first process says, until it has nothing more to say."""
        while (order := _from_first()) is not None:
            method, arguments = order
            try:
                getattr(self.worker, method)(*arguments)
            except Error:
                continue

    def close(self) -> None:
        """Let the others go; where they are in the middle of something, whoever started them must end them."""
        if self.ranks.size > 1 and self.ranks.is_first and not self._is_busy:
            _from_first(None)


def _from_first(value: Any = None) -> Any:
    """What the first process has given."""
    box = [value]
    dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
    return box[0]
