"""`rove sft` and `rove rl`: contents of the run folder, repeated commands, warnings and errors."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from commands import Rove, in_process_rove, rollout_lines, snapshot_files, write_environment
from flat_settings import with_tables
from rich.console import Console
from tiers import some_broad

from rove.cli.rl import print_rl
from rove.core.config import convert
from rove.models.load import load_model
from rove.remote.isolation import IsolationConfig
from rove.runs.run import Run
from rove.stages.evaluation import EvalConfig, run_eval
from rove.stages.models import ModelConfig, run_model_new
from rove.stages.reporter import SilentReporter
from rove.stages.results import TrainingResult
from rove.train.config import RLConfig

MODEL_FILES = {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"}


@pytest.fixture
def rove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    return in_process_rove(tmp_path, monkeypatch, capsys)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder with a new model (model/) and some games of the teacher (games/)."""
    folder = tmp_path_factory.mktemp("made")
    run_model_new(ModelConfig(env="tictactoe", output=str(folder / "model"), games=20))
    games = EvalConfig(
        env="tictactoe",
        model="scripted:teacher",
        num_examples=40,
        rollouts_per_example=1,
        run_dir=str(folder / "games"),
    )
    run_eval(games, SilentReporter())
    return folder


def sft(inputs: Path, *options: str) -> list[str]:
    words = f"sft --data {inputs}/games -m {inputs}/model --epochs 2 --batch-size 16 --validate_every 2 --threads 1"
    return [*words.split(), "--final-eval-rollouts", "0", *options]


def rl(inputs: Path, *options: str) -> list[str]:
    words = f"rl tictactoe -m {inputs}/model --steps 2 --batch-size 8 -r 4 -t 4 --checkpoint_every 1 --threads 1"
    return [*words.split(), *options]


ADAPTER_FILES = {"CHECKSUMS", "README.md", "adapter_config.json", "adapter_model.safetensors", "base.txt"}


@pytest.mark.broad
def test_an_adapter_is_trained_evaluated_merged_and_trained_further(rove: Rove, inputs: Path):
    """SFT trains an adapter, RL another one on top of it; both are accepted wherever a model is expected."""
    lora = ("--lora.rank", "2", "--lora.targets", '["q_proj", "down_proj"]')
    assert rove(*sft(inputs, *lora, "--run-dir", "runs/sft")).status == 0
    words = rl(inputs, *lora, "--run-dir", "runs/rl", "-m", "runs/sft/final")
    done = rove(*words)
    assert done.status == 0, done.err
    assert "the adapter covers " in done.out
    assert {*os.listdir("runs/rl/final")} == {*os.listdir("runs/sft/final")} == ADAPTER_FILES
    merged = rove("model", "merge", "runs/rl/final", "-o", "models/merged", "--json")
    assert merged.status == 0, merged.err
    parameters = sum(p.numel() for p in load_model(inputs / "model", "cpu").model.parameters())
    assert json.loads(merged.out) == {"path": "models/merged", "parameters": parameters}
    assert set(os.listdir("models/merged")) >= MODEL_FILES
    eval_words = ("eval", "tictactoe", "-n", "4", "-r", "1", "-t", "4", "-T", "0", "--no-save", "--json", "-m")
    results = [
        json.loads(rove(*eval_words, model).out)
        for model in ("runs/rl/final", "models/merged", "runs/rl/checkpoints/1")
    ]
    assert results[0]["reward"] == results[1]["reward"]
    assert all(result["scored"] == 4 for result in results)
    second_run = rove(*words)
    assert "runs/rl is complete" in second_run.out
    refused = rove(*words, "--lora.rank", "3")
    assert refused.status == 1
    assert "  lora.rank: was 2, now 3" in refused.err.splitlines()
    Path("runs/rl/summary.json").unlink()
    (Path("runs/sft/final") / "adapter_model.safetensors").write_bytes(b"")
    assert "  model: was 'folder#" in rove(*words).err  # the model below the adapter has changed


