"""A file of questions as an environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import Rove, in_this_process
from toys import roll, says

import rove as vf
from rove.core.errors import ConfigError
from rove.envs.loading import environment_version
from rove.envs.questions import QuestionsEnv
from rove.remote.loading import Isolation, open_environment
from rove.runs.run import Run

ROWS = [{"question": f"What is {n} + {n}?", "answer": 2 * n, "level": n} for n in range(4)]


@pytest.fixture
def rove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    return in_this_process(tmp_path, monkeypatch, capsys)


def jsonl(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def rewards(env: vf.Environment, reply: str) -> list[float | None]:
    records = roll(env, says(reply))
    assert [record.error for record in records] == [None] * len(records)
    return [record.reward for record in records]


def test_jsonl_csv_and_parquet_are_the_same_questions(tmp_path: Path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    jsonl(tmp_path / "q.jsonl", ROWS)
    lines = ["\ufeffquestion,answer,level", *(f'"{row["question"]}",{row["answer"]},{row["level"]}' for row in ROWS)]
    (tmp_path / "q.csv").write_text("\r\n".join(lines), encoding="utf-8")
    parquet.write_table(pa.Table.from_pylist(ROWS), tmp_path / "q.parquet")
    examples = [QuestionsEnv(tmp_path / f"q.{kind}").get_eval_dataset() for kind in ("jsonl", "parquet", "csv")]
    shown = [[(one["prompt"][-1]["content"], one["answer"]) for one in some] for some in examples]
    assert shown[0] == shown[1] == shown[2]
    assert shown[0][1] == ("What is 1 + 1?", "2")
    assert examples[0][3]["info"] == {"level": 3}
    assert rewards(QuestionsEnv(tmp_path / "q.csv", "numeric"), "so 4") == [0.0, 0.0, 1.0, 0.0]


def test_a_missing_pyarrow_is_named_with_the_command_that_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "q.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match=r"needs the package 'pyarrow'.*pip install 'rove\[hf\]'"):
        QuestionsEnv(tmp_path / "q.parquet")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("q.jsonl", '{"ask": "1 + 1?", "gold": 2}\n', "row 1 has no value in the column 'question'; its columns: ask, gold. "),
        ("q.jsonl", '{"prompt": "1 + 1?"}\n', "row 1 has no value in the column 'answer'; its columns: prompt"),
        ("q.jsonl", '{"question": "a", "answer": 1}\n{"question": "b", "answer": null}\n', "row 2 has no value in"),
        ("q.jsonl", "[1]\n", "line 1"),
        ("q.jsonl", "", "has no rows"),
        ("q.csv", "question,answer\na,1,234\n", "line 2 has more fields than the header"),
        ("q.csv", 'question,answer\n"a,1\n', "is not a CSV file"),
        ("q.csv", b"question,answer\n\xff,1\n", "is not a CSV file"),
        ("q.parquet", "no parquet", "is not a Parquet file"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_refused_with_its_place(tmp_path: Path, name: str, text: Any, message: str):
    if name == "q.parquet":
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=message):
        QuestionsEnv(tmp_path / name)


def test_columns_are_named_and_a_prompt_may_be_messages(tmp_path: Path):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
    file = jsonl(tmp_path / "q.jsonl", [{"prompt": messages, "gold": 2}])
    env = QuestionsEnv(file, answer_column="gold")
    assert [message["content"] for message in env.get_eval_dataset()[0]["prompt"]] == ["Be brief.", "1 + 1?"]
    assert rewards(env, "2") == [1.0]


@pytest.mark.parametrize("choices", [["red", "green"], '["red", "green"]'])
def test_choices_are_listed_and_chosen_by_letter(tmp_path: Path, choices: Any):
    file = jsonl(tmp_path / "q.jsonl", [{"question": "Which?", "choices": choices, "answer": "green"}])
    env = QuestionsEnv(file, "choice")
    [example] = env.get_eval_dataset()
    assert example["prompt"][-1]["content"] == "Which?\n\nA) red\nB) green"
    assert example["answer"] == "B"
    assert rewards(env, "<answer>B</answer>") == rewards(env, "Green") == [1.0]
    assert rewards(env, "A") == [0.0]


@pytest.mark.parametrize(("choices", "answer"), [("red or green", "red"), (["red"], "red"), (["red", "green"], "blue")])
def test_impossible_choices_are_refused(tmp_path: Path, choices: Any, answer: str):
    file = jsonl(tmp_path / "q.jsonl", [{"question": "Which?", "choices": choices, "answer": answer}])
    with pytest.raises(ConfigError, match="row 1: the (choices are|answer)"):
        QuestionsEnv(file, "choice")


@pytest.mark.parametrize("scorer", ["exact", "numeric", "regex", pytest.param("math", marks=pytest.mark.broad)])
def test_the_teacher_is_right_and_no_answer_is_not(tmp_path: Path, scorer: str):
    file = jsonl(tmp_path / "q.jsonl", ROWS[1:3])
    for policy, reward in (("teacher", 1.0), ("no_answer", 0.0)):
        env = QuestionsEnv(file, scorer)
        records = roll(env, vf.ScriptedClient(env.policies[policy], policy))
        assert [record.reward for record in records] == [reward, reward]


def test_a_judge_reads_the_whole_reply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "not used")
    env = QuestionsEnv(jsonl(tmp_path / "q.jsonl", ROWS[:1]), "judge", judge_model="some-model")
    assert env.rubric.names[0] == "verdict"
    assert env.get_eval_dataset()[0]["prompt"][0]["role"] == "user"


def test_an_unknown_scorer_and_an_unknown_argument_are_refused_with_the_nearest(tmp_path: Path):
    file = jsonl(tmp_path / "q.jsonl", ROWS)
    with pytest.raises(ConfigError, match="scorer is 'numerik'; did you mean 'numeric'"):
        QuestionsEnv(file, "numerik")
    with pytest.raises(ConfigError, match="has no argument 'tolerence'; did you mean 'tolerance'"):
        vf.load_environment(str(file), tolerence=1)
    with pytest.raises(ConfigError, match="tolerance is 'much'; expected float"):
        vf.load_environment(str(file), tolerance="much")
    fraction = jsonl(tmp_path / "fraction.jsonl", [*ROWS, {"question": "Half of 1?", "answer": "1/2"}])
    with pytest.raises(ConfigError, match=rf"row {len(ROWS) + 1}: the right answer '1/2' has 2 numbers"):
        QuestionsEnv(fraction, "numeric")
    with pytest.raises(ConfigError, match=r"no file 'nothing.csv'"):
        vf.load_environment("nothing.csv")


def test_the_version_of_the_environment_is_the_content_of_the_file(tmp_path: Path):
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "7"\ndependencies = ["nothing-such"]\n')
    file = jsonl(tmp_path / "q.jsonl", ROWS)
    env = open_environment(str(file), isolation=Isolation(on=True))
    assert isinstance(env, QuestionsEnv)
    before = environment_version(str(file))
    assert env.identity["env"] == before == f"{file}#{env.source}"
    jsonl(file, ROWS[:2])
    assert environment_version(str(file)) != before


def test_eval_states_the_scorer_resumes_and_rescores(rove: Rove, tmp_path: Path):
    jsonl(tmp_path / "q.jsonl", ROWS)
    words = ("eval", "q.jsonl", "-m", "scripted:teacher", "-r", "1")
    done = rove(*words, "-n", "2")
    assert done.status == 0, done.err
    assert "q.jsonl: 4 questions, scorer 'exact': the answer equals the right one, ignoring case and white" in done.out
    [folder] = Path("runs").iterdir()
    assert folder.name.startswith("q.jsonl--scripted-teacher--")
    again = rove(*words, "-n", "4", "--json")
    assert json.loads(again.out)["reward"]["mean"] == 1.0
    assert "already has 2 rollouts" in again.err
    rescored = rove("rescore", str(folder), "-a", '{"scorer": "numeric"}', "--json")
    assert json.loads(rescored.out)["functions"]["numeric"]["mean"] == 1.0
    assert rove("export", str(folder), "-o", "rows.jsonl").status == 0
    assert len(Path("rows.jsonl").read_text().splitlines()) == 4


def test_the_flags_of_eval_are_arguments_of_the_environment(rove: Rove, tmp_path: Path):
    jsonl(tmp_path / "q.jsonl", ROWS)
    words = ("eval", "q.jsonl", "-m", "scripted:teacher", "--scorer", "numeric", "-a", '{"tolerance": 0.5}')
    done = rove(*words, "--dry-run", "--json")
    assert done.status == 0, done.err
    assert json.loads(done.out)["env_args"] == {"tolerance": 0.5, "scorer": "numeric"}
    assert rove(*words, "--run-dir", "run").status == 0
    assert Run("run").config()["config"]["env_args"]["scorer"] == "numeric"
    refused = rove("eval", "tictactoe", "-m", "scripted:teacher", "--scorer", "exact")
    assert (refused.status, "has no argument 'scorer'" in refused.err) == (2, True)


def test_held_out_rows_are_only_for_evaluation(tmp_path: Path):
    rows = [{"question": f"What is {n} + {n}?", "answer": 2 * n} for n in range(40)]
    env = QuestionsEnv(jsonl(tmp_path / "q.jsonl", rows), "numeric", held_out=0.1)
    trained, held_out = ({one["answer"] for one in some} for some in (env.get_dataset(), env.get_eval_dataset()))
    assert (len(trained), len(held_out), trained & held_out) == (36, 4, set())
    assert env.description.startswith("4 questions held out of 40, ")
    same = QuestionsEnv(tmp_path / "q.jsonl", "numeric", held_out=0.1)
    assert same.get_eval_dataset() == env.get_eval_dataset()


@pytest.mark.parametrize(("rows", "held_out", "expected"), [(1, 0.5, (1, 1)), (2, 0.01, (1, 1)), (3, 0.99, (1, 2))])
def test_no_part_is_empty(rows: int, held_out: float, expected: tuple[int, int], tmp_path: Path):
    env = QuestionsEnv(jsonl(tmp_path / "q.jsonl", ROWS[:rows]), "numeric", held_out=held_out)
    assert (len(env.get_dataset()), len(env.get_eval_dataset())) == expected


@pytest.mark.parametrize("held_out", [-0.1, 1.0, float("nan")])
def test_a_fraction_out_of_range_is_refused(held_out: float, tmp_path: Path):
    with pytest.raises(ConfigError, match="expected a fraction from 0 to below 1"):
        QuestionsEnv(jsonl(tmp_path / "q.jsonl", ROWS), "numeric", held_out=held_out)


def test_the_scorer_may_be_a_function_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my_scorer.py").write_text(
        "def even(completion):\n    return float(int(completion[-1].content) % 2 == 0)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    env = QuestionsEnv(jsonl(tmp_path / "q.jsonl", ROWS[:2]), "my_scorer:even")
    assert (rewards(env, "4"), rewards(env, "5")) == ([1.0, 1.0], [0.0, 0.0])
    with pytest.raises(ConfigError, match="scorer 'my_scorer:odd': my_scorer has no 'odd'; known: even"):
        QuestionsEnv(tmp_path / "q.jsonl", "my_scorer:odd")
    with pytest.raises(ConfigError, match="importing no_such_module failed with ModuleNotFoundError"):
        QuestionsEnv(tmp_path / "q.jsonl", "no_such_module:score")
