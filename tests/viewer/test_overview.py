"""Test the overview page of a run: verdict on training, settings with their defaults, reasons for failures."""

from __future__ import annotations

import hashlib
import json
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from run_folders import make_record, make_scores, write_run_folder
from settings_page import DEFAULTS, defaults
from tiers import each_row

from rove.core.errors import ConfigError
from rove.runs.run import Run
from rove.viewer import queries, run_store, training_steps
from rove.viewer.api import ENDPOINTS, QueryParams
from rove.viewer.html import static_files
from rove.viewer.index import Index
from rove.viewer.overview import overview
from rove.viewer.run_settings import differences, flat, settings_of
from rove.viewer.run_store import RunStore
from rove.viewer.verdict import time_left, training_verdict

INDEXING_S = 60.0


def get_json(folder: Path, name: str, **params: Any) -> Any:
    """Return the API's result for the run `run` in the folder."""
    store = RunStore(folder)
    store.index("run", INDEXING_S)  # a slow machine would only index a part within the time of one request
    answer = ENDPOINTS[name](store, QueryParams([("run", "run"), *((k, str(v)) for k, v in params.items())]))
    return json.loads(msgspec.json.encode(answer))


def curve(**values: list[float]) -> list[dict[str, Any]]:
    """Return rows of metrics; the keyword `a__b` is the metric a/b."""
    size = len(next(iter(values.values())))
    return [{"step": i + 1, **{k.replace("__", "/"): v[i] for k, v in values.items()}} for i in range(size)]


NOISE = [0.01, -0.01, 0.02, 0.0, -0.02, 0.01, 0.0, -0.01, 0.02, -0.02]


def test_a_rise_of_the_reward_is_reported_with_interval_and_source():
    won = [0.2 + noise for noise in NOISE] + [0.8 + noise for noise in NOISE]
    rows = curve(reward__won=won, reward__format=[1.0] * 20, reward__mean=[noise + 0.2 for noise in won])
    first, parts = training_verdict(rows, {"won": 1.0, "format": 0.2})
    assert first.startswith("The reward rose from 0.400 to 1.000") and "+0.600 [" in first
    assert parts.startswith("By reward function (weight × change): won +0.600")


def test_a_rise_that_is_mostly_format_is_reported():
    format_values = [0.1 + noise for noise in NOISE] + [0.9 + noise for noise in NOISE]
    rows = curve(
        reward__won=[0.5] * 20,
        reward__format=format_values,
        reward__mean=[0.5 + 0.2 * noise for noise in format_values],
    )
    assert "format_gain: format is 100% of the rise" in training_verdict(rows, {"won": 1.0, "format": 0.2})[2]


def test_noise_and_too_few_steps_are_not_reported_as_progress():
    assert training_verdict(curve(reward__mean=NOISE * 2), {})[0].startswith(
        "flat_reward: no measurable change of the reward"
    )
    assert training_verdict(curve(reward__mean=[0.1, 0.9]), {})[0].startswith("Too few steps")
    assert training_verdict(curve(reward__mean=[0.5]), {}) == ["One step finished: reward 0.500."]
    assert training_verdict([], {}) == []


def test_a_single_lucky_step_is_no_fall_of_the_reward():
    reward = [0.2 + noise for noise in NOISE] + [1.0] + [0.8 + noise for noise in NOISE]
    assert len(training_verdict(curve(reward__mean=reward), {})) == 1


def test_a_fall_of_the_reward_and_an_entropy_collapse_are_reported():
    reward = [0.5 + noise for noise in NOISE] + [1.0] * 5 + [0.1 + noise for noise in NOISE]
    rows = curve(reward__mean=reward, entropy__all__mean=[1.0] * 12 + [0.01] * 13)
    first, peak, entropy, alerts = training_verdict(rows, {}, [{"step": 13, "id": "entropy_collapse"}])
    assert (
        "The reward fell" in first
        and "worse_since_best: the best mean of 10 values in a row was 0.750, in steps 6 to 15" in peak
    )
    assert entropy == "Entropy went from 1.000 to 0.010 nats per token."
    assert alerts == "1 alert: entropy_collapse (from step 13)."


