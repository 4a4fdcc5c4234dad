"""`rove compare`: two run folders, one answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import Rove, in_this_process

from rove.core.records import ErrorInfo, RolloutRecord, Scores
from rove.runs.run import Run
from tests.runs.test_serialization import make_record


@pytest.fixture
def rove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    return in_this_process(tmp_path, monkeypatch, capsys)


def record(example: int, reward: float, index: int = 0, **fields) -> RolloutRecord:
    scores = Scores(reward, {"win": reward}, {"win": 1.0}, {"turns": 3.0 + example % 2})
    return make_record(example_key=f"key{example}", example_id=example, rollout_index=index, scores=scores, **fields)


def failed(example: int) -> RolloutRecord:
    error = ErrorInfo("model", "InfraError", "gone")
    return make_record(example_key=f"key{example}", example_id=example, scores=None, error=error)


def keep(path: str, records: list[RolloutRecord], kind: str = "eval", **identity) -> None:
    settings = {"env": "tictactoe", "temperature": 0.0, "env_args": {"seed": 1}, **identity}
    with Run(path) as run:
        run.start(kind, settings, settings)
        for one in records:
            run.append_rollout(one)


def test_people_get_the_verdict_the_numbers_and_what_differs(rove: Rove):
    keep("runs/old", [record(i, 0.0) for i in range(20)])
    keep("runs/new", [record(i, float(i > 4)) for i in range(18)], temperature=1.0, env_args={"seed": 1, "easy": True})
    done = rove("compare", "runs/old", "runs/new/")
    assert (done.status, done.err) == (0, "")
    said = done.out.splitlines()
    assert said[:3] == [
        "new is better than old: reward +0.722 [+0.399, +0.901] on 18 shared examples",
        "new: higher on 13, equal on 5, lower on 0",
        "excluded because the other run did not score them: 2 of old, 0 of new",
    ]
    settings = said.index("settings that differ:")
    assert said[settings + 1 :] == [
        "  env_args.easy: not set → True",
        "  temperature: 0.0 → 1.0",
        "",
        "→ compare another value: rove compare runs/old runs/new --value win",
    ]
    assert any(line.split() == ["│", "5", "│", "0", "│", "1.000", "│", "+1.000", "│", "key5", "│"] for line in said)
    assert max(map(len, said)) <= 100


def test_markdown_is_all_that_is_printed(rove: Rove):
    keep("old", [record(i, 0.0) for i in range(20)])
    keep("new", [record(i, float(i > 4)) for i in range(20)], temperature="@all\n|")
    done = rove("compare", "old", "new", "--markdown")
    assert done.status == 0
    said = done.out.splitlines()
    assert said[0].startswith("**new is better than old")
    assert said[2] == "| value | `old` | `new` | difference | 95 % interval |  |"
    assert [line for line in said if line.startswith("- `temperature`: `0.0` → `")]
    done = rove("compare", "old", "new", "--markdown", "--json")
    assert done.status == 2 and "--json and --markdown exclude each other" in done.err


def test_markdown_names_what_was_evaluated(rove: Rove):
    identity = {"env": "quiz#0.2.0#4a35f3899150"}
    for name, rewards in (("one", [0.0] * 6), ("two", [1.0] * 5)):
        with Run(name) as run:
            config = {"env": "quiz", "model": f"models/{name}", "rollouts_per_example": 2, "num_examples": 3}
            run.start("eval", config, {**identity, "model": f"folder#{name}"})
            for i, reward in enumerate(rewards):
                run.append_rollout(record(i // 2, reward, i % 2))
    said = rove("compare", "one", "two", "--markdown").out.splitlines()
    version = Run("one").versions()[-1]["rove"]
    assert f"- `one`: model `models/one` in `quiz 0.2.0`; 3 examples, 2 rollouts per example; rove {version}" in said
    assert any("in `quiz 0.2.0`; 3 examples, 2 rollouts per example (1 not scored); rove" in line for line in said)
    assert "- `model`: `'models/one'` → `'models/two'`" in said
    assert "folder#" not in "".join(said)


def test_changed_weights_in_one_folder_are_seen(rove: Rove):
    for name in ("one", "two"):
        with Run(name) as run:
            run.start("eval", {"env": "quiz", "model": "models/tiny"}, {"env": "quiz", "model": f"folder#{name}"})
            run.append_rollout(record(0, 1.0))
    assert "model: 'models/tiny (folder#one)' → 'models/tiny (folder#two)'" in rove("compare", "one", "two").out


def test_no_difference_says_how_to_get_one(rove: Rove):
    keep("a", [record(i, i % 2) for i in range(10)])
    keep("b", [record(i, i % 3 / 2) for i in range(10)])
    done = rove("compare", "a", "b")
    assert "no detectable difference: reward " in done.out
    assert "more examples would be needed to detect a difference of 0.02" in done.out
    assert "settings that differ" not in done.out
    needed = json.loads(rove("compare", "a", "b", "--json").out)["needed_examples"]
    commands = f"rove eval --resume a -n {needed} && rove eval --resume b -n {needed}"
    assert f"→ evaluate more examples in both runs: {commands}" in done.out


def test_of_a_repeated_rollout_the_last_line_counts_and_of_a_failed_one_none(rove: Rove):
    keep(
        "a",
        [
            record(0, 0.0),
            record(1, 0.0),
            failed(0),
            record(0, 0.25),
            record(1, 0.5, index=1),
            record(2, 1.0),
            failed(2),
        ],
    )
    keep("b", [record(i, 1.0) for i in range(3)])
    found = json.loads(rove("compare", "a", "b", "--json").out)
    assert (found["main"]["examples"], found["only_a"], found["only_b"]) == (2, 0, 1)
    assert [(mover["example_id"], mover["a"]) for mover in found["up"]] == [(0, 0.25), (1, 0.25)]


def test_json_is_alone_on_stdout(rove: Rove):
    keep("a", [record(0, 0.5)])
    keep("b", [record(0, 1.0)], temperature=0.5)
    done = rove("compare", "a", "b", "--json")
    assert (done.status, done.err) == (0, "")
    found = json.loads(done.out)
    assert found["runs"] == found["names"] == ["a", "b"]
    assert found["settings"] == {"temperature": [0.0, 0.5]}
    assert found["main"]["low"] is found["main"]["high"] is None
    assert found["main"]["caveat"] == "no interval: fewer than 2 examples"
    assert [one["name"] for one in found["others"]] == ["win", "turns"]
    assert "–" in rove("compare", "a", "b").out


def test_another_value(rove: Rove):
    keep("a", [record(i, 0.5) for i in range(4)])
    keep("b", [record(i, 1.0) for i in range(4)])
    assert "turns is equal on 4 shared examples" in rove("compare", "a", "b", "--value", "turns").out
    done = rove("compare", "a", "b", "--value", "turnz")
    assert (done.status, done.out) == (2, "")
    assert done.err == "error: a has no value 'turnz'; did you mean 'turns'?\n"


def test_runs_of_one_name_are_told_apart_by_where_they_lie(rove: Rove):
    for path in ("one/eval", "two/eval"):
        keep(path, [record(0, 0.5), record(1, 0.5)])
    assert json.loads(rove("compare", "one/eval", "two/eval", "--json").out)["names"] == ["one/eval", "two/eval"]


def test_runs_without_common_examples(rove: Rove):
    keep("a", [record(i, i % 10 / 10) for i in range(30)])
    keep("b", [record(i, 1 + i % 10 / 10) for i in range(30, 60)])
    said = rove("compare", "a", "b").out
    assert "b is better than a: reward +1.000 [+0.846, +1.154] between 30 and 30 different examples" in said
    assert "the runs share no examples" in said
    assert "higher on" not in said


def test_a_few_examples_with_a_caveat_fit_the_terminal(rove: Rove):
    keep("a", [record(i, i / 100) for i in range(8)])
    keep("b", [record(i, 0.5 + i / 50) for i in range(8)])
    done = rove("compare", "a", "b")
    assert "too few examples to determine a direction: reward +0.535 [+0.515, +0.555] on 8 shared examples" in done.out
    assert "* interval may be too narrow: fewer than 30 examples; no interval: all values are equal" in done.out
    assert max(map(len, done.out.splitlines()[1:])) <= 100


def test_training_runs_are_compared_with_a_warning(rove: Rove):
    for path in ("a", "b"):
        keep(path, [record(i, i / 10) for i in range(10)], kind="rl")
    said = rove("compare", "a", "b").out
    assert "compare evaluations instead" in said
    assert "rove eval" not in said


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("", "", "is not a run folder: it has no config.toml"),
        ("config.toml", "model = 'x'\n", "is not a run folder: its config.toml cannot be read"),
        ("config.toml", "model = [", "is not a run folder: its config.toml cannot be read"),
    ],
)
def test_what_is_no_run_folder_is_refused(rove: Rove, name: str, text: str, message: str):
    keep("good", [record(0, 0.5)])
    if name:
        Path("other").mkdir()
        Path("other", name).write_text(text)
    for words in (("good", "other"), ("other", "good")):
        done = rove("compare", *words)
        assert (done.status, done.out) == (1, "")
        assert done.err.startswith(f"error: other {message}")


def test_a_run_without_scored_rollouts_is_refused(rove: Rove):
    keep("good", [record(0, 0.5)])
    keep("bad", [failed(0)])
    done = rove("compare", "good", "bad")
    assert (done.status, done.err) == (1, "error: bad has no scored rollouts to compare; `rove eval` makes some\n")


def test_evaluations_of_the_same_games_are_paired(rove: Rove):
    runs = [
        json.loads(rove("eval", "tictactoe", "-m", f"scripted:{name}", "-n", "30", "-r", "2", "--json").out)["run"]
        for name in ("random", "teacher")
    ]
    done = rove("compare", *runs)
    assert f"{Path(runs[1]).name} is better than {Path(runs[0]).name}: reward +" in done.out
    assert "on 30 shared examples" in done.out
    assert "model: 'scripted:random' → 'scripted:teacher'" in done.out