@pytest.mark.slow
def test_merge_refuses_other_folders_and_overwrites_nothing(rove: Rove, inputs: Path):
    assert rove(*sft(inputs, "--lora.rank", "2", "--run-dir", "runs/sft")).status == 0
    assert "did you mean runs/sft/final?" in rove("model", "merge", "runs/sft", "-o", "merged").err
    assert "model is not an adapter: it has no" in rove("model", "merge", f"{inputs}/model", "-o", "merged").err
    assert not Path("merged").exists()
    Path("merged").mkdir()
    Path("merged/mine").touch()
    assert "merged is not empty" in rove("model", "merge", "runs/sft/final", "-o", "merged").err
    assert os.listdir("merged") == ["mine"]
    done = rove("model", "merge", "runs/sft/final", "-o", "other")
    assert done.status == 0
    assert "parameters, adapter merged" in done.out


@pytest.mark.parametrize("words", [sft, rl])
def test_a_missing_model_leaves_no_run_folder(rove: Rove, inputs: Path, words: Callable[..., list[str]]):
    done = rove(*words(inputs, "-m", "nope", "--run-dir", "runs/mine"))
    assert done.status == 2
    assert "no model 'nope'" in done.err
    assert not Path("runs/mine").exists()


def test_invalid_adapter_settings_are_refused_before_training(rove: Rove, inputs: Path):
    done = rove(*rl(inputs, "--lora.dropout", "0.1", "--run-dir", "runs/mine"))
    assert done.status == 2
    assert "lora.dropout is 0.1, but lora.rank is 0" in done.err
    assert not Path("runs/mine").exists()


@pytest.mark.broad
def test_sft_writes_a_model_a_summary_and_curves(rove: Rove, inputs: Path):
    done = rove(*sft(inputs, "--min-reward", "0.6", "--json"))
    assert done.status == 0
    summary = json.loads(done.out)
    final = Path(summary["model"])
    run = final.parent
    assert run.parent == Path("runs")
    assert set(os.listdir(final)) >= MODEL_FILES
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    metrics = Run(run).metrics()
    assert [m["step"] for m in metrics] == list(range(1, summary["steps"] + 1))
    validation_losses = {m["step"]: m["validation_loss"] for m in metrics if "validation_loss" in m}
    assert summary["validation_loss"] == min(validation_losses.values()) == validation_losses[summary["best_step"]]
    passing = sum(record.reward is not None and record.reward >= 0.6 for record in Run(inputs / "games").rollouts())
    assert summary["conversations"] + summary["held_out_samples"] == passing < 40
    assert rove("eval", "tictactoe", "-m", str(final), "-n", "1", "-r", "1", "-t", "4", "--no-save").status == 0


@pytest.mark.slow
def test_sft_compares_its_model_with_the_scripted_policies(rove: Rove, inputs: Path):
    done = rove(*sft(inputs, "--final-eval-rollouts", "4", "--run-dir", "runs/mine"))
    assert done.status == 0, done.err
    placement = json.loads(Path("runs/mine/summary.json").read_text())["placement"]
    names = [row["name"] for row in placement["rows"]]
    assert names == ["the trained model", "scripted:optimal", "scripted:random", "scripted:teacher"]
    assert {row["scored"] for row in placement["rows"]} == {4}
    assert placement["env"] == "tictactoe"
    assert placement["text"] in done.out
    assert placement["trained_examples"] == 4  # the games were not made with --train
    assert "4 of the 4 examples in this table are also in the training data" in done.out
    other_run = rove(*sft(inputs, "--final-eval-rollouts", "4", "-a", '{"seed": 5}', "--run-dir", "runs/others"))
    assert other_run.status == 0, other_run.err
    assert "also in the training data" not in other_run.out
    assert "evaluate it: rove eval tictactoe -m runs/mine/final" in done.out
    failed = rove(*sft(inputs, "--final-eval-rollouts", "4", "--env", "nowhere", "--run-dir", "runs/other"))
    assert failed.status == 0, failed.err
    assert "not evaluated: no environment 'nowhere'" in failed.out
    assert "placement" not in json.loads(Path("runs/other/summary.json").read_text())


