"""`rove compare` of two run folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import Rove, in_process_rove

from rove.core.messages import as_messages, text_of
from rove.core.records import ErrorInfo, RolloutRecord, Scores
from rove.runs.run import Run
from tests.runs.test_serialization import make_record


@pytest.fixture
def rove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    return in_process_rove(tmp_path, monkeypatch, capsys)


def record(example: int, reward: float, index: int = 0, **fields) -> RolloutRecord:
    scores = Scores(reward, {"win": reward}, {"win": 1.0}, {"turns": 3.0 + example % 2})
    return make_record(example_key=f"key{example}", example_id=example, rollout_index=index, scores=scores, **fields)


QUESTION = text_of(as_messages(make_record().prompt)[-1]).split()


def failed(example: int) -> RolloutRecord:
    error = ErrorInfo("model", "InfraError", "gone")
    return make_record(example_key=f"key{example}", example_id=example, scores=None, error=error)


def write_run(path: str, records: list[RolloutRecord], kind: str = "eval", **identity) -> None:
    settings = {"env": "tictactoe", "temperature": 0.0, "env_args": {"seed": 1}, **identity}
    with Run(path) as run:
        run.start(kind, settings, settings)
        for rollout in records:
            run.append_rollout(rollout)


def test_text_output_shows_verdict_values_and_differing_settings(rove: Rove):
    write_run("runs/old", [record(i, 0.0) for i in range(20)])
    write_run(
        "runs/new", [record(i, float(i > 4)) for i in range(18)], temperature=1.0, env_args={"seed": 1, "easy": True}
    )
    done = rove("compare", "runs/old", "runs/new/")
    assert (done.status, done.err) == (0, "")
    output = done.out.splitlines()
    assert output[:3] == [
        "new is better than old: reward +0.722 [+0.399, +0.901] on 18 shared examples",
        "new: higher on 13, equal on 5, lower on 0",
        "excluded because the other run did not score them: 2 of old, 0 of new",
    ]
    settings = output.index("settings that differ:")
    assert output[settings + 1 :] == [
        "  env_args.easy: not set → True",
        "  temperature: 0.0 → 1.0",
        "",
        "→ compare another value: rove compare runs/old runs/new --value win",
    ]
    assert any(
        line.split() == ["│", "5", "│", "0", "│", "1.000", "│", "+1.000", "│", *QUESTION, "│"] for line in output
    )
    assert max(map(len, output)) <= 100


def test_markdown_output_contains_nothing_else(rove: Rove):
    write_run("old", [record(i, 0.0) for i in range(20)])
    write_run("new", [record(i, float(i > 4)) for i in range(20)], temperature="@all\n|")
    done = rove("compare", "old", "new", "--markdown")
    assert done.status == 0
    output = done.out.splitlines()
    assert output[0].startswith("**new is better than old")
    assert output[2] == "| value | `old` | `new` | difference | 95% interval |  |"
    assert [line for line in output if line.startswith("- `temperature`: `0.0` → `")]
    done = rove("compare", "old", "new", "--markdown", "--json")
    assert done.status == 2 and "--json and --markdown exclude each other" in done.err


def test_markdown_names_models_environments_and_versions(rove: Rove):
    identity = {"env": "quiz#0.2.0#4a35f3899150"}
    for name, rewards in (("one", [0.0] * 6), ("two", [1.0] * 5)):
        with Run(name) as run:
            config = {"env": "quiz", "model": f"models/{name}", "rollouts_per_example": 2, "num_examples": 3}
            run.start("eval", config, {**identity, "model": f"folder#{name}"})
            for i, reward in enumerate(rewards):
                run.append_rollout(record(i // 2, reward, i % 2))
    output = rove("compare", "one", "two", "--markdown").out.splitlines()
    version = Run("one").versions()[-1]["rove"]
    assert f"- `one`: model `models/one` in `quiz 0.2.0`; 3 examples, 2 rollouts per example; rove {version}" in output
    assert any("in `quiz 0.2.0`; 3 examples, 2 rollouts per example (1 not scored); rove" in line for line in output)
    assert "- `model`: `'models/one'` → `'models/two'`" in output
    assert "folder#" not in "".join(output)


def test_changed_weights_in_the_same_folder_are_reported(rove: Rove):
    for name in ("one", "two"):
        with Run(name) as run:
            run.start("eval", {"env": "quiz", "model": "models/tiny"}, {"env": "quiz", "model": f"folder#{name}"})
            run.append_rollout(record(0, 1.0))
    assert "model: 'models/tiny (folder#one)' → 'models/tiny (folder#two)'" in rove("compare", "one", "two").out


def test_an_undetectable_difference_suggests_more_examples(rove: Rove):
    write_run("a", [record(i, i % 2) for i in range(10)])
    write_run("b", [record(i, i % 3 / 2) for i in range(10)])
    done = rove("compare", "a", "b")
    assert "no detectable difference: reward " in done.out
    assert "more examples would be needed to detect a difference of 0.02" in done.out
    assert "settings that differ" not in done.out
    needed = json.loads(rove("compare", "a", "b", "--json").out)["needed_examples"]
    commands = f"rove eval --resume a -n {needed} && rove eval --resume b -n {needed}"
    assert f"→ evaluate more examples in both runs: {commands}" in done.out


@pytest.mark.parametrize(("planned", "is_suggested"), [(10, True), (11, False), (-1, False)])
def test_more_examples_are_suggested_only_if_the_dataset_has_more(rove: Rove, planned: int, is_suggested: bool):
    for path, divisor in (("a", 2), ("b", 3)):
        with Run(path) as run:
            run.start("eval", {"env": "quiz", "num_examples": planned}, {"env": "quiz"})
            for i in range(10):
                run.append_rollout(record(i, float(i % divisor)))
    done = rove("compare", "a", "b")
    assert "no detectable difference: reward " in done.out
    assert ("rove eval --resume" in done.out) == is_suggested


def test_only_the_last_scored_line_of_a_rollout_counts(rove: Rove):
    write_run(
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
    write_run("b", [record(i, 1.0) for i in range(3)])
    payload = json.loads(rove("compare", "a", "b", "--json").out)
    assert (payload["main"]["examples"], payload["only_a"], payload["only_b"]) == (2, 0, 1)
    assert [(mover["example_id"], mover["a"]) for mover in payload["up"]] == [(0, 0.25), (1, 0.25)]


def test_json_output_is_alone_on_stdout(rove: Rove):
    write_run("a", [record(0, 0.5)])
    write_run("b", [record(0, 1.0)], temperature=0.5)
    done = rove("compare", "a", "b", "--json")
    assert (done.status, done.err) == (0, "")
    payload = json.loads(done.out)
    assert payload["runs"] == payload["names"] == ["a", "b"]
    assert payload["settings"] == {"temperature": [0.0, 0.5]}
    assert payload["main"]["low"] is payload["main"]["high"] is None
    assert payload["main"]["caveat"] == "no interval: fewer than 2 examples"
    assert [metric["name"] for metric in payload["others"]] == ["win", "turns"]
    assert "–" in rove("compare", "a", "b").out


def test_another_value_can_be_compared(rove: Rove):
    write_run("a", [record(i, 0.5) for i in range(4)])
    write_run("b", [record(i, 1.0) for i in range(4)])
    assert "turns is equal on 4 shared examples" in rove("compare", "a", "b", "--value", "turns").out
    done = rove("compare", "a", "b", "--value", "turnz")
    assert (done.status, done.out) == (2, "")
    assert done.err == "error: a has no value 'turnz'; did you mean 'turns'?\n"


def test_runs_with_equal_names_are_named_by_path(rove: Rove):
    for path in ("one/eval", "two/eval"):
        write_run(path, [record(0, 0.5), record(1, 0.5)])
    assert json.loads(rove("compare", "one/eval", "two/eval", "--json").out)["names"] == ["one/eval", "two/eval"]


def test_runs_without_common_examples(rove: Rove):
    write_run("a", [record(i, i % 10 / 10) for i in range(30)])
    write_run("b", [record(i, 1 + i % 10 / 10) for i in range(30, 60)])
    output = rove("compare", "a", "b").out
    assert "b is better than a: reward +1.000 [+0.846, +1.154] between 30 and 30 different examples" in output
    assert "the runs share no examples" in output
    assert "higher on" not in output


def test_a_caveat_about_few_examples_fits_the_terminal(rove: Rove):
    write_run("a", [record(i, i / 100) for i in range(8)])
    write_run("b", [record(i, 0.5 + i / 50) for i in range(8)])
    done = rove("compare", "a", "b")
    assert "b is better than a: reward +0.535 [+0.515, +0.555] on 8 shared examples" in done.out
    assert "* interval may be too narrow: fewer than 10 examples; no interval: all values are equal" in done.out
    assert max(map(len, done.out.splitlines()[1:])) <= 100


def test_training_runs_are_compared_with_a_warning(rove: Rove):
    for path in ("a", "b"):
        write_run(path, [record(i, i / 10) for i in range(10)], kind="rl")
    output = rove("compare", "a", "b").out
    assert "compare evaluations instead" in output
    assert "rove eval" not in output


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("", "", "is not a run folder: it does not exist"),
        ("notes.txt", "", "is not a run folder: it has no config.toml"),
        ("config.toml", "model = 'x'\n", "is not a run folder: its config.toml cannot be read"),
        ("config.toml", "model = [", "is not a run folder: its config.toml cannot be read"),
    ],
)
def test_invalid_run_folders_are_refused(rove: Rove, name: str, text: str, message: str):
    write_run("good", [record(0, 0.5)])
    if name:
        Path("other").mkdir()
        Path("other", name).write_text(text)
    for words in (("good", "other"), ("other", "good")):
        done = rove("compare", *words)
        assert (done.status, done.out) == (1, "")
        assert done.err.startswith(f"error: other {message}")


def test_a_run_without_scored_rollouts_is_refused(rove: Rove):
    write_run("good", [record(0, 0.5)])
    write_run("bad", [failed(0)])
    done = rove("compare", "good", "bad")
    assert (done.status, done.err) == (1, "error: bad has no scored rollouts to compare; `rove eval` makes some\n")


def scored(keys: range, **fields) -> list[RolloutRecord]:
    return [record(key, key / 100, **fields) for key in keys]


def test_runs_of_different_environments_are_refused_unless_allowed(rove: Rove):
    write_run("a", scored(range(9)), env="quiz#1.0#abc")
    write_run("b", scored(range(9)), env="nim#1.0#abc")
    done = rove("compare", "a", "b")
    assert (done.status, done.out) == (2, "")
    assert "the runs are of different environments, 'quiz' and 'nim'" in done.err
    assert "on 9 shared examples" in rove("compare", "a", "b", "--any-environment").out
    for words in (["--json"], ["--markdown"]):
        assert rove("compare", "a", "b", *words).status == 2


@pytest.mark.parametrize(
    "changed", [{"env": "quiz#2.0#def"}, {"env_args": {"seed": 2}}, {"rubric": "other"}, {"train": True}]
)
def test_other_versions_arguments_or_data_need_common_examples(rove: Rove, changed: dict):
    write_run("a", scored(range(9)), env="quiz#1.0#abc")
    write_run("shared", scored(range(5, 14)), **{"env": "quiz#1.0#abc", **changed})
    write_run("apart", scored(range(20, 29)), **{"env": "quiz#1.0#abc", **changed})
    assert "on 4 shared examples" in rove("compare", "a", "shared").out
    done = rove("compare", "a", "apart")
    assert done.status == 2
    assert "the runs share no examples, and these settings of the environment differ:" in done.err
    assert "between 9 and 9 different examples" in rove("compare", "a", "apart", "--any-environment").out


def test_other_examples_of_the_same_data_are_compared_unpaired(rove: Rove):
    write_run("a", scored(range(9)))
    write_run("b", scored(range(20, 29)))
    assert "between 9 and 9 different examples" in rove("compare", "a", "b").out


def test_a_moved_file_of_questions_is_the_same_environment(rove: Rove):
    write_run("a", scored(range(9)), env="questions.jsonl#abc")
    write_run("b", scored(range(9)), env="data/questions.jsonl#abc")
    write_run("c", scored(range(20, 29)), env="others.jsonl#def")
    assert rove("compare", "a", "b").status == 0
    assert rove("compare", "a", "c").status == 2


def test_examples_that_changed_are_named_by_their_question(rove: Rove):
    prompts = {
        key: [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"What is\n{key} + 1?"}]
        for key in range(8)
    }
    write_run("a", [record(key, 0.0, prompt=prompts[key]) for key in prompts])
    write_run("b", [record(key, float(key > 5), prompt=prompts[key]) for key in prompts])
    out = rove("compare", "a", "b").out
    assert "What is 7 + 1?" in out and "What is 6 + 1?" in out and "key7" not in out
    assert json.loads(rove("compare", "a", "b", "--json").out)["questions"] == {
        "key6": "What is\n6 + 1?",
        "key7": "What is\n7 + 1?",
    }


def test_evaluations_of_the_same_games_are_paired(rove: Rove):
    runs = [
        json.loads(rove("eval", "tictactoe", "-m", f"scripted:{name}", "-n", "30", "-r", "2", "--json").out)["run"]
        for name in ("random", "teacher")
    ]
    done = rove("compare", *runs)
    assert f"{Path(runs[1]).name} is better than {Path(runs[0]).name}: reward +" in done.out
    assert "on 30 shared examples" in done.out
    assert "model: 'scripted:random' → 'scripted:teacher'" in done.out
