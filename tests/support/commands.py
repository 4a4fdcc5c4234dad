"""`rove` as people type it, in this process or in one of its own, and small environments for it to find."""

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


class Done(NamedTuple):
    """A command that has ended."""

    status: int
    out: str
    err: str


Rove = Callable[..., Done]


def in_this_process(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    """A function that runs `rove WORDS…` in `folder`, without any key in the environment."""
    monkeypatch.chdir(folder)
    for key in KEYS:
        monkeypatch.delenv(key, raising=False)

    def rove(*words: str, stdin: str = "") -> Done:
        monkeypatch.setattr(sys, "argv", ["rove", *words])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        said = capsys.readouterr()
        return Done(ended.value.code, said.out, said.err)

    return rove


def in_its_own(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Starts `rove WORDS…` in `folder`."""
    return subprocess.Popen(
        [Path(sys.executable).with_name("rove"), *words],
        cwd=folder,
        env={key: value for key, value in os.environ.items() if key not in KEYS},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Started in the background of a script, the tests have inherited that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def lines(run: str | Path) -> list[bytes]:
    """The rollouts kept in a run folder, byte for byte."""
    return (Path(run) / "rollouts.jsonl").read_bytes().splitlines(keepends=True)


def environment(folder: Path, name: str, source: str) -> None:
    """Writes a one-file environment package."""
    (folder / name).mkdir(parents=True)
    (folder / name / f"{name}.py").write_text(source)


def contents(run: Path) -> dict[str, tuple[int, bytes]]:
    """When each file of a run was last written, and what it holds; but for what every start writes anew."""
    rewritten = ("config.toml", ".config.toml.seal", "versions.json")
    ours = [path for path in run.rglob("*") if path.is_file() and path.name not in rewritten]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in ours}
