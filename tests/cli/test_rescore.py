"""`rove rescore` from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import Rove, in_process_rove, rollout_lines, write_environment
from run_folders import make_record, write_run_folder

from rove.runs.run import Run

SMALL = ("tictactoe", "-m", "scripted:random", "-n", "4", "-r", "2", "--json")

GUESS = """
import rove as vf

def judge(completion, answer):
    return {good} * float(completion[-1].content == answer)

def knows(messages, state, rng):
    return state["answer"]

def forgets(messages, state, rng):
    return {{"0": "0", "2": "2"}}[state["answer"]]

def load_environment(num_examples: int = 3, ask: str = "How many"):
    rows = [{{"question": f"{{ask}}: {{i}}?", "answer": str(i)}} for i in range(num_examples)]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([judge]), policies={{"knows": knows, "forgets": forgets}})
"""


@pytest.fixture
def rove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    return in_process_rove(tmp_path, monkeypatch, capsys)


def json_output(done: Any) -> dict[str, Any]:
    """Return the JSON that a command printed."""
    return json.loads(done.out)


def test_a_run_is_rescored_and_can_be_compared(rove: Rove):
    old = json_output(rove("eval", *SMALL))
    done = rove("rescore", old["run"])
    assert (done.status, done.err) == (0, "")
    assert "8 of 8 rollouts scored" in done.out
    [new] = [str(path) for path in Path("runs").iterdir() if str(path) != old["run"]]
    assert new.startswith("runs/tictactoe--scripted-random--rescored--")
    assert f"rove compare {old['run']} {new}" in done.out
    assert Run(new).config()["config"]["model"] == "scripted:random"
    compared = json_output(rove("compare", old["run"], new, "--json"))
    assert (compared["ties"], compared["wins"], compared["losses"]) == (4, 0, 0)
    assert list(compared["settings"]) == ["rescored"]


def test_repeating_the_command_rescores_nothing(rove: Rove):
    old = json_output(rove("eval", *SMALL))["run"]
    first = rove("rescore", old, "--json")
    assert "8/8" in first.err
    lines_before = rollout_lines(json_output(first)["run"])
    second_run = json_output(rove("rescore", old, "--json"))
    assert second_run == json_output(first)
    assert rollout_lines(second_run["run"]) == lines_before


def test_arguments_override_those_of_the_run(rove: Rove, tmp_path: Path):
    write_environment(tmp_path / "mine", "guess", GUESS.format(good=1.0))
    eval_words = ("guess", "-m", "scripted:knows", "--env-dir", "mine", "-a", '{"ask": "What"}', "--json")
    old = json_output(rove("eval", *eval_words))["run"]
    done = rove("rescore", old, "-a", '{"num_examples": 2}', "--into", "runs/new", "--json")
    summary = json_output(done)
    assert (summary["scored"], summary["run"]) == (6, "runs/new")
    assert summary["rescored"] == {"run": old, "failed": 0, "gone": 3}
    assert Run("runs/new").config()["identity"]["env_args"] == {"ask": "What", "num_examples": 2}
    human = rove("rescore", old, "-a", '{"num_examples": 2}', "--into", "runs/new")
    assert "left out: 3 rollouts whose examples the dataset no longer has" in human.out


def test_other_arguments_require_another_folder_or_overwrite(rove: Rove):
    old = json_output(rove("eval", *SMALL))["run"]
    assert rove("rescore", old, "--into", "runs/new").status == 0
    words = ("rescore", old, "--into", "runs/new", "-a", '{"max_turns": 9}')
    refused = rove(*words)
    assert refused.status == 1
    assert "runs/new holds a different run" in refused.err
    assert "env_args.max_turns: was None, now 9" in refused.err
    assert rove(*words, "--overwrite").status == 0
    itself = rove("rescore", old, "--run-dir", old, "--overwrite")
    assert itself.status == 2
    assert "cannot be rescored into itself" in itself.err
    assert len(rollout_lines(old)) == 8


def test_a_replay_that_differs_fails_without_a_score(rove: Rove):
    old = json_output(rove("eval", *SMALL))["run"]
    done = rove("rescore", old, "-a", '{"max_turns": 1}')
    assert done.status == 1
    assert (
        "first failure, in replay: ReplayError: replay differs after turn 1: the rollout ends (max_turns_re" in done.out
    )
    assert "0 of 8 rollouts scored; 8 failed (8 × replay: ReplayError)" in done.out
    assert "left out" not in done.out


def test_excluded_failed_rollouts_are_reported(rove: Rove, tmp_path: Path):
    write_environment(tmp_path / "environments", "guess", GUESS.format(good="1.0"))
    done = rove("eval", "guess", "-m", "scripted:forgets", "--run-dir", "runs/old")
    assert "3 failed" in done.out
    assert "left out: 3 failed rollouts" in rove("rescore", "runs/old").out


def test_invalid_runs_are_refused(rove: Rove):
    nowhere = rove("rescore", "runs/none")
    assert (nowhere.status, nowhere.err) == (1, "error: runs/none is not a run folder: it does not exist\n")
    write_run_folder(Path("runs/rl"), [make_record()], kind="rl")
    assert "runs/rl is not the run of an evaluation" in rove("rescore", "runs/rl").err
    write_run_folder(Path("runs/mine"), [make_record()], seed=0, env="")
    unnamed = rove("rescore", "runs/mine")
    assert unnamed.status == 2
    assert "does not name its environment; call rove.rescore from Python" in unnamed.err
    assert rove("rescore", "runs/mine", "-a", "[1]").status == 2
    assert sorted(path.name for path in Path("runs").iterdir()) == ["mine", "rl"]
