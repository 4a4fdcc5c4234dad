"""Test that the index matches the file when the file grows, is damaged or is truncated."""

from __future__ import annotations

import math
import os
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_folders import edit_line, make_record, make_scores

from rove.core.errors import ConfigError, RunError
from rove.core.records import RolloutRecord, Scores
from rove.runs.serialization import encode_record, with_checksum
from rove.utils.files import cache_folder, read_lines
from rove.viewer.index import MAX_CACHED_RESULTS, MAX_SCORE_COLUMNS, Index, drop_indexes, index_folder
from rove.viewer.queries import (
    MAX_CODED_VALUES,
    MAX_FACET_VALUES,
    columns,
    facet,
    histogram,
    info_choices,
    page,
    parse_filter,
)
from rove.viewer.training_steps import groups, steps


def encoded_line(*args: Any, **fields: Any) -> bytes:
    return encode_record(make_record(*args, **fields)) + b"\n"


def line_of_newer_schema(version: int) -> bytes:
    return edit_line(encode_record(make_record(9, 9)), b'"schema_version":2', b'"schema_version":%d' % version) + b"\n"


def read_index(file: Path) -> Index:
    index = Index(file)
    assert index.catch_up(60.0).done
    return index


def matching_lines(index: Index, **filters: Any) -> list[int]:
    chosen = parse_filter(columns(index), [(name.replace("__", "."), str(value)) for name, value in filters.items()])
    return [row["line"] for row in page(index, chosen, limit=500)["rows"]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rollouts.jsonl"


def test_a_growing_file_is_read_incrementally(file: Path):
    index = Index(file)
    assert index.catch_up() == (0, 0, True, 0, (0, 0))
    assert index.store is not None and not index.store.exists()  # no file, no index
    file.write_bytes(encoded_line(0, 0))
    assert index.catch_up().done and matching_lines(index) == [0]
    partial = encoded_line(0, 1)
    with file.open("ab") as stream:
        stream.write(partial[:50])
        stream.flush()
        progress = index.catch_up()
        assert (progress.done, progress.size - progress.bytes, progress.bad) == (True, 50, 0)
        assert matching_lines(index) == [0]
        stream.write(partial[50:])
    assert index.catch_up().done and matching_lines(index) == [0, 1]
    assert index.store.exists()
    assert list(file.parent.iterdir()) == [file]


def test_invalid_lines_are_counted_and_the_others_are_shown(file: Path):
    file.write_bytes(
        encoded_line(0, 0)
        + b"{garbage\n"
        + b'{"\xff\xfe": 1}\n'
        + line_of_newer_schema(99)
        + b"\n"
        + encoded_line(1, 0, None)
    )
    index = read_index(file)
    assert index.catch_up().bad == 4
    bad = index.query("SELECT line, why FROM bad ORDER BY line")
    assert [number for number, _ in bad] == [1, 2, 3, 4]
    assert "schema 99; this version of rove reads up to 2. Upgrade rove" in bad[2][1]
    assert matching_lines(index) == [0, 5]


def test_a_newer_schema_with_other_types_is_reported_by_its_number(file: Path):
    file.write_bytes(b'{"record": {"schema_version": 7, "scores": 3}, "steps": "elsewhere"}\n')
    [(why,)] = read_index(file).query("SELECT why FROM bad")
    assert "schema 7" in why


def test_a_rollout_with_a_too_large_number_is_invalid(file: Path):
    file.write_bytes(
        edit_line(encoded_line(0, 0), b'"example_id":0', b'"example_id":9007199254740993') + encoded_line(1, 0)
    )
    index = read_index(file)
    assert (index.catch_up().bad, matching_lines(index)) == (1, [1])


def test_a_file_with_an_endless_line_is_read_once(file: Path, monkeypatch: pytest.MonkeyPatch):
    reads = []

    def count_reads(stream: Any) -> Any:
        reads.append(stream.name)
        return read_lines(stream)

    monkeypatch.setattr("rove.utils.files.MAX_LINE_BYTES", 1000)
    monkeypatch.setattr("rove.viewer.index.read_lines", count_reads)
    with file.open("wb") as stream:
        stream.truncate(5000)
    index = Index(file)
    for _ in range(3):
        with pytest.raises(RunError, match="has more than 1,000 bytes"):
            index.catch_up()
    assert len(reads) == 1
    file.write_bytes(encoded_line(0, 0))
    assert index.catch_up().done


def test_the_last_record_of_a_repeated_rollout_counts(file: Path):
    file.write_bytes(
        encoded_line(0, 0, None) + encoded_line(0, 1) + encoded_line(0, 0, 0.5) + encoded_line(0, 0, step=3)
    )
    index = read_index(file)
    assert matching_lines(index) == [1, 2, 3]
    assert matching_lines(index, is__superseded=1) == [0]


@pytest.mark.parametrize("end", [0, 1, 3])
def test_a_file_that_was_truncated_and_extended_is_read_again(file: Path, end: int):
    old_lines = [encoded_line(i, 0, 0.0) for i in range(4)]
    file.write_bytes(b"".join(old_lines))
    index = read_index(file)
    new_lines = [encoded_line(i, 0, 1.0) for i in range(10, 14)]
    file.write_bytes(b"".join([*old_lines[:end], *new_lines]))
    assert index.catch_up().done
    rows = page(index, parse_filter({}, []))["rows"]
    assert [row["example"] for row in rows] == [*range(end), *range(10, 14)]


def test_a_damaged_outdated_or_missing_index_is_rebuilt(file: Path):
    file.write_bytes(encoded_line(0, 0) + encoded_line(1, 0))
    store = Index(file).store
    assert store is not None
    store.write_bytes(b"this is no database" * 100)
    assert matching_lines(read_index(file)) == [0, 1]
    index = read_index(file)
    index.query("PRAGMA user_version = 77")
    index.close()
    index = read_index(file)
    assert matching_lines(index) == [0, 1]
    store.unlink()
    assert index.catch_up().done and matching_lines(index) == [0, 1] and store.exists()


def test_an_index_with_other_tables_is_rebuilt(file: Path):
    file.write_bytes(encoded_line(0, 0))
    store = Index(file).store
    assert store is not None
    with sqlite3.connect(store) as connection:
        connection.executescript("CREATE TABLE rollouts (x); CREATE VIEW seen AS SELECT 1; PRAGMA user_version = 1;")
    connection.close()
    assert matching_lines(read_index(file)) == [0]


@pytest.mark.parametrize("broken", ["no folder", "a folder in place of the database"])
def test_an_index_that_cannot_be_written_is_kept_in_memory(file: Path, tmp_path: Path, broken: str):
    file.write_bytes(encoded_line(0, 0))
    folder = tmp_path / "indexes"
    store = Index(file, folder).store
    assert store is not None
    if broken == "no folder":
        folder.rmdir()
        folder.write_bytes(b"")
    else:
        store.mkdir()
    index = Index(file, folder)
    assert index.catch_up().done
    assert matching_lines(index) == [0]
    with file.open("ab") as stream:
        stream.write(encoded_line(1, 0))
    assert index.catch_up().done and matching_lines(index) == [0, 1]


def test_a_large_file_is_read_in_pieces(file: Path):
    file.write_bytes(b"".join(encoded_line(i, 0) for i in range(300)))
    index = Index(file)
    progress = [index.catch_up(0.0)]
    while not progress[-1].done:
        assert len(matching_lines(index)) < 300
        progress.append(index.catch_up(0.0))
    assert len(progress) > 3 and len(matching_lines(index)) == 300


def test_two_viewers_share_an_index(file: Path):
    file.write_bytes(encoded_line(0, 0))
    first, second = read_index(file), read_index(file)
    with file.open("ab") as stream:
        stream.write(encoded_line(1, 0))
    assert second.catch_up().done and first.catch_up().done
    assert matching_lines(first) == matching_lines(second) == [0, 1]


def test_score_names_beyond_the_maximum_have_no_columns(file: Path):
    many_scores = make_scores(1.0, **{f"metric{i}": float(i) for i in range(MAX_SCORE_COLUMNS + 50)})
    file.write_bytes(encoded_line(0, 0, scores=many_scores))
    index = read_index(file)
    assert len(index.columns()) == MAX_SCORE_COLUMNS and matching_lines(index) == [0]


def test_a_file_that_changed_only_in_the_middle_is_read_again(file: Path):
    """Only the middle of the file changes: its size is the same, its modification time is different."""
    lines = [encoded_line(i, 0, 1.0, completion=[{"role": "assistant", "content": "x" * 6000}]) for i in range(3)]
    file.write_bytes(b"".join(lines))
    rows = page(read_index(file), parse_filter({}, []))["rows"]
    assert [row["reward"] for row in rows] == [pytest.approx(1.2)] * 3
    status = file.stat()
    with file.open("rb+") as stream:
        stream.seek(len(lines[0]))
        changed = edit_line(lines[1], b'"reward":1.2', b'"reward":9.2')
        stream.write(with_checksum(changed.removesuffix(b"\n")) + b"\n")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    rows = page(read_index(file), parse_filter({}, []))["rows"]
    assert [row["reward"] for row in rows] == [pytest.approx(reward) for reward in (1.2, 9.2, 1.2)]


def test_indexes_of_deleted_and_least_recently_used_runs_are_dropped(tmp_path: Path):
    folder, stores = tmp_path / "indexes", []
    for number in range(5):
        file = tmp_path / str(number) / "rollouts.jsonl"
        file.parent.mkdir()
        file.write_bytes(encoded_line(number, 0))
        index = Index(file, folder)
        assert index.catch_up().done and index.store is not None
        index.close()
        os.utime(index.store, (number, number))
        stores.append(index.store)
    (tmp_path / "1/rollouts.jsonl").unlink()
    (folder / "notes.txt").write_text("not an index")
    drop_indexes(folder, keep=stores[0], max_indexes=3)
    assert sorted(folder.glob("*.sqlite")) == sorted([stores[0], stores[3], stores[4]])
    drop_indexes(folder, keep=stores[0], max_bytes=0)
    assert list(folder.glob("*.sqlite")) == [stores[0]] and (folder / "notes.txt").exists()


def test_creating_an_index_deletes_those_of_deleted_runs(tmp_path: Path):
    folder = tmp_path / "indexes"
    for number in range(3):
        file = tmp_path / f"{number}.jsonl"
        file.write_bytes(encoded_line(number, 0))
        index = Index(file, folder)
        index.catch_up()
        index.close()
        file.unlink()
    assert len(list(folder.iterdir())) == 1


def test_indexes_are_in_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("rove.viewer.index.cache_folder", cache_folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert index_folder() == tmp_path / "rove/indexes"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert index_folder() == tmp_path / ".cache/rove/indexes"


# Queries


values = st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0]), st.floats(-1e6, 1e6))


