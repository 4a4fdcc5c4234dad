"""Reading a run folder with missing or damaged files. See tests/viewer/test_hostile.py for untrusted folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_folders import make_record, write_run_folder

from rove.core.errors import RunError
from rove.runs.files import RunFiles


def test_a_folder_without_files_has_nothing_to_read(tmp_path: Path):
    files = RunFiles(tmp_path)
    assert (files.summary(), files.versions(), files.why_stopped()) == (None, [], "")
    assert (files.metrics(), files.alerts(), list(files.lines_of("rollouts.jsonl"))) == ([], [], [])
    with pytest.raises(RunError, match=r"is not a run folder: it has no config\.toml"):
        files.config()


def test_the_error_names_a_damaged_line_of_metrics(tmp_path: Path):
    run = write_run_folder(tmp_path, [make_record()], kind="rl")
    for step in (1, 2, 3):
        run.append_metrics({"step": step, "loss": None})
    run.close()
    file = tmp_path / "metrics.jsonl"
    assert [row["step"] for row in run.metrics()] == [1, 2, 3]
    file.write_bytes(file.read_bytes().replace(b'{"step":2', b'{"st\0\0:2'))
    with pytest.raises(RunError, match=r"metrics\.jsonl, line 2: not a row of numbers and texts"):
        run.metrics()


def test_an_incomplete_last_line_is_ignored(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n{"step": 2')
    assert RunFiles(tmp_path).metrics() == [{"step": 1}]


@pytest.mark.parametrize("name", ["summary.json", "versions.json", "stopped.json"])
def test_the_error_names_a_truncated_file(tmp_path: Path, name: str):
    (tmp_path / name).write_bytes(b'{"reward": {"mean')
    files = RunFiles(tmp_path)
    read = {"summary.json": files.summary, "versions.json": files.versions, "stopped.json": files.why_stopped}
    with pytest.raises(RunError, match=f"{name} is damaged, or not a file that rove wrote"):
        read[name]()