def test_the_overview_caches_columns_of_large_runs_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_run_folder(tmp_path / "run", [make_record(0, i, float(i % 2)) for i in range(20)])
    monkeypatch.setattr(run_store, "PREPARE_PAUSE_S", 0.0)
    for minimum in (21, 20):
        monkeypatch.setattr(run_store, "MIN_PREPARED_ROLLOUTS", minimum)
        store = RunStore(tmp_path)
        old_threads = threading.enumerate()
        ENDPOINTS["overview"](store, QueryParams([("run", "run")]))
        for thread in set(threading.enumerate()) - set(old_threads):
            thread.join()
        index, _ = store.index("run")
        cached = {name for name in (("bars", "reward"), ("values", "stop")) if index.cached(name, lambda: None)}
        assert len(cached) == (0 if minimum == 21 else 2)
        store.close()


def test_the_overview_of_an_unfinished_run_reads_its_rollouts_once_and_only_after_indexing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = write_run_folder(tmp_path / "run", [make_record(0, i, 1.0) for i in range(3)])
    offsets = []
    outcome_at = Run.outcome_at
    monkeypatch.setattr(Run, "outcome_at", lambda self, offset: offsets.append(offset) or outcome_at(self, offset))
    store = RunStore(tmp_path)
    index, progress = store.index("run", INDEXING_S)
    assert overview(run, index, progress._replace(done=False))["cards"][1] == ("– / –", "rollouts scored")
    assert offsets == []
    for _ in range(2):
        assert overview(run, index, progress)["cards"][1] == ("3 / 3", "rollouts scored")
    assert len(offsets) == 3
    store.close()


def test_the_overview_of_a_complete_run_counts_a_damaged_line(tmp_path: Path):
    run = write_run_folder(tmp_path / "run", [make_record(0, 0, 1.0)])
    run.finish({"rollouts": 1, "scored": 1, "too_few": "1 scored example"})
    with (run.path / "rollouts.jsonl").open("ab") as file:
        file.write(b"{}\n")
    content = get_json(tmp_path, "overview")
    assert content["cards"][1] == ["1 / 1", "rollouts scored"]
    assert content["limit"] == "1 scored example; omitted: 1 damaged line of rollouts.jsonl"


def test_an_overwritten_run_is_shown_with_its_new_pass_threshold(tmp_path: Path):
    store = RunStore(tmp_path)
    params = QueryParams([("run", "run")])
    for threshold, passed in ((0.1, 1), (0.9, 0)):
        write_run_folder(tmp_path / "run", [make_record(0, 0, 0.5)], pass_threshold=threshold)
        content = ENDPOINTS["overview"](store, params)
        assert (content["threshold"], dict(content["outcomes"]).get("passed", 0)) == (threshold, passed)
        assert ENDPOINTS["reasons"](store, params)["total"] == 1 - passed
        for file in (tmp_path / "run").iterdir():
            file.unlink()
    store.close()


def test_the_number_of_open_indexes_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_store, "MAX_OPEN_INDEXES", 2)
    connected = set()
    connect, close = Index._connect, Index.close
    monkeypatch.setattr(Index, "_connect", lambda self: connected.add(self) or connect(self))
    monkeypatch.setattr(Index, "close", lambda self: connected.discard(self) or close(self))
    for i in range(5):
        write_run_folder(tmp_path / f"run{i}", [make_record(0, j, 1.0) for j in range(i + 1)])
    store = RunStore(tmp_path)
    for _ in range(2):
        rows = ENDPOINTS["runs"](store, QueryParams([]))["runs"]
        assert sorted(row["rollouts"] for row in rows) == [1, 2, 3, 4, 5]
        assert len(connected) == 2
    assert store.index("run0")[0].query("SELECT COUNT(*) FROM rollouts") == [(1,)]
    assert len(connected) == 2
    store.close()
    assert not connected


