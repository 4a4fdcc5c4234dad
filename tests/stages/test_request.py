"""Requests of `rove train`: names of folders, and settings of the chat template."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from rove.core.errors import ConfigError
from rove.stages.reporter import SilentReporter
from rove.stages.request import REQUEST, TrainRequest, check_request
from rove.stages.train_model import prepare


def test_requests_that_differ_have_different_folders() -> None:
    plain = TrainRequest("x", "a")
    assert plain.folder_name(0) == TrainRequest("x", "a", env_dir="envs").folder_name(0) == "train-x-a-seed0"
    changes = [
        {"model": "m/a"},
        {"env_args": {"a": 1}},
        {"template_args": {"b": 1}},
        {"minutes": 5.0},
        {"teacher": "t"},
    ]
    names = {msgspec.structs.replace(plain, **change).folder_name(0) for change in changes}
    assert len(names) == len(changes)
    assert all(re.fullmatch("train-x-a-seed0-[0-9a-f]{6}", name) for name in names)


def test_a_folder_that_was_made_with_other_settings_of_the_template_is_refused(tmp_path: Path) -> None:
    plain = TrainRequest("tictactoe", "a")
    thinking = TrainRequest("tictactoe", "a", template_args={"enable_thinking": True})
    for made_for, request in ((plain, thinking), (thinking, plain)):
        (tmp_path / REQUEST).write_bytes(msgspec.json.encode({**made_for.values, "version": made_for.version}))
        check_request(made_for, tmp_path)
        with pytest.raises(ConfigError, match="was made with template_args"):
            check_request(request, tmp_path)


def test_a_new_model_has_a_template_of_its_own(tmp_path: Path) -> None:
    request = TrainRequest("tictactoe", chat_template="chatml")
    with pytest.raises(ConfigError, match="chat_template is set, but a new model has its own template"):
        prepare(request, None, tmp_path, 0, "auto", SilentReporter(), lambda path, values: None)
