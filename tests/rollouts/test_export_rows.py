"""Selection of the rollouts of a run that become rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_folders import make_record, write_run_folder

import rove as vf
from rove.rollouts.export import RunRows
from rove.rollouts.filters import Filter
from rove.runs.run import Run

MIXED = [
    make_record(0, 0, None),
    make_record(0, 1, 0.0),
    make_record(0, 0, 1.0),
    make_record(0, 1, None),
    make_record(1, 0, None),
    make_record(0, 1, 0.5),
]


def test_the_last_score_of_a_rollout_is_exported_and_failures_are_excluded(tmp_path: Path):
    run = write_run_folder(tmp_path, MIXED)
    rows = RunRows(run)
    assert (rows.scored, rows.failed) == (2, 1)
    assert [(row["example_id"], row["rollout_index"], row["reward"]) for row in rows] == [(0, 0, 1.2), (0, 1, 0.7)]
    finished = list(run.finished())
    assert [(row["example_id"], row["rollout_index"]) for row in rows] == [
        (record.example_id, record.rollout_index) for record in finished
    ]
    assert [row["reward"] for row in rows] == [record.reward for record in finished]


def test_a_row_is_that_of_make_dataset_plus_its_origin(tmp_path: Path):
    [row] = RunRows(write_run_folder(tmp_path, [make_record(3, 2)]))
    assert row == {
        **vf.make_dataset([make_record(3, 2)])[0],
        "example_id": 3,
        "rollout_index": 2,
        "stop_condition": "answered",
    }


def test_an_invalid_filter_is_reported_at_once(tmp_path: Path):
    with pytest.raises(vf.ConfigError, match="did you mean 'win'"):
        RunRows(write_run_folder(tmp_path, MIXED), Filter("metrics.wim > 0"))


def test_a_run_without_scores_and_a_folder_that_is_no_run_are_rejected(tmp_path: Path):
    with pytest.raises(vf.RunError, match=r"no scored rollouts \(1 failed\)"):
        RunRows(write_run_folder(tmp_path / "failed", [make_record(win=None)]))
    with pytest.raises(vf.RunError, match="is not a run folder"):
        RunRows(Run(tmp_path / "none"))
