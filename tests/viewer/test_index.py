"""The index says what the file says, however the file grows, breaks or is cut."""

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
from made import record, scores

from rove.core.errors import ConfigError, RunError
from rove.core.records import RolloutRecord, Scores
from rove.runs.serialization import encode_record
from rove.utils.files import cache_folder
from rove.viewer.index import MAX_CACHED_RESULTS, MAX_SCORE_COLUMNS, Index, drop_indexes, index_folder
from rove.viewer.queries import (
    MAX_CODED_VALUES,
    MAX_FACET_VALUES,
    columns,
    facet,
    histogram,
    page,
    parse_filter,
)
from rove.viewer.training_steps import groups, steps


def line(*args: Any, **fields: Any) -> bytes:
    return encode_record(record(*args, **fields)) + b"\n"


def newer(version: int) -> bytes:
    return encode_record(record(9, 9)).replace(b'"schema_version":2', b'"schema_version":%d' % version) + b"\n"


def read(file: Path) -> Index:
    index = Index(file)
    assert index.catch_up(60.0).done
    return index


def lines_of(index: Index, **wanted: Any) -> list[int]:
    chosen = parse_filter(columns(index), [(name.replace("__", "."), str(value)) for name, value in wanted.items()])
    return [row["line"] for row in page(index, chosen, limit=500)["rows"]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rollouts.jsonl"


def test_a_live_file_is_read_as_it_grows(file: Path):
    index = Index(file)
    assert index.catch_up() == (0, 0, True, 0, (0, 0))
    assert index.store is not None and not index.store.exists()  # no file, no index
    file.write_bytes(line(0, 0))
    assert index.catch_up().done and lines_of(index) == [0]
    torn = line(0, 1)
    with file.open("ab") as stream:
        stream.write(torn[:50])
        stream.flush()
        seen = index.catch_up()
        assert (seen.done, seen.size - seen.bytes, seen.bad) == (True, 50, 0)
        assert lines_of(index) == [0]
        stream.write(torn[50:])
    assert index.catch_up().done and lines_of(index) == [0, 1]
    assert index.store.exists()
    assert list(file.parent.iterdir()) == [file]


def test_a_line_that_is_no_rollout_is_counted_and_the_others_are_shown(file: Path):
    file.write_bytes(line(0, 0) + b"{garbage\n" + b'{"\xff\xfe": 1}\n' + newer(99) + b"\n" + line(1, 0, None))
    index = read(file)
    assert index.catch_up().bad == 4
    bad = index.query("SELECT line, why FROM bad ORDER BY line")
    assert [number for number, _ in bad] == [1, 2, 3, 4]
    assert "schema 99; this version of rove reads up to 2. Upgrade rove" in bad[2][1]
    assert lines_of(index) == [0, 5]


def test_a_schema_whose_shape_has_changed_is_told_as_such(file: Path):
    file.write_bytes(b'{"record": {"schema_version": 7, "scores": 3}, "steps": "elsewhere"}\n')
    [(why,)] = read(file).query("SELECT why FROM bad")
    assert "schema 7" in why


def test_numbers_that_nothing_counts_are_no_rollouts(file: Path):
    file.write_bytes(line(0, 0).replace(b'"example_id":0', b'"example_id":9007199254740993') + line(1, 0))
    index = read(file)
    assert (index.catch_up().bad, lines_of(index)) == (1, [1])


def test_of_a_repeated_rollout_the_last_counts(file: Path):
    file.write_bytes(line(0, 0, None) + line(0, 1) + line(0, 0, 0.5) + line(0, 0, step=3))
    index = read(file)
    assert lines_of(index) == [1, 2, 3]
    assert lines_of(index, is__superseded=1) == [0]


@pytest.mark.parametrize("end", [0, 1, 3])
def test_a_file_that_was_cut_and_written_on_is_read_anew(file: Path, end: int):
    before = [line(i, 0, 0.0) for i in range(4)]
    file.write_bytes(b"".join(before))
    index = read(file)
    after = [line(i, 0, 1.0) for i in range(10, 14)]
    file.write_bytes(b"".join([*before[:end], *after]))
    assert index.catch_up().done
    rows = page(index, parse_filter({}, []))["rows"]
    assert [row["example"] for row in rows] == [*range(end), *range(10, 14)]


def test_an_index_is_made_anew_where_it_is_broken_old_or_gone(file: Path):
    file.write_bytes(line(0, 0) + line(1, 0))
    store = Index(file).store
    assert store is not None
    store.write_bytes(b"this is no database" * 100)
    assert lines_of(read(file)) == [0, 1]
    index = read(file)
    index.query("PRAGMA user_version = 77")
    index.close()
    index = read(file)
    assert lines_of(index) == [0, 1]
    store.unlink()
    assert index.catch_up().done and lines_of(index) == [0, 1] and store.exists()


def test_an_index_with_other_tables_is_rebuilt(file: Path):
    file.write_bytes(line(0, 0))
    store = Index(file).store
    assert store is not None
    with sqlite3.connect(store) as other:
        other.executescript("CREATE TABLE rollouts (x); CREATE VIEW seen AS SELECT 1; PRAGMA user_version = 1;")
    other.close()
    assert lines_of(read(file)) == [0]


@pytest.mark.parametrize("broken", ["no folder", "a folder in place of the database"])
def test_an_index_that_cannot_be_written_is_kept_in_memory(file: Path, tmp_path: Path, broken: str):
    file.write_bytes(line(0, 0))
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
    assert lines_of(index) == [0]
    with file.open("ab") as stream:
        stream.write(line(1, 0))
    assert index.catch_up().done and lines_of(index) == [0, 1]


def test_a_large_file_is_read_in_pieces(file: Path):
    file.write_bytes(b"".join(line(i, 0) for i in range(300)))
    index = Index(file)
    pieces = [index.catch_up(0.0)]
    while not pieces[-1].done:
        assert len(lines_of(index)) < 300
        pieces.append(index.catch_up(0.0))
    assert len(pieces) > 3 and len(lines_of(index)) == 300


def test_two_viewers_share_an_index(file: Path):
    file.write_bytes(line(0, 0))
    first, second = read(file), read(file)
    with file.open("ab") as stream:
        stream.write(line(1, 0))
    assert second.catch_up().done and first.catch_up().done
    assert lines_of(first) == lines_of(second) == [0, 1]


def test_more_names_than_columns_cost_the_names_only(file: Path):
    many = scores(1.0, **{f"metric{i}": float(i) for i in range(MAX_SCORE_COLUMNS + 50)})
    file.write_bytes(line(0, 0, scores=many))
    index = read(file)
    assert len(index.columns()) == MAX_SCORE_COLUMNS and lines_of(index) == [0]


def test_a_file_replaced_by_one_with_the_same_ends_is_read_again(file: Path):
    """The middle of the file is changed: its size stays, its time of change does not."""
    wins = [line(i, 0, 1.0, completion=[{"role": "assistant", "content": "x" * 6000}]) for i in range(3)]
    file.write_bytes(b"".join(wins))
    found = page(read(file), parse_filter({}, []))["rows"]
    assert [row["reward"] for row in found] == [pytest.approx(1.2)] * 3
    then = file.stat()
    with file.open("rb+") as stream:
        stream.seek(len(wins[0]))
        stream.write(wins[1].replace(b'"reward":1.2', b'"reward":9.2'))
    os.utime(file, ns=(then.st_atime_ns, then.st_mtime_ns + 1))
    found = page(read(file), parse_filter({}, []))["rows"]
    assert [row["reward"] for row in found] == [pytest.approx(win) for win in (1.2, 9.2, 1.2)]


def test_indexes_of_runs_that_are_gone_or_not_used_for_long_are_dropped(tmp_path: Path):
    folder, stores = tmp_path / "indexes", []
    for place in range(5):
        file = tmp_path / str(place) / "rollouts.jsonl"
        file.parent.mkdir()
        file.write_bytes(line(place, 0))
        index = Index(file, folder)
        assert index.catch_up().done and index.store is not None
        index.close()
        os.utime(index.store, (place, place))
        stores.append(index.store)
    (tmp_path / "1/rollouts.jsonl").unlink()
    (folder / "notes.txt").write_text("not an index")
    drop_indexes(folder, keep=stores[0], max_indexes=3)
    assert sorted(folder.glob("*.sqlite")) == sorted([stores[0], stores[3], stores[4]])
    drop_indexes(folder, keep=stores[0], max_bytes=0)
    assert list(folder.glob("*.sqlite")) == [stores[0]] and (folder / "notes.txt").exists()


def test_a_new_index_takes_the_place_of_those_whose_runs_are_gone(tmp_path: Path):
    folder = tmp_path / "indexes"
    for place in range(3):
        file = tmp_path / f"{place}.jsonl"
        file.write_bytes(line(place, 0))
        index = Index(file, folder)
        index.catch_up()
        index.close()
        file.unlink()
    assert len(list(folder.iterdir())) == 1


def test_indexes_follow_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("rove.viewer.index.cache_folder", cache_folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert index_folder() == tmp_path / "rove/indexes"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert index_folder() == tmp_path / ".cache/rove/indexes"


# Questions


values = st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0]), st.floats(-1e6, 1e6))


