"""`make test-pythons`: its rows, and reports of failing rows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import python_versions
from python_versions import RowError


@pytest.fixture(autouse=True)
def no_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_versions, "WORK", tmp_path)
    monkeypatch.setattr(python_versions, "build_wheel", lambda: tmp_path / "rove.whl")


def test_every_extra_has_a_row() -> None:
    assert set(python_versions.EXTRAS) == python_versions.declared_extras() - {"dev"}


def test_a_version_without_an_interpreter_is_named_as_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    assert python_versions.main(["--only", "3.99"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["Python", "3.99", "skipped:", "no", "interpreter"]


def test_a_row_that_fails_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(extra: str, wheel: Path) -> str:
        if extra == "hub":
            raise RowError("no such package")
        return "1 commands passed"

    monkeypatch.setattr(python_versions, "try_extra", fail)
    assert python_versions.main(["--only", "3.99", "--extras", "hub", "wiki"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "no such package" in lines
    assert [line.split()[-1] for line in lines[-2:]] == ["FAILED", "passed"]


def test_a_program_that_does_not_start_is_not_an_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "versions/3.99.0/bin"
    folder.mkdir(parents=True)
    program = folder / "python3.99"
    program.write_text("#!/bin/sh\nexit 127\n")
    program.chmod(0o755)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert python_versions.interpreter("3.99") is None
    program.write_text("#!/bin/sh\nexit 0\n")
    assert python_versions.interpreter("3.99") == program
    assert python_versions.interpreter(f"{sys.version_info.major}.{sys.version_info.minor}") == Path(sys.executable)


def test_a_failing_command_is_shown(tmp_path: Path) -> None:
    with pytest.raises(RowError, match="status 3:\nbroken"):
        python_versions.run("echo broken; exit 3", tmp_path, tmp_path)
