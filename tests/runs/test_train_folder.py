"""Test reading the folder of `rove train`."""

from __future__ import annotations

from pathlib import Path

import pytest
from train_folders import write_train_folder

import rove as vf
from rove.runs.layout import is_train_folder
from rove.runs.run import Run
from rove.runs.train_folder import DIAGNOSES, RESULTS, TrainFolder, locked


def test_the_contents_of_a_folder_of_rove_train(tmp_path: Path):
    folder = write_train_folder(tmp_path / "mine")
    assert folder.is_complete
    assert [(row.name, row.is_trained) for row in folder.rows()] == [("base", False), ("+ SFT", True), ("+ RL", True)]
    assert [stage.path.name for stage in folder.stages()] == ["sft", "rl1"]
    [diagnosis] = folder.diagnoses()
    assert (diagnosis.stage, diagnosis.id) == ("rl1", "collapse")
    assert folder.completion().cost == "took 2.0 minutes"
    assert folder.evaluation_folder("+ RL", "greedy") == folder.path / "eval" / "RL-greedy"


def test_an_empty_folder_has_nothing(tmp_path: Path):
    folder = TrainFolder(tmp_path)
    assert (folder.rows(), folder.stages(), folder.diagnoses(), folder.is_complete) == ([], [], [], False)


def test_damaged_files_are_named(tmp_path: Path):
    folder = write_train_folder(tmp_path / "mine")
    for name, read in ((RESULTS, folder.rows), (DIAGNOSES, folder.diagnoses)):
        (folder.path / name).write_text('[{"name"', encoding="utf-8")
        with pytest.raises(vf.RunError, match=name):
            read()


def test_stages_are_in_their_order(tmp_path: Path):
    for name in ("full", "rl10", "rl2", "sft", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").touch()
    assert [stage.path.name for stage in TrainFolder(tmp_path).stages()] == ["sft", "rl2", "rl10", "full"]


def test_the_error_for_a_folder_of_rove_train_names_its_runs(tmp_path: Path):
    folder = write_train_folder(tmp_path / "mine").path
    runs = [str(folder / name) for name in ("eval/RL-greedy", "eval/SFT-greedy", "eval/base-greedy", "rl1", "sft")]
    with pytest.raises(vf.RunError) as raised:
        Run(folder).config()
    hint = "it is a folder of rove train, with the run folders"
    assert str(raised.value) == f"{folder} is not a run folder: it has no config.toml; {hint} {', '.join(runs)}"


def test_one_command_at_a_time_trains_in_a_folder(tmp_path: Path):
    with locked(tmp_path / "mine"):
        with (
            pytest.raises(vf.RunError, match="another command trains in .*mine"),
            locked(tmp_path / "mine", attempts=2),
        ):
            pass
        with locked(tmp_path / "another"):
            pass
    with locked(tmp_path / "mine"):
        pass


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["results.json"], True),
        (["sft", "eval", "recipe.toml"], True),
        (["rl2", "recipe.toml"], True),
        (["data", "sft", "rl", "eval"], False),  # a folder of single runs with these names
        (["recipe.toml", "mine"], False),
        (["config.toml", "results.json"], False),  # a separate run
        (["sft"], False),  # a folder of runs with this name
        (["eval", "mine"], False),
        ([], False),
    ],
)
def test_folders_of_rove_train_are_recognized(names: list[str], expected: bool):
    assert is_train_folder(names) is expected
