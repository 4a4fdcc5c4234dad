"""Running commands: output, exit codes and cleanup of their processes."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from rove.utils.processes import CommandResult, release_memory, run_command
from rove.utils.systems import signal_group
from tests.server.test_server import wait_until

ENV = {"PATH": os.environ["PATH"]}


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def test_output_and_exit_code_are_returned(tmp_path: Path):
    assert await run_command(
        "cat; pwd; echo $WORD >&2; exit 3", env={**ENV, "WORD": "hi"}, cwd=str(tmp_path), stdin="in "
    ) == (CommandResult(f"in {tmp_path}\n", "hi\n", 3))
    assert await run_command(["echo", "a b", "$HOME"], env=ENV) == CommandResult("a b $HOME\n", "", 0)


@pytest.mark.parametrize(("count", "expected"), [(1, "1"), (10, "1234567890"), (500, "…" + "1234567890" * 5)])
async def test_only_the_end_of_a_long_output_is_returned(count: int, expected: str):
    command = f"for i in $(seq {count}); do printf $((i % 10)); done"
    assert (await run_command(command, env=ENV, max_chars=50)).output == expected


async def test_multibyte_characters_are_not_split():
    result = await run_command("for i in $(seq 200); do printf é; done", env=ENV, max_chars=10)
    assert result.output == "…" + "é" * 10


async def test_background_processes_of_a_command_are_killed():
    result = await run_command("(trap '' TERM; sleep 1000) & echo $!", env=ENV)
    await wait_until(lambda: has_ended(int(result.output)))
    assert result.exit_code == 0


async def test_a_cancelled_program_is_killed_with_its_children(tmp_path: Path):
    pids = tmp_path / "pids"
    task = asyncio.create_task(
        run_command(
            "trap '' TERM; (trap '' TERM; sleep 1000) & echo $$ $! > pids; sleep 1000", env=ENV, cwd=str(tmp_path)
        )
    )
    await wait_until(lambda: pids.exists() and bool(pids.read_text().strip()))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_until(lambda: all(has_ended(int(pid)) for pid in pids.read_text().split()))
    assert len(asyncio.all_tasks()) == 1


async def test_a_signal_is_returned_as_a_negative_exit_code():
    assert (await run_command("kill -KILL $$", env=ENV)).exit_code == -signal.SIGKILL


async def test_a_program_may_ignore_its_input():
    assert (await run_command("true", env=ENV, stdin="x" * 1_000_000)).exit_code == 0


async def test_a_missing_program_is_an_error():
    with pytest.raises(OSError, match="no-such-program"):
        await run_command(["no-such-program"], env=ENV)
    signal_group(2**22 + 1, signal.SIGTERM)  # No such process: no error.


async def test_a_program_cancelled_while_starting_is_killed():
    names_before = set(os.listdir("/proc"))
    for turns in range(12):  # Cancel at each step of the start.
        task = asyncio.create_task(run_command("sleep 2718", env=ENV))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        async with asyncio.timeout(30):
            await asyncio.wait((task,))
        assert task.cancelled()

    def sleepers() -> list[str]:
        new = [pid for pid in set(os.listdir("/proc")) - names_before if pid.isdigit() and not has_ended(int(pid))]
        return [pid for pid in new if "2718" in command_of(pid)]

    async with asyncio.timeout(30):
        await wait_until(lambda: not sleepers())


def command_of(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@pytest.mark.broad
def test_released_memory_returns_to_the_system():
    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    if not Path("/proc/self/statm").exists():
        pytest.skip("needs /proc")
    parts = [bytearray(100_000) for _ in range(2000)]  # Too small for separate memory mappings.
    retained = parts[::100]  # The heap cannot shrink from its end.
    resident_bytes_before = resident_bytes()
    del parts
    release_memory()
    assert resident_bytes() < resident_bytes_before - 150_000_000
    assert len(retained) == 20
