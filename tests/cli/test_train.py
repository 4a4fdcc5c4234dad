"""`rove train`: any environment, with a recipe chosen from what it shows."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest
import tomli_w
from commands import Rove, in_process_rove, snapshot_files, write_environment

from rove.cli.main import main
from rove.core.config import convert
from rove.core.digest import write_checksums
from rove.runs.provenance import seal
from rove.runs.run import Run
from rove.runs.train_folder import Diagnosis, ResultRow, TrainFolder
from rove.stages.completion import read_completion, write_completion
from rove.stages.diagnoser import Diagnoser
from rove.stages.models import ModelConfig
from rove.stages.pipeline import Pipeline
from rove.stages.recipe import Recipe, RecipeFile
from rove.stages.reporter import ConsoleReporter, SilentReporter
from rove.stages.request import recipe_digest
from rove.stages.second_start import may_start_again
from rove.stages.train_model import train_model
from rove.train import diagnosis
from rove.train.worker_group import SINGLE_PROCESS

PARITY = """
import random
import rove as vf

def right(messages, state, rng):
    return f"<answer>{state['answer']}</answer>"

def guesser(messages, state, rng):
    return f"<answer>{rng.choice(['even', 'odd'])}</answer>"

def correct(completion, answer, parser):
    return float(parser.parse_answer(completion) == answer)

def rows(count, seed):
    rng = random.Random(seed)
    numbers = [rng.randrange(10**6) for _ in range(count)]
    return [{"question": f"{n}?", "answer": "odd" if n % 2 else "even"} for n in numbers]

def load_environment(num_examples: int = 100, seed: int = 0):
    parser = vf.XMLParser(["answer"], answer_field="answer")
    rubric = vf.Rubric([correct], parser=parser)
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_examples, f"{seed}:train"), eval_dataset=lambda: rows(num_examples, f"{seed}:eval"),
        parser=parser, rubric=rubric, policies={"right": right, "guesser": guesser},
    )
"""


@pytest.fixture
def rove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    write_environment(tmp_path / "environments", "parity", PARITY)
    return in_process_rove(tmp_path, monkeypatch, capsys)


@pytest.fixture(scope="module")
def first_dry_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder and the output of `rove train parity --dry-run`, which measures the policies and the machine for seconds."""
    folder = tmp_path_factory.mktemp("dry_run")
    write_environment(folder / "environments", "parity", PARITY)
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["rove", "train", "parity", "--dry-run", "--run-dir", "mine"])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 0
    return folder / "mine", output.getvalue()


@pytest.fixture
def dry_run(rove: Rove, first_dry_run: tuple[Path, str]) -> Path:
    """A copy of the folder "mine" with the recipe that `rove train parity --dry-run` writes."""
    return shutil.copytree(first_dry_run[0], Path("mine"))


def write_small_recipe(recipe: Path) -> Path:
    """Write a copy of a recipe with little work in each stage next to it."""
    values = tomllib.loads(recipe.read_text())
    values["data"] |= {"num_examples": 60, "env_args": {"num_examples": 60}}
    values["sft"] |= {"epochs": 1, "batch_size": 16, "validate_every": 2}
    values["sft"]["evaluation"][0] |= {"every": 2, "num_examples": 4, "max_tokens": 4}
    values["rl"][0] |= {"steps": 2, "batch_size": 8, "rollouts_per_example": 4, "max_tokens": 4}
    values["rl"][0]["evaluation"][0] |= {"num_examples": 4, "max_tokens": 4}
    values["evaluation"] |= {"num_examples": 4, "max_tokens": 4, "env_args": {"num_examples": 4}}
    path = recipe.with_name("small.toml")
    path.write_text(tomli_w.dumps(values))
    return path


def read_recipe(folder: Path) -> Recipe:
    """Return the recipe of a folder for the environment parity."""
    values = tomllib.loads((folder / "recipe.toml").read_text())
    return convert(RecipeFile, values).complete("parity", folder)


