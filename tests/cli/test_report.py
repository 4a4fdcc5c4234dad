"""`rove report` from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import Rove, in_process_rove

SMALL = ("tictactoe", "-m", "scripted:teacher", "-n", "3", "-r", "2", "--run-dir", "runs/mine", "--json")


@pytest.fixture
def rove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    rove = in_process_rove(tmp_path, monkeypatch, capsys)
    assert rove("eval", *SMALL).status == 0
    return rove


def test_a_report_is_written_into_the_run_folder(rove: Rove):
    done = rove("report", "runs/mine")
    assert (done.status, done.err) == (0, "")
    assert "report: runs/mine/report.html (0.3 MB)" in done.out
    page = Path("runs/mine/report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert page.count('"rollout_index":') == 6
    assert rove("eval", *SMALL).status == 0  # the run folder stays valid


def test_output_path_and_number_of_rollouts_can_be_set(rove: Rove):
    assert rove("report", "runs/mine", "-o", "sent/it.html", "--rollouts", "2").status == 0
    assert Path("sent/it.html").read_text(encoding="utf-8").count('"rollout_index":') == 2
    assert not Path("runs/mine/report.html").exists()


def test_markdown_is_alone_on_stdout(rove: Rove):
    done = rove("report", "runs/mine", "--markdown")
    assert done.status == 0
    assert done.out.startswith("### tictactoe · scripted\\:teacher\n")
    assert "rove eval @ runs/mine/config.toml --run-dir runs/again" in done.out
    assert (done.err, list(Path("runs/mine").glob("*.html"))) == ("", [])
    with_html = rove("report", "runs/mine", "--markdown", "--html", "it.html")
    assert (with_html.out, Path("it.html").exists()) == (done.out, True)


def test_the_command_that_a_report_names_repeats_the_evaluation(rove: Rove):
    assert rove("eval", "@", "runs/mine/config.toml", "--run-dir", "runs/again", "--json").status == 0
    first, second = (rove("report", run, "--markdown").out.split("\nRepeat")[0] for run in ("runs/mine", "runs/again"))
    assert first == second


def test_invalid_run_folders_and_options_are_refused(rove: Rove):
    done = rove("report", "runs/none")
    assert (done.status, done.err) == (1, "error: runs/none is not a run folder: it does not exist\n")
    assert not Path("runs/none").exists()
    assert rove("report", "runs/mine", "--rollouts", "-1").status == 2
    content_before = Path("runs/mine/rollouts.jsonl").read_bytes()
    done = rove("report", "runs/mine", "--html", "runs/mine/rollouts.jsonl")
    assert (done.status, done.err.split(";")[0]) == (2, "error: --html is 'runs/mine/rollouts.jsonl'")
    assert Path("runs/mine/rollouts.jsonl").read_bytes() == content_before
