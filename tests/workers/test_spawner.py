from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import rove.workers.fork_server
from rove.core.errors import Error, RemoteError, WorkerError
from rove.workers import Workers

MODULE = Path(__file__).parents[1].joinpath("support", "worker_module.py")


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setattr(rove.workers.fork_server, "CAN_FORK", False)
    workers = Workers(MODULE, {"size": 3}, max_workers=2)
    yield workers
    workers.close()


def test_each_worker_is_a_process_that_has_loaded_the_module(workers: Workers) -> None:
    async def main() -> None:
        first, second = await workers.open(), await workers.open()
        assert len({os.getpid(), await first.call("pid"), await second.call("pid")}) == 3
        assert await first.call("add", number=2) == 2
        assert await first.call("add", number=3) == 5
        assert await second.call("add", number=1) == 1
        assert await second.call("echo", value=[1, "ü"]) == [1, "ü"]

    asyncio.run(main())
    assert workers.setup_result["args"] == {"size": 3}


def test_a_call_that_takes_too_long_kills_its_process_alone(workers: Workers) -> None:
    async def main() -> None:
        slow, idle = await workers.open(), await workers.open()
        with pytest.raises(WorkerError, match="did not end within 0.2 s"):
            await slow.call("spin", timeout=0.2)
        assert await idle.call("add", number=1) == 1
        with pytest.raises(WorkerError, match="its process ended"):
            await idle.call("leave", status=4)
        assert "exit code 4" in await workers.exit_report(2)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("trouble", "kind", "message"),
    [
        ("raise", RemoteError, "ValueError: no such data"),
        ("crash", WorkerError, "ended by SIGSEGV; its last lines:\n  not for"),
        ("hang", WorkerError, "did not load within 3 s"),
    ],
)
def test_a_module_that_does_not_load(workers: Workers, trouble: str, kind: type[Error], message: str) -> None:
    broken = Workers(MODULE, {"trouble": trouble}, start_seconds=3.0 if trouble == "hang" else 60.0)
    with pytest.raises(kind, match=message):
        broken.start()


@pytest.mark.broad
def test_processes_end_when_nothing_refers_to_them(workers: Workers) -> None:
    async def main() -> int:
        dropped = Workers(MODULE)
        return await (await dropped.open()).call("pid")

    pid = asyncio.run(main())
    gc.collect()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{pid}").exists()
