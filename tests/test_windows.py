"""rove's commands with the limits of Windows; see support/windows_like.py for what this cannot show."""

from __future__ import annotations

import json
import mmap
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import windows_like

PROGRAM = Path(__file__).parent / "support" / "windows_like.py"
QUESTIONS = '{"question": "2+2?", "answer": "4"}\n{"question": "3+2?", "answer": "5"}\n'
NO_LOCKS = "this system has no file locks"
NO_COMPILER = "there is no C compiler"


def start(words: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), *words.split()]
    # The job applies the rules of files to the files below its folder.
    env = {**os.environ, "TMPDIR": str(folder / "temporary"), "XDG_CACHE_HOME": str(folder / "cache")}
    (folder / "temporary").mkdir(exist_ok=True)
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=env, text=True, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)


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
    (tmp_path / "runs/a/.lock").touch()  # as in a run folder that was copied from Linux
    process = start("view runs --port 0", tmp_path)
    try:
        assert process.stdout is not None
        match = re.search(r"http://\S+", process.stdout.readline())
        assert match is not None
        with urllib.request.urlopen(f"{match[0].rstrip('/')}/api/runs") as reply:
            [row] = json.load(reply)["runs"]
        assert (row["name"], row["status"]) == ("a", "complete")
    finally:
        process.terminate()
        process.communicate()


@pytest.mark.broad
@pytest.mark.timeout(900)
def test_training_needs_nothing_that_windows_lacks(tmp_path: Path) -> None:
    run("eval tictactoe -m scripted:teacher --train -n 20 -r 1 --run-dir data", tmp_path)
    run("--train model new --env tictactoe -o small --games 10", tmp_path)
    _, err = run(
        "--train sft --data data -m small --epochs 1 --batch-size 8 --final-eval-rollouts 2 --run-dir sft", tmp_path
    )
    assert err.count(NO_COMPILER) == 1 and "slower" in err
    _, err = run("--train rl tictactoe -m sft/final --steps 1 --batch-size 8 -t 12 --run-dir rl", tmp_path)
    assert err.count(NO_COMPILER) == 1
    assert (tmp_path / "rl/metrics.jsonl").read_text().count("\n") == 1
    run("--train eval tictactoe -m rl/final -n 2 -r 1 -t 12 --run-dir evaluation", tmp_path)
    assert b"\r\n" not in (tmp_path / "evaluation/rollouts.jsonl").read_bytes()


@pytest.fixture
def start_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(windows_like, "START", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", ["a:b", "a?", "nul", "COM1.txt", "a.", "a "])
def test_the_job_refuses_names_that_windows_refuses(start_folder: Path, name: str) -> None:
    with pytest.raises(OSError, match="name"):
        windows_like.check_name(start_folder / "folder" / name)
    windows_like.check_name(start_folder / "folder" / "console.txt")


def test_the_job_refuses_to_move_what_is_open(start_folder: Path) -> None:
    (start_folder / "folder").mkdir()
    for name in ("folder/a", "b"):
        (start_folder / name).write_text("1")
    with (start_folder / "folder/a").open():
        for path in (start_folder / "folder", start_folder / "folder/a"):
            with pytest.raises(PermissionError):
                windows_like.check_free(path)
        with pytest.raises(PermissionError):
            windows_like.check_rename(start_folder / "b", start_folder / "folder/a")
        descriptor = os.open(start_folder / "folder", os.O_RDONLY)  # as `shutil.rmtree` does
        with pytest.raises(PermissionError):
            windows_like.check_free("a", descriptor)
        os.close(descriptor)
    windows_like.check_rename(start_folder / "b", start_folder / "folder/a")
    with (start_folder / "b").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        file.close()
        with pytest.raises(PermissionError):
            windows_like.check_free(start_folder / "b")
        with pytest.raises(OSError, match="mapped"):
            windows_like.check_open(start_folder / "b", "w", os.O_WRONLY | os.O_TRUNC)


def test_the_job_writes_text_as_windows_does(tmp_path: Path) -> None:
    with windows_like.open_file(tmp_path / "a", "w") as file:
        file.write("é\n")
    assert (tmp_path / "a").read_bytes() == b"\xe9\r\n"