@st.composite
def rollouts(draw: st.DrawFn) -> list[RolloutRecord]:
    records = []
    for number in range(draw(st.integers(0, 25))):
        win = draw(values)
        step = draw(st.one_of(st.none(), st.integers(1, 3)))
        odd_name = draw(st.text(max_size=3))
        rollout_scores = None if win is None else Scores(win, {"win": win, odd_name: 1.0}, {"win": 1.0})
        records.append(
            make_record(
                number // 4, number, win, scores=rollout_scores, step=step, stop_condition=draw(st.sampled_from("ab"))
            )
        )
    return records


@settings(max_examples=60, deadline=None)
@given(rollouts(), st.floats(-10, 10))
def test_query_results_match_the_records(
    tmp_path_factory: pytest.TempPathFactory, recorded: list[RolloutRecord], low: float
):
    file = tmp_path_factory.mktemp("run") / "rollouts.jsonl"
    file.write_bytes(b"".join(encode_record(rollout) + b"\n" for rollout in recorded))
    index = read_index(file)
    known_columns = columns(index)
    no_filter = parse_filter(known_columns, [])
    all_rows = page(index, no_filter, limit=500)
    assert [row["line"] for row in all_rows["rows"]] == list(range(len(recorded)))
    assert dict(facet(index, no_filter, "stop")["values"]) == Counter(rollout.stop_condition for rollout in recorded)
    rewards = [rollout.reward for rollout in recorded if rollout.reward is not None and math.isfinite(rollout.reward)]
    bars = histogram(index, no_filter, "reward")
    assert bars["count"] == len(rewards) == sum(bar["count"] for bar in bars["bars"])
    for bar in bars["bars"]:
        ends = [("from.reward", repr(bar["from"]))] + ([("to.reward", repr(bar["to"]))] if "to" in bar else [])
        if "value" not in bar:
            assert page(index, parse_filter(known_columns, ends))["total"] == bar["count"]
        else:
            assert (
                page(index, parse_filter(known_columns, [("is.reward", repr(bar["value"]))]))["total"] == bar["count"]
            )
    above = page(index, parse_filter(known_columns, [("from.reward", repr(low))]), "reward", descending=True)
    assert [row["reward"] for row in above["rows"]] == sorted((r for r in rewards if r >= low), reverse=True)
    assert sum(row["rollouts"] for row in steps(index)) == sum(rollout.step is not None for rollout in recorded)


