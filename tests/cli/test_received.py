"""A run folder of another person runs no code and sends no key unless the user agrees."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import Rove, in_process_rove, write_environment

from rove.core.errors import ConfigError
from rove.runs.run import Run
from rove.stages.placement import evaluation_target
from rove.train.config import SFTConfig

EVIL = """
from pathlib import Path

import rove as vf

def load_environment(**args):
    Path({marker!r}).write_text("ran")
    rubric = vf.Rubric([lambda completion: 1.0])
    return vf.SingleTurnEnv(dataset=[{{"question": "q", "answer": "a"}}], rubric=rubric, policies={{"says": lambda *_: "a"}})
"""


@pytest.fixture
def rove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    return in_process_rove(tmp_path, monkeypatch, capsys)


@pytest.fixture
def received_run(rove: Rove, tmp_path: Path) -> Path:
    """Write a run folder of another user that contains its environment, which writes the file `ran` when it is loaded."""
    write_environment(tmp_path / "received" / "code", "evil", EVIL.format(marker=str(tmp_path / "ran")))
    words = (
        "eval",
        "evil",
        "--env-dir",
        "received/code",
        "-m",
        "scripted:says",
        "--run-dir",
        "received/run",
        "-r",
        "1",
    )
    assert rove(*words).status == 0
    (tmp_path / "ran").unlink()
    for file in (tmp_path / "home" / "rove").iterdir():
        file.unlink()  # the next key is that of another user
    return tmp_path / "received" / "run"


@pytest.mark.parametrize(
    "words",
    [
        ("eval", "--resume", "received/run"),
        ("eval", "@", "received/run/config.toml", "-n", "1"),
        ("eval", "@received/run/config.toml"),
        ("rescore", "received/run"),
    ],
)
def test_code_that_a_received_run_names_needs_the_users_consent(
    rove: Rove, received_run: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = rove(*words)
    assert done.status == 2
    assert 'env_dir = "received/code"' in done.err
    assert "--yes" in done.err
    assert not (tmp_path / "ran").exists()
    agreed = rove(*words, "--yes")
    assert agreed.status == 0, agreed.err
    assert (tmp_path / "ran").exists()


def test_a_key_is_not_sent_to_an_address_of_a_received_run(rove: Rove, received_run: Path, tmp_path: Path) -> None:
    config = received_run / "config.toml"
    plain = config.read_text().split("[config]")[1].replace('env_dir = "received/code"', "")
    assert 'api_key_var = "OPENAI_API_KEY"' in plain
    plain = plain.replace("OPENAI_API_KEY", "GITHUB_TOKEN")
    config.write_text(f'base_url = "http://127.0.0.1:9/v1"\n{plain}')
    done = rove("eval", "@", str(config))
    assert done.status == 2
    assert 'base_url = "http://127.0.0.1:9/v1"' in done.err
    assert 'api_key_var = "GITHUB_TOKEN"' in done.err


def test_a_received_recipe_needs_the_users_consent(rove: Rove, received_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "training"
    folder.mkdir()
    (folder / "request.json").write_text("{}")
    (folder / "recipe.toml").write_text('env_dir = "received/code"\nrl = []\nevaluation = {}\ncolumns = []\n')
    done = rove("train", "evil", "--recipe", "training/recipe.toml", "--dry-run")
    assert done.status == 2
    assert 'env_dir = "received/code"' in done.err
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "suite",
    [
        '[[eval]]\nenv_dir = "received/code"\n',
        'env_dir = "received/code"\n[sweep]\nseed = [1]\n',
        '[sweep]\nenv_dir = ["received/code"]\n',
        '"env_dir=received/code#" = 0\n[[eval]]\n',
        '"env-dir" = "received/code"\n[[ablation]]\n',
        'trust_remote_code = "true"\n[[eval]]\n',
        "trust-remote-code = true\n[[eval]]\n",
    ],
)
def test_a_received_file_of_evaluations_needs_the_users_consent(
    rove: Rove, received_run: Path, tmp_path: Path, suite: str
) -> None:
    (received_run / "suite.toml").write_text(suite)
    done = rove("eval", "evil", "@", "received/run/suite.toml", "-m", "scripted:says")
    assert done.status == 2
    assert "suite.toml was not written by rove" in done.err
    assert not (tmp_path / "ran").exists()


RECIPE = "rl = []\nevaluation = {}\ncolumns = []\n"


@pytest.mark.parametrize("words", [("train", "evil", "--dry-run"), ("demo", "evil")])
@pytest.mark.parametrize(
    "table",
    [
        'env_dir = "received/code"\n',
        '[model]\nenv_dir = "received/code"\n',
        '[[conditions]]\nname = "x"\nenv_dir = "received/code"\n',
    ],
)
def test_every_table_of_a_received_recipe_counts(
    rove: Rove, received_run: Path, tmp_path: Path, words: tuple[str, ...], table: str
) -> None:
    (received_run / "changed.toml").write_text(RECIPE + table)
    done = rove(*words, "--recipe", "received/run/changed.toml")
    assert done.status == 2
    assert "changed.toml was not written by rove" in done.err
    assert not (tmp_path / "ran").exists()


def test_a_received_folder_of_rove_train_needs_no_file_that_marks_it(rove: Rove, tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "recipe.toml").write_text(f'env_dir = "received/code"\n{RECIPE}')
    done = rove("train", "tictactoe", "--run-dir", "training", "--dry-run")
    assert done.status == 2
    assert "recipe.toml was not written by rove" in done.err


def test_sft_evaluates_in_the_environment_of_received_data_only_without_texts_in_its_arguments(
    rove: Rove, received_run: Path, tmp_path: Path
) -> None:
    config = received_run / "config.toml"
    evaluation = SFTConfig(data=str(received_run), model="models/x")
    for args in ('{ command = "sh" }', '{ scorer = "os:system" }'):
        config.write_text(f'kind = "eval"\n[identity]\n[config]\nenv = "agent"\nenv_args = {args}\n')
        with pytest.raises(ConfigError, match="only on request"):
            evaluation_target(evaluation, Run(received_run))
    config.write_text('kind = "eval"\n[identity]\n[config]\nenv = "agent"\nenv_args = { size = 3 }\n')
    assert evaluation_target(evaluation, Run(received_run)).env_args == {"size": 3}


def test_own_runs_and_settings_files_are_used_without_a_question(rove: Rove, tmp_path: Path) -> None:
    write_environment(tmp_path / "code", "mine", EVIL.format(marker=str(tmp_path / "ran")))
    words = ("eval", "mine", "--env-dir", "code", "-m", "scripted:says", "-r", "1")
    assert rove(*words, "--run-dir", "own").status == 0
    assert rove("eval", "--resume", "own").status == 0
    assert rove("rescore", "own").status == 0
    (tmp_path / "settings.toml").write_text('env_dir = "code"\nmodel = "scripted:says"\n')
    assert rove("eval", "mine", "@", "settings.toml", "--run-dir", "other").status == 0
