"""Locks, signals and flushing, on this system and on one that lacks them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rove.runs.run import Run
from rove.utils import systems
from rove.utils.systems import (
    allowed_name,
    can_lock,
    file_path,
    has_folder,
    is_locked,
    link_or_copy,
    lock_file,
    on_signals,
    peak_memory,
    physical_memory,
    rename,
    shell_command,
    signal_group,
    sync_files,
    venv_packages,
    venv_python,
)


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


async def test_an_event_loop_without_signal_handlers_is_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(asyncio.get_running_loop(), "add_signal_handler", refuse)
    on_signals(print, signal.SIGTERM)


def test_a_line_for_the_shell_is_run() -> None:
    assert subprocess.run(shell_command("echo a b"), capture_output=True, text=True, check=True).stdout == "a b\n"


class WindowsOs:
    """The module `os` with the name of Windows, whose files cannot be replaced for some attempts."""

    name = "nt"
    sep = "\\"

    def __init__(self, num_refusals: int = 0):
        self.num_refusals = num_refusals

    def __getattr__(self, name: str) -> Any:
        if name in ("sysconf", "major", "minor"):
            raise AttributeError(name)
        return getattr(os, name)

    def replace(self, source: Path, target: Path) -> None:
        if target.is_dir():
            raise PermissionError("Windows replaces no folders")
        if self.num_refusals:
            self.num_refusals -= 1
            raise PermissionError("a reader has the file open")
        os.replace(source, target)


def test_a_file_that_a_reader_has_open_is_replaced_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems, "os", WindowsOs(num_refusals=3))
    monkeypatch.setattr(systems, "REPLACE_WAIT_S", 0)
    (tmp_path / "new").write_text("new")
    (tmp_path / "old").write_text("old")
    rename(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old").read_text() == "new" and not (tmp_path / "new").exists()


def test_a_file_that_stays_open_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems, "os", WindowsOs(num_refusals=1000))
    monkeypatch.setattr(systems, "REPLACE_WAIT_S", 0)
    (tmp_path / "new").write_text("new")
    with pytest.raises(PermissionError):
        rename(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "new").read_text() == "new"


@pytest.mark.parametrize("system", [os, WindowsOs()], ids=["posix", "windows"])
def test_an_empty_folder_is_replaced_and_a_full_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: object
) -> None:
    monkeypatch.setattr(systems, "os", system)
    for name in ("a", "b", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "a/file").write_text("1")
    rename(tmp_path / "a", tmp_path / "empty")
    assert (tmp_path / "empty/file").read_text() == "1"
    with pytest.raises(OSError):
        rename(tmp_path / "b", tmp_path / "empty")
    assert (tmp_path / "b").is_dir() and (tmp_path / "empty/file").exists()


def test_without_the_permission_to_link_a_copy_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("a required privilege is not held by the client")

    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_text("1")
    link_or_copy(tmp_path / "link", tmp_path / "folder")
    assert (tmp_path / "link").is_symlink()
    monkeypatch.setattr(Path, "symlink_to", refuse)
    link_or_copy(tmp_path / "copy", tmp_path / "folder")
    link_or_copy(tmp_path / "file", tmp_path / "folder/file")
    assert (tmp_path / "copy/file").read_text() == (tmp_path / "file").read_text() == "1"
    assert not (tmp_path / "copy").is_symlink() and not (tmp_path / "file").is_symlink()


def test_a_lock_of_another_file_object_is_visible(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    with file.open("ab") as stream:
        assert not is_locked(file.stat())
        lock_file(stream)
        assert is_locked(file.stat())
    assert not is_locked(file.stat())


def test_values_that_windows_does_not_report_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = physical_memory()
    assert memory is not None and memory > 1 << 28
    monkeypatch.setattr(systems, "os", WindowsOs())
    monkeypatch.setattr(systems.sys, "platform", "win32")
    assert physical_memory() is None
    assert not is_locked(tmp_path.stat())


def test_parts_of_virtual_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib/python3.11/site-packages").mkdir(parents=True)
    assert venv_packages(tmp_path) == tmp_path / "lib/python3.11/site-packages"
    assert venv_python(tmp_path) == tmp_path / "bin/python"
    monkeypatch.setattr(systems, "os", WindowsOs())
    (tmp_path / "Lib/site-packages").mkdir(parents=True)
    assert venv_packages(tmp_path) == tmp_path / "Lib/site-packages"
    assert venv_python(tmp_path) == tmp_path / "Scripts/python.exe"


def test_a_name_with_a_separator_is_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_folder("./my_task") and not has_folder("my_task") and not has_folder(".\\my_task")
    monkeypatch.setattr(systems, "os", WindowsOs())
    assert has_folder("./my_task") and has_folder(".\\my_task") and not has_folder("my_task")


def test_names_of_files_have_no_character_that_windows_does_not_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    assert allowed_name("gym:a--b") == "gym:a--b"
    monkeypatch.setattr(systems, "os", WindowsOs())
    assert allowed_name('openenv:http://a?b--"c"') == "openenv-http---a-b---c-"


def test_a_signal_to_a_process_that_has_ended_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, number: int) -> None:
        sent.append(pid)
        raise OSError(22, "The parameter is incorrect")

    sent: list[int] = []
    monkeypatch.setattr(os, "killpg", refuse)
    signal_group(12, signal.SIGTERM)
    assert sent == [12]


def test_a_file_address_is_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [str(file_path(address)) for address in ("file:///a/b", "/a/b", "a")] == ["/a/b", "/a/b", "a"]
    assert str(file_path("file:///C:/hub")) == "/C:/hub"
    monkeypatch.setattr(systems, "os", WindowsOs())
    assert [str(file_path(address)) for address in ("file:///C:/hub", "C:/hub")] == ["C:/hub", "C:/hub"]
