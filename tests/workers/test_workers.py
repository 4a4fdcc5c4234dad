from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from rove.core.errors import Error, InfraError, RemoteError, WorkerError
from rove.workers import Worker, Workers
from rove.workers.worker import describe_exit

MODULE = Path(__file__).parents[1].joinpath("support", "worker_module.py")


@pytest.fixture
def workers() -> Iterator[Workers]:
    workers = Workers(MODULE, max_workers=2)
    yield workers
    workers.close()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children() -> set[str]:
    return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())


def wait_for_exit(pid: int, seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not is_running(pid)


def test_each_worker_keeps_its_own_state(workers: Workers) -> None:
    async def main() -> list[int]:
        first, second = await workers.open(), await workers.open()
        results = [
            await first.call("add", number=2),
            await first.call("add", number=3),
            await second.call("add", number=1),
        ]
        assert await first.call("pid") != await second.call("pid")
        return results

    assert asyncio.run(main()) == [2, 5, 1]


def test_output_does_not_disturb_the_protocol(workers: Workers) -> None:
    value = {"text": "é" * 300_000, "none": None, "list": [1, 2.5, True]}

    async def main() -> object:
        return await (await workers.open()).call("echo", value=value)

    assert asyncio.run(main()) == value


def test_exceptions_are_returned_and_the_worker_stays_usable(workers: Workers) -> None:
    async def main() -> list[str]:
        worker, results = await workers.open(), []
        for name, args in (
            ("divide", {"by": 0}),
            ("quit", {}),
            ("unserializable", {}),
            ("nothing", {}),
            ("add", {"n": 1}),
        ):
            with pytest.raises(RemoteError) as raised:
                await worker.call(name, **args)
            results.append(raised.value)
        assert await worker.call("add", number=1) == 1
        assert "in divide" in results[0].traceback
        return [error.type for error in results]

    types = ["ZeroDivisionError", "SystemExit", "TypeError", "AttributeError", "TypeError"]
    assert asyncio.run(main()) == types


def test_the_exit_by_a_signal_without_a_name_is_described() -> None:
    assert describe_exit(-signal.SIGRTMIN - 6) == f"was ended by signal {signal.SIGRTMIN + 6}"


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [("die", {}, "SIGSEGV"), ("leave", {"status": 4}, "exit code 4"), ("leave", {"status": 0}, "exit code 0")],
)
def test_the_exit_of_a_worker_fails_only_its_own_calls(workers: Workers, name: str, args: dict, message: str) -> None:
    async def main() -> None:
        worker, neighbor = await workers.open(), await workers.open()
        assert await neighbor.call("add", number=1) == 1
        with pytest.raises(WorkerError, match=message) as raised:
            await worker.call(name, **args)
        assert name != "die" or "the last thing I say" in str(raised.value)
        with pytest.raises(WorkerError, match="its process ended"):
            await worker.call("add", number=1)
        assert await neighbor.call("add", number=1) == 2

    asyncio.run(main())


def test_a_timeout_kills_the_worker(workers: Workers) -> None:
    async def main() -> int:
        worker = await workers.open()
        pid = await worker.call("pid")
        with pytest.raises(WorkerError, match=r"spin\({}\) did not end within 0.2 s"):
            await worker.call("spin", timeout=0.2)
        return pid

    assert wait_for_exit(asyncio.run(main()))


def test_canceling_a_call_kills_the_worker(workers: Workers) -> None:
    async def main() -> int:
        worker = await workers.open()
        pid = await worker.call("pid")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(worker.call("spin"), 0.2)
        assert worker.is_closed
        return pid

    assert wait_for_exit(asyncio.run(main()))


