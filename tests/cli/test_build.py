"""`rove build` and `rove hub key` from the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from commands import Rove, in_process_rove

from rove.cli.hub import key as key_command
from rove.hub.package.archives import verify
from rove.hub.package.scaffold import scaffold
from rove.hub.package.signing import load_key, public_key


@pytest.fixture
def rove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    return in_process_rove(tmp_path, monkeypatch, capsys)


@pytest.mark.broad
def test_build_prints_the_package_and_the_next_command(rove: Rove, tmp_path: Path):
    scaffold("my_task", tmp_path)
    done = rove("build", "my_task", "--no-play")
    assert done.status == 0, done.err
    for words in ("my-task 0.1.0, module my_task", "MIT", "my_task-0.1.0-py3-none-any.whl", "rove push my_task"):
        assert words in done.out
    assert verify(tmp_path / "my_task/dist/my-task-0.1.0").manifest.name == "my-task"


@pytest.mark.broad
def test_json_output_contains_the_manifest(rove: Rove, tmp_path: Path):
    scaffold("my_task", tmp_path)
    report = json.loads(rove("build", "my_task", "-o", "out", "--python", sys.executable, "--json").out)
    assert report["folder"] == "out/my-task-0.1.0"
    assert report["warnings"] == []
    assert report["manifest"]["policies"] == {"guesser": {"n": 5, "reward": 0.2}, "oracle": {"n": 5, "reward": 1.2}}
    assert json.loads(Path("out/my-task-0.1.0/manifest.json").read_text()) == report["manifest"]


def test_a_build_error_is_one_line(rove: Rove):
    done = rove("build", "nowhere")
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert "nowhere has no pyproject.toml" in done.err


def test_the_key_is_created_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    run: Callable[..., object] = key_command.main
    run([], standalone_mode=False)
    first_output = capsys.readouterr().out
    assert public_key(load_key()) in first_output
    assert "created the key in" in first_output
    run(["--json"], standalone_mode=False)
    second_report = json.loads(capsys.readouterr().out)
    assert (second_report["key"] in first_output, second_report["new"]) == (True, False)
    with pytest.raises(click.UsageError):
        run(["--force"], standalone_mode=False)