def test_reasons_for_failures_match_a_count_row_by_row(tmp_path: Path):
    """The run has more than 200 different replies and stop reasons, unreadable lines, and repeated rollouts."""
    rng, records = random.Random(0), []
    for i in range(480):
        completion = [{"role": "assistant", "content": rng.choice(["yes", "no", f"other {i}"])}]
        stop = rng.choice(["answered", "max_turns", f"reason {i}"])
        rollout_scores = make_scores(rng.choice([0.0, 0.5, 1.0]), length=rng.choice([1.0, 2.0]))
        records.append(make_record(i // 4, i % 4, completion=completion, stop_condition=stop, scores=rollout_scores))
    records[10:12] = [make_record(30, 0, None), make_record(30, 1, None)]  # failed rollouts that later lines repeat
    run = write_run_folder(tmp_path / "run", [*records, make_record(0, 0, None)], pass_threshold=1.2)
    lines = (run.path / "rollouts.jsonl").read_bytes().splitlines(keepends=True)
    (run.path / "rollouts.jsonl").write_bytes(b"".join([*lines[:5], b"bad\n", *lines[5:9], b"worse\n", *lines[9:]]))
    for params in ({}, {"from.step": 0}, {"is.score.length": 2, "to.line": 300}):
        rows = get_json(tmp_path, "rollouts", limit=500, **params)["rows"]
        failing = [row for row in rows if row["error"] or row["reward"] < 1.2]
        expected = {}
        for kind, minimum, value in (
            ("error", 1, lambda row: row["error"]),
            ("stop reason", 1, lambda row: None if row["error"] else row["stop"]),
            ("scores", 1, lambda row: row["scores"] and f"win = {row['scores']['win']:g}, format = 1"),
            ("answer", 2, lambda row: row["reply"]),
        ):
            matches = [(value(row), row["line"]) for row in failing if value(row)]
            counts = Counter(text for text, _ in matches).most_common(8)
            firsts = dict(reversed(matches))
            expected[kind] = [(text, count, firsts[text]) for text, count in counts if count >= minimum]
        reasons = get_json(tmp_path, "reasons", **params)
        assert reasons["total"] == len(failing)
        for kind, groups in expected.items():
            listed = [
                (group["label"], group["count"], group["line"]) for group in reasons["groups"] if group["kind"] == kind
            ]
            assert listed == groups, kind
        for group in reasons["groups"]:
            count = get_json(tmp_path, "rollouts", **params, **{"is.outcome": "below"}, **dict(group["filter"]))[
                "total"
            ]
            assert group["kind"] == "error" or count == group["count"]


def test_the_time_left_is_estimated_from_the_last_steps():
    rows = curve(derived__seconds=[900.0] * 5 + [30.0] * 10)
    assert time_left(rows, 25) == "about 5.0 min left of 25 steps"
    assert time_left(rows, 15) == time_left([], 15) == time_left(rows, None) == time_left(rows, 10**400) == ""
    assert time_left(curve(derived__seconds=["x", 10**400, float("nan"), None]), 9) == ""  # type: ignore[list-item]


@each_row("value", ["x", None, True, 1e400, -(10**400), [1]])
def test_metrics_of_other_types_cause_no_error(value: object):
    rows = [
        {"step": i, "reward/mean": value, "groups/all": value, "groups/zero_spread": value, "eval/x/reward/mean": value}
        for i in range(30)
    ]
    training_verdict(rows, {"won": 1.0})


def test_settings_that_differ_from_their_defaults_come_first(tmp_path: Path):
    config = {"temperature": 1.0, "learning_rate": 0.5, "evaluation": [{"env": "x", "num_examples": 100}], "seed": 0}
    run = write_run_folder(tmp_path / "run", [], kind="rl", **config)
    rows = settings_of(run)
    changed = [row["name"] for row in rows if row["changed"]]
    assert changed == ["env", "model", "evaluation[0].env", "learning_rate"]
    assert {row["name"]: row["default"] for row in rows}["learning_rate"] == "0.0003"
    second_run = write_run_folder(tmp_path / "other", [], kind="rl", **{**config, "seed": 1})
    assert differences([("a", run), ("b", second_run)])["rows"] == [{"name": "seed", "values": ["0", "1"]}]
    assert list(flat({"a": {"b": 1}, "c": [{"d": "e"}], "f": [], "g": None})) == [("a.b", "1"), ("c[0].d", "e")]


def test_the_stored_defaults_match_the_settings():
    assert DEFAULTS.read_bytes() == defaults(), "run make settings-page"


def test_an_evaluation_shows_outcomes_answers_and_reasons_for_failures(tmp_path: Path):
    reply = {"role": "assistant", "content": "<think>hm</think>It is <answer>7</answer>"}
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "look", "arguments": "{}"}}]}
    wrong = [make_record(1, i, 0.0, completion=[reply]) for i in range(3)]
    records = [make_record(0, 0), make_record(0, 1, completion=[call]), *wrong, make_record(2, 0, None)]
    with write_run_folder(tmp_path / "run", records, pass_threshold=1.2) as run:
        run.finish({})
    overview = get_json(tmp_path, "overview")
    assert overview["outcomes"] == [["below", 3], ["passed", 2], ["failed", 1]] and overview["threshold"] == 1.2
    assert overview["range"] == [0.0, 1.2]
    assert (
        "rove eval @" in overview["repeat"]
        and ["config.toml", (run.path / "config.toml").stat().st_size] in overview["files"]
    )
    rows = get_json(tmp_path, "rollouts")["rows"]
    assert [(row["reply"], row["answer"]) for row in rows] == [
        ("answer 0", "0"),
        ("look({})", "0"),
        *[("7", "1")] * 3,
        (None, "2"),
    ]
    groups = get_json(tmp_path, "reasons")["groups"]
    assert [(group["kind"], group["label"], group["count"], group["line"]) for group in groups] == [
        ("error", "model: InfraError", 1, 5),
        ("stop reason", "answered", 3, 2),
        ("scores", "win = 0, format = 1", 3, 2),
        ("answer", "7", 3, 2),
    ]
    for group in groups:
        chosen = get_json(tmp_path, "rollouts", **dict(group["filter"]))
        assert group["line"] in [row["line"] for row in chosen["rows"]]
    assert get_json(tmp_path, "reasons", **{"is.outcome": "passed"}) == {"total": 0, "groups": []}
    assert get_json(tmp_path, "rollouts", **{"is.reply": "7"})["total"] == 3


