"""Tests of QuestionsEnv, which makes an environment from a file of questions."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import Rove, in_process_rove
from toy_envs import generate_sync, scripted_client

import rove as vf
from rove.core.digest import digest_files
from rove.core.errors import ConfigError
from rove.envs.loading import environment_version
from rove.envs.questions import QuestionsEnv
from rove.remote.isolation import Isolation
from rove.remote.loading import open_environment
from rove.runs.run import Run

ROWS = [{"question": f"What is {n} + {n}?", "answer": 2 * n, "level": n} for n in range(4)]


@pytest.fixture
def rove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    return in_process_rove(tmp_path, monkeypatch, capsys)


def write_jsonl(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def rewards(env: vf.Environment, reply: str) -> list[float | None]:
    records = generate_sync(env, scripted_client(reply))
    assert [record.error for record in records] == [None] * len(records)
    return [record.reward for record in records]


def test_jsonl_csv_and_parquet_files_give_the_same_questions(tmp_path: Path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    write_jsonl(tmp_path / "q.jsonl", ROWS)
    lines = ["\ufeffquestion,answer,level", *(f'"{row["question"]}",{row["answer"]},{row["level"]}' for row in ROWS)]
    (tmp_path / "q.csv").write_text("\r\n".join(lines), encoding="utf-8")
    parquet.write_table(pa.Table.from_pylist(ROWS), tmp_path / "q.parquet")
    examples = [QuestionsEnv(tmp_path / f"q.{kind}").get_eval_dataset() for kind in ("jsonl", "parquet", "csv")]
    questions = [[(example["prompt"][-1]["content"], example["answer"]) for example in dataset] for dataset in examples]
    assert questions[0] == questions[1] == questions[2]
    assert questions[0][1] == ("What is 1 + 1?", "2")
    assert examples[0][3]["info"] == {"level": 3}
    assert rewards(QuestionsEnv(tmp_path / "q.csv", "numeric"), "so 4") == [0.0, 0.0, 1.0, 0.0]


def test_missing_pyarrow_is_reported_with_the_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "q.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match=r"needs the package 'pyarrow'.*pip install 'rove\[hf\]'"):
        QuestionsEnv(tmp_path / "q.parquet")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("q.jsonl", '{"ask": "1 + 1?", "gold": 2}\n', "no value in the column 'question'; its columns: 'ask', 'gold'. "),
        ("q.jsonl", '{"prompt": "1 + 1?"}\n', "row 1 \\(line 1\\) has no value in the column 'answer'; its columns: 'prompt'"),
        ("q.jsonl", '{"question": "a", "answer": 1}\n{"question": "b", "answer": null}\n', "row 2 \\(line 2\\) has no value in"),
        ("q.jsonl", "[1]\n", "line 1"),
        ("q.jsonl", "", "has no rows"),
        ("q.csv", "question,answer\na,1,234\n", "line 2.*more fields than the header"),
        ("q.csv", 'question,answer\n"a,1\n', "is not a CSV file"),
        ("q.csv", b"question,answer\n\xff,1\n", "line 2: the byte 0xff is not UTF-8"),
        ("q.parquet", "no parquet", "is not a Parquet file"),
    ],
)  # fmt: skip
def test_an_invalid_file_is_rejected_with_the_row_or_line(tmp_path: Path, name: str, text: Any, message: str):
    if name == "q.parquet":
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=message):
        QuestionsEnv(tmp_path / name)


def test_the_answer_column_can_be_chosen_and_a_prompt_can_be_messages(tmp_path: Path):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
    file = write_jsonl(tmp_path / "q.jsonl", [{"prompt": messages, "gold": 2}])
    env = QuestionsEnv(file, answer_column="gold")
    assert [message["content"] for message in env.get_eval_dataset()[0]["prompt"]] == ["Be brief.", "1 + 1?"]
    assert rewards(env, "2") == [1.0]


@pytest.mark.parametrize("choices", [["red", "green"], '["red", "green"]'])
def test_choices_are_listed_with_letters_and_answered_by_letter_or_text(tmp_path: Path, choices: Any):
    file = write_jsonl(tmp_path / "q.jsonl", [{"question": "Which?", "choices": choices, "answer": "green"}])
    env = QuestionsEnv(file, "choice")
    [example] = env.get_eval_dataset()
    assert example["prompt"][-1]["content"] == "Which?\n\nA) red\nB) green"
    assert example["answer"] == "B"
    assert rewards(env, "<answer>B</answer>") == rewards(env, "Green") == [1.0]
    assert rewards(env, "A") == [0.0]


@pytest.mark.parametrize(("choices", "answer"), [("red or green", "red"), (["red"], "red"), (["red", "green"], "blue")])
def test_invalid_choices_are_rejected(tmp_path: Path, choices: Any, answer: str):
    file = write_jsonl(tmp_path / "q.jsonl", [{"question": "Which?", "choices": choices, "answer": answer}])
    with pytest.raises(ConfigError, match=r"row 1 \(line 1\): the (choices are|answer)"):
        QuestionsEnv(file, "choice")


@pytest.mark.parametrize("scorer", ["exact", "numeric", "regex", pytest.param("math", marks=pytest.mark.broad)])
def test_the_teacher_policy_gets_reward_1_and_no_answer_gets_0(tmp_path: Path, scorer: str):
    file = write_jsonl(tmp_path / "q.jsonl", ROWS[1:3])
    for policy, reward in (("teacher", 1.0), ("no_answer", 0.0)):
        env = QuestionsEnv(file, scorer)
        records = generate_sync(env, vf.ScriptedClient(env.policies[policy], policy))
        assert [record.reward for record in records] == [reward, reward]


def test_a_judge_reads_the_whole_reply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "not used")
    env = QuestionsEnv(write_jsonl(tmp_path / "q.jsonl", ROWS[:1]), "judge", judge_model="some-model")
    assert env.rubric.names[0] == "verdict"
    assert env.get_eval_dataset()[0]["prompt"][0]["role"] == "user"


def test_unknown_scorers_and_arguments_are_rejected_with_a_suggestion(tmp_path: Path):
    file = write_jsonl(tmp_path / "q.jsonl", ROWS)
    with pytest.raises(ConfigError, match="scorer is 'numerik'; did you mean 'numeric'"):
        QuestionsEnv(file, "numerik")
    with pytest.raises(ConfigError, match="has no argument 'tolerence'; did you mean 'tolerance'"):
        vf.load_environment(str(file), tolerence=1)
    with pytest.raises(ConfigError, match="tolerance is 'much'; expected float"):
        vf.load_environment(str(file), tolerance="much")
    fraction = write_jsonl(tmp_path / "fraction.jsonl", [*ROWS, {"question": "Half of 1?", "answer": "1/2"}])
    with pytest.raises(
        ConfigError, match=rf"row {len(ROWS) + 1} \(line {len(ROWS) + 1}\): the right answer '1/2' has 2 numbers"
    ):
        QuestionsEnv(fraction, "numeric")
    with pytest.raises(ConfigError, match=r"no file 'nothing.csv'"):
        vf.load_environment("nothing.csv")


def test_the_version_is_a_hash_of_the_file_content(tmp_path: Path):
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "7"\ndependencies = ["nothing-such"]\n')
    file = write_jsonl(tmp_path / "q.jsonl", ROWS)
    env = open_environment(str(file), isolation=Isolation(on=True))
    assert isinstance(env, QuestionsEnv)
    first_version = environment_version(str(file))
    assert env.identity["env"] == first_version == f"{file}#{env.source}"
    write_jsonl(file, ROWS[:2])
    assert environment_version(str(file)) != first_version


def test_eval_prints_the_scorer_and_its_run_can_be_resumed_and_rescored(rove: Rove, tmp_path: Path):
    write_jsonl(tmp_path / "q.jsonl", ROWS)
    arguments = ("eval", "q.jsonl", "-m", "scripted:teacher", "-r", "1")
    first = rove(*arguments, "-n", "2")
    assert first.status == 0, first.err
    assert "q.jsonl: 4 questions, scorer 'exact': the answer equals the right one, ignoring case and white" in first.out
    [folder] = Path("runs").iterdir()
    assert folder.name.startswith("q.jsonl--scripted-teacher--")
    second = rove(*arguments, "-n", "4", "--json")
    assert json.loads(second.out)["reward"]["mean"] == 1.0
    assert "already has 2 rollouts" in second.err
    rescored = rove("rescore", str(folder), "-a", '{"scorer": "numeric"}', "--json")
    assert json.loads(rescored.out)["functions"]["numeric"]["mean"] == 1.0
    assert rove("export", str(folder), "-o", "rows.jsonl").status == 0
    assert len(Path("rows.jsonl").read_text().splitlines()) == 4


def test_the_scorer_flag_of_eval_is_an_environment_argument(rove: Rove, tmp_path: Path):
    write_jsonl(tmp_path / "q.jsonl", ROWS)
    arguments = ("eval", "q.jsonl", "-m", "scripted:teacher", "--scorer", "numeric", "-a", '{"tolerance": 0.5}')
    dry_run = rove(*arguments, "--dry-run", "--json")
    assert dry_run.status == 0, dry_run.err
    assert json.loads(dry_run.out)["env_args"] == {"tolerance": 0.5, "scorer": "numeric"}
    assert rove(*arguments, "--run-dir", "run").status == 0
    assert Run("run").config()["config"]["env_args"]["scorer"] == "numeric"
    rejected = rove("eval", "tictactoe", "-m", "scripted:teacher", "--scorer", "exact")
    assert (rejected.status, "has no argument 'scorer'" in rejected.err) == (2, True)


def test_the_version_is_the_content_of_the_file(tmp_path: Path):
    file = write_jsonl(tmp_path / "q.jsonl", ROWS)
    whole = vf.load_environment(str(file))
    split = vf.load_environment(str(file), held_out=0.5)
    assert whole.identity["env"] == environment_version(str(file)) == f"{file}#{digest_files([file])}"
    assert split.identity["env"] == whole.identity["env"]
    assert split.identity != whole.identity


def test_equal_questions_are_not_on_both_sides(tmp_path: Path):
    rows = [{"question": f"What is {n % 20} + 1?", "answer": n % 20 + 1} for n in range(40)]
    env = QuestionsEnv(write_jsonl(tmp_path / "q.jsonl", rows), "numeric", held_out=0.2)
    trained, held_out = (
        {example["answer"] for example in dataset} for dataset in (env.get_dataset(), env.get_eval_dataset())
    )
    assert (len(trained), len(held_out), trained & held_out) == (16, 4, set())
    assert env.description.startswith("8 questions held out of 40 (20 rows of the file repeat a question), scorer")


def test_held_out_rows_are_only_for_evaluation(tmp_path: Path):
    rows = [{"question": f"What is {n} + {n}?", "answer": 2 * n} for n in range(40)]
    env = QuestionsEnv(write_jsonl(tmp_path / "q.jsonl", rows), "numeric", held_out=0.1)
    trained, held_out = (
        {example["answer"] for example in dataset} for dataset in (env.get_dataset(), env.get_eval_dataset())
    )
    assert (len(trained), len(held_out), trained & held_out) == (36, 4, set())
    assert env.description.startswith("4 questions held out of 40, ")
    same = QuestionsEnv(tmp_path / "q.jsonl", "numeric", held_out=0.1)
    assert same.get_eval_dataset() == env.get_eval_dataset()


@pytest.mark.parametrize(("rows", "held_out", "expected"), [(1, 0.5, (1, 1)), (2, 0.01, (1, 1)), (3, 0.99, (1, 2))])
def test_both_splits_have_at_least_one_row(rows: int, held_out: float, expected: tuple[int, int], tmp_path: Path):
    env = QuestionsEnv(write_jsonl(tmp_path / "q.jsonl", ROWS[:rows]), "numeric", held_out=held_out)
    assert (len(env.get_dataset()), len(env.get_eval_dataset())) == expected


@pytest.mark.parametrize("held_out", [-0.1, 1.0, float("nan")])
def test_a_held_out_fraction_out_of_range_is_rejected(held_out: float, tmp_path: Path):
    with pytest.raises(ConfigError, match="expected a fraction from 0 to below 1"):
        QuestionsEnv(write_jsonl(tmp_path / "q.jsonl", ROWS), "numeric", held_out=held_out)


def test_a_scorer_in_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_jsonl(tmp_path / "q.jsonl", ROWS[:2])
    (tmp_path / "scorers_of_mine.py").write_text(
        "from helpers_of_mine import HIGH\n\ndef tagged(completion):\n    return HIGH * ('4' in completion[-1].content)\n"
    )
    (tmp_path / "helpers_of_mine.py").write_text("HIGH = 0.5\n")
    (tmp_path / "json.py").write_text("raise ImportError('hides the standard module')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "path", [folder for folder in sys.path if folder not in ("", ".")]
    )  # as of the command `rove`
    env = vf.load_environment("q.jsonl", scorer="scorers_of_mine:tagged")
    assert (rewards(env, "4"), rewards(env, "5")) == ([0.5, 0.5], [0.0, 0.0])
    assert sys.path[-1] == str(tmp_path)


def test_the_scorer_can_be_a_custom_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my_scorer.py").write_text(
        "def even(completion):\n    return float(int(completion[-1].content) % 2 == 0)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    env = QuestionsEnv(write_jsonl(tmp_path / "q.jsonl", ROWS[:2]), "my_scorer:even")
    assert (rewards(env, "4"), rewards(env, "5")) == ([1.0, 1.0], [0.0, 0.0])
    with pytest.raises(ConfigError, match="scorer 'my_scorer:odd': my_scorer has no 'odd'; known: even"):
        QuestionsEnv(tmp_path / "q.jsonl", "my_scorer:odd")
    with pytest.raises(ConfigError, match="importing no_such_module failed with ModuleNotFoundError.*current folder"):
        QuestionsEnv(tmp_path / "q.jsonl", "no_such_module:score")
