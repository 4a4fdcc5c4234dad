"""`rove view` from the command line."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from pathlib import Path

import pytest
from commands import in_process_rove, start_rove
from run_folders import make_record, write_run_folder


@pytest.mark.broad
def test_view_prints_its_address_and_ctrl_c_stops_it(tmp_path: Path):
    write_run_folder(tmp_path / "runs/one", [make_record()])
    with start_rove(tmp_path, "view", "--port", "0") as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            match = re.search(r"showing runs at (http://127\.0\.0\.1:\d+/) ", line)
            assert match, line
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(match[1] + "api/runs") as answer:
                assert [run["name"] for run in json.load(answer)["runs"]] == ["one"]
        finally:
            process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=20)
        assert (process.returncode, "stopped" in output, errors) == (0, True, "")


def test_a_missing_folder_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    done = in_process_rove(tmp_path, monkeypatch, capsys)("view", "nowhere")
    assert (done.status, done.err) == (
        2,
        "error: no folder 'nowhere'; expected a folder of runs: rove view RUNS_DIR\n",
    )
