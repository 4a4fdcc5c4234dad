"""The note of an evaluation whose questions were used in training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rove.envs.loading import load_environment
from rove.runs.run import Run
from rove.stages.trained_questions import trained_note


def note(env_args: dict[str, object], count: int = -1) -> str | None:
    return trained_note(
        "runs/rl1/final", "sums.jsonl", env_args, load_environment("sums.jsonl", None, **env_args), count
    )


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Write a file of 50 questions and an RL run with its held-out tenth; return the number of training questions."""
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"{n} + 1?", "answer": n + 1} for n in range(50)]
    Path("sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    held_out = {"held_out": 0.1}
    with Run("runs/rl1") as run:
        run.start("rl", {"env": "sums.jsonl", "env_args": held_out}, {})
    Path("runs/rl1/final").mkdir()
    count = load_environment("sums.jsonl", None, **held_out).count_examples(train=True)
    assert count is not None
    return count


def test_an_evaluation_on_the_whole_file_says_how_many_questions_were_trained_on(trained: int):
    text = note({})
    assert text is not None
    assert text.startswith(f"{trained} of the 50 questions were used to train runs/rl1/final")
    assert text.endswith("the environment's argument held_out = 0.1 leaves them out")


def test_held_out_questions_and_other_files_need_no_note(trained: int):
    assert note({"held_out": 0.1}) is None
    Path("other.jsonl").write_text(Path("sums.jsonl").read_text())
    assert trained_note("runs/rl1/final", "other.jsonl", {}, load_environment("other.jsonl", None), -1) is None
    Path("models/mine").mkdir(parents=True)
    assert trained_note("models/mine", "sums.jsonl", {}, load_environment("sums.jsonl", None), -1) is None


def test_the_data_of_sft_name_the_file(trained: int):
    with Run("runs/data") as run:
        run.start("eval", {"env": "sums.jsonl", "env_args": {"held_out": 0.1}}, {})
    with Run("runs/sft") as run:
        run.start("sft", {"data": "runs/data"}, {})
    env = load_environment("sums.jsonl", None)
    text = trained_note("runs/sft/final", "sums.jsonl", {}, env, -1)
    assert text is not None and text.startswith(f"{trained} of the 50 questions")
