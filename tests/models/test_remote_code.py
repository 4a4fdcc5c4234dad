"""Python files of a model folder run only if the user allows it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rove.cli.main import cli
from rove.core.errors import ConfigError
from rove.models.from_scratch import new_model
from rove.models.load import load_model, remote_code

CODE = """
import os
from pathlib import Path
Path(os.environ["ROVE_MARKER"]).touch()
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


class HostileConfig(LlamaConfig):
    model_type = "hostile"


class HostileModel(LlamaForCausalLM):
    config_class = HostileConfig


class HostileTokenizer(PreTrainedTokenizerFast):
    pass
"""
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "model": (
        "config.json",
        {
            "model_type": "hostile",
            "auto_map": {"AutoConfig": "m.HostileConfig", "AutoModelForCausalLM": "m.HostileModel"},
        },
    ),
    "tokenizer": (
        "tokenizer_config.json",
        {"tokenizer_class": "HostileTokenizer", "auto_map": {"AutoTokenizer": [None, "m.HostileTokenizer"]}},
    ),
}


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the file that a hostile model writes; transformers copies trusted code next to it."""
    monkeypatch.setenv("ROVE_MARKER", str(tmp_path / "marker"))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path / "marker"


def hostile_model(folder: Path, kind: str) -> Path:
    """Save a model whose model or tokenizer class is defined by a Python file in its folder."""
    new_model(["one two three"], size="tiny").save(folder)
    (folder / "m.py").write_text(CODE)
    name, changes = KINDS[kind]
    config = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(config | changes))
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_code_of_a_folder_runs_only_when_it_is_trusted(tmp_path: Path, marker: Path, kind: str) -> None:
    folder = hostile_model(tmp_path / "model", kind)
    assert remote_code(folder) == ["m.py"]
    with pytest.raises(ConfigError, match=r"m\.py.*--trust-remote-code"):
        load_model(folder, "cpu")
    assert not marker.exists()
    loaded = load_model(folder, "cpu", trust_remote_code=True)
    assert marker.exists()
    assert type(getattr(loaded, kind)).__name__.startswith("Hostile")


def test_a_known_model_loads_without_its_code(tmp_path: Path, marker: Path) -> None:
    folder = tmp_path / "model"
    new_model(["one two three"], size="tiny").save(folder)
    (folder / "m.py").write_text(CODE)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModelForCausalLM": "m.HostileModel"}}))
    assert type(load_model(folder, "cpu").model).__name__ == "LlamaForCausalLM"
    assert not marker.exists()


def test_code_of_another_repository_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"auto_map": {"AutoConfig": "owner/repo--a.B", "AutoModel": 3}}')
    (tmp_path / "tokenizer_config.json").write_text('{"auto_map": ["sub.t.Slow", null]}')
    assert remote_code(tmp_path) == ["owner/repo: a.py", "sub.t.py"]


@pytest.mark.broad
def test_no_command_prompts_for_consent_to_run_code(
    tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command gets "y" on stdin, which transformers would take for consent."""
    monkeypatch.chdir(tmp_path)
    folder = str(hostile_model(tmp_path / "model", "model"))
    for arguments in (
        ["eval", "reverse_text", "-m", folder, "-n", "1"],
        ["play", "reverse_text", "-m", folder, "--watch"],
        ["serve", folder, "--port", "0"],
        ["doctor", "-m", folder],
        ["doctor", "reverse_text", "-m", folder, "--quick"],
        ["rl", "reverse_text", "-m", folder, "--steps", "1"],
    ):
        result = CliRunner(env={"COLUMNS": "500"}).invoke(cli, arguments, input="y\n" * 9)
        assert result.exit_code != 0, arguments
        output = " ".join([*result.output.split(), str(result.exception)])
        assert "m.py" in output and "--trust-remote-code" in output, (arguments, output)
        assert not marker.exists(), arguments


@pytest.mark.broad
def test_the_flag_and_the_setting_allow_remote_code(
    tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(hostile_model(tmp_path / "model", "model"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "eval.toml").write_text("trust_remote_code = true")
    for arguments in (["--trust-remote-code"], ["@", "eval.toml"]):
        command = ["eval", "reverse_text", "-m", folder, "-n", "1", "-r", "1", "-t", "4", "--no-save", *arguments]
        result = CliRunner().invoke(cli, command)
        assert result.exit_code == 0, result.output
    assert marker.exists()
