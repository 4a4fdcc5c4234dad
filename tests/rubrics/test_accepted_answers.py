"""Several accepted answers: any of them is right, for every scorer of a file of questions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from toy_envs import generate_sync, scripted_client

import rove as vf
from rove.core.errors import ConfigError
from rove.envs.questions import QuestionsEnv

CAPITALS = ["Amsterdam", "The Hague"]


def environment(tmp_path: Path, answers: Any, scorer: str, **options: Any) -> QuestionsEnv:
    rows = [{"question": "Capital?", "answer": answers}, {"question": "Two?", "answer": "2"}]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return QuestionsEnv(tmp_path / "q.jsonl", scorer, **options)


def rewards(env: QuestionsEnv, reply: str) -> list[float | None]:
    records = generate_sync(env, scripted_client(reply))
    assert [record.error for record in records] == [None, None]
    return [record.reward for record in records]


@pytest.mark.parametrize(
    ("scorer", "answers", "right", "wrong"),
    [
        ("exact", CAPITALS, ["Amsterdam", "<answer>the hague</answer>"], ["Rotterdam", "['Amsterdam', 'The Hague']"]),
        ("numeric", [1, "1.5"], ["1", "1.50"], ["1.2", "15"]),
        ("regex", ["^Amst", "Hague$"], ["Amsterdam", "The Hague"], ["Rotterdam"]),
        pytest.param("math", ["1/2", "3"], ["\\boxed{0.5}", "\\boxed{3}"], ["\\boxed{0.3}"], marks=pytest.mark.slow),
    ],
)
def test_any_accepted_answer_is_right(tmp_path: Path, scorer: str, answers: Any, right: list[str], wrong: list[str]):
    env = environment(tmp_path, answers, scorer)
    assert [rewards(env, reply)[0] for reply in right] == [1.0] * len(right)
    assert [rewards(env, reply)[0] for reply in wrong] == [0.0] * len(wrong)
    assert generate_sync(env, vf.ScriptedClient(env.policies["teacher"], "teacher"))[0].answer == str(answers[0])


def test_a_custom_function_gets_one_accepted_answer_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "lengths.py").write_text(
        "def same_length(completion, answer):\n    return float(len(completion[-1].content) == len(answer))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    env = environment(tmp_path, CAPITALS, "lengths:same_length")
    assert rewards(env, "123456789") == [1.0, 0.0]
    assert rewards(env, "1") == [0.0, 1.0]


def test_the_teacher_gives_the_first_accepted_answer(tmp_path: Path):
    env = environment(tmp_path, CAPITALS, "exact")
    records = generate_sync(env, vf.ScriptedClient(env.policies["teacher"], "teacher"))
    assert [record.reward for record in records] == [1.0, 1.0]
    assert records[0].completion[-1]["content"] == "<answer>Amsterdam</answer>"


def test_a_judge_sees_all_accepted_answers_in_one_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "not used")
    env = environment(tmp_path, CAPITALS, "judge")
    example = env.get_eval_dataset()[0]
    assert example["answer"] == "any of these: Amsterdam; The Hague"
    assert env.rubric.names[0] == "verdict"


def test_every_accepted_answer_must_fit_the_scorer(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"row 1 \(line 1\): the right answer 'two' has no number"):
        environment(tmp_path, ["2", "two"], "numeric")


def test_one_accepted_answer_does_not_change_the_identity(tmp_path: Path):
    single = environment(tmp_path, ["Amsterdam"], "exact")
    several = environment(tmp_path, CAPITALS, "exact")
    assert single.rubric.identity == several.rubric.identity
