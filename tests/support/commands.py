"""Run `rove` commands in this process or in a separate one, and write small environments for them."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from rove.cli.main import main

KEYS = ("OPENAI_API_KEY", "OPENAI_BASE_URL")


class CompletedCommand(NamedTuple):
    """The exit status and the output of a command."""

    status: int
    out: str
    err: str


Rove = Callable[..., CompletedCommand]


def in_process_rove(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    """Return a function that runs `rove WORDS…` in `folder` without API keys in the environment variables."""
    monkeypatch.chdir(folder)
    for key in KEYS:
        monkeypatch.delenv(key, raising=False)

    def rove(*words: str, stdin: str = "") -> CompletedCommand:
        monkeypatch.setattr(sys, "argv", ["rove", *words])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        captured = capsys.readouterr()
        return CompletedCommand(ended.value.code, captured.out, captured.err)

    return rove


def start_rove(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start `rove WORDS…` in `folder` as a separate process."""
    return subprocess.Popen(
        [Path(sys.executable).with_name("rove"), *words],
        cwd=folder,
        env={key: value for key, value in os.environ.items() if key not in KEYS},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # If a script runs the tests in the background, they inherit that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def rollout_lines(run: str | Path) -> list[bytes]:
    """Return the lines of a run's rollouts.jsonl as bytes."""
    return (Path(run) / "rollouts.jsonl").read_bytes().splitlines(keepends=True)


def write_environment(folder: Path, name: str, source: str) -> None:
    """Write an environment package that has one file."""
    (folder / name).mkdir(parents=True)
    (folder / name / f"{name}.py").write_text(source)


def snapshot_files(run: Path) -> dict[str, tuple[int, bytes]]:
    """Return the modification time and the content of each file of a run, without files that every start rewrites."""
    rewritten = ("config.toml", ".config.toml.seal", "versions.json")
    ours = [path for path in run.rglob("*") if path.is_file() and path.name not in rewritten]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in ours}
