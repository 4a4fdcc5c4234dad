"""`rove demo`: all stages of a recipe in one command, and exhaustive evaluation over the game tree."""

from __future__ import annotations

import json
import math
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from commands import Rove, in_process_rove, snapshot_files
from huggingface_hub import ModelCard
from processes import start_torchrun
from rich.console import Console
from run_folders import make_record, write_run_folder

from rove.core.errors import ConfigError
from rove.runs.run import Run
from rove.runs.train_folder import ResultRow
from rove.stages.pipeline import Pipeline
from rove.stages.recipe import find_recipe, load_recipe
from rove.stages.reporter import SilentReporter
from rove.train.worker_group import SINGLE_PROCESS

LFM2 = Path(__file__).parents[2] / "configs" / "tictactoe_lfm2.toml"


@pytest.fixture
def rove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    return in_process_rove(tmp_path, monkeypatch, capsys)


@pytest.mark.slow
def test_the_demo_runs_every_stage_and_a_repeat_changes_nothing(rove: Rove):
    done = rove("demo", "tictactoe", "--smoke", "--json")
    assert done.status == 0
    shown_payload = json.loads(done.out)
    names = ["teacher (script)", "base", "+ SFT", "+ RL 1", "+ RL 2", "+ RL 2 at T = 1"]
    assert [row["name"] for row in shown_payload["rows"]] == names
    for row in shown_payload["rows"]:
        for summary in row["conditions"].values():
            assert (summary["scored"], summary["failed"]) == (8, 0)
        # A long name takes two lines of its cell.
        assert row["name"].removesuffix(" at T = 1") in done.err
    assert "gpt-5-mini" in done.err
    folder = Path(shown_payload["folder"])
    assert {path.parent.name for path in folder.glob("*/curves.png")} == {"sft", "rl1", "rl2"}
    first_contents = {path: content for path, (_, content) in snapshot_files(folder).items()}
    second_run = rove("demo", "tictactoe", "--smoke", "--json")
    assert json.loads(second_run.out) == shown_payload
    assert {path: content for path, (_, content) in snapshot_files(folder).items()} == first_contents
    row = rove("eval", "--overwrite", "@", str(folder / "eval" / "RL-2-against-optimal" / "config.toml"), "--json")
    assert json.loads(row.out)["functions"] == shown_payload["rows"][4]["conditions"]["against optimal"]["functions"]


@pytest.mark.slow
def test_the_full_demo_continues_the_demo_and_evaluates_every_stage(rove: Rove):
    payload_before = json.loads(rove("demo", "tictactoe", "--smoke", "--json").out)
    words = ("demo", "tictactoe", "--smoke", "--full", "--json")
    done = rove(*words)
    assert done.status == 0
    shown_payload = json.loads(done.out)
    assert shown_payload["rows"][:-1] == payload_before["rows"]
    assert [row["name"] for row in shown_payload["rows"][-2:]] == ["+ RL 2 at T = 1", "+ RL 3"]
    assert len(shown_payload["exhaustive"]) == 4  # SFT and three stages of RL
    # the smoke variant does not learn
    assert all(result["lines"] > 0 and result["missed"] for result in shown_payload["exhaustive"])
    assert "goals missed: " in done.err
    folder = Path(shown_payload["folder"])
    steps = [metrics for metrics in Run(folder / "full").metrics() if "eval/lines/missed" in metrics]
    assert [metrics["step"] for metrics in steps] == [2]
    assert steps[0]["eval/lines/missed"] > 0
    assert json.loads(rove(*words).out) == shown_payload


@pytest.mark.broad
def test_exhaustive_lists_the_games_that_miss_goals(rove: Rove):
    done = rove("demo", "tictactoe", "--exhaustive", "scripted:optimal", "--exhaustive", "scripted:teacher", "--json")
    assert done.status == 0
    optimal, teacher = json.loads(done.out)
    assert optimal["counts"]["lost"] == 0
    assert optimal["failed_lines"] == []
    assert len(teacher["failed_lines"]) == teacher["counts"]["lost"] > 0
    assert all(line["failed"] == ["lost"] and line["opening"]["starter"] in "XO" for line in teacher["failed_lines"])
    assert f"lost in {teacher['counts']['lost']} games" in done.err
    assert all(len(line) <= 100 for line in done.err.splitlines())