ODD_FIELD = "a\"') FROM rollouts; DROP TABLE rollouts --"


def test_rollouts_are_filtered_by_the_fields_of_their_rows(file: Path):
    infos: list[Any] = [
        {"style": "eu", "level": 3},
        {"style": "us", "level": "3", ODD_FIELD: 0.25},
        {"style": "us", "level": 3.0, "hard": True, "text": "x" * 1000, "parts": [1]},
        None,
        {"style": "eu", "level": 2.5, "large": "x" * 200_000},  # too large to be read
        "no object",
    ]
    nested = edit_line(encoded_line(6, info={"x": 0}), b'"info":{"x":0}', b'"info":' + 4000 * b"[" + 4000 * b"]")
    file.write_bytes(b"".join(encoded_line(number, info=info) for number, info in enumerate(infos)) + nested)
    index = read_index(file)
    assert index.info_fields() == ["style", "level", ODD_FIELD, "hard"]
    assert matching_lines(index, is__info__style="us") == [1, 2]
    assert matching_lines(index, is__info__level="3") == [0, 1, 2]
    assert matching_lines(index, is__info__hard="True") == [2]
    assert matching_lines(index, is__info__style="") == [3, 4, 5]
    conditions = [(f"is.info.{ODD_FIELD}", "0.25")]
    assert [row["line"] for row in page(index, parse_filter(columns(index), conditions))["rows"]] == [1]
    everything = parse_filter(columns(index), [])
    assert matching_lines(index, from__info__level="2.7") == [0, 2]  # not the text "3"
    assert info_choices(index) == ["info.style", "info.level", f"info.{ODD_FIELD}", "info.hard"]
    assert facet(index, everything, "info.style")["values"] == [(None, 3), ("us", 2), ("eu", 1)]
    assert facet(index, everything, "info.level")["values"] == [(None, 3), (3, 2), ("3", 1)]
    assert [row["line"] for row in page(index, everything, "info.style")["rows"]] == [3, 4, 5, 0, 1, 2]