def test_a_dry_run_prints_the_diagnoses_of_the_environment(rove: Rove, dry_run: Path) -> None:
    evidence = json.loads((dry_run / "evidence.json").read_text())
    evidence["diagnoses"] = [{"id": "hidden_state", "text": "the policy sees more than the model"}]
    (dry_run / "evidence.json").write_text(json.dumps(evidence))
    done = rove("train", "parity", "--dry-run", "--run-dir", str(dry_run), "--json")
    assert "diagnosis of examine: hidden_state: the policy sees more than the model." in " ".join(done.err.split())
    assert json.loads(done.out)["diagnoses"][0]["id"] == "hidden_state"


def test_the_folder_of_a_single_run_is_refused(rove: Rove, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "config.toml").write_text('kind = "eval"\n')
    done = rove("train", "parity", "--dry-run", "--run-dir", "again")
    assert done.status == 2 and "again is the folder of a single run" in " ".join(done.err.split())
    assert [path.name for path in (tmp_path / "again").iterdir()] == ["config.toml"]


def test_a_dry_run_writes_and_prints_the_recipe(first_dry_run: tuple[Path, str]) -> None:
    folder, output = first_dry_run
    recipe = (folder / "recipe.toml").read_text()
    assert recipe in output
    assert "# Estimate on this machine with its present load: SFT " in output
    values = tomllib.loads(recipe)
    assert values["references"] == ["scripted:guesser", "scripted:right"]
    assert values["data"]["model"] == "scripted:right"
    assert "rollouts of scripted:right" in output and "of memory" in output  # in the table of stages


@pytest.mark.slow
def test_a_dry_run_shows_an_edited_or_a_given_recipe(rove: Rove, dry_run: Path) -> None:
    recipe = dry_run / "recipe.toml"
    values = tomllib.loads(recipe.read_text())
    recipe.write_text(recipe.read_text().replace("T = 1", "T is 1"))
    second_run = rove("train", "parity", "--dry-run", "--run-dir", "mine", "--json")
    assert "T is 1" in second_run.err  # an edited recipe is not replaced
    assert json.loads(second_run.out)["estimate"]["rl_steps"] == values["rl"][0]["steps"]
    planned = train_model("parity", run_dir="mine", dry_run=True, reporter=SilentReporter())
    assert (planned.rows, planned.recipe.rl[0].config.steps) == ([], values["rl"][0]["steps"])
    copy = recipe.with_name("copy.toml")
    copy.write_text(tomli_w.dumps(values | {"rl": [values["rl"][0] | {"steps": 7}]}))
    given_run = rove("train", "parity", "--recipe", str(copy), "--run-dir", "given", "--dry-run", "--json")
    assert json.loads(given_run.out)["estimate"]["rl_steps"] == 7
    assert not Path("given").exists()


def test_a_dry_run_without_an_rl_stage_has_no_estimate(rove: Rove, dry_run: Path) -> None:
    values = tomllib.loads((dry_run / "recipe.toml").read_text())
    Path("copy.toml").write_text(tomli_w.dumps(values | {"rl": []}))
    without = rove("train", "parity", "--recipe", "copy.toml", "--run-dir", "given", "--dry-run")
    assert without.status == 0 and "maximum time" not in without.out  # an estimate needs exactly one RL stage
    assert not Path("given").exists()


def test_a_dry_run_of_a_demo_recipe_shows_the_defaults_of_missing_settings(rove: Rove) -> None:
    recipe = Path(__file__).parents[2] / "environments/tictactoe/demo.toml"
    done = rove("train", "tictactoe", "--recipe", str(recipe), "--dry-run")
    assert done.status == 0, done.err
    assert "maximum time" not in done.out and "per row and condition" in done.out


