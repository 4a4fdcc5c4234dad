"""`rove init`: names of packages, and the commands that it suggests."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import in_process_rove


@pytest.mark.parametrize("name", ["class", "async"])
def test_a_keyword_is_no_name_of_a_package(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    created = in_process_rove(tmp_path, monkeypatch, capsys)("init", name)
    assert created.status == 2 and "is a keyword of Python" in created.err and not list(tmp_path.iterdir())


def test_suggested_commands_quote_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    created = in_process_rove(tmp_path, monkeypatch, capsys)("init", "my-task", "--dir", "env dir")
    output = " ".join(created.out.split())
    assert "--env-dir 'env dir'" in output and "rove build 'env dir/my_task'" in output
