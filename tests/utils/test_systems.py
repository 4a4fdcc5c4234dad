"""Locks, signals and flushing, on this system and on one that lacks them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
from pathlib import Path

import pytest

from rove.runs.run import Run
from rove.utils import systems
from rove.utils.systems import can_lock, lock_file, on_signals, peak_memory, shell_command, sync_files


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems, "fcntl", None)
    monkeypatch.setattr(systems, "resource", None)
    systems._log_missing_locks.cache_clear()


def test_a_lock_excludes_others_until_it_is_closed(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("ab") as first, (tmp_path / "lock").open("ab") as second:
        lock_file(first)
        with pytest.raises(BlockingIOError):
            lock_file(second, wait=False)
        first.close()
        lock_file(second, wait=False)


def test_shared_locks_exclude_only_exclusive_ones(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("ab") as first, (tmp_path / "lock").open("ab") as second:
        lock_file(first, shared=True)
        lock_file(second, shared=True, wait=False)
        with pytest.raises(BlockingIOError):
            lock_file(second, wait=False)


def test_without_locks_one_line_says_so_and_runs_are_written(
    tmp_path: Path, windows: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert not can_lock() and not can_lock()
        first, second = Run(tmp_path / "run"), Run(tmp_path / "run")
    first.close()
    second.close()
    assert caplog.text.count("no file locks") == 1
    assert peak_memory() == 0


def test_files_and_folders_are_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"1")
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(os.readlink(f"/proc/self/fd/{handle}")))
    sync_files(file, tmp_path)
    assert flushed == [str(file), str(tmp_path)]


async def test_a_signal_calls_the_function() -> None:
    received = asyncio.Event()
    on_signals(received.set, signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGUSR1)
    await asyncio.wait_for(received.wait(), 60)
    asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)


async def test_an_event_loop_without_handlers_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(asyncio.get_running_loop(), "add_signal_handler", refuse)
    on_signals(print, signal.SIGTERM)


def test_a_line_for_the_shell_is_run() -> None:
    assert subprocess.run(shell_command("echo a b"), capture_output=True, text=True, check=True).stdout == "a b\n"


POSIX_ONLY = r"^\s*(import|from) (fcntl|resource|pwd|termios|grp)\b|os\.(killpg|getpgid)\(|signal\.SIGKILL"
ALONE = {"rove/sandbox/inside", "rove/workers", "rove/vllm/supervisor.py", "rove/engine/grammar_worker.py"}
"""Programs that run with the standard library alone, and the fork server, which exists only where `os.fork` does."""


def test_only_this_module_uses_what_windows_lacks() -> None:
    root = Path(systems.__file__).parents[2]
    command = ["grep", "-rlE", POSIX_ONLY, "rove", "--include=*.py"]
    names = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    outside = [name for name in names if not any(name.startswith(folder) for folder in ALONE)]
    assert outside == ["rove/utils/systems.py"]
