"""Test the names of run folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from rove.stages.naming import file_name


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("tictactoe", "tictactoe"),
        ("scripted:teacher", "scripted-teacher"),
        ("./dates.py", "dates.py"),
        ("../tasks/dates.py", "tasks-dates.py"),
        ("/home/me/tasks/dates.py", "tasks-dates.py"),
        ("runs/train/rl1/final/", "rl1-final"),
        ("owner/name@1.2", "owner-name-1.2"),
        ("~/.hidden", "--.hidden"),
        (".hidden", "hidden"),
    ],
)
def test_names_have_the_last_two_parts_and_are_not_hidden(part: str, name: str) -> None:
    assert file_name(part) == name


def test_the_current_folder_has_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "task").mkdir()
    monkeypatch.chdir(tmp_path / "task")
    assert file_name(".") == "task"
