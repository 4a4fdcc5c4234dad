"""`rove check`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from commands import Rove, in_process_rove, write_environment

from rove.check.package_files import Package
from rove.cli.check import _next
from tests.check.test_check import env, wheel
from tests.docs.test_docs import blocks, commands


@pytest.fixture
def rove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    return in_process_rove(tmp_path, monkeypatch, capsys)


@pytest.mark.broad
def test_a_folder_with_a_working_and_a_broken_package(rove: Rove, tmp_path: Path) -> None:
    write_environment(tmp_path / "packages", "fine", env())
    (tmp_path / "packages" / "broken.py").write_text(env("import pandas_of_nobody"))
    done = rove("check", "packages", "-n", "1", "-o", "matrix.md", "-o", "matrix.json", "--json")
    assert done.status == 1, done.err
    report = json.loads(done.out)
    verdicts = {
        package["package"]: (package["status"], package["played"]["rollouts"]) for package in report["packages"]
    }
    assert verdicts == {"broken": ("needs", 0), "fine": ("runs unchanged", 4)}
    assert json.loads((tmp_path / "matrix.json").read_text()) == report
    assert "runs unchanged (1), needs (1)" in (tmp_path / "matrix.md").read_text()
    assert "check 2/2  fine: runs unchanged" in done.err


def test_text_report_of_one_package(rove: Rove, tmp_path: Path) -> None:
    rubric = "vf.JudgeRubric(judge_client=vf)"
    constructor = f"vf.SingleTurnEnv(dataset=[{{'question': '[q]', 'answer': 'a'}}], rubric={rubric})"
    (tmp_path / "judged.py").write_text(
        f"import verifiers as vf\n\ndef load_environment():\n    return {constructor}\n"
    )
    done = rove("check", "judged.py")
    assert done.status == 0, done.err
    for words in ("judged  runs with deviations", "written for: G3", "names of verifiers: JudgeRubric, SingleTurnEnv"):
        assert words in done.out
    assert "rollouts: 4, 0 failed" in done.out and "differs: the question in the prompt of `JudgeRubric`" in done.out
    assert "rove eval --isolated judged --env-dir" in done.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing_there"], "no such file: nothing_there"),
        (["tictactoe", "-o", "matrix.txt"], "ends in .md or .json"),
        (["tictactoe", "-o", "nowhere/matrix.md"], "the folder nowhere does not exist"),
        (["tictactoe", "-a", "5"], "-a takes a JSON object"),
        (["."], "contains none"),
        (["tictactoe", "-n", "0"], "'--num-examples': 0; expected an integer, 1 or more"),
        ([], "Missing argument"),
    ],
)
def test_invalid_arguments_are_refused_before_any_check(rove: Rove, words: list[str], message: str) -> None:
    done = rove("check", *words)
    assert done.status == 2
    assert message in " ".join(done.err.split())


@pytest.mark.slow
def test_commands_of_the_compat_page_work(rove: Rove, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")  # pip reads 0 as: without build isolation
    wheel(tmp_path, "my_env", env(), "verifiers>=0.1.5")
    write_environment(tmp_path / "packages", "old", env())
    [block] = [block for block in blocks("docs/compat.md", "bash") if "rove check" in block]
    for command in commands(block):
        done = rove(*command[1:])
        assert done.status == 0, f"{shlex.join(command)}\n{done.out}\n{done.err}"
    assert "| old | G3 | runs unchanged |" in (tmp_path / "matrix.md").read_text()


def test_the_suggested_command_fits_the_kind_of_package(tmp_path: Path) -> None:
    (tmp_path / "quiz.py").touch()
    module = Package("quiz", "module", tmp_path / "quiz.py", tmp_path)
    assert f"--isolated quiz --env-dir {tmp_path} -m MODEL" in _next(str(tmp_path / "quiz.py"), None, module)
    assert f"rove install {tmp_path}" in _next(str(tmp_path), None, Package("quiz", "project", tmp_path))
    assert "--isolated tictactoe -m MODEL" in _next("tictactoe", None, Package("tictactoe", "project", tmp_path))