@pytest.mark.parametrize("sort", ["reward", "stop", "line"])
@pytest.mark.parametrize("order", ["up", "down"])
def test_rows_at_large_offsets_are_in_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sort: str, order: str
):
    records = [
        make_record(i, 0, None if i == 7 else (7 * i) % 5 / 10, stop_condition=f"stop {i % 3}") for i in range(10)
    ]
    run = write_run_folder(tmp_path / "run", [*records, make_record(3, 0, 0.9)])
    lines = (run.path / "rollouts.jsonl").read_bytes().splitlines(keepends=True)
    (run.path / "rollouts.jsonl").write_bytes(b"".join([*lines[:2], b"bad\n", *lines[2:6], b"worse\n", *lines[6:]]))
    for params in ({}, {"from.line": 3}, {"is.stop": "stop 1"}):
        all_rows = get_json(tmp_path, "rollouts", sort=sort, order=order, **params)["rows"]
        with monkeypatch.context() as patch:
            patch.setattr(queries, "MAX_UNCACHED_ROWS", 0)
            for offset in (0, 2, 50):
                result = get_json(tmp_path, "rollouts", sort=sort, order=order, offset=offset, limit=3, **params)
                assert result["rows"] == all_rows[offset : offset + 3] and result["total"] == len(all_rows)


