"""rove's commands without the modules and functions that Windows lacks; see support/windows_like.py for what this cannot show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "support" / "windows_like.py"
QUESTIONS = '{"question": "2+2?", "answer": "4"}\n{"question": "3+2?", "answer": "5"}\n'


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
        command = [sys.executable, str(PROGRAM), *words.split()]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, f"rove {words}: {done.stdout[-1000:]}{done.stderr[-2000:]}"
