"""Exported rows: files are written atomically and read back unchanged."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pyarrow.parquet
import pytest
from run_folders import make_record, make_scores, write_run_folder

import rove as vf
from rove.rollouts import export
from rove.rollouts.export import Row, RunRows, push, write_rows

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}}
CONVERSATION = [
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "hm"},
    {"role": "tool", "content": [{"type": "text", "text": "to"}, {"type": "text", "text": "ol"}], "tool_call_id": "c1"},
    {"role": "assistant", "content": "done"},
]
VARIED = [
    make_record(0),
    make_record(1, scores=make_scores(0.0, speed=2.0), stop_condition=None),
    make_record(2, completion=CONVERSATION, info={}),
]
FORMATS = ("jsonl", "parquet", "hf-dir")


def read_rows(path: Path, form: str) -> list[dict[str, Any]]:
    if form == "jsonl":
        return [json.loads(line) for line in path.read_bytes().splitlines()]
    if form == "parquet":
        return pyarrow.parquet.read_table(path).to_pylist()
    return datasets.load_from_disk(str(path)).to_list()


def without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    return [without_none(item) for item in value] if isinstance(value, list) else value


def test_csv_cells_are_text_or_json(tmp_path: Path):
    odd = make_record(
        3, prompt=[{"role": "user", "content": 'a "b",\nc'}], completion=[{"role": "assistant", "content": "é\ud800"}]
    )
    rows = RunRows(write_run_folder(tmp_path / "run", [*VARIED, odd]))
    assert write_rows(rows, tmp_path / "rows.csv", "csv") == 4
    with (tmp_path / "rows.csv").open(encoding="utf-8", newline="") as file:
        loaded = list(csv.DictReader(file))
    assert [row["metrics.speed"] for row in loaded] == ["", "2.0", "", ""]
    assert json.loads(loaded[2]["completion"]) == CONVERSATION
    assert json.loads(loaded[2]["info"]) == {}
    assert loaded[3]["prompt"] == 'a "b",\nc'
    assert loaded[3]["completion"].startswith("é")


@pytest.mark.parametrize("form", FORMATS)
def test_rows_are_read_back_unchanged(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(export, "ROW_GROUP", 2)
    rows = RunRows(write_run_folder(tmp_path / "run", VARIED))
    target = tmp_path / "deep" / "rows"
    assert write_rows(rows, target, form) == 3
    loaded = read_rows(target, form)
    if form == "jsonl":
        assert loaded == list(rows)
    else:
        for row in loaded:
            row["info"] = json.loads(row["info"])
        expected = without_none(list(rows))
        expected[2]["completion"][1]["content"] = "tool"
        assert without_none(loaded) == expected
    assert list(loaded[0]) == list(export.COLUMNS)
    assert [path.name for path in target.parent.iterdir()] == ["rows"]
    assert write_rows(rows, target, form) == 3  # replaces the existing file
    assert [path.name for path in target.parent.iterdir()] == ["rows"]


@pytest.mark.parametrize("form", FORMATS)
def test_rows_contain_the_tools_of_the_model(tmp_path: Path, form: str):
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
    rows = RunRows(write_run_folder(tmp_path / "run", [make_record(0, tools=tools)]))
    write_rows(rows, tmp_path / "rows", form)
    [row] = read_rows(tmp_path / "rows", form)
    assert (row["tools"] if form == "jsonl" else json.loads(row["tools"])) == tools


def test_parquet_is_written_in_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(export, "ROW_GROUP", 2)
    write_rows(RunRows(write_run_folder(tmp_path / "run", VARIED)), tmp_path / "rows.parquet", "parquet")
    assert pyarrow.parquet.ParquetFile(tmp_path / "rows.parquet").num_row_groups == 2


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_exported_rows_can_be_the_dataset_of_an_environment(tmp_path: Path, form: str):
    rows = RunRows(write_run_folder(tmp_path / "run", [make_record(3)]))
    write_rows(rows, tmp_path / "rows.jsonl", form)
    source = str(tmp_path / "rows.jsonl") if form == "jsonl" else read_rows(tmp_path / "rows.jsonl", form)
    [example] = vf.SingleTurnEnv(dataset=source, rubric=vf.Rubric()).get_dataset()
    assert (example["prompt"], example["answer"], example["info"]) == (
        [vf.UserMessage("question 3")],
        "3",
        {"level": 3},
    )


class Broken:
    """Rows of which the third raises an error."""

    def __init__(self, rows: list[Row]):
        self.rows = rows

    def __iter__(self) -> Iterator[Row]:
        yield from self.rows[:2]
        raise vf.RunError("torn")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("there_before", [False, True])
def test_a_failed_export_leaves_no_partial_file(tmp_path: Path, form: str, there_before: bool):
    rows = list(RunRows(write_run_folder(tmp_path / "run", VARIED)))
    folder = tmp_path / "out"
    if there_before:
        write_rows(rows[:1], folder / "rows", form)
    with pytest.raises(vf.RunError, match="torn"):
        write_rows(Broken(rows), folder / "rows", form)
    if there_before:
        assert len(read_rows(folder / "rows", form)) == 1
    assert [path.name for path in folder.iterdir()] == ["rows"] * there_before


@pytest.mark.parametrize("form", FORMATS)
def test_no_file_is_written_without_rows(tmp_path: Path, form: str):
    with pytest.raises(vf.ConfigError, match="no rollout passes the filter; nothing was written"):
        write_rows([], tmp_path / "rows", form)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_no_dataset_is_not_replaced(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    rows = list(RunRows(write_run_folder(tmp_path / "run", VARIED)))
    with pytest.raises(vf.ConfigError, match="is there already and no dataset"):
        write_rows(rows, tmp_path / "mine", "hf-dir")
    with pytest.raises(vf.ConfigError, match="is a folder"):
        write_rows(rows, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.tex").exists()


def test_values_that_do_not_fit_into_columns_are_errors(tmp_path: Path):
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]
    mixed = [[{"role": "user", "content": "text", "mood": "good"}], [{"role": "user", "content": "text", "mood": [1]}]]
    for prompts, message in (([image], "not text"), (mixed, "do not fit into columns")):
        records = [make_record(i, prompt=prompt) for i, prompt in enumerate(prompts)]
        rows = RunRows(write_run_folder(tmp_path / message, records))
        with pytest.raises(vf.ConfigError, match=f"{message}.*use --to jsonl"):
            write_rows(rows, tmp_path / "rows.parquet", "parquet")
        assert write_rows(rows, tmp_path / "rows.jsonl") == len(records)


def test_a_rubric_without_functions_has_no_metrics_column(tmp_path: Path):
    rows = RunRows(write_run_folder(tmp_path / "run", [make_record(scores=vf.Scores(0.0, {}, {}))]))
    write_rows(rows, tmp_path / "rows.parquet", "parquet")
    assert "metrics" not in read_rows(tmp_path / "rows.parquet", "parquet")[0]


def test_jsonl_works_without_the_hf_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    rows = list(RunRows(write_run_folder(tmp_path / "run", VARIED)))
    for form in ("parquet", "hf-dir"):
        with pytest.raises(vf.ConfigError, match=r"pip install 'rove\[hf\]'"):
            write_rows(rows, tmp_path / "rows", form)
    assert write_rows(rows, tmp_path / "rows") == 3


def test_a_dataset_is_pushed_privately_and_kept_if_the_upload_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_rows(RunRows(write_run_folder(tmp_path / "run", VARIED)), tmp_path / "data", "hf-dir")
    uploads: list[tuple[int, str, dict[str, Any]]] = []
    monkeypatch.setattr(
        datasets.Dataset, "push_to_hub", lambda self, name, **options: uploads.append((len(self), name, options))
    )
    assert push(tmp_path / "data", "me/games") == "https://huggingface.co/datasets/me/games"
    assert uploads == [(3, "me/games", {"private": True})]

    def fail(self: Any, name: str, **options: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr(datasets.Dataset, "push_to_hub", fail)
    with pytest.raises(vf.InfraError, match="is written, but could not be uploaded as me/games: no network"):
        push(tmp_path / "data", "me/games")
    assert len(read_rows(tmp_path / "data", "hf-dir")) == 3