@st.composite
def rollouts(draw: st.DrawFn) -> list[RolloutRecord]:
    made = []
    for place in range(draw(st.integers(0, 25))):
        win = draw(values)
        step = draw(st.one_of(st.none(), st.integers(1, 3)))
        odd = draw(st.text(max_size=3))
        some = None if win is None else Scores(win, {"win": win, odd: 1.0}, {"win": 1.0})
        made.append(record(place // 4, place, win, scores=some, step=step, stop_condition=draw(st.sampled_from("ab"))))
    return made


@settings(max_examples=60, deadline=None)
@given(rollouts(), st.floats(-10, 10))
def test_answers_are_those_of_the_records(
    tmp_path_factory: pytest.TempPathFactory, made: list[RolloutRecord], low: float
):
    file = tmp_path_factory.mktemp("run") / "rollouts.jsonl"
    file.write_bytes(b"".join(encode_record(one) + b"\n" for one in made))
    index = read(file)
    known = columns(index)
    every = parse_filter(known, [])
    whole = page(index, every, limit=500)
    assert [row["line"] for row in whole["rows"]] == list(range(len(made)))
    assert dict(facet(index, every, "stop")["values"]) == Counter(one.stop_condition for one in made)
    rewards = [one.reward for one in made if one.reward is not None and math.isfinite(one.reward)]
    drawn = histogram(index, every, "reward")
    assert drawn["count"] == len(rewards) == sum(bar["count"] for bar in drawn["bars"])
    for bar in drawn["bars"]:
        ends = [("from.reward", repr(bar["from"]))] + ([("to.reward", repr(bar["to"]))] if "to" in bar else [])
        if "value" not in bar:
            assert page(index, parse_filter(known, ends))["total"] == bar["count"]
        else:
            assert page(index, parse_filter(known, [("is.reward", repr(bar["value"]))]))["total"] == bar["count"]
    above = page(index, parse_filter(known, [("from.reward", repr(low))]), "reward", descending=True)
    assert [row["reward"] for row in above["rows"]] == sorted((r for r in rewards if r >= low), reverse=True)
    assert sum(row["rollouts"] for row in steps(index)) == sum(one.step is not None for one in made)


def test_wrong_questions_are_told_what_would_be_right(file: Path):
    file.write_bytes(line(0, 0))
    index = read(file)
    known = columns(index)
    with pytest.raises(ConfigError, match=r"no column 'rewrd'; did you mean 'reward'"):
        parse_filter(known, [("is.rewrd", "1")])
    with pytest.raises(ConfigError, match="the value for 'reward' is 'x'; expected a number"):
        parse_filter(known, [("from.reward", "x")])
    with pytest.raises(ConfigError, match="is not numeric"):
        histogram(index, parse_filter(known, []), "stop")
    with pytest.raises(ConfigError, match="offset is -1"):
        page(index, parse_filter(known, []), offset=-1)
    with pytest.raises(RunError, match="delete it"):
        index.query("SELECT nothing FROM nowhere")


def test_several_values_and_none(file: Path):
    file.write_bytes(line(0, 0) + line(1, 0, None) + line(2, 0, stop_condition="b") + line(3, 0, stop_condition="c"))
    index = read(file)
    known = columns(index)
    some = parse_filter(known, [("is.stop", "b"), ("is.stop", "")])
    assert [row["line"] for row in page(index, some)["rows"]] == [1, 2]
    assert facet(index, parse_filter(known, []), "error")["values"] == [(None, 3), ("model: InfraError", 1)]
    one = parse_filter(known, [("is.score.win", "1.0"), ("is.stop", "c")])
    assert [row["question"] for row in page(index, one)["rows"]] == ["question 3"]


def test_bars_stay_where_they_are_whichever_rollouts_are_chosen(file: Path):
    file.write_bytes(b"".join(line(i, 0, win) for i, win in enumerate([0.0, 0.5, 0.5, 1.0])))
    index = read(file)
    known = columns(index)
    some = histogram(index, parse_filter(known, [("is.score.win", "0.5")]), "score.win")
    assert [(bar["value"], bar["count"]) for bar in some["bars"]] == [(0.0, 0), (0.5, 2), (1.0, 0)]
    assert (some["count"], some["mean"]) == (2, 0.5)


def test_a_value_at_the_edge_of_a_bar_is_counted_where_it_is_listed(file: Path):
    """17 x 0.05 is more than 0.85, though 0.85 / 0.05 is 17."""
    plain = [Scores(win, {"win": win}, {"win": 1.0}) for win in (0.0, 1.0, 0.85, 0.03125)]
    file.write_bytes(b"".join(line(i, 0, scores=one) for i, one in enumerate(plain)))
    index = read(file)
    known = columns(index)
    for bar in histogram(index, parse_filter(known, []), "reward")["bars"]:
        ends = [("from.reward", repr(bar["from"]))] + ([("to.reward", repr(bar["to"]))] if "to" in bar else [])
        assert page(index, parse_filter(known, ends))["total"] == bar["count"]


@pytest.mark.parametrize("most", [MAX_CODED_VALUES - 1, MAX_CODED_VALUES + 5])
def test_few_values_and_many_are_counted_alike(file: Path, most: int):
    stops = [None if i % most == 3 else f"stop {i % most}" for i in range(3 * most + 2)]
    file.write_bytes(b"".join(line(i, 0, stop_condition=stop) for i, stop in enumerate(stops)))
    index = read(file)
    known = columns(index)
    counts = Counter(stops)
    told = sorted(counts.items(), key=lambda one: (-one[1], one[0] is not None, one[0] or ""))
    every = facet(index, parse_filter(known, []), "stop")
    assert (every["values"], every["others"]) == (told[:MAX_FACET_VALUES], max(0, len(told) - MAX_FACET_VALUES))
    some = facet(index, parse_filter(known, [("to.line", "2")]), "stop")["values"]
    assert some == [("stop 0", 1), ("stop 1", 1)]  # those that nobody has chosen are left out


def test_groups_without_spread_are_counted(file: Path):
    made = [
        record(example, i, win, step=1)
        for example, wins in enumerate([(1, 1), (0, 1), (0, 0)])
        for i, win in enumerate(wins)
    ]
    file.write_bytes(b"".join(encode_record(one) + b"\n" for one in made))
    index = read(file)
    seen = groups(index, 1, 1)
    assert (seen["groups"], seen["dead"], sum(bar["count"] for bar in seen["bars"])) == (3, 2, 3)
    assert groups(index, 2, 5) == {"groups": 0, "dead": 0, "bars": []}
    [step] = steps(index)
    assert (step["step"], step["rollouts"], step["mean"]) == (1, 6, pytest.approx(0.7))
    assert step["spread"] == pytest.approx(0.5)


def test_what_the_index_keeps_is_what_lists_need(file: Path):
    file.write_bytes(msgspec.json.encode({"nothing": 1}) + b"\n" + line(0, 0, prompt=[{"role": "user", "content": 5}]))
    index = read(file)
    [row] = page(index, parse_filter({}, []))["rows"]
    assert (row["question"], row["scores"]["win"], row["size"]) == ("", 1.0, os.stat(file).st_size - row["offset"])


def test_what_was_counted_is_counted_again_once_there_is_more(file: Path, monkeypatch: pytest.MonkeyPatch):
    file.write_bytes(line(0, 0) + line(0, 1, 0.5))
    index = read(file)
    every = parse_filter(columns(index), [])
    first = facet(index, every, "turns"), histogram(index, every, "reward")
    asked: list[str] = []
    ask = index.query
    monkeypatch.setattr(index, "query", lambda sql, values=(): asked.append(sql) or ask(sql, values))
    assert (facet(index, every, "turns"), histogram(index, every, "reward")) == first
    assert not any("GROUP BY" in sql for sql in asked)
    assert facet(index, parse_filter(columns(index), [("to.reward", "1")]), "turns")["values"] == [(1, 1)]
    with file.open("ab") as stream:
        stream.write(line(1, 0, None))
    assert index.catch_up().done
    assert facet(index, every, "turns")["values"] == [(1, 2), (0, 1)]
    with pytest.raises(ConfigError, match="is not numeric"):
        histogram(index, every, "stop")
    for number in range(MAX_CACHED_RESULTS * 2):  # answers do not pile up
        facet(index, parse_filter(columns(index), [("to.reward", str(number))]), "env")
    assert len(index._cache) <= MAX_CACHED_RESULTS