def test_errors_of_invalid_queries_name_the_expected_values(file: Path):
    file.write_bytes(encoded_line(0, 0))
    index = read_index(file)
    known_columns = columns(index)
    with pytest.raises(ConfigError, match=r"no column 'rewrd'; did you mean 'reward'"):
        parse_filter(known_columns, [("is.rewrd", "1")])
    with pytest.raises(ConfigError, match="the value for 'reward' is 'x'; expected a number"):
        parse_filter(known_columns, [("from.reward", "x")])
    with pytest.raises(ConfigError, match="is not numeric"):
        histogram(index, parse_filter(known_columns, []), "stop")
    with pytest.raises(ConfigError, match="offset is -1"):
        page(index, parse_filter(known_columns, []), offset=-1)
    with pytest.raises(RunError, match="delete it"):
        index.query("SELECT nothing FROM nowhere")


def test_filters_accept_several_values_and_missing_values(file: Path):
    file.write_bytes(
        encoded_line(0, 0)
        + encoded_line(1, 0, None)
        + encoded_line(2, 0, stop_condition="b")
        + encoded_line(3, 0, stop_condition="c")
    )
    index = read_index(file)
    known_columns = columns(index)
    either_stop = parse_filter(known_columns, [("is.stop", "b"), ("is.stop", "")])
    assert [row["line"] for row in page(index, either_stop)["rows"]] == [1, 2]
    assert facet(index, parse_filter(known_columns, []), "error")["values"] == [(None, 3), ("model: InfraError", 1)]
    both_columns = parse_filter(known_columns, [("is.score.win", "1.0"), ("is.stop", "c")])
    assert [row["question"] for row in page(index, both_columns)["rows"]] == ["question 3"]


def test_a_filter_does_not_change_the_bars_of_a_histogram(file: Path):
    file.write_bytes(b"".join(encoded_line(i, 0, win) for i, win in enumerate([0.0, 0.5, 0.5, 1.0])))
    index = read_index(file)
    known_columns = columns(index)
    filtered = histogram(index, parse_filter(known_columns, [("is.score.win", "0.5")]), "score.win")
    assert [(bar["value"], bar["count"]) for bar in filtered["bars"]] == [(0.0, 0), (0.5, 2), (1.0, 0)]
    assert (filtered["count"], filtered["mean"]) == (2, 0.5)


def test_texts_have_no_bar(file: Path):
    levels = [2, "hard", 4, "2"]
    file.write_bytes(b"".join(encoded_line(i, 0, info={"level": level}) for i, level in enumerate(levels)))
    index = read_index(file)
    bars = histogram(index, parse_filter(columns(index), []), "info.level")
    assert (bars["count"], bars["mean"]) == (2, 3.0)
    assert [bar["value"] for bar in bars["bars"] if bar["count"]] == [2.0, 4.0]


