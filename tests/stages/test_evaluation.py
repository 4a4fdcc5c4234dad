"""`rove.evaluate_model`: names or environments, settings, and runs that continue."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

import rove
from rove.stages.evaluation import EvalConfig


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def solver(messages: Any, state: Any, rng: Any) -> str:
    return state["answer"]


def right(completion: Any, answer: str) -> float:
    return float(completion[-1]["content"] == answer)


def sums() -> rove.Environment:
    rows = [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(4)]
    return rove.SingleTurnEnv(dataset=rows, rubric=rove.Rubric([right]), policies={"solver": solver})


def test_a_name_and_a_loaded_environment_are_the_same_run() -> None:
    settings: dict[str, Any] = {"num_examples": 2, "rollouts_per_example": 1}
    by_name = rove.evaluate_model("scripted:teacher", "tictactoe", env_args={"seed": 3}, **settings)
    env = rove.load_environment("tictactoe", seed=3)
    loaded = rove.evaluate_model("scripted:teacher", env, **settings)
    assert by_name.run is not None and loaded.run is not None
    assert by_name.run.path == loaded.run.path
    assert by_name.reward.mean == loaded.reward.mean


async def test_an_environment_of_a_notebook_is_evaluated_while_its_event_loop_runs() -> None:
    result = rove.evaluate_model("scripted:solver", sums(), num_examples=-1, run_dir="runs/sums")
    assert (result.scored, result.reward.mean) == (12, 1.0)
    assert "12 of 12 rollouts scored" in str(result)


def test_finished_rollouts_are_not_repeated_unless_the_run_is_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    rove.evaluate_model("scripted:solver", sums(), num_examples=1, run_dir="runs/a")
    extended = rove.evaluate_model("scripted:solver", sums(), num_examples=2, run_dir="runs/a")
    assert extended.scored == 6
    assert "already has 3 rollouts" in capsys.readouterr().out
    restarted = rove.evaluate_model("scripted:solver", sums(), num_examples=1, run_dir="runs/a", overwrite=True)
    assert restarted.scored == 3


def test_an_interrupted_evaluation_says_that_it_continues(capsys: pytest.CaptureFixture[str]) -> None:
    rewarded: list[Any] = []

    def interrupting(completion: Any) -> float:
        rewarded.append(completion)
        if len(rewarded) == 3:
            signal.raise_signal(signal.SIGINT)
        return 1.0

    rows = [{"question": "1 + 1?", "answer": "2"}]
    env = rove.SingleTurnEnv(dataset=rows, rubric=rove.Rubric([interrupting]), policies={"solver": solver})
    with pytest.raises(KeyboardInterrupt):
        rove.evaluate_model("scripted:solver", env, run_dir="runs/a", max_concurrent=1)
    text = "interrupted; the finished rollouts are in runs/a, and the same call or command continues with the others"
    assert text in capsys.readouterr().out
    assert rove.evaluate_model("scripted:solver", env, run_dir="runs/a", max_concurrent=1).scored == 3
    assert len(rewarded) < 6


def test_settings_override_those_of_a_config() -> None:
    config = EvalConfig(env="tictactoe", model="scripted:teacher", num_examples=3, rollouts_per_example=1)
    result = rove.evaluate_model(config=config, num_examples=2)
    assert result.scored == 2
    with pytest.raises(rove.ConfigError, match="num_exampels"):
        rove.evaluate_model(config=config, num_exampels=2)
    with pytest.raises(rove.ConfigError, match="env"):
        rove.evaluate_model("scripted:teacher")


def test_a_scorer_is_an_argument_of_a_file_of_questions() -> None:
    Path("sums.csv").write_text("question,answer\n1 + 1?,2\n2 + 2?,4\n")
    settings: dict[str, Any] = {"num_examples": 2, "rollouts_per_example": 1}
    by_name = rove.evaluate_model("scripted:teacher", "sums.csv", scorer="numeric", **settings)
    by_args = rove.evaluate_model("scripted:teacher", "sums.csv", env_args={"scorer": "numeric"}, **settings)
    assert by_name.run is not None and by_args.run is not None
    assert by_name.run.path == by_args.run.path
    split = rove.evaluate_model(
        "scripted:teacher", "sums.csv", scorer="numeric", env_args={"held_out": 0.5}, **settings
    )
    assert split.run is not None
    assert split.run.config()["config"]["env_args"] == {"held_out": 0.5, "scorer": "numeric"}
    with pytest.raises(rove.ConfigError, match="scorer cannot change a loaded environment"):
        rove.evaluate_model("scripted:solver", sums(), scorer="numeric")