@pytest.mark.broad
def test_a_dry_run_of_a_changed_environment_writes_the_recipe_again(rove: Rove) -> None:
    words = ("train", "parity", "--dry-run", "--run-dir", "dry")
    assert "new recipe dry" in rove(*words).out
    assert "existing recipe dry" in rove(*words).out
    (file,) = Path("environments/parity").glob("*.py")
    file.write_text(file.read_text() + "\n# changed\n")
    assert "new recipe dry" in rove(*words).out
    Path("dry/data").mkdir()
    file.write_text(file.read_text() + "\n# changed again\n")
    assert "parity has changed since dry/recipe.toml was made; give another run_dir" in rove(*words).err


@pytest.mark.broad
def test_a_teacher_is_examined_before_anything_is_trained(rove: Rove) -> None:
    rove("model", "new", "--env", "parity", "-o", "untrained")
    done = rove("train", "parity", "--teacher", "untrained", "--run-dir", "mine")
    assert "the teacher untrained earns 0.0" in done.err and not Path("mine/data").exists()
    done = rove("train", "parity", "--teacher", "scripted:nobody", "--run-dir", "mine")
    assert "environment 'parity' has no scripted policy 'nobody'" in done.err
    done = rove("train", "parity", "--teacher", "scripted:right", "--minutes", "60", "--run-dir", "mine", "--dry-run")
    assert done.status == 0, done.err
    recipe = Path("mine/recipe.toml").read_text()
    assert recipe.startswith("# Recipe of `rove train parity --teacher scripted:right --minutes 60`.")
    assert 'model = "scripted:right"' in recipe and "The teacher: reward" in recipe
    assert "starts again" not in recipe  # a time limit is for one start


@pytest.mark.broad
def test_a_recipe_that_the_stages_refuse_does_not_replace_that_of_the_folder(rove: Rove) -> None:
    rove("train", "parity", "--dry-run", "--run-dir", "mine")
    rove("eval", "parity", "-m", "scripted:guesser", "-n", "1", "-r", "1", "--run-dir", "mine/data")
    first_recipe = Path("mine/recipe.toml").read_text()
    Path("other.toml").write_text(first_recipe + "\n# another one\n")
    done = rove("train", "parity", "--recipe", "other.toml", "--run-dir", "mine")
    assert done.status != 0 and "mine/data" in done.err
    assert Path("mine/recipe.toml").read_text() == first_recipe


@pytest.mark.slow
def test_a_recipe_runs_through_and_then_has_nothing_left_to_do(rove: Rove) -> None:
    rove("train", "parity", "--dry-run")
    recipe = write_small_recipe(Path("runs/train-parity-seed0/recipe.toml"))
    words = ("train", "parity", "--recipe", str(recipe), "--run-dir", "runs/small", "--json")
    done = rove(*words)
    assert done.status == 0, done.err
    shown_payload = json.loads(done.out)
    assert [row["name"] for row in shown_payload["rows"]] == [
        "scripted:guesser",
        "scripted:right",
        "base",
        "+ SFT",
        "+ RL",
    ]
    assert [row["conditions"].keys() for row in shown_payload["rows"]] == [{"sampled", "greedy"}] * 5
    assert "reward at T = 1" in done.err
    assert [diagnosis["id"] for diagnosis in shown_payload["diagnoses"]] in (
        [],
        ["learning_rate"],
    )  # untrained: not even the format
    contents_before = snapshot_files(Path("runs"))
    repeated = rove(*words)
    assert json.loads(repeated.out)["rows"] == shown_payload["rows"]
    assert "runs/small is complete" in repeated.err and "Collect rollouts" not in repeated.err
    assert {path: content for path, (_, content) in snapshot_files(Path("runs")).items()} == {
        path: content for path, (_, content) in contents_before.items()
    }
    assert Path("runs/small/evidence.json").exists()
    assert Path("runs/small/recipe.toml").read_bytes() == recipe.read_bytes()
    shutil.copytree("runs/small", "runs/copy")
    copied = rove(*words[:-2], "runs/copy", "--json")
    assert copied.status == 0, copied.err
    assert [row["conditions"] for row in json.loads(copied.out)["rows"]] == [
        row["conditions"] for row in shown_payload["rows"]
    ]


