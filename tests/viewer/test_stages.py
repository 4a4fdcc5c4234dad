"""Test the page of a `rove train` run: in the viewer's API, and as a report."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import msgspec
import pytest
from commands import Rove, in_process_rove, write_environment
from run_folders import make_record, write_run_folder
from train_folders import write_train_folder

import rove as vf
from rove.runs.run import Run
from rove.runs.train_folder import COMPLETE, DIAGNOSES, RESULTS, ResultRow, TrainFolder
from rove.viewer import api, train_answers
from rove.viewer.api import QueryParams
from rove.viewer.run_store import RunStore
from rove.viewer.train_commands import continue_commands, repeat_command

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
    write_train_folder(tmp_path / "runs" / "mine")
    write_run_folder(tmp_path / "runs" / "single", [make_record(0)])
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


@pytest.mark.parametrize(
    ("solved", "verdict"),
    [
        (57, "Yes: the reward rose"),
        (12, "Partly: the reward is not clearly above that of the weakest scripted policy; it rose"),
    ],
)
def test_scripted_policies_show_whether_the_model_has_learned(tmp_path: Path, solved: int, verdict: str):
    write_train_folder(tmp_path / "runs" / "mine", scripts={"guesser": 5, "oracle": 60}, solved=solved)
    page = api.stages(RunStore(tmp_path / "runs"), QueryParams([("run", "mine")]))
    answers = {answer["title"]: answer["parts"] for answer in page["answers"]}
    [learned] = answers["Learned"]
    assert learned.startswith(f"{verdict} from before training (base) to after RL: ")
    assert learned.endswith("For comparison, scripted policies: scripted:guesser 0.283, scripted:oracle 1.200.")
    assert "Compared with scripted:guesser: +" in answers["Certain"][0]
    assert "; with scripted:oracle: " in answers["Certain"][0]
    size, link, _ = answers["Still wrong"]
    assert size == (
        f"+ RL, greedy: in {60 - solved} of 60 examples it earns less than scripted:oracle, in 0 more; the largest loss: 0.200 "
        "where that earns 1.200. "
    )
    assert link == {"text": "Open it. ", "run": "eval/RL-greedy", "line": solved}


def test_weights_from_before_the_first_step_mean_that_rl_did_not_help(tmp_path: Path):
    write_train_folder(tmp_path / "runs" / "mine", best_step=0)
    page = api.stages(RunStore(tmp_path / "runs"), QueryParams([("run", "mine")]))
    [answer] = [answer["parts"] for answer in page["answers"] if answer["title"] == "RL alone"]
    assert answer[0].startswith(
        "RL did not help: the kept weights are those from before its first step. From after SFT"
    )


def test_the_page_answers_questions_about_a_training(store: RunStore, tmp_path: Path):
    page = api.stages(store, QueryParams([("run", "mine")]))
    answers = {answer["title"]: answer["parts"] for answer in page["answers"]}
    assert answers["Learned"] == [
        "Yes: the reward rose from before training (base) to after RL: 0.200 to 1.150 (greedy); "
        "the best reward of any rollout is 1.200."
    ]
    [certain] = answers["Certain"]
    assert certain.startswith("The 95% interval of the difference from base, +0.950 [")
    assert certain.endswith(
        "], paired over 60 examples, is above 0. This is one run, seed 3: another seed may end with another reward."
    )
    assert answers["RL alone"][0].startswith("From after SFT to after RL: +0.783 [")
    mistakes = page["mistakes"]
    size = "3 of 60 rollouts earned less than the best reward, 1.200; together they lost 3.000 of 72 points (4.2%)."
    assert mistakes["summary"][0] == size
    assert answers["Still wrong"] == [
        f"+ RL, greedy: {size} The wrong reply that loses most is no idea: 100.0% of these points in 3 rollouts. ",
        "The worst: question 57 → no idea (expected: 57) ",
        {"text": "Open it", "run": "eval/RL-greedy", "line": 57},
    ]
    assert [group["name"] for group in mistakes["questions"]] == ["question 57", "question 58", "question 59"]
    assert mistakes["replies"][0]["name"] == "no idea"
    assert mistakes["fields"] == {}  # all three are of one level of three, which happens by chance once in nine times
    assert (mistakes["best"], mistakes["wrong"]) == (1.2, 3)
    assert page["head"][5:] == ("win", "format", "tokens per rollout", "turns", "tokens per reply", "truncated")
    assert [row[5:] for row in page["values"]] == [
        (win, "1.000", "5.0", "1.0", "5.0", "0.0%") for win in ("0.000", "0.167", "0.950")
    ]
    assert answers["Length"] == [
        "Replies kept their length (greedy): after SFT 5.0 tokens per reply, 0.0% truncated; "
        "after RL 5.0 tokens per reply, 0.0% truncated."
    ]
    assert answers["Problems"][0].startswith("Diagnosis of rl1: ")
    path = str(tmp_path / "runs" / "mine" / "rl1" / "final")
    why = "the best held-out reward (greedy) in training, 0.800; of equally good steps, the last"
    assert answers["Kept weights"] == [f"RL 1, step 2: {why}. Folder: ", {"command": path}]
    assert answers["Cost"] == [
        "2.0 minutes. SFT: 2 steps, RL 1: 2 of 9 steps. (A command that was stopped and repeated counts only from its last "
        "start.)"
    ]
    [repeat] = answers["Repeat"]
    assert repeat["command"].startswith("rove train quiz --recipe ")
    assert repeat["command"].endswith(" --seed 3 --run-dir runs/again")
    [sft, rl] = page["stages"]
    assert (sft["size"], rl["size"]) == ("2 steps", "2 of 9 steps")
    assert rl["ended"] == "the reward has reached its target"
    # RL that ended by itself is not continued.
    assert answers["Next"][:2] == [
        "First follow the advice of the diagnosis. ",
        "RL ended early (the reward has reached its target): look at what it still gets wrong before more training.",
    ]
    commands = [part["command"] for part in answers["Next"] if isinstance(part, dict)]
    assert commands[0].endswith(" --seed 4 --run-dir runs/seed-4")
    assert commands[1].startswith("rove play quiz -m ")
    # The curves of all stages are in one picture.
    assert [row["step"] for row in page["training"]["rows"]] == [1, 2, 3, 4]
    assert page["training"]["alerts"] == [{"step": 2, "id": "RL 1 begins"}]


def test_after_a_time_limit_more_time_is_proposed(store: RunStore, tmp_path: Path):
    summary = tmp_path / "runs" / "mine" / "rl1" / "summary.json"
    changed = json.loads(summary.read_text())
    changed["stopped"] = "the steps took 7.1 minutes, and max_minutes is 7"
    summary.write_text(json.dumps(changed))
    page = api.stages(store, QueryParams([("run", "mine")]))
    parts = next(answer["parts"] for answer in page["answers"] if answer["title"] == "Next")
    assert parts[1].startswith("A time limit ended RL (the steps took 7.1 minutes") and "--minutes" in parts[1]


def test_more_rl_is_not_proposed_near_the_best_reward(store: RunStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(train_answers, "SOLVED", 0.05)
    page = api.stages(store, QueryParams([("run", "mine")]))
    parts = next(answer["parts"] for answer in page["answers"] if answer["title"] == "Next")
    assert parts[1] == "It loses 4.2% of the best reward, so more RL can gain little: train on a harder setting."
    commands = [part["command"].split()[:2] for part in parts if isinstance(part, dict)]
    assert commands == [["rove", "train"], ["rove", "play"]]


def test_more_rl_keeps_the_settings_of_the_last_rl(store: RunStore, tmp_path: Path):
    folder = TrainFolder(tmp_path / "runs" / "mine")
    row = ResultRow(name="+ RL", model="runs/mine/rl1/final", conditions={})
    words = continue_commands(folder, row)["rl"].split()
    # The settings name the held-out examples, which a new command would train on.
    assert words[:4] == ["rove", "rl", "@", str(tmp_path / "runs/mine/rl1/config.toml")]
    assert words[-2:] == ["--run-dir", "runs/more-rl"]


def test_a_training_that_is_not_complete_is_to_be_continued(store: RunStore, tmp_path: Path):
    (tmp_path / "runs" / "mine" / COMPLETE).unlink()
    page = api.stages(store, QueryParams([("run", "mine")]))
    answers = {answer["title"]: answer["parts"] for answer in page["answers"]}
    assert answers["Next"] == ["The run is not complete. Unless it is still running, the command above continues it."]
    [command] = answers["Continue"]
    assert isinstance(command, dict) and command["command"].endswith(f"--run-dir {tmp_path / 'runs' / 'mine'}")
    assert answers["Cost"] == ["SFT: 2 steps, RL 1: 2 of 9 steps; the command has not ended."]


@pytest.mark.parametrize("is_sft_evaluated", [True, False])
def test_a_stopped_training_names_the_stop_and_the_best_weights_so_far(tmp_path: Path, is_sft_evaluated: bool):
    folder = write_train_folder(tmp_path / "runs" / "mine")
    rl = folder.path / "rl1"
    (folder.path / COMPLETE).unlink()
    shutil.rmtree(rl)
    metric = "eval/greedy/reward/mean"
    with Run(rl) as run:
        run.start("rl", {"env": "quiz", "steps": 9, "keep_best": metric}, {})
        run.append_metrics({"step": 3, metric: 0.9})
        run.append_metrics({"step": 4, metric: 0.7})
    (rl / "checkpoints" / "best").mkdir(parents=True)
    (rl / "stopped.json").write_text('{"why": "interrupted by the user", "step": 4}', encoding="utf-8")
    rows = [row for row in folder.rows() if row.name == "base" or (row.name == "+ SFT" and is_sft_evaluated)]
    (folder.path / RESULTS).write_bytes(msgspec.json.encode(rows))
    page = api.stages(RunStore(tmp_path / "runs"), QueryParams([("run", "mine")]))
    answers = {answer["title"]: answer["parts"] for answer in page["answers"]}
    [command] = answers["Continue"]
    assert answers["Next"] == ["Stopped in RL 1 at step 4 (interrupted by the user). Continue with: ", command]
    assert page["stages"][-1]["ended"] == "interrupted by the user"
    if is_sft_evaluated:
        why = "the best held-out reward (greedy) in training, 0.900; of equally good steps, the last"
        assert answers["Kept weights"][:2] == [
            f"RL 1, step 3: {why}; the table has no row for these weights yet. Folder: ",
            {"command": str(rl / "checkpoints" / "best")},
        ]
        assert answers["Cost"] == ["SFT: 2 steps, RL 1: 4 of 9 steps; the command was stopped."]


def test_a_condition_whose_reward_fell_is_named(tmp_path: Path):
    folder = write_train_folder(tmp_path / "runs" / "mine")
    better, worse = ([make_record(i, win=float(right)) for i in range(60)] for right in (True, False))
    rows = [row for row in folder.rows() if row.name in ("base", "+ RL")]
    for row, records in zip(rows, (better, worse), strict=True):
        write_run_folder(folder.evaluation_folder(row.name, "sampled"), records)
        row.conditions["sampled"] = row.conditions["greedy"]
    (folder.path / RESULTS).write_bytes(msgspec.json.encode(rows))
    page = api.stages(RunStore(tmp_path / "runs"), QueryParams([("run", "mine")]))
    [learned] = page["answers"][0]["parts"]
    assert learned.startswith("Yes: the reward rose") and "1.200 to 0.200 (sampled), a fall" in learned


def test_an_rl_stage_is_known_by_its_folder_and_a_run_without_diagnoses_does_not_claim_that_all_is_well(tmp_path: Path):
    folder = write_train_folder(tmp_path / "runs" / "mine")
    rows = [msgspec.structs.replace(row, name="+ GRPO" if row.name == "+ RL" else row.name) for row in folder.rows()]
    (folder.path / "eval" / "RL-greedy").rename(folder.path / "eval" / "GRPO-greedy")
    (folder.path / RESULTS).write_bytes(msgspec.json.encode(rows))
    (folder.path / DIAGNOSES).unlink()
    page = api.stages(RunStore(tmp_path / "runs"), QueryParams([("run", "mine")]))
    answers = {answer["title"]: answer["parts"] for answer in page["answers"]}
    assert answers["RL alone"][0].startswith("From after SFT to after GRPO: +")
    assert "No diagnosis" not in answers["Problems"][0]


def test_commands_have_the_arguments_of_the_environment(tmp_path: Path):
    folder = write_train_folder(tmp_path / "mine")
    run = Run(tmp_path / "mine" / "data")
    with run:
        run.start("eval", {"env": "quiz", "env_args": {"num_examples": 500, "size": 4}}, {})
    row = next(row for row in folder.rows() if row.name == "+ RL")
    assert shlex.split(continue_commands(folder, row)["play"])[2:5] == ["quiz", "-a", '{"size":4}']


def test_a_training_that_has_just_begun(tmp_path: Path):
    folder = write_train_folder(tmp_path / "runs" / "mine")
    for name in (RESULTS, COMPLETE):
        (folder.path / name).unlink()
    page = api.stages(RunStore(tmp_path / "runs"), QueryParams([("run", "mine")]))
    assert page["answers"][0] == {"title": "Learned", "parts": ["No training stage has been evaluated yet."]}
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
    write_train_folder(tmp_path / "mine")
    store = RunStore(tmp_path / "mine")
    assert store.names()[0] == "mine"
    assert api.run(store, QueryParams([("run", "mine")]))["kind"] == "train"
    assert [
        api.run(store, QueryParams([("run", name)]))["training"] for name in ("mine/sft", "mine/eval/RL-greedy")
    ] == ["mine"] * 2
    with pytest.raises(vf.ConfigError, match="single run"):
        api.stages(store, QueryParams([("run", "mine/sft")]))


@pytest.fixture
def rove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    return in_process_rove(tmp_path, monkeypatch, capsys)


def test_report_of_a_training(rove: Rove, tmp_path: Path):
    write_train_folder(tmp_path / "mine")
    printed = rove("report", "mine", "--markdown").out
    assert "| + RL | greedy | 1.150 |" in printed
    sentence = "+ RL, greedy\\: 3 of 60 rollouts earned less than the best reward, 1.200; together"
    assert f"- Still wrong: {sentence}" in printed
    assert "Folder\\: `" in printed
    assert "- Repeat: `rove train quiz" in printed
    rove("report", "mine")
    page = (tmp_path / "mine" / "report.html").read_text("utf-8")
    data = json.loads(page.partition('<script type="application/json" id="data">')[2].partition("</script>")[0])
    assert data["stages"]["mistakes"]["questions"][0]["name"] == "question 57"


@pytest.mark.broad
def test_the_command_that_repeats_a_training_runs_as_printed(rove: Rove, tmp_path: Path):
    write_environment(tmp_path / "packages", "parity", PARITY)
    assert rove("train", "parity", "--env-dir", "packages", "--dry-run", "--run-dir", "mine").status == 0
    with Run(tmp_path / "mine" / "sft") as stage:
        stage.start("sft", {"env": "parity", "env_dir": "packages", "seed": 2}, {})
    program, *words = shlex.split(repeat_command(TrainFolder("mine")))
    repeated = rove(*words, "--dry-run")
    assert (program, repeated.status) == ("rove", 0), repeated.err
    assert "parity" in repeated.out
