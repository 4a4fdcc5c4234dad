from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tiers import each_row

from rove.core.config import nested
from rove.core.settings_docs import settings_of
from rove.runs.provenance import (
    HARMLESS,
    HARMLESS_TABLES,
    HARMLESS_WORDS,
    is_in_run_folder,
    is_own,
    risky_settings,
    seal,
)
from rove.runs.run import Run
from rove.stages.evaluation import EvalConfig
from rove.stages.serving import ServeConfig
from rove.train.config import RLConfig, SFTConfig


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("XDG_DATA_HOME", str(folder))
    return folder


def test_a_run_that_rove_writes_is_own_wherever_it_is_moved(home: Path, tmp_path: Path) -> None:
    with Run(tmp_path / "run") as run:
        run.start("eval", {"env": "tictactoe"}, {})
    assert is_own(tmp_path / "run" / "config.toml")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert is_own(tmp_path / "copy" / "config.toml")
    assert (home / "rove" / "run_key").stat().st_mode & 0o777 == 0o600


def test_a_changed_copied_or_unsealed_file_is_foreign(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("env = 'mine'")
    assert not is_own(file)
    seal(file)
    assert is_own(file)
    file.write_text("env = 'other'")
    assert not is_own(file)
    seal(file)
    shutil.rmtree(home)  # the key of another user
    assert not is_own(file)


def test_without_a_folder_for_the_key_everything_is_foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_DATA_HOME", str(blocked))
    file = tmp_path / "config.toml"
    file.write_text("env = 'mine'")
    seal(file)
    assert not is_own(file)


def test_only_files_of_run_folders_need_an_owner(tmp_path: Path) -> None:
    mine, received = tmp_path / "mine", tmp_path / "received"
    for folder in (mine, received):
        folder.mkdir()
    (received / "rollouts.jsonl").write_text("")
    assert not is_in_run_folder(mine / "settings.toml")
    assert is_in_run_folder(received / "settings.toml")
    assert is_in_run_folder(mine / "config.toml")


@each_row(
    ("values", "risky"),
    [
        ({"env": "tictactoe", "model": "gpt-5-mini", "seed": 3, "temperature": 0.5}, []),
        ({"env": "tictactoe", "env_args": {"size": 3, "flags": [True, 1]}}, []),
        ({"env": "./tictactoe"}, ["env"]),
        ({"env": "tictactoe", "env_dir": "."}, ["env_dir"]),
        (
            {"env_args": {"command": ["sh", "-c", "id"]}},
            ["env_args.command.0", "env_args.command.1", "env_args.command.2"],
        ),
        ({"env_args": {"model": "theirs"}}, ["env_args.model"]),
        ({"env_args": {"columns": {"command": "id"}}}, ["env_args.columns.command"]),
        ({"base_url": "http://example.org", "api_key_var": "GITHUB_TOKEN"}, ["base_url", "api_key_var"]),
        ({"trust_remote_code": True}, ["trust_remote_code"]),
        ({"trust_remote_code": False}, []),
        ({"loss": {"kind": "cispo"}}, []),
        ({"loss": {"kind": "their.module:loss"}}, ["loss.kind"]),
        ({"vllm": {"command": "sh", "urls": ["http://example.org"]}}, ["vllm.command", "vllm.urls.0"]),
        ({"rl": [{"env_dir": "x"}], "columns": [{"title": "wins"}]}, ["rl.0.env_dir"]),
        ({"model": {"name": "smollm2-135m", "env_dir": "x"}}, ["model.env_dir"]),
        ({"conditions": [{"name": "x", "base_url": "http://example.org"}]}, ["conditions.0.base_url"]),
        ({"trust_remote_code": "true"}, ["trust_remote_code"]),
        ({"rl": [{"trust_remote_code": 1}]}, ["rl.0.trust_remote_code"]),
        ({"trust-remote-code": True}, ["trust-remote-code"]),
        ({"env_dir=folder": 0, "0": "x"}, ["env_dir=folder", "0"]),
        ({"env_dir=folder.columns": 0, "sweep": {"x.env_dir": ["y"]}}, ["env_dir=folder.columns", "sweep.x.env_dir.0"]),
        ({"adapters": {"model": "folder", "x.name": "folder"}}, ["adapters.model", "adapters.x.name"]),
        ({"sampling_args": {"stop": ["x"]}, "goals": {"checks": {"wins in one taken": 0.99}}}, []),
    ],
)
def test_settings_that_can_name_code_or_addresses_are_risky(values: dict[str, Any], risky: list[str]) -> None:
    assert list(risky_settings(values)) == risky


def test_defaults_are_harmless() -> None:
    assert risky_settings({"api_key_var": "OPENAI_API_KEY"}, EvalConfig) == {}


@pytest.mark.parametrize("kind", [EvalConfig, RLConfig, SFTConfig, ServeConfig])
def test_every_text_setting_is_risky_or_is_listed_as_harmless(kind: type[msgspec.Struct]) -> None:
    values = {"text": "evil", "list of texts": ["evil"], "table of texts": {"x": "evil"}, "table": {"x": "evil"}}
    settings = [setting for setting in settings_of(kind) if setting.type in values]
    assert len(settings) > 5
    for setting in settings:
        is_listed = setting.name.rpartition(".")[2] in {*HARMLESS, *HARMLESS_TABLES, *HARMLESS_WORDS}
        assert is_listed or risky_settings(nested(setting.name, values[setting.type]), kind), setting.name