def test_exhaustive_refuses_environments_without_a_demo(rove: Rove):
    assert "has no demo" in rove("demo", "reverse_text", "--exhaustive", "scripted:oracle").err
    assert "no scripted policy 'nobody'" in rove("demo", "tictactoe", "--exhaustive", "scripted:nobody").err


def test_the_recipe_of_the_published_baseline_has_its_settings(tmp_path: Path) -> None:
    recipe = load_recipe("tictactoe", file=LFM2)
    demo = recipe.complete("tictactoe", tmp_path, model="LFM2-2.6B")
    sft, (first, second) = demo.sft, [stage.config for stage in demo.rl]
    assert sft is not None
    assert (sft.model, sft.max_examples, sft.batch_size) == ("LFM2-2.6B", 174, 32)
    held_out = round(sft.max_examples * sft.validation_fraction)
    assert sft.epochs * math.ceil((sft.max_examples - held_out) / sft.batch_size) == 30
    fields = ("steps", "batch_size", "rollouts_per_example", "temperature", "learning_rate")
    assert [[*(getattr(config, name) for name in fields), config.lora.rank] for config in (first, second)] == [
        [600, 256, 8, 1.0, 5e-5, 8],
        [400, 480, 8, 1.25, 3e-5, 8],
    ]
    for config, low, high in ((first, 0.2, 0.7), (second, 0.0, 0.25)):
        args = config.env_args
        assert (args["min_random_move_prob"], args["max_random_move_prob"]) == (low, high)
        assert args["num_groups"] == config.groups  # every step has each difficulty once
        assert args["num_examples"] == config.steps * config.groups


def test_a_recipe_without_a_model_requires_the_model_option(rove: Rove) -> None:
    done = rove("demo", "tictactoe", "--recipe", str(LFM2))
    assert done.status == 2
    assert "has no [model]" in done.err and "-m FOLDER" in done.err
    assert not Path("runs").exists()


def test_a_missing_model_folder_is_refused_before_any_rollout(rove: Rove) -> None:
    done = rove("demo", "tictactoe", "--recipe", str(LFM2), "-m", "LFM2-2.6B")
    assert done.status == 2
    assert "expected a model folder" in done.err
    assert not Path("runs").exists()
    missing = rove("demo", "tictactoe", "--recipe", "none.toml").err
    assert (
        "no recipe: none.toml does not exist; rove comes with configs/quick.toml, configs/tictactoe_lfm2.toml"
        in missing
    )


def test_bundled_recipes_are_found_from_any_folder(rove: Rove) -> None:
    assert load_recipe("tictactoe", (), "configs/tictactoe_lfm2.toml") == load_recipe("tictactoe", (), LFM2)
    Path("configs").mkdir()
    Path("configs/tictactoe_lfm2.toml").write_text("data = 3")  # a local file takes precedence
    with pytest.raises(ConfigError, match="missing settings: rl, "):
        load_recipe("tictactoe", (), "configs/tictactoe_lfm2.toml")


SMOLLM2 = [(env, "smollm2-135m") for env in ("lookup", "reverse_text", "tictactoe")]
RECIPES = [("tictactoe", None), ("tictactoe", "LFM2"), *SMOLLM2, ("quick", None)]


@pytest.mark.parametrize("smoke", [False, True])
@pytest.mark.parametrize(("name", "model"), RECIPES)
def test_the_settings_of_every_recipe_are_valid(name: str, model: str | None, smoke: bool, tmp_path: Path) -> None:
    file = LFM2 if model == "LFM2" else None
    recipe = load_recipe(name, ["smoke"] if smoke else [], file, model)
    assert recipe.env == ("short_sentences" if name == "quick" else None)
    demo = recipe.complete(recipe.env or name, tmp_path, model="models/some")
    assert [stage.config.env for stage in demo.rl]
    assert (demo.sft is not None) == bool(recipe.data)
    if demo.sft is not None:
        assert demo.sft.data == str(tmp_path / "data")


def test_lora_trains_adapters_at_higher_learning_rates(tmp_path: Path) -> None:
    full, lora = (load_recipe("reverse_text", variants, None, "smollm2-135m") for variants in ([], ["lora"]))
    demo = lora.complete("reverse_text", tmp_path, model="models/some")
    assert demo.sft is not None
    assert all(config.lora.rank > 0 for config in (demo.sft, *(stage.config for stage in demo.rl)))
    assert demo.sft.learning_rate > full.sft["learning_rate"]
    with pytest.raises(ConfigError, match=r"--lora needs a \[lora\] table, which .*demo.toml does not have"):
        load_recipe("tictactoe", ["lora"])


