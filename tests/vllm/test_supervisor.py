"""A command that must not outlive whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rove.vllm import supervisor as keeper

GRANDCHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def kept() -> Iterator[subprocess.Popen[str]]:
    """A keeper of a program that has a child."""
    words = [sys.executable, "-I", "-S", str(Path(keeper.__file__)), sys.executable, "-S", "-c", GRANDCHILD]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe
        pipe.close()


def is_gone(pid: int) -> bool:
    """Whether a process ends within ten seconds; one that nobody has buried yet has ended."""
    for _ in range(1000):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def test_what_it_runs_ends_with_stdin(kept: subprocess.Popen[str]):
    assert kept.stdin
    assert kept.stdout
    grandchild = int(kept.stdout.readline())
    os.kill(grandchild, 0)
    kept.stdin.close()
    assert is_gone(grandchild)
    assert kept.wait(10) == 128 + signal.SIGTERM


def test_what_the_command_leaves_behind_ends_too():
    leaves = "import subprocess, sys; print(subprocess.Popen(['sleep', '60'], stdout=2).pid); sys.exit(3)"
    words = [sys.executable, "-I", "-S", str(Path(keeper.__file__)), sys.executable, "-S", "-c", leaves]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        left = int(process.stdout.readline())
        assert process.wait(10) == 3
    assert is_gone(left)


def test_sigterm_is_passed_on(kept: subprocess.Popen[str]):
    assert kept.stdout
    grandchild = int(kept.stdout.readline())
    kept.terminate()
    assert kept.wait(10) == 128 + signal.SIGTERM
    assert is_gone(grandchild)
