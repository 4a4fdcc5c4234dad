"""Test the page of a `rove train` run: in the viewer's API, and as a report."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from commands import Rove, environment, in_this_process
from made import made_run, record
from made_training import made_training

import rove as vf
from rove.runs.run import Run
from rove.runs.train_folder import COMPLETE, RESULTS, TrainFolder
from rove.viewer import api
from rove.viewer.api import QueryParams
from rove.viewer.run_store import RunStore
from rove.viewer.stages import repeat_command

PARITY = """
import rove as vf

def right(messages, state, rng):
    return state["answer"]

def guesser(messages, state, rng):
    return rng.choice(["even", "odd"])

def correct(completion, answer):
    return float(completion[-1]["content"] == answer)

def load_environment(num_examples: int = 100):
    rows = [{"question": f"{n}?", "answer": "odd" if n % 2 else "even"} for n in range(num_examples)]
    policies = {"right": right, "guesser": guesser}
    return vf.SingleTurnEnv(dataset=rows, eval_dataset=rows, rubric=vf.Rubric([correct]), policies=policies)
"""


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    made_training(tmp_path / "runs" / "mine")
    made_run(tmp_path / "runs" / "single", [record(0)])
    return RunStore(tmp_path / "runs")


def test_the_list_shows_a_training_as_one_row_with_the_reward_of_the_kept_weights(store: RunStore):
    listed = api.runs(store, QueryParams([("measurements", "0")]))
    rows = {row["name"]: row for row in listed["runs"]}
    assert rows.keys() == {"mine", "single"}
    assert listed["measurements"] == 5  # two stages and three evaluations
    row = rows["mine"]
    assert (row["kind"], row["status"], row["env"], row["stages"]) == ("train", "complete", "quiz", 2)
    assert row["reward"]["mean"] == pytest.approx(1.15)
    assert row["curve"] == [0.8, 0.8]
    everything = api.runs(store, QueryParams([]))
    assert {"mine/sft", "mine/rl1", "mine/eval/RL-greedy"} < {row["name"] for row in everything["runs"]}


def test_the_page_answers_what_one_asks_about_a_training(store: RunStore):
    page = api.stages(store, QueryParams([("run", "mine")]))
    # Did it learn, and is it certain?
    assert page["verdict"][0].startswith(
        "From base to + RL, the reward (greedy) rose: 0.200 to 1.150, difference +0.950 ["
    )
    # How much did RL help?
    assert page["verdict"][1].startswith("From + SFT to + RL, the reward (greedy) rose: 0.367 to 1.150")
    # What is still wrong?
    mistakes = page["mistakes"]
    assert mistakes["summary"][0] == "3 of 60 rollouts earned less than the best reward, 1.200."
    assert [group["name"] for group in mistakes["questions"]] == ["question 57", "question 58", "question 59"]
    assert mistakes["replies"][0]["name"] == "no idea"
    assert list(mistakes["fields"]) == ["level"]
    assert mistakes["summary"][1] == "level = 2: mean reward 1.050 in 20 rollouts, 1.200 in the others."
    # Did replies get longer, or cut off?
    assert [row[5:] for row in page["values"]] == [("5.0", "0.0%")] * 3
    # What was diagnosed, which weights are kept, what did it cost, how do I repeat it, and what next?
    assert page["diagnoses"][0].startswith("rl1: ")
    [sft, rl] = page["stages"]
    assert (sft["size"], rl["size"]) == ("2 steps", "2 of 9 steps")
    assert rl["kept"] == "step 2, eval/greedy/reward/mean 0.800"
    assert rl["ended"] == "the reward has reached its target"
    assert ("2.0 minutes", "cost of the last run of the command") in page["cards"]
    assert page["repeat"].startswith("rove train quiz --recipe ")
    assert page["repeat"].endswith(" --seed 3 --run-dir runs/again")
    assert page["next"][0].startswith("rove play quiz -m ")
    # The curves of all stages are in one picture.
    assert [row["step"] for row in page["training"]["rows"]] == [1, 2, 3, 4]
    assert page["training"]["alerts"] == [{"step": 2, "id": "RL 1 begins"}]


def test_a_training_that_has_just_begun(tmp_path: Path):
    folder = made_training(tmp_path / "runs" / "mine")
    for name in (RESULTS, COMPLETE):
        (folder.path / name).unlink()
    page = api.stages(RunStore(tmp_path / "runs"), QueryParams([("run", "mine")]))
    assert page["verdict"] == ["No training stage has been evaluated yet."]
    assert (page["values"], page["mistakes"], page["complete"]) == ([], None, False)
    row = RunStore(tmp_path / "runs").run_summary("mine")
    assert (row["status"], row["reward"]) == ("stopped", None)


def test_a_damaged_file_does_not_hide_other_runs(store: RunStore, tmp_path: Path):
    (tmp_path / "runs" / "mine" / RESULTS).write_text("[", encoding="utf-8")
    rows = {row["name"]: row for row in api.runs(store, QueryParams([]))["runs"]}
    assert RESULTS in rows["mine"]["trouble"]
    assert rows["single"]["kind"] == "eval"
    with pytest.raises(vf.RunError, match=RESULTS):
        api.stages(store, QueryParams([("run", "mine")]))


def test_a_single_training_folder_can_be_viewed(tmp_path: Path):
    made_training(tmp_path / "mine")
    store = RunStore(tmp_path / "mine")
    assert store.names()[0] == "mine"
    assert api.run(store, QueryParams([("run", "mine")]))["kind"] == "train"
    with pytest.raises(vf.ConfigError, match="single run"):
        api.stages(store, QueryParams([("run", "mine/sft")]))


@pytest.fixture
def rove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    return in_this_process(tmp_path, monkeypatch, capsys)


def test_report_of_a_training(rove: Rove, tmp_path: Path):
    made_training(tmp_path / "mine")
    printed = rove("report", "mine", "--markdown").out
    assert "| + RL | greedy | 1.150 |" in printed
    assert "- + RL, greedy: 3 of 60 rollouts earned less than the best reward, 1.200." in printed
    assert "Repeat: `rove train quiz" in printed
    rove("report", "mine")
    page = (tmp_path / "mine" / "report.html").read_text("utf-8")
    data = json.loads(page.partition('<script type="application/json" id="data">')[2].partition("</script>")[0])
    assert data["stages"]["mistakes"]["questions"][0]["name"] == "question 57"


@pytest.mark.broad
def test_the_command_that_repeats_a_training_runs_as_printed(rove: Rove, tmp_path: Path):
    environment(tmp_path / "packages", "parity", PARITY)
    assert rove("train", "parity", "--env-dir", "packages", "--dry-run", "--run-dir", "mine").status == 0
    with Run(tmp_path / "mine" / "sft") as stage:
        stage.start("sft", {"env": "parity", "env_dir": "packages", "seed": 2}, {})
    program, *words = shlex.split(repeat_command(TrainFolder("mine")))
    repeated = rove(*words, "--dry-run")
    assert (program, repeated.status) == ("rove", 0), repeated.err
    assert "parity" in repeated.out