def test_a_variant_changes_single_settings_too(tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text('needs = "an hour"\nrl = []\ncolumns = []\n[evaluation]\n[smoke]\nneeds = "seconds"\nanswers = 2\n')
    recipe = load_recipe("tictactoe", ["smoke"], file)
    assert (recipe.needs, recipe.answers) == ("seconds", 2)
    file.write_text("smoke = 3\nrl = []\ncolumns = []\n[evaluation]\n")
    with pytest.raises(ConfigError, match=r"--smoke needs a \[smoke\] table"):
        load_recipe("tictactoe", ["smoke"], file)


def test_the_recipe_of_a_model_is_found_by_name_and_by_folder(tmp_path: Path) -> None:
    by_name = find_recipe("reverse_text", None, "smollm2-135m")
    assert by_name.name == "demo-smollm2-135m.toml"
    assert find_recipe("reverse_text", None, str(tmp_path / "models/smollm2-135m")) == by_name
    with pytest.raises(ConfigError, match="there is one for: rove demo reverse_text -m smollm2-135m"):
        find_recipe("reverse_text", None, None)


def test_failed_rollouts_and_empty_responses_are_no_answers(tmp_path: Path) -> None:
    recipe = load_recipe("quick")
    complete = recipe.complete("short_sentences", tmp_path, model="models/some")
    demo = Pipeline(msgspec.structs.replace(complete, answers=2), SilentReporter(), SINGLE_PROCESS)
    demo.rows = [ResultRow("base", "models/some", {}), ResultRow("+ RL", "models/new", {})]
    for index, row in enumerate(demo.rows):
        answered = make_record(1, completion=[{"role": "assistant", "content": f"answer of {row.name}"}])
        records = [make_record(0, win=None if index else 1.0), answered, make_record(2, completion=[])]
        write_run_folder(demo.eval_folder(row.name, ""), records)
    console = Console(width=100, record=True, file=StringIO())
    console.print(demo.answers_table())
    text = console.export_text()
    assert "question 1" in text and "answer of base" in text and "answer of + RL" in text
    assert "question 0" not in text and "question 2" not in text


@pytest.mark.slow
def test_the_recipe_of_the_published_baseline_runs_in_one_and_in_two_processes(rove: Rove, tmp_path: Path) -> None:
    words = ["demo", "tictactoe", "--recipe", str(LFM2), "--smoke", "--json"]
    documented = (LFM2.parents[1] / "docs" / "scale.md").read_text(encoding="utf-8")
    for starts in ("", "torchrun --nproc-per-node 2 --no-python "):
        assert f"    {starts}rove demo tictactoe --recipe configs/tictactoe_lfm2.toml -m LFM2-2.6B\n" in documented
    one_process = json.loads(rove(*words, "--run-dir", "one").out)
    command = Path(sys.executable).with_name("rove")
    launched = start_torchrun(2, "--no-python", str(command), *words, "--run-dir", str(tmp_path / "two"))
    assert launched.returncode == 0, launched.stderr
    assert launched.stderr.count("training in 2 processes") == 3
    two_processes = json.loads(launched.stdout)
    names = ["teacher (script)", "base", "+ SFT", "+ RL 1", "+ RL 2", "+ RL 2 at T = 1"]
    for result in (one_process, two_processes):
        assert [row["name"] for row in result["rows"]] == names
        assert all(summary["failed"] == 0 for row in result["rows"] for summary in row["conditions"].values())
    for stage, row in (("sft", "+ SFT"), ("rl1", "+ RL 1"), ("rl2", "+ RL 2")):
        final = tmp_path / "two" / stage / "final"
        assert (final / "adapter_model.safetensors").exists()
        card: Any = ModelCard.load(final / "README.md")
        [conditions] = [result_row["conditions"] for result_row in two_processes["rows"] if result_row["name"] == row]
        rewards = [summary["reward"]["mean"] for summary in conditions.values()]
        assert [result.metric_value for result in card.data.eval_results if result.metric_type == "reward"] == rewards
        assert card.data.library_name == "peft"
        assert "| teacher (script) | tictactoe#" in card.content
        assert str(tmp_path) not in card.content
