"""No command passes control characters of others to the terminal, and none fails on an encoding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from commands import KEYS, Rove, in_process_rove, write_environment
from tiers import some_broad

HOSTILE_ENV = r"""
import rove as vf

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\x9d52;c;eA==\x9c\u202efdp.exe\u2066 [bold red]loud[/] x\ry"

def loud(messages, state, rng):
    return EVIL

def quiet(messages, state, rng):
    return "fine"

def length(completion):
    return min(1.0, len(completion[-1]["content"]) / 40)

def brittle(state, completion):
    if state["example_id"] == 2:
        raise RuntimeError(f"the server answered: {EVIL}")
    state["note"] = EVIL
    return 1.0

length.__name__ = f"len{EVIL}gth"

def load_environment(seed=0):
    rows = [{"question": f"{n}: {EVIL}", "answer": EVIL} for n in range(6)]
    rubric = vf.Rubric([length, brittle], weights=[1.0, 0.1])
    return vf.SingleTurnEnv(dataset=rows, rubric=rubric, policies={"loud": loud, "quiet": quiet})
"""


@pytest.fixture
def rove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    write_environment(tmp_path / "environments", "shouting", HOSTILE_ENV)
    return in_process_rove(tmp_path, monkeypatch, capsys)


def controls(text: str) -> set[str]:
    """Return the control characters in a text."""
    return {char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs") and char not in "\n\t"}


def test_no_printing_command_passes_control_characters_of_others(rove: Rove, tmp_path: Path):
    questions = tmp_path / "q\x1b[2J\u202e.jsonl"
    questions.write_text(json.dumps({"question": "\x1b[31m?", "answer": "\x9bm"}), encoding="utf-8")
    loud, quiet = (["eval", "shouting", "-n", "-1", "-r", "1", "-m", f"scripted:{name}"] for name in ("loud", "quiet"))
    commands = [
        [*loud, "--run-dir", "loud\x1b[2J"],
        [*quiet, "--run-dir", "quiet"],
        [*quiet, "--no-save", "--json"],
        [*quiet, "--dry-run", "--sampling_args.stop", "\x9b\u202e"],
        ["eval", str(questions), "-m", "scripted:oracle", "--no-save"],
        ["eval", "shouting\x1b[2J\x9b", "-m", "scripted:quiet"],
        ["eval", "shouting", "-m", "scripted:\x1b[2J"],
        ["compare", "loud\x1b[2J", "quiet"],
        ["compare", "loud\x1b[2J", "quiet", "--markdown"],
        ["compare", "loud\x1b[2J", "quiet", "--json"],
        ["compare", "quiet", "quiet", "--value", "\x1b[2J"],
        ["report", "loud\x1b[2J", "--markdown"],
        ["rescore", "quiet", "--into", "again"],
        ["play", "shouting", "-m", "scripted:loud", "--seed", "1"],
        ["play", "shouting", "--seed", "1"],
        ["export", "loud\x1b[2J", "-o", "rows.jsonl"],
        ["\x1b[2J"],
        ["eval", "--\x1b[2J"],
    ]
    for words in commands:
        done = rove(*words, stdin="\x1b[2J\n")
        assert not controls(done.out + done.err), f"{words}: {controls(done.out + done.err)}"
        assert done.out + done.err
    assert (tmp_path / "again" / "summary.json").exists()  # the evaluations before did run


def test_output_of_models_and_servers_is_shown_as_text(rove: Rove):
    done = rove("play", "shouting", "-m", "scripted:loud", "--seed", "1")
    escaped = r"\x1b]0;owned\x07\x1b[2J\x9b31m\x9d52;c;eA==\x9c\u202efdp.exe\u2066 [bold red]loud[/] x\x0dy"
    assert escaped in done.out.replace("\n", "")
    failed = rove("eval", "shouting", "-n", "-1", "-m", "scripted:quiet", "--no-save")
    assert f"the server answered: {escaped}" in failed.out


SHORT = ("eval shouting -m scripted:loud --run-dir a", "compare a a", "play shouting -m scripted:loud --seed 1")
COMMANDS = (
    *SHORT,
    "compare a a --markdown",
    "report a --markdown",
    "report a -o a.html",
    "audit shouting --only length",
    "train tictactoe --dry-run --run-dir recipe",
    "init my-task",
)
ENCODINGS = {
    "C locale": ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, SHORT),
    "ascii": ({"PYTHONIOENCODING": "ascii"}, COMMANDS),
    "latin-1": ({"PYTHONIOENCODING": "latin-1"}, SHORT),
}


@pytest.mark.parametrize(("variables", "commands"), some_broad(ENCODINGS.values(), 3), ids=ENCODINGS)
def test_no_command_fails_on_a_terminal_that_is_not_utf8(
    variables: dict[str, str], commands: tuple[str, ...], tmp_path: Path
):
    write_environment(tmp_path / "environments", "shouting", HOSTILE_ENV)
    inherited = {key: value for key, value in os.environ.items() if key not in (*KEYS, "PYTHONUTF8", "LC_ALL")}
    for words in commands:
        done = subprocess.run(
            [sys.executable, "-m", "rove", *words.split()],
            cwd=tmp_path,
            env=inherited | variables,
            capture_output=True,
            check=False,
        )
        errors = done.stderr.decode("latin-1")
        assert "Traceback" not in errors, f"{words}: {errors}"
        findings = 1 if words.startswith("audit") else 0  # the status of an audit with findings
        assert done.returncode in (0, findings), f"{words}: {errors}"