def test_a_value_at_the_edge_of_a_bar_is_counted_in_the_bar_that_lists_it(file: Path):
    """In floating-point numbers, 17 x 0.05 is more than 0.85, but 0.85 / 0.05 is 17."""
    score_list = [Scores(win, {"win": win}, {"win": 1.0}) for win in (0.0, 1.0, 0.85, 0.03125)]
    file.write_bytes(b"".join(encoded_line(i, 0, scores=rollout_scores) for i, rollout_scores in enumerate(score_list)))
    index = read_index(file)
    known_columns = columns(index)
    for bar in histogram(index, parse_filter(known_columns, []), "reward")["bars"]:
        ends = [("from.reward", repr(bar["from"]))] + ([("to.reward", repr(bar["to"]))] if "to" in bar else [])
        assert page(index, parse_filter(known_columns, ends))["total"] == bar["count"]


@pytest.mark.parametrize("most", [MAX_CODED_VALUES - 1, MAX_CODED_VALUES + 5])
def test_few_and_many_values_are_counted_in_the_same_way(file: Path, most: int):
    stops = [None if i % most == 3 else f"stop {i % most}" for i in range(3 * most + 2)]
    file.write_bytes(b"".join(encoded_line(i, 0, stop_condition=stop) for i, stop in enumerate(stops)))
    index = read_index(file)
    known_columns = columns(index)
    counts = Counter(stops)
    expected = sorted(counts.items(), key=lambda item: (-item[1], item[0] is not None, item[0] or ""))
    unfiltered = facet(index, parse_filter(known_columns, []), "stop")
    assert (unfiltered["values"], unfiltered["others"]) == (
        expected[:MAX_FACET_VALUES],
        max(0, len(expected) - MAX_FACET_VALUES),
    )
    filtered = facet(index, parse_filter(known_columns, [("to.line", "2")]), "stop")["values"]
    assert filtered == [("stop 0", 1), ("stop 1", 1)]  # values without a selected rollout are left out


def test_zero_advantage_groups_are_counted(file: Path):
    records = [
        make_record(example, i, win, step=1)
        for example, wins in enumerate([(1, 1), (0, 1), (0, 0)])
        for i, win in enumerate(wins)
    ]
    file.write_bytes(b"".join(encode_record(rollout) + b"\n" for rollout in records))
    index = read_index(file)
    result = groups(index, 1, 1)
    assert (result["groups"], result["dead"], sum(bar["count"] for bar in result["bars"])) == (3, 2, 3)
    assert groups(index, 2, 5) == {"groups": 0, "dead": 0, "bars": []}
    [step] = steps(index)
    assert (step["step"], step["rollouts"], step["mean"]) == (1, 6, pytest.approx(0.7))
    assert step["spread"] == pytest.approx(0.5)


def test_rows_have_the_columns_that_lists_show(file: Path):
    file.write_bytes(
        msgspec.json.encode({"nothing": 1}) + b"\n" + encoded_line(0, 0, prompt=[{"role": "user", "content": 5}])
    )
    index = read_index(file)
    [row] = page(index, parse_filter({}, []))["rows"]
    assert (row["question"], row["scores"]["win"], row["size"]) == ("", 1.0, os.stat(file).st_size - row["offset"])


def test_cached_counts_are_updated_when_the_file_grows(file: Path, monkeypatch: pytest.MonkeyPatch):
    file.write_bytes(encoded_line(0, 0) + encoded_line(0, 1, 0.5))
    index = read_index(file)
    no_filter = parse_filter(columns(index), [])
    first = facet(index, no_filter, "turns"), histogram(index, no_filter, "reward")
    queries: list[str] = []
    run_query = index.query
    monkeypatch.setattr(index, "query", lambda sql, values=(): queries.append(sql) or run_query(sql, values))
    assert (facet(index, no_filter, "turns"), histogram(index, no_filter, "reward")) == first
    assert not any("GROUP BY" in sql for sql in queries)
    assert facet(index, parse_filter(columns(index), [("to.reward", "1")]), "turns")["values"] == [(1, 1)]
    with file.open("ab") as stream:
        stream.write(encoded_line(1, 0, None))
    assert index.catch_up().done
    assert facet(index, no_filter, "turns")["values"] == [(1, 2), (0, 1)]
    with pytest.raises(ConfigError, match="is not numeric"):
        histogram(index, no_filter, "stop")
    for number in range(MAX_CACHED_RESULTS * 2):  # the number of cached results is limited
        facet(index, parse_filter(columns(index), [("to.reward", str(number))]), "env")
    assert len(index._cache) <= MAX_CACHED_RESULTS
