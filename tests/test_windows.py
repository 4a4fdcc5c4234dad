"""rove's commands without the modules and functions that Windows lacks; see support/windows_like.py for what this cannot show."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "support" / "windows_like.py"
QUESTIONS = '{"question": "2+2?", "answer": "4"}\n{"question": "3+2?", "answer": "5"}\n'
NO_LOCKS = "this system has no file locks"


def start(words: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), *words.split()]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, text=True, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)


def run(words: str, folder: Path) -> tuple[str, str]:
    """Run a command and return what it wrote to stdout and to stderr."""
    process = start(words, folder)
    out, err = process.communicate()
    assert process.returncode == 0, f"rove {words}: {out[-1000:]}{err[-2000:]}"
    return out, err


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_commands_need_nothing_that_windows_lacks(tmp_path: Path) -> None:
    (tmp_path / "questions.jsonl").write_text(QUESTIONS)
    for words in (
        "--help",
        "list",
        "init my-task",
        "eval my_task -m scripted:oracle -n 4",
        "eval tictactoe -m scripted:teacher -n 4 -r 2 --run-dir a",
        "eval tictactoe -m scripted:optimal -n 4 -r 2 --run-dir b",
        'eval questions.jsonl -m scripted:teacher -a {"scorer":"numeric"}',
        "compare a b",
        "report a",
        "export a",
        "audit sums --only load -n 2",
    ):
        run(words, tmp_path)


@pytest.mark.slow
def test_a_missing_lock_is_reported_in_one_line(tmp_path: Path) -> None:
    _, err = run("eval tictactoe -m scripted:teacher -n 1 -r 1 --run-dir a", tmp_path)
    assert [line for line in err.splitlines() if NO_LOCKS in line] == err.splitlines()


@pytest.mark.slow
def test_the_viewer_answers(tmp_path: Path) -> None:
    run("eval tictactoe -m scripted:teacher -n 1 -r 1 --run-dir runs/a", tmp_path)
    process = start("view runs --port 0", tmp_path)
    try:
        assert process.stdout is not None
        match = re.search(r"http://\S+", process.stdout.readline())
        assert match is not None
        with urllib.request.urlopen(f"{match[0].rstrip('/')}/api/runs") as reply:
            assert b'"a"' in reply.read()
    finally:
        process.terminate()
        process.communicate()