@pytest.mark.broad
def test_rl_writes_a_model_a_summary_and_curves(rove: Rove, inputs: Path):
    done = rove(*rl(inputs, "--json"))
    assert done.status == 0
    assert "the learning rate never reaches its peak" in done.err
    summary = json.loads(done.out)
    final = Path(summary["model"])
    run = Run(final.parent)
    assert set(os.listdir(final)) >= MODEL_FILES
    assert (run.path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert summary["steps"] == 2
    assert summary["last"] == run.metrics()[-1]
    rollout_keys = [(record.step, record.example_key, record.rollout_index) for record in run.rollouts()]
    assert len(rollout_keys) == len(set(rollout_keys)) == 16
    for model in (final, run.path / "checkpoints" / "1"):
        assert rove("eval", "tictactoe", "-m", str(model), "-n", "1", "-r", "1", "-t", "4", "--no-save").status == 0


@pytest.mark.parametrize("command", some_broad([sft, rl], 2))
def test_a_complete_run_is_not_trained_again(rove: Rove, inputs: Path, command):
    words = command(inputs, "--run-dir", "runs/mine")
    first = rove(*words)
    assert first.status == 0
    assert "curves: runs/mine/curves.png" in first.out
    contents_before = snapshot_files(Path("runs/mine"))
    second_run = rove(*words)
    assert second_run.status == 0
    assert "runs/mine is complete; --overwrite to train again" in second_run.out
    assert snapshot_files(Path("runs/mine")) == contents_before
    with Path("runs/mine/final/config.json").open("a") as damaged:
        damaged.write(" ")
    refused = rove(*words)
    assert refused.status == 1 and "the model runs/mine/final has changed: config.json" in refused.err
    fresh = rove(*words, "--overwrite")
    assert "is complete" not in fresh.out
    contents_after = snapshot_files(Path("runs/mine"))
    final = "runs/mine/final/model.safetensors"
    assert contents_after[final][0] > contents_before[final][0]
    assert contents_after[final][1] == contents_before[final][1]


@pytest.mark.slow
def test_another_setting_in_the_same_folder_is_refused_except_checkpoint_retention(rove: Rove, inputs: Path):
    assert rove(*rl(inputs, "--run-dir", "runs/mine")).status == 0
    contents_before = snapshot_files(Path("runs/mine"))
    other_run = rove(*rl(inputs, "--run-dir", "runs/mine", "--learning-rate", "1e-2"))
    assert other_run.status == 1
    assert "  learning_rate: was 0.0003, now 0.01" in other_run.err.splitlines()
    assert rove(*rl(inputs, "--run-dir", "runs/mine", "--keep_checkpoints", "1")).status == 0
    assert snapshot_files(Path("runs/mine")) == contents_before


EVALUATION_TABLE = """
[[evaluation]]
env = "tictactoe"
num_examples = 8
max_tokens = 4
every = 100
"""


@pytest.mark.slow
def test_sft_warns_about_evaluation_on_training_data(rove: Rove, inputs: Path):
    Path("measured.toml").write_text(EVALUATION_TABLE)
    assert (
        "8 of 8 rows are also trained on. To try: collect training data with"
        in rove(*sft(inputs, "@", "measured.toml")).out
    )
    held_out = rove(
        *sft(inputs, "@", "measured.toml", "--min-reward", "0.6", "--evaluation", '[{"env": "double_check"}]')
    )
    assert held_out.status == 0, held_out.err
    assert "also trained on" not in held_out.out


@pytest.mark.slow
def test_rl_warns_once_and_about_evaluation_on_training_data(rove: Rove, inputs: Path):
    Path("environments").mkdir()
    Path("environments/same.py").write_text(EQUAL_ROWS_ENV)
    Path("measured.toml").write_text(EVALUATION_TABLE.replace("tictactoe", "same"))
    words = [*rl(inputs, "@", "measured.toml", "--run-dir", "runs/mine"), "--steps"]
    words[1] = "same"
    started = rove(*words, "1")
    assert started.status == 0, started.err
    assert "warning: schedule:" in started.out and "the learning rate never reaches its peak" in started.out
    assert "warning: held_out: evaluation same: 2 of 8 rows are also trained on" in started.out
    Path("runs/mine/summary.json").unlink()
    continued = rove(*words, "1")
    assert "continuing runs/mine after step 1" in continued.out
    assert "warning" not in continued.out


@pytest.mark.slow
def test_rl_warns_when_max_tokens_fills_the_context(rove: Rove, inputs: Path):
    config = json.loads((inputs / "model/config.json").read_text())
    context = config["max_position_embeddings"]
    words = [
        word if word != "4" or previous_word != "-t" else str(context)
        for previous_word, word in pairwise(["", *rl(inputs)])
    ]
    done = rove(*words, "--steps", "1", "--batch-size", "2", "-r", "2")
    assert done.status == 0, done.err
    assert f"max_tokens is {context}, but the model's context is {context} tokens, prompt included" in done.out


EQUAL_ROWS_ENV = """
import rove as vf

def load_environment():
    rows = [{"question": f"say {n}"} for n in range(9)]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([lambda completion: float(len(str(completion)) % 2)], [1.0]))
"""


@pytest.mark.slow
def test_sft_does_not_resume_on_other_data(rove: Rove, inputs: Path):
    play = ("eval", "tictactoe", "-m", "scripted:teacher", "-r", "1", "--run-dir", "games")
    words = ["sft", "--data", "games", *sft(inputs)[3:], "--run-dir", "runs/mine"]
    assert rove(*play, "-n", "20").status == 0
    assert rove(*words).status == 0
    assert rove(*play, "-n", "30").status == 0
    assert len(rollout_lines("games")) == 30
    refused = rove(*words)
    assert refused.status == 1
    assert "  data: was '" in refused.err
    assert "learning_rate" not in refused.err


def test_empty_training_data_is_refused_before_training(rove: Rove, inputs: Path):
    done = rove(*sft(inputs, "--min-reward", "7"))
    assert done.status == 2
    assert f"0 of 40 conversations in {inputs}/games are left; 40 have a reward below 7.0" in done.err
    assert not Path("runs").exists()


INTERRUPTING_ENV = """
import signal

import rove as vf

seen = []

def reward(completion):
    seen.append(completion)
    if len(seen) == 24:
        signal.raise_signal(signal.SIGINT)
    return float(len(seen) % 2)

def load_environment():
    return vf.SingleTurnEnv(dataset=[{"question": "say 1"}], rubric=vf.Rubric([reward], [1.0]))
"""


@pytest.mark.broad
def test_an_interrupted_training_names_the_command_that_resumes_it(rove: Rove, inputs: Path, tmp_path: Path):
    write_environment(tmp_path / "environments", "interrupts", INTERRUPTING_ENV)
    done = rove("rl", "interrupts", *rl(inputs)[2:], "--run-dir", "runs/mine", "--steps", "4")
    assert done.status == 130, done.err
    assert "continues after step 2, the last checkpoint in runs/mine" in done.out
    stopped = json.loads(Path("runs/mine/stopped.json").read_text())
    assert stopped["why"] == "interrupted by the user"
    assert stopped["step"] == 2
    assert stopped["rollouts"] >= 16
    resumed = rove(*shlex.split(stopped["resume"])[1:])
    assert resumed.status == 0, resumed.err
    assert "continuing runs/mine after step 2" in resumed.out
    assert not Path("runs/mine/stopped.json").exists()


EVALUATION_AND_ALERTS = """
curriculum.shuffle = true
keep_best = "eval/perfect/reward/mean"
show_every = 1
[alerts]
window = 1
grad_norm_factor = 1e-9
length_factor = 1e-9
[[evaluation]]
env = "tictactoe"
name = "perfect"
env_args = { min_random_move_prob = 0.0, max_random_move_prob = 0.0 }
num_examples = 3
max_tokens = 4
every = 1
"""


@pytest.mark.slow
def test_rl_evaluates_and_warns_and_rove_eval_gives_the_same_reward(rove: Rove, inputs: Path):
    Path("watched.toml").write_text(EVALUATION_AND_ALERTS)
    done = rove(*rl(inputs, "@", "watched.toml", "--run-dir", "runs/mine"))
    assert done.status == 0, done.err
    run = Run("runs/mine")
    metrics = run.metrics()
    assert "eval/perfect/reward/mean" in done.out
    assert f"best eval/perfect/reward/mean: {max(m['eval/perfect/reward/mean'] for m in metrics):.4f}" in done.out
    assert done.out.count("· example ") == 2
    assert "step 2: length_growth" in done.out
    assert "length_growth" in [alert["id"] for alert in run.alerts()]
    words = [
        "eval",
        "tictactoe",
        "-n",
        "3",
        "-r",
        "1",
        "-T",
        "0",
        "-t",
        "4",
        "--no-save",
        "--json",
        "-m",
        "runs/mine/final",
    ]
    args = '{"min_random_move_prob": 0.0, "max_random_move_prob": 0.0}'
    evaluation = json.loads(rove(*words, "-a", args).out)
    assert evaluation["reward"]["mean"] == metrics[-1]["eval/perfect/reward/mean"]
    steps = [f"runs/mine/evaluations/perfect/{step}" for step in (1, 2)]
    assert rove("compare", *steps).status == 0


@pytest.mark.slow
def test_sft_evaluates_in_an_environment(rove: Rove, inputs: Path):
    Path("watched.toml").write_text(
        EVALUATION_AND_ALERTS.replace("curriculum.shuffle = true", "").replace("show_every = 1", "")
    )
    done = rove(*sft(inputs, "@", "watched.toml", "--run-dir", "runs/mine"))
    assert done.status == 0, done.err
    assert "best eval/perfect/reward/mean" in done.out
    assert all("eval/perfect/reward/mean" in m for m in Run("runs/mine").metrics())


def test_a_missing_logger_is_refused_before_training(rove: Rove, inputs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    done = rove(*rl(inputs, "--loggers", '["wandb"]', "--run-dir", "runs/mine"))
    assert done.status == 2
    assert "pip install 'rove[wandb]'" in done.err
    assert not Path("runs/mine").exists()


@pytest.mark.parametrize(
    ("last", "over", "is_reported"),
    [
        (0.4, {}, True),
        (0.9, {}, False),
        (0.4, {"curriculum__column": "level"}, False),
        (0.4, {"filter__easy_threshold": 1.0}, False),
        (0.4, {"keep_best": "eval/x/reward/mean"}, False),
    ],
)
def test_a_reward_without_measurable_increase_is_reported(
    tmp_path: Path, last: float, over: dict[str, Any], is_reported: bool
):
    run = Run(tmp_path / "run")
    with run:
        run.start("rl", {}, {})
        for step in range(40):
            reward = 0.4 + (last - 0.4) * step / 39 + 0.01 * (step % 3)
            run.append_metrics({"step": step + 1, "reward/mean": reward})
        run.finish({"steps": 40})
    out = io.StringIO()
    config = convert(RLConfig, with_tables({"env": "tictactoe", "model": "models/x", **over}))
    print_rl(config, TrainingResult(tmp_path / "final", run), Console(file=out, width=100))
    assert ("no measurable increase in reward in 40 steps (0.4" in out.getvalue()) == is_reported


def test_the_suggested_commands_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    run = Run(tmp_path / "run")
    with run:
        run.start("rl", {}, {})
        run.finish({"steps": 0})
    out = io.StringIO()
    args = {"num_examples": 3, "system_prompt": "it's a [game]"}
    config = RLConfig(
        env="adding", env_dir="some envs", env_args=args, model="models/x", isolation=IsolationConfig(enabled=True)
    )
    print_rl(config, TrainingResult(tmp_path / "the end", run), Console(file=out, width=100))
    evaluate, play = (shlex.split(words) for words in re.findall(r": rove ((?:eval|play) .*)", out.getvalue()))
    write_environment(tmp_path / "some envs", "adding", "def load_environment(**kwargs): ...")
    monkeypatch.setattr("rove.cli.eval.check", lambda evaluations: None)  # there is no such model
    done = in_process_rove(tmp_path, monkeypatch, capsys)(*evaluate, "--dry-run", "--json")
    assert done.status == 0, done.err
    settings = json.loads(done.out)
    assert (settings["env"], settings["env_dir"], settings["env_args"], settings["isolation"]["enabled"]) == (
        "adding",
        "some envs",
        args,
        True,
    )
    assert settings["model"] == str(tmp_path / "the end")
    assert play[1 : play.index("-m")] == evaluate[1 : evaluate.index("-m")]


def test_a_run_with_only_zero_advantage_groups_is_reported(tmp_path: Path):
    run = Run(tmp_path / "run")
    with run:
        run.start("rl", {}, {})
        for step in range(3):
            run.append_metrics({"step": step + 1, "reward/mean": 0.0, "groups/all": 8, "groups/zero_spread": 8})
        run.finish({"steps": 3})
    out = io.StringIO()
    print_rl(
        RLConfig(env="tictactoe", model="models/x"),
        TrainingResult(tmp_path / "final", run),
        Console(file=out, width=100),
    )
    assert "nothing was learned: in every step all groups had zero advantage" in out.getvalue()


@pytest.mark.slow
def test_a_damaged_checkpoint_is_set_aside_with_a_warning(rove: Rove, inputs: Path):
    words = rl(inputs, "--run-dir", "runs/rl")
    assert rove(*words).status == 0
    Path("runs/rl/summary.json").unlink()
    os.truncate("runs/rl/checkpoints/2/trainer.pt", 1000)
    done = rove(*words)
    assert done.status == 0, done.err
    assert "warning: checkpoint runs/rl/checkpoints/2 is damaged: trainer.pt cannot be read" in done.out
    assert "It was renamed to 2.damaged; training resumes after step 1" in done.out
    assert "continuing runs/rl after step 1" in done.out
    assert len(Run("runs/rl").metrics()) == 2


@pytest.mark.slow
def test_without_an_intact_checkpoint_training_ends_with_an_error(rove: Rove, inputs: Path):
    words = sft(inputs, "--run-dir", "runs/sft")
    assert rove(*words).status == 0
    Path("runs/sft/summary.json").unlink()
    [checkpoint] = Run("runs/sft").checkpoints()
    os.truncate(checkpoint / "progress.json", 5)
    done = rove(*words)
    assert done.status == 1
    assert done.err.startswith("error: no checkpoint of runs/sft is intact:")
    assert "progress.json is damaged" in done.err and "--overwrite" in done.err
    assert rove(*words, "--overwrite").status == 0


def test_sft_on_messages_shows_what_is_trained_and_trains(inputs: Path, tmp_path: Path, rove: Rove):
    chats = tmp_path / "chats.jsonl"
    rows = [
        [{"role": "user", "content": f"\x1b[31m{n}"}, {"role": "assistant", "content": "<move>4</move>"}]
        for n in range(4)
    ]
    chats.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    words = ["sft", "--data", str(chats), "-m", str(inputs / "model"), "--threads", "1", "--run-dir", "runs/mine"]
    shown_out = rove(*words, "--dry-run").out
    assert "⟦<move>4</move><|end|>⟧" in shown_out
    assert shown_out.count("conversation ") == 3
    assert "\x1b[31m" not in shown_out
    assert re.search(r"conversations to train on +│ +3 │", shown_out)
    whole = json.loads(rove(*words, "--dry-run", "--json").out)
    limit = whole["max_tokens"] - 1
    cut = json.loads(rove(*words, "--dry-run", "--json", "--max-length", str(limit)).out)
    assert (cut["training"], cut["validation"], cut["max_tokens"], cut["truncated_tokens"]) == (3, 1, limit, 4)
    assert [piece["is_trained"] for piece in cut["shown"][0]["sequences"][0]] == [False, True]
    assert not (tmp_path / "runs").exists()
    done = rove(*words, "--epochs", "1", "--json")
    assert json.loads(done.out)["conversations"] == 3
    assert "not evaluated" not in done.err  # a file names no environment
    chats.write_text('{"messages": []}\n')
    assert f"{chats}, line 1: 'messages' is []" in rove(*words, "--overwrite").err