def test_child_processes_end_with_their_worker(workers: Workers) -> None:
    async def main() -> list[int]:
        closed, remaining = await workers.open(), await workers.open()
        children = [await closed.call("child"), await remaining.call("child")]
        assert all(map(is_running, children))
        closed.close()
        with pytest.raises(WorkerError):
            await remaining.call("leave", status=0)
        return children

    assert all(map(wait_for_exit, asyncio.run(main())))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_starts_its_own_server(workers: Workers) -> None:
    workers.start()
    child = os.fork()
    if child == 0:
        total = workers.call_sync("add", number=2)
        workers.close()
        os._exit(0 if total == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert workers.call_sync("add", number=3) == 3  # the child has not ended the server of this process


def test_acquired_workers_are_limited_reused_and_replaced(workers: Workers) -> None:
    async def get_pid(number: int) -> int | None:
        async with workers.acquire() as worker:
            if number == 5:
                with pytest.raises(WorkerError):
                    await worker.call("die")
                return None
            return await worker.call("pid")

    async def main() -> list[int | None]:
        return await asyncio.gather(*map(get_pid, range(12)))

    pids = asyncio.run(main())
    assert len(set(pids) - {None}) <= 3 and pids[5] is None
    assert asyncio.run(main())[5] is None  # in another event loop


def test_close_ends_all_workers_and_open_starts_again(workers: Workers) -> None:
    async def main() -> int:
        worker = await workers.open()
        pid = await worker.call("pid")
        pending_call = asyncio.create_task(worker.call("spin"))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(workers.close)
        with pytest.raises(WorkerError):
            await pending_call
        return pid

    assert wait_for_exit(asyncio.run(main()))
    assert wait_for_exit(asyncio.run(main()))


def test_a_killed_fork_server_ends_its_workers_and_is_replaced(workers: Workers) -> None:
    async def main() -> tuple[int, int]:
        worker = await workers.open()
        pid = await worker.call("pid")
        server = workers._server
        assert server is not None
        os.kill(server.process.pid, signal.SIGKILL)
        with pytest.raises(WorkerError):
            await worker.call("spin")
        await asyncio.to_thread(server.process.wait)
        while not server.is_closed:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        replacement = await workers.open()
        return pid, await replacement.call("pid")

    old_pid, new_pid = asyncio.run(main())
    assert wait_for_exit(old_pid) and old_pid != new_pid


def test_workers_end_with_the_parent_process() -> None:
    program = (
        "import asyncio, os, sys\n"
        "from pathlib import Path\n"
        "from rove.workers import Workers\n"
        "async def go():\n"
        "    workers = Workers(Path(sys.argv[1]))\n"
        "    worker = await workers.open()\n"
        "    pid = await worker.call('pid')\n"
        "    task = asyncio.create_task(worker.call('spin'))\n"
        "    await asyncio.sleep(0.1)\n"
        "    print(pid, workers._server.process.pid, flush=True)\n"
        "    os._exit(0)\n"
        "asyncio.run(go())\n"
    )
    completed = subprocess.run([sys.executable, "-c", program, str(MODULE)], capture_output=True, text=True, check=True)
    assert all(wait_for_exit(int(pid)) for pid in completed.stdout.split())


@pytest.mark.broad
def test_workers_end_when_the_object_is_garbage_collected() -> None:
    async def main() -> tuple[int, int]:
        workers = Workers(MODULE)
        worker = await workers.open()
        assert workers._server is not None
        return await worker.call("pid"), workers._server.process.pid

    pids = asyncio.run(main())
    gc.collect()
    assert all(map(wait_for_exit, pids))


@pytest.mark.parametrize(
    ("trouble", "kind", "message"),
    [
        ("raise", RemoteError, "ValueError: no such data"),
        ("exit", RemoteError, "SystemExit: 3"),
        ("crash", WorkerError, "ended by SIGSEGV; its last lines:\n  not for"),
        ("hang", WorkerError, "did not load within 0.5 s"),
    ],
)
def test_a_module_that_fails_to_load_raises_an_error(trouble: str, kind: type[Error], message: str) -> None:
    workers = Workers(MODULE, {"trouble": trouble}, start_seconds=60.0 if trouble != "hang" else 0.5)
    children_before = children()
    with pytest.raises(kind, match=message):
        workers.start()
    assert children() == children_before


def test_a_missing_interpreter_raises_an_error() -> None:
    with pytest.raises(WorkerError, match="cannot start /no/python"):
        Workers(MODULE, python="/no/python").start()
    assert issubclass(WorkerError, InfraError)


def test_another_interpreter_has_its_own_path(tmp_path: Path) -> None:
    (tmp_path / "only_there.py").write_text("")
    module = tmp_path / "module.py"
    module.write_text("import sys, only_there\ndef setup(): return [sys.executable, sys.path]\n")
    workers = Workers(module, python=sys.executable, paths=[str(tmp_path)])
    workers.start()
    executable, path = workers.setup_result
    assert executable == sys.executable and path[0] == str(tmp_path)
    workers.close()


def test_random_state_variables_and_memory_are_separate(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    random_state_before = random.getstate()

    async def main(workers: Workers) -> tuple[float, dict[str, str]]:
        worker = await workers.open()
        return await worker.call("draw", seed=3), await worker.call("variables")

    drawn, variables = asyncio.run(main(workers))
    assert drawn == random.Random(3).random() and random.getstate() == random_state_before
    assert "PATH" in variables and "OPENAI_API_KEY" not in variables and variables["PYTHONHASHSEED"] == "0"

    async def exhaust_memory() -> int:
        limited = Workers(MODULE, memory_bytes=256 << 20)
        try:
            return await (await limited.open()).call("allocate_gibibyte")
        finally:
            limited.close()

    with pytest.raises(RemoteError, match="MemoryError"):
        asyncio.run(exhaust_memory())


def test_a_worker_can_call_back_and_answer_concurrently(tmp_path: Path) -> None:
    """Use a module with its own `serve`: each call first calls back; responses arrive in reverse order."""
    module = tmp_path / "asking.py"
    module.write_text(
        "import json, struct\n"
        "def serve(connection, module):\n"
        "    file, held = connection.makefile('rwb'), []\n"
        "    def send(frame):\n"
        "        body = json.dumps(frame).encode()\n"
        "        file.write(struct.pack('<I', len(body)) + body); file.flush()\n"
        "    while head := file.read(4):\n"
        "        frame = json.loads(file.read(struct.unpack('<I', head)[0]))\n"
        "        if 'call' in frame:\n"
        "            send({'id': frame['id'], 'call': 'double', 'args': {'value': frame['args']['value']}})\n"
        "        else:\n"
        "            held.append(frame)\n"
        "        if len(held) == 3:\n"
        "            for one in reversed(held):\n"
        "                send({'id': one['id'], 'result': one.get('result', one.get('error'))})\n"
    )

    async def double(name: str, args: dict) -> int:
        if args["value"] < 0:
            raise ValueError("negative")
        return args["value"] * 2

    async def main(answer: Callable[[str, dict], Awaitable[object]] | None) -> list[object]:
        workers = Workers(module)
        worker: Worker = await workers.open(answer)
        try:
            return await asyncio.gather(*(worker.request("any", value=value) for value in (1, -1, 3)))
        finally:
            workers.close()

    results = asyncio.run(main(double))
    assert results[0] == 2 and results[2] == 6
    assert results[1] == {"type": "ValueError", "message": "negative", "traceback": ""}
    assert "no handler for its call of 'double'" in str(asyncio.run(main(None)))


@pytest.mark.parametrize(
    "frame", ['{"result": 1}', "[1]", '{"id": [], "result": 1}', '{"id": 1, "error": {"text": ""}}', "{"]
)
def test_a_frame_that_cannot_be_read_ends_the_worker(tmp_path: Path, frame: str) -> None:
    module = tmp_path / "babbling.py"
    module.write_text(
        "import struct\n"
        "def serve(connection, module):\n"
        f"    connection.recv(4)\n    body = {frame!r}.encode()\n"
        "    connection.sendall(struct.pack('<I', len(body)) + body)\n"
        "    connection.recv(1 << 20)\n    connection.recv(1)\n"
    )

    async def ask() -> None:
        workers = Workers(module)
        try:
            await (await workers.open()).call("any", timeout=60)
        finally:
            workers.close()

    with pytest.raises(WorkerError, match="ended|closed"):
        asyncio.run(ask())


def test_concurrent_calls_before_the_fork_server_has_started(workers: Workers) -> None:
    async def add_one() -> int:
        return await (await workers.open()).call("add", number=1)

    async def main() -> list[int]:
        return await asyncio.gather(*(add_one() for _ in range(8)))

    assert asyncio.run(main()) == [1] * 8


@pytest.mark.skipif(sys.platform != "linux", reason="orphans find their parent's parent on Linux alone")
def test_a_daemon_ends_with_the_worker_that_started_it(workers: Workers) -> None:
    async def main() -> None:
        first, second = await workers.open(), await workers.open()
        daemon = await first.call("daemon")
        exited = await second.call("pid")
        second.close()
        assert wait_for_exit(exited)
        third = await workers.open()  # opened after the host has noticed that the second worker exited
        assert await third.call("add", number=1) == 1
        assert is_running(daemon)
        first.close()
        assert wait_for_exit(daemon)

    asyncio.run(main())