def sampled_examples(folder: Path, pattern: str) -> set[tuple[str, int]]:
    """Return the content of the example and the random seed of every rollout in run folders."""
    runs = [Run(path) for path in folder.glob(pattern)]
    return {(record.example_key.split("#")[0], record.seed) for run in runs for record in run.rollouts()}


FIXED = PARITY.replace("num_examples: int = 100, seed: int = 0", "").replace(
    'rows(num_examples, f"{seed}:', 'rows(60, f"'
)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "source"), [("generated", PARITY), ("fixed", FIXED)])
def test_the_table_reports_other_rollouts_than_those_that_chose_the_weights(
    rove: Rove, tmp_path: Path, name: str, source: str
) -> None:
    write_environment(tmp_path / "environments", name, source)
    assert rove("train", name, "--dry-run", "--run-dir", "dry").status == 0
    recipe = Path("dry/recipe.toml")
    values = tomllib.loads(recipe.read_text())
    values["data"] |= {"num_examples": 40}
    values["sft"] |= {"epochs": 1, "batch_size": 16, "validate_every": 2}
    values["rl"][0] |= {"steps": 1, "batch_size": 8, "rollouts_per_example": 4}
    for stage in (values["sft"], values["rl"][0]):
        stage["evaluation"][0] |= {"every": 1, "max_tokens": 4}
    values["evaluation"] |= {"num_examples": min(40, values["evaluation"]["num_examples"]), "max_tokens": 4}
    copy = recipe.with_name("copy.toml")
    copy.write_text(tomli_w.dumps(values))
    done = rove("train", name, "--recipe", str(copy), "--run-dir", "runs/own")
    assert done.status == 0, done.err
    assert "chose the weights" not in done.out
    chosen, reported = (
        sampled_examples(Path("runs/own"), pattern) for pattern in ("*/evaluations/sampled/*", "eval/*")
    )
    assert len(chosen) >= 20 and len(reported) >= 40
    assert not chosen & reported
    command = re.search(r"evaluate the model on the examples of the table: rove (.*)", done.out)
    assert command is not None
    assert rove(*shlex.split(command[1]), "--run-dir", "runs/again").status == 0
    repeated, reported_rows = (
        sampled_examples(Path("runs"), "again"),
        sampled_examples(Path("runs/own"), "eval/RL-sampled"),
    )
    assert {key for key, _ in repeated} == {key for key, _ in reported_rows}
    if name == "fixed":
        table = Run(next(Path("runs/own/eval").iterdir()))
        assert {record.example_id for record in table.rollouts()} == set(range(20, 60))


@pytest.mark.slow
def test_a_recipe_whose_table_uses_the_selecting_examples_says_so(rove: Rove, dry_run: Path) -> None:
    values = tomllib.loads((dry_run / "recipe.toml").read_text())
    values["evaluation"] |= {"env_args": values["rl"][0]["evaluation"][0]["env_args"], "seed": 0}
    Path("copy.toml").write_text(tomli_w.dumps(values))
    done = rove("train", "parity", "--recipe", "copy.toml", "--run-dir", "own", "--dry-run")
    assert "warning: rl1: the results table uses examples that also chose the weights" in done.out


@pytest.mark.slow
def test_a_recipe_whose_seeds_share_questions_says_so(rove: Rove, dry_run: Path) -> None:
    write_environment(Path("environments"), "small_space", PARITY.replace("randrange(10**6)", "randrange(20)"))
    copy = Path("copy.toml")
    copy.write_text((dry_run / "recipe.toml").read_text().replace('"parity"', '"small_space"'))
    done = rove("train", "small_space", "--recipe", "copy.toml", "--run-dir", "own", "--dry-run")
    assert "warning: 1,000 of the 1,000 examples of the results table have the question and the answer" in done.out
    assert done.out.count("of the results table have") == 1


