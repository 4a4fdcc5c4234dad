from __future__ import annotations

import asyncio
import socket

import pytest

from rove.core.errors import WorkerError
from rove.workers import Worker


async def no_report() -> str:
    return ""


@pytest.mark.parametrize("ticks", range(1, 7))
async def test_a_worker_that_is_closed_while_it_connects_leaves_the_number_of_its_socket_free(ticks: int) -> None:
    """A socket gets the smallest free number. If the event loop still watched the number, it would refuse the new socket."""
    ours, theirs = socket.socketpair()
    worker = Worker(ours, lambda: None, no_report)
    call = asyncio.create_task(worker.request("ping"))
    for _ in range(ticks):
        await asyncio.sleep(0)
    worker.close()
    socket_pairs = [socket.socketpair() for _ in range(4)]
    writers = [(await asyncio.open_connection(sock=near_end))[1] for near_end, _ in socket_pairs]
    with pytest.raises(WorkerError):
        await call
    assert ours.fileno() == -1
    for writer in writers:
        writer.close()
    for _, far_end in socket_pairs:
        far_end.close()
    theirs.close()
