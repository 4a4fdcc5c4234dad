"""Commands: what they say, how they end, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from rove.utils.processes import CommandResult, release_memory, run_command, signal_group
from tests.server.test_server import until

ENV = {"PATH": os.environ["PATH"]}


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def test_a_program_says_what_it_says(tmp_path: Path):
    assert await run_command(
        "cat; pwd; echo $WORD >&2; exit 3", env={**ENV, "WORD": "hi"}, cwd=str(tmp_path), stdin="in "
    ) == (CommandResult(f"in {tmp_path}\n", "hi\n", 3))
    assert await run_command(["echo", "a b", "$HOME"], env=ENV) == CommandResult("a b $HOME\n", "", 0)


@pytest.mark.parametrize(("count", "wanted"), [(1, "1"), (10, "1234567890"), (500, "…" + "1234567890" * 5)])
async def test_of_a_long_output_the_end_is_kept(count: int, wanted: str):
    command = f"for i in $(seq {count}); do printf $((i % 10)); done"
    assert (await run_command(command, env=ENV, max_chars=50)).output == wanted


async def test_characters_are_not_cut():
    ended = await run_command("for i in $(seq 200); do printf é; done", env=ENV, max_chars=10)
    assert ended.output == "…" + "é" * 10


async def test_what_a_program_leaves_behind_is_killed():
    ended = await run_command("(trap '' TERM; sleep 1000) & echo $!", env=ENV)
    await until(lambda: has_ended(int(ended.output)))
    assert ended.exit_code == 0


async def test_a_cancelled_program_is_killed_with_its_children(tmp_path: Path):
    pids = tmp_path / "pids"
    task = asyncio.create_task(
        run_command(
            "trap '' TERM; (trap '' TERM; sleep 1000) & echo $$ $! > pids; sleep 1000", env=ENV, cwd=str(tmp_path)
        )
    )
    await until(lambda: pids.exists() and bool(pids.read_text().strip()))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: all(has_ended(int(pid)) for pid in pids.read_text().split()))
    assert len(asyncio.all_tasks()) == 1


async def test_a_signal_is_told_as_the_exit_code():
    assert (await run_command("kill -KILL $$", env=ENV)).exit_code == -signal.SIGKILL


async def test_a_program_that_reads_nothing_is_no_trouble():
    assert (await run_command("true", env=ENV, stdin="x" * 1_000_000)).exit_code == 0


async def test_a_program_that_is_not_there_says_so():
    with pytest.raises(OSError, match="no-such-program"):
        await run_command(["no-such-program"], env=ENV)
    signal_group(2**22 + 1, signal.SIGTERM)  # nobody there: no error


async def test_a_program_that_is_cancelled_while_it_starts_is_not_left_behind():
    before = set(os.listdir("/proc"))
    for turns in range(12):  # wherever in its start that is
        task = asyncio.create_task(run_command("sleep 2718", env=ENV))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        async with asyncio.timeout(30):
            await asyncio.wait((task,))
        assert task.cancelled()

    def sleepers() -> list[str]:
        new = [pid for pid in set(os.listdir("/proc")) - before if pid.isdigit() and not has_ended(int(pid))]
        return [pid for pid in new if "2718" in command_of(pid)]

    async with asyncio.timeout(30):
        await until(lambda: not sleepers())


def command_of(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_released_memory_returns_to_the_system():
    def used() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    if not Path("/proc/self/statm").exists():
        pytest.skip("needs /proc")
    parts = [bytearray(100_000) for _ in range(2000)]  # too small for mappings of their own
    kept = parts[::100]  # so that the heap cannot shrink from its end
    full = used()
    del parts
    release_memory()
    assert used() < full - 150_000_000
    assert len(kept) == 20
