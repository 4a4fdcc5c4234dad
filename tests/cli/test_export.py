"""`rove export` from the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from commands import Rove, in_process_rove
from run_folders import make_record, write_run_folder

import rove as vf
from rove.runs.annotations import Change, RolloutId, annotate

RECORDS = [make_record(0, 0, 1.0), make_record(0, 1, 0.0), make_record(1, 0, None), make_record(1, 1, 0.5)]


@pytest.fixture
def rove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    write_run_folder(tmp_path / "run", RECORDS)
    return in_process_rove(tmp_path, monkeypatch, capsys)


def rows(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_bytes().splitlines()]


def files(folder: str) -> set[str]:
    return {path.name for path in Path(folder).iterdir()} - {".lock"}


def test_every_scored_rollout_is_a_row(rove: Rove):
    done = rove("export", "run")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("3 of 3 scored rollouts → run/data.jsonl (1 failed rollouts excluded)\n")
    assert 'load it: datasets.load_dataset("json", data_files="run/data.jsonl")' in done.out
    assert "rove sft --data run -m MODEL" in done.out
    assert [row["reward"] for row in rows("run/data.jsonl")] == [1.2, 0.2, 0.7]


def test_filter_and_output_path(rove: Rove):
    done = rove(
        "export", "run", "--filter", "metrics.win > 0 and metrics.format == 1", "-o", "out/mine.jsonl", "--json"
    )
    assert json.loads(done.out) == {
        "rows": 2,
        "scored": 3,
        "failed": 1,
        "path": "out/mine.jsonl",
        "form": "jsonl",
        "pushed": None,
    }
    wins = [row["metrics"]["win"] for row in rows("out/mine.jsonl")]
    assert wins == [1.0, 0.5]
    expected = vf.make_dataset(RECORDS, filter="metrics.win > 0 and metrics.format == 1")
    extra = ("example_id", "rollout_index", "stop_condition")
    assert [{key: row[key] for key in row if key not in extra} for row in rows("out/mine.jsonl")] == expected


@pytest.mark.parametrize(
    ("words", "there"),
    [
        (["--to", "parquet"], "run/data.parquet"),
        (["-o", "mine.parquet"], "mine.parquet"),
        (["--to", "hf-dir"], "run/data"),
    ],
)
def test_other_file_formats(rove: Rove, words: list[str], there: str):
    assert rove("export", "run", *words).status == 0
    if there.endswith("parquet"):
        assert Path(there).read_bytes().startswith(b"PAR1")
    else:
        assert len(datasets.load_from_disk(there)) == 3


@pytest.mark.parametrize("words", [["-o", "mine.csv"], ["--to", "csv", "-o", "mine.csv"]])
def test_a_csv_file_has_a_line_per_rollout(rove: Rove, words: list[str]):
    done = rove("export", "run", *words)
    assert (done.status, done.err) == (0, "")
    assert 'load it: datasets.load_dataset("csv", data_files="mine.csv")' in done.out
    with open("mine.csv", newline="") as file:
        table_rows = list(csv.DictReader(file))
    assert [float(row["reward"]) for row in table_rows] == [1.2, 0.2, 0.7]
    assert {"example_id", "prompt", "completion", "answer", "metrics.win", "metrics.format"} <= table_rows[0].keys()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--filter", "metrics.wim > 0"],
            "metrics has no 'wim' here; did you mean 'win'? There are: format, length, win",
        ),
        (["--filter", "win > 0"], "a reward function or metric is metrics.win"),
        (["--filter", "reward >"], "invalid syntax"),
        (["--filter", "reward > 9"], "no rollout passes the filter; nothing was written"),
        (["--to", "xml"], "'xml' is not one of 'jsonl', 'csv', 'parquet', 'hf-dir'"),
        (["-o", "rows.xlsx"], "rows.xlsx ends in '.xlsx'; expected .jsonl, .csv, .parquet, or give the form with --to"),
        (["-o", "rows.csv", "--to", "jsonl"], "rows.csv ends in '.csv', but the form is jsonl"),
        (["-o", "run/rollouts.jsonl"], "run/rollouts.jsonl is part of the run; give another -o"),
        (["-o", "run", "--to", "hf-dir"], "run is part of the run"),
        (["-o", "folder"], "folder is a folder"),
        (["--to", "hf-dir", "-o", "folder"], "folder is there already and no dataset"),
        (["--push", "games"], "--push takes OWNER/NAME, got 'games'"),
        (["--push", "me/games", "--to", "parquet"], "--push uploads a dataset folder"),
    ],
)
def test_invalid_arguments_are_refused_before_anything_is_written(rove: Rove, words: list[str], message: str):
    Path("folder").mkdir()
    Path("folder/kept.txt").touch()
    first_state = files("run"), files("."), Path("run/rollouts.jsonl").read_bytes()
    done = rove("export", "run", *words)
    assert (done.status, done.out) == (2, "")
    assert message in done.err
    assert "Traceback" not in done.err
    assert (files("run"), files("."), Path("run/rollouts.jsonl").read_bytes()) == first_state


def test_a_folder_without_a_run_is_refused(rove: Rove):
    done = rove("export", "nothing")
    assert (done.status, done.err) == (1, "error: nothing is not a run folder: it does not exist\n")
    assert not Path("nothing").exists()


def test_nothing_is_uploaded_without_the_push_flag(rove: Rove, monkeypatch: pytest.MonkeyPatch):
    uploads: list[tuple[int, str]] = []
    monkeypatch.setattr(datasets.Dataset, "push_to_hub", lambda self, name, **_: uploads.append((len(self), name)))
    assert rove("export", "run", "--to", "hf-dir").status == 0
    assert uploads == []
    done = rove("export", "run", "--filter", "reward > 0.5", "--push", "me/games", "--json")
    assert uploads == [(2, "me/games")]
    counts = json.loads(done.out)
    assert (counts["pushed"], counts["form"]) == ("https://huggingface.co/datasets/me/games", "hf-dir")
    assert "uploaded: https://huggingface.co/datasets/me/games" in rove("export", "run", "--push", "me/games").out


def test_rollouts_are_filtered_by_tags(rove: Rove):
    for rollout, tags in {("key0", 0): ["good"], ("key0", 1): ["good", "bad"], ("key1", 1): ["odd"]}.items():
        annotate(Path("run"), Change(tags, rollout=RolloutId(*rollout)))

    def rewards(*words: str) -> list[float]:
        assert rove("export", "run", *words, "-o", "out.jsonl").status == 0
        return [row["reward"] for row in rows("out.jsonl")]

    assert rewards("--tag", "good") == [1.2, 0.2]
    assert rewards("--tag", "good", "--not-tag", "bad") == [1.2]
    assert rewards("--tag", "good", "--tag", "odd", "--filter", "reward < 1") == [0.2, 0.7]
    assert rewards("--not-tag", "good") == [0.7]
    done = rove("export", "run", "--tag", "god", "-o", "out.jsonl")
    assert (done.status, done.err) == (2, "error: no rollout of run is tagged 'god'; did you mean 'good'?\n")
    (Path("run") / "annotations.jsonl").open("ab").write(b"{\n")
    done = rove("export", "run", "--not-tag", "bad", "-o", "out.jsonl")
    assert done.status == 1 and "annotations.jsonl, line 4: not an annotation" in done.err
    assert rove("export", "run", "-o", "run/annotations.jsonl").status == 2