SUMMARY = {"reward": {"mean": 0.25, "low": 0.2, "high": 0.3}, "functions": {}}
SUMMARIES = {"sampled": SUMMARY, "greedy": SUMMARY}


def complete_run(folder: Path) -> None:
    """Write the files of complete stages of the folder's recipe that a repeated command reads."""
    recipe = read_recipe(folder)
    for name, kind in (("sft", "sft"), ("rl1", "rl")):
        with Run(folder / name) as run:
            run.start(kind, {}, {"learning_rate": recipe.rl[0].config.learning_rate} if kind == "rl" else {})
            run.finish({"steps": 3})
        (folder / name / "final").mkdir()
    rows = [ResultRow("base", str(folder / "model"), SUMMARIES)]
    (folder / "results.json").write_bytes(msgspec.json.encode(rows))
    write_completion(recipe, ["sft: a note about the table"], "took 1.0 minutes")


def test_a_complete_run_shows_its_table_without_repeating_a_stage(rove: Rove, dry_run: Path) -> None:
    complete_run(dry_run)
    old_contents = snapshot_files(dry_run)
    done = rove("train", "parity", "--run-dir", "mine")
    assert done.status == 0, done.err
    assert done.out.count("mine is complete; delete the folder to train again") == 1
    assert "0.250" in done.out and "warning: sft: a note about the table" in done.out
    assert "new model" not in done.out and "took" not in done.out
    assert snapshot_files(dry_run) == old_contents


def test_a_changed_recipe_of_a_complete_run_is_refused_before_any_stage(rove: Rove, dry_run: Path) -> None:
    complete_run(dry_run)
    recipe = dry_run / "recipe.toml"
    values = tomllib.loads(recipe.read_text())
    values["rl"][0]["learning_rate"] = 0.5
    recipe.write_text(tomli_w.dumps(values))
    done = rove("train", "parity", "--run-dir", "mine")
    assert done.status == 1
    assert "mine/rl1 holds a different run; differences:" in done.err and "now 0.5" in done.err
    assert "is complete" not in done.out and "new model" not in done.out
    assert not (dry_run / "model").exists()