def test_bands_of_the_reward_show_spread_interval_or_quantiles(tmp_path: Path):
    write_run_folder(
        tmp_path / "run", [make_record(i // 4, i % 4, i % 4 / 3 + i // 4, step=1) for i in range(12)], kind="rl"
    )
    bands = {band: get_json(tmp_path, "metrics", band=band)["steps"][0] for band in training_steps.BANDS}
    assert bands["spread"]["low"] == pytest.approx(bands["spread"]["mean"] - bands["spread"]["spread"])
    assert bands["quantiles"]["low"] == pytest.approx(0.2 + 1 / 3) and bands["quantiles"]["high"] == pytest.approx(
        2.2 + 2 / 3
    )
    half = 4.3026527 / 3**0.5  # the three group means are 1 apart
    assert bands["interval"]["high"] - bands["interval"]["mean"] == pytest.approx(half)
    with pytest.raises(ConfigError, match="band is 'wide'; expected spread, interval, quantiles"):
        get_json(tmp_path, "metrics", band="wide")


def test_the_table_of_runs_has_columns_for_metrics_and_settings(tmp_path: Path):
    with write_run_folder(tmp_path / "run", [make_record(0, 0), make_record(0, 1, None)], temperature=0.5) as run:
        run.finish({"functions": {"win": {"mean": 0.25}}, "pass@k": {"1": {"mean": 0.75}}})
    listing = get_json(tmp_path, "runs", column="metric.win")
    assert {"metric.win", "metric.pass@1", "setting.temperature"} <= set(listing["columns"])
    [row] = listing["runs"]
    assert row["values"] == {"metric.win": 0.25} and (row["failed"], row["passed"]) == (1, 1)
    assert row["range"] == [0.0, 1.2] and sum(row["bars"]["counts"]) == 1


def test_more_comparisons_widen_the_corrected_interval(tmp_path: Path):
    for name, wins in {"run": [0.0, 1.0, 0.5, 0.2] * 8, "b": [0.9, 1.0, 0.6, 0.1] * 8}.items():
        write_run_folder(tmp_path / name, [make_record(i, 0, win) for i, win in enumerate(wins)])
    single, of_ten = (get_json(tmp_path, "compare", a="run", b="b", comparisons=count) for count in (1, 10))
    assert single["corrected"] == pytest.approx([single["main"]["low"], single["main"]["high"]])
    assert of_ten["corrected"][0] < single["corrected"][0] < single["corrected"][1] < of_ten["corrected"][1]
    assert single["up"][0]["question"] == "question 0"


def test_the_corrected_interval_of_shares_stays_between_minus_1_and_1(tmp_path: Path):
    for name, wins in {"run": [0.0] * 8, "b": [1.0] * 7 + [0.0]}.items():
        write_run_folder(tmp_path / name, [make_record(i, 0, win) for i, win in enumerate(wins)])
    comparison = get_json(tmp_path, "compare", a="run", b="b", value="win", comparisons=50)
    assert comparison["corrected"][0] < comparison["main"]["low"] and comparison["corrected"][1] == 1.0
    reward = get_json(tmp_path, "compare", a="run", b="b", comparisons=50)
    assert reward["corrected"][1] > 1.0  # between 0.2 and 1.2


def test_scores_outside_of_the_weights_widen_the_range(tmp_path: Path):
    write_run_folder(tmp_path / "run", [make_record(0, 0, scores=make_scores(3.0))])
    assert get_json(tmp_path, "run")["range"] == [0.0, 3.2]


def test_vendored_libraries_match_their_recorded_digests():
    files = {name.removeprefix("vendor/"): content for name, content in static_files().items() if "vendor/" in name}
    digests = {
        file: digest for library in json.loads(files["libraries.json"]) for file, digest in library["files"].items()
    }
    assert files.keys() == {*digests, "libraries.json", "LICENSES.txt"}
    assert {file: hashlib.sha256(files[file]).hexdigest() for file in digests} == digests
    assert files["LICENSES.txt"].count(b"Permission is hereby granted") == len(json.loads(files["libraries.json"]))
