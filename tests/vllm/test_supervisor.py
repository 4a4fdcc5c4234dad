"""The supervisor ends its command when the process that started it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rove.vllm import supervisor as supervisor_module

GRANDCHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def supervisor() -> Iterator[subprocess.Popen[str]]:
    """A supervisor of a program that has a child process."""
    arguments = [
        sys.executable,
        "-I",
        "-S",
        str(Path(supervisor_module.__file__)),
        sys.executable,
        "-S",
        "-c",
        GRANDCHILD,
    ]
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe
        pipe.close()


def is_gone(pid: int) -> bool:
    """Return whether a process ends within ten seconds; a zombie counts as ended."""
    for _ in range(1000):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def test_the_command_and_its_children_end_when_stdin_is_closed(supervisor: subprocess.Popen[str]):
    assert supervisor.stdin
    assert supervisor.stdout
    grandchild = int(supervisor.stdout.readline())
    os.kill(grandchild, 0)
    supervisor.stdin.close()
    assert is_gone(grandchild)
    assert supervisor.wait(10) == 128 + signal.SIGTERM


def test_child_processes_left_by_the_command_are_ended():
    command = "import subprocess, sys; print(subprocess.Popen(['sleep', '60'], stdout=2).pid); sys.exit(3)"
    arguments = [sys.executable, "-I", "-S", str(Path(supervisor_module.__file__)), sys.executable, "-S", "-c", command]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        child = int(process.stdout.readline())
        assert process.wait(10) == 3
    assert is_gone(child)


def test_sigterm_is_forwarded_to_the_command(supervisor: subprocess.Popen[str]):
    assert supervisor.stdout
    grandchild = int(supervisor.stdout.readline())
    supervisor.terminate()
    assert supervisor.wait(10) == 128 + signal.SIGTERM
    assert is_gone(grandchild)