@pytest.mark.broad
def test_sft_on_a_plateau_starts_again_with_layers_that_can_recall(
    rove: Rove, dry_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = write_small_recipe(dry_run / "recipe.toml").read_text()
    (dry_run / "recipe.toml").write_text(text)
    (dry_run / "small.toml").unlink()
    seal(dry_run / "recipe.toml")
    request = json.loads((dry_run / "request.json").read_text())
    (dry_run / "request.json").write_text(json.dumps({**request, "recipe": recipe_digest(text)}))
    # Three steps are too few to learn even the format, which would be a diagnosis, and prevent a second start.
    for name, value in (("PLATEAU_STEPS", 2), ("PLATEAU_MEASUREMENTS", 1), ("UNLEARNED_SHARE", 99.0)):
        monkeypatch.setattr(diagnosis, name, value)
    done = rove("train", "parity", "--run-dir", "mine")
    assert done.status == 0
    printed = " ".join(done.out.split())
    assert "starting again with layers that can find and copy parts of the prompt" in printed
    folder = TrainFolder("mine")
    assert "this is the second model of the run" in printed and folder.completion().notes == folder.start_notes()
    first_start = dry_run / "first_start"
    assert sorted(path.name for path in first_start.iterdir()) == ["base-greedy", "base-sampled", "model", "sft"]
    assert json.loads((dry_run / "model" / "config.json").read_text())["model_type"] == "lfm2"
    recipe = tomllib.loads((dry_run / "recipe.toml").read_text())
    assert (recipe["model"]["arch"], recipe["model"]["init"]) == ("lfm2", "recall")
    assert "is complete" in rove("train", "parity", "--run-dir", "mine").out
    assert rove("train", "parity", "--recipe", "mine/recipe.toml", "--run-dir", "again").status == 0
    first, second = (Path(folder, "rl1/final/model.safetensors").read_bytes() for folder in ("mine", "again"))
    assert first == second


def test_an_interrupted_second_start_is_not_reported(dry_run: Path) -> None:
    """It writes the recipe last, so that the first start is repeated."""
    (dry_run / "first_start").mkdir()
    assert TrainFolder(dry_run).start_notes() == []


def test_only_a_recipe_that_rove_chose_may_start_again(dry_run: Path) -> None:
    recipe, file = read_recipe(dry_run), dry_run / "recipe.toml"
    assert may_start_again(recipe, file)
    assert not may_start_again(recipe, shutil.copy(file, dry_run / "copy.toml"))
    modified = msgspec.structs.replace(recipe, new_model=ModelConfig(env="parity", arch="qwen3"))
    assert not may_start_again(modified, file)
    file.write_text(file.read_text() + "\n# edited\n")
    assert not may_start_again(recipe, file)


def test_a_complete_run_without_its_model_is_not_shown_as_complete(dry_run: Path) -> None:
    complete_run(dry_run)
    assert read_completion(read_recipe(dry_run)) is not None
    (dry_run / "rl1" / "final").rmdir()
    assert read_completion(read_recipe(dry_run)) is None


def test_a_damaged_model_of_a_run_is_named(rove: Rove, dry_run: Path) -> None:
    complete_run(dry_run)
    words = ("train", "parity", "--run-dir", "mine")
    row = ResultRow("+ RL", str(dry_run / "rl1" / "final"), SUMMARIES)
    (dry_run / "results.json").write_bytes(msgspec.json.encode([row]))
    for model in (dry_run / "rl1" / "final", dry_run / "model"):
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text('{"a": 1}')
        write_checksums(model)
    assert rove(*words).status == 0
    (dry_run / "rl1" / "final" / "config.json").write_text('{"a": 2}')
    done = rove(*words)
    assert done.status == 1 and "rl1/final has changed: config.json changed" in done.err
    (dry_run / "complete.json").unlink()
    (dry_run / "model" / "config.json").write_text("{")
    done = rove(*words)
    assert done.status == 1 and "mine/model has changed: config.json changed" in done.err


@pytest.mark.broad
def test_a_file_of_questions_keeps_some_for_evaluation(rove: Rove) -> None:
    assert "no file 'missing.jsonl'; an environment that ends in" in rove("train", "missing.jsonl", "--dry-run").err
    rows = [{"question": f"{n} + 1?", "answer": n + 1} for n in range(50)]
    Path("sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = rove("train", "sums.jsonl", "--scorer", "numeric", "--dry-run")
    assert done.status == 0
    [recipe] = Path("runs").glob("train-sums-seed0-*/recipe.toml")
    values = tomllib.loads(recipe.read_text())
    assert values["model"]["env_args"] == {"held_out": 0.1, "scorer": "numeric"}
    assert values["sft"]["epochs"] == 100  # not the tens of thousands that the tokens would allow
    assert values["data"]["env_args"] == {"held_out": 0.1, "scorer": "numeric"}
    assert values["data"]["num_examples"] == 45


@pytest.mark.slow
def test_the_dry_run_counts_repeated_questions_and_says_how_rows_are_held_out(rove: Rove) -> None:
    rows = [{"question": f"{n % 40} + 1?", "answer": n % 40 + 1} for n in range(50)]
    Path("sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = rove("train", "sums.jsonl", "--scorer", "numeric", "--dry-run", "--run-dir", "mine")
    assert done.status == 0, done.err
    assert "# 50 rows with 40 different questions; 10 rows repeat a question." in done.out
    assert (
        "are held out; a hash of the question decides, so rows with equal questions are on the same side." in done.out
    )


def test_an_environment_that_cannot_teach_is_refused_before_training(rove: Rove) -> None:
    write_environment(Path("environments"), "broken", PARITY.replace("float(parser", "1 / 0 + float(parser"))
    done = rove("train", "broken")
    assert (done.status, "ZeroDivisionError" in done.err, "reward_error" in done.err) == (2, True, True)
    write_environment(Path("environments"), "equal", PARITY.replace("float(parser", "0 * float(parser"))
    assert "no_spread: every rollout of 2 scripted policies has the reward 0" in rove("train", "equal").err
    write_environment(
        Path("environments"), "without", PARITY.replace('policies={"right": right, "guesser": guesser},', "")
    )
    assert "start from a pretrained model (rove train NAME -m MODEL), or collect" in rove("train", "without").err
    assert not Path("runs").exists()


def test_a_folder_keeps_the_request_that_its_recipe_was_made_for(rove: Rove, dry_run: Path) -> None:
    done = rove("train", "parity", "--dry-run", "--run-dir", str(dry_run), "-a", '{"num_examples": 20}')
    assert done.status == 2
    assert "was made with env_args = {}, but env_args is {'num_examples': 20} now; give another run_dir" in done.err


@pytest.mark.slow
def test_other_arguments_have_another_default_folder(rove: Rove) -> None:
    assert rove("train", "parity", "--dry-run").status == 0
    assert rove("train", "parity", "--dry-run", "-a", '{"num_examples": 20}').status == 0
    assert len(list(Path("runs").iterdir())) == 2


@pytest.mark.slow
def test_a_recipe_names_the_folder_of_its_environment(rove: Rove) -> None:
    Path("environments").rename("elsewhere")
    assert "give that folder with --env-dir" in rove("train", "parity", "--dry-run").err
    assert rove("train", "parity", "--dry-run", "--env-dir", "elsewhere", "--run-dir", "mine").status == 0
    done = rove("train", "parity", "--recipe", "mine/recipe.toml", "--run-dir", "other", "--dry-run")
    assert (done.status, 'env_dir = "elsewhere"' in done.out) == (0, True)
    recipe = read_recipe(Path("mine"))
    assert recipe.sft is not None
    assert [config.env_dir for config in (recipe.sft, recipe.rl[0].config)] == ["elsewhere"] * 2


def test_failed_rollouts_of_the_teacher_are_not_repeated_once_sft_has_begun(
    dry_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected: list[object] = []
    monkeypatch.setattr(Pipeline, "_evaluate", lambda self, config, title="": collected.append(config))
    recipe = read_recipe(dry_run)
    assert recipe.data is not None
    pipeline = Pipeline(recipe, ConsoleReporter(), SINGLE_PROCESS)
    with Run(dry_run / "data") as run:
        run.start("eval", {}, {})
        run.finish({"rollouts": 1})
    pipeline._collect(recipe.data)
    assert collected == [recipe.data]
    with Run(dry_run / "sft") as run:
        run.start("sft", {}, {})
    pipeline._collect(recipe.data)  # other rollouts would be other data, which the SFT refuses
    assert collected == [recipe.data]


def test_a_diagnosis_is_withdrawn_when_the_model_learns_after_all(
    dry_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = dry_run
    early = {"stage": "sft", "step": 10, "steps": 99, "id": "unpredictable", "text": "no relation", "remedy": "look"}
    (folder / "diagnoses.json").write_text(json.dumps([early, {**early, "stage": "rl1", "id": "saturated"}]))
    (folder / "sft").mkdir()
    diagnoser = Diagnoser(Pipeline(read_recipe(folder), ConsoleReporter(), SINGLE_PROCESS))
    diagnoser.after_step(folder / "sft", {"step": 11, "loss": 0.5}, 99)
    assert len(diagnoser.diagnoses) == 2
    diagnoser.after_step(folder / "sft", {"step": 12, "loss": 0.5, "eval/sampled/reward/mean": 0.9}, 99)
    assert (
        "the diagnosis of sft (unpredictable) no longer applies: the reward has risen since" in capsys.readouterr().out
    )
    assert [stored["id"] for stored in json.loads((folder / "diagnoses.json").read_text())] == ["saturated"]
    no_progress = Diagnosis("no_progress", "no better", step=10, stage="rl1", steps=99)
    diagnoser.diagnoses.append(no_progress)
    (folder / "rl1").mkdir()
    diagnoser.after_step(folder / "rl1", {"step": 11, "eval/sampled/reward/mean": 0.5}, 99)
    assert no_progress in diagnoser.diagnoses
    diagnoser.after_step(folder / "rl1", {"step": 12, "eval/sampled/reward/mean": 0.9}, 99)
    assert diagnoser.diagnoses == []  # more was left to learn


@pytest.mark.parametrize(("best_step", "expected"), [(10, []), (40, ["drift"])])
def test_drift_is_withdrawn_if_the_kept_weights_are_from_before_it(
    dry_run: Path, best_step: int, expected: list[str]
) -> None:
    stage = dry_run / "rl1"
    stage.mkdir()
    diagnoser = Diagnoser(Pipeline(read_recipe(dry_run), ConsoleReporter(), SINGLE_PROCESS))
    rows = [
        {"step": step, "eval/sampled/reward/mean": 0.9, "eval/sampled/length/mean": length}
        for step, length in enumerate([10.0, 10.5, 20.0, 22.0, 24.0])
    ]
    rows = [{**row, "step": 10 * row["step"]} for row in rows]
    for number, row in enumerate(rows, start=1):
        (stage / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows[:number]))
        diagnoser.after_step(stage, row, 99)
    assert [diagnosis.id for diagnosis in diagnoser.diagnoses] == ["drift"]
    best = {"metric": "eval/sampled/reward/mean", "value": 0.9, "step": best_step}
    (stage / "summary.json").write_text(json.dumps({"steps": 40, "best": best}))
    diagnoser.after_stage(stage)
    assert [diagnosis.id for diagnosis in diagnoser.diagnoses] == expected


@pytest.mark.parametrize("best_step", [0, 10])
def test_rl_that_keeps_its_initial_weights_is_reported(
    dry_run: Path, capsys: pytest.CaptureFixture[str], best_step: int
) -> None:
    diagnoser = Diagnoser(Pipeline(read_recipe(dry_run), ConsoleReporter(), SINGLE_PROCESS))
    diagnoser.print_all()
    with Run(dry_run / "rl1") as run:
        run.start("rl", {}, {})
        run.finish({"steps": 10, "best": {"metric": "eval/sampled/reward/mean", "value": 0.3, "step": best_step}})
    assert "changed nothing" not in capsys.readouterr().out
    diagnoser.print_all()
    assert ("RL changed nothing: no evaluation was better" in capsys.readouterr().out) == (best_step == 0)


def test_settings_of_all_stages_are_checked_before_the_first(rove: Rove, dry_run: Path) -> None:
    recipe = write_small_recipe(dry_run / "recipe.toml")
    recipe.write_text(recipe.read_text().replace("rollouts_per_example = 4", "rollouts_per_example = 3"))
    done = rove("train", "parity", "--recipe", str(recipe), "--run-dir", "other")
    assert "batch_size is 8; expected a multiple of rollouts_per_example (3)" in done.err
    assert not Path("other").exists()


def test_settings_are_either_in_a_recipe_or_given(rove: Rove, dry_run: Path) -> None:
    done = rove("train", "parity", "--recipe", str(dry_run / "recipe.toml"), "-a", '{"seed": 3}')
    assert "the recipe contains these settings; remove the options" in done.err
