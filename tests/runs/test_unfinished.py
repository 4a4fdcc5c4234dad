"""Run folders of runs that ended early."""

from __future__ import annotations

import os

import msgspec
import pytest

from rove.core.errors import RunError
from rove.runs.run import Run
from tests.runs.test_run import IDENTITY, record, start


def test_stopped_json_contains_the_progress_and_the_resume_command(tmp_path):
    with pytest.raises(KeyboardInterrupt), Run(tmp_path / "run") as run:
        run.resume_command = "rove rl @ config.toml"
        run.start("rl", {}, IDENTITY)
        for index in range(3):
            run.append_rollout(record(index))
        run.append_metrics({"step": 1})
        raise KeyboardInterrupt
    assert msgspec.json.decode((run.path / "stopped.json").read_bytes()) == {
        "why": "interrupted by the user",
        "rollouts": 3,
        "step": 1,
        "resume": "rove rl @ config.toml",
    }
    run.start("rl", {}, IDENTITY)
    assert not (run.path / "stopped.json").exists()


def test_a_failure_before_the_first_result_removes_the_folders_it_created(tmp_path):
    (tmp_path / "runs").mkdir()
    with pytest.raises(RunError), start(tmp_path / "runs" / "demo" / "sft"):
        raise RunError("no such model")
    assert list(tmp_path.iterdir()) == [tmp_path / "runs"]
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_failure_keeps_a_folder_that_existed_has_results_or_was_interrupted(tmp_path):
    def fail(name: str, error: BaseException, result: str = "") -> list[str]:
        with pytest.raises(type(error)), start(tmp_path / name) as run:
            if result:
                (run.path / result).write_text("x")
            raise error
        return sorted(os.listdir(tmp_path / name))

    (tmp_path / "mine").mkdir()
    assert "stopped.json" in fail("mine", RunError("late"))
    assert "rollouts.jsonl" in fail("played", RunError("late"), "rollouts.jsonl")
    assert "stopped.json" in fail("stopped", KeyboardInterrupt())
    assert fail("other", RunError("early"), "notes.txt")[-3:] == ["notes.txt", "stopped.json", "versions.json"]
