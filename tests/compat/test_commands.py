"""Test the commands of verifiers v0 that the shim distribution installs."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from rove.compat import commands

SHIM = Path(__file__).parents[2] / "shim" / "pyproject.toml"


@pytest.mark.parametrize(
    ("name", "arguments", "expected", "ignored"),
    [
        ("vf-eval", "wordle -m gpt -n 2 -r 3 -s", "eval wordle -m gpt -n 2 -r 3 --save", []),
        ("vf-eval", "wordle --model=gpt -v", "eval wordle -m gpt --no-save", ["--verbose"]),
        (
            "vf-eval",
            "wordle -s --max-concurrent-requests 4 --max-retries 2",
            "eval wordle -c 4 --max_retries 2 --save",
            [],
        ),
        ("vf-eval", "x --env-dir-path envs --save-every 5", "eval x --env-dir envs --no-save", ["--save-every"]),
        ("vf-init", "my-env --path work --multi-file", "init my-env --dir work", ["--multi-file"]),
        ("vf-install", "my-env", "install environments/my_env --into-current --yes", []),
        ("vf-install", "my-env -p work", "install work/my_env --into-current --yes", []),
        ("vf-vllm", "--model models/tiny --port 8000", "serve models/tiny --port 8000", []),
    ],
)
def test_arguments_are_translated(name: str, arguments: str, expected: str, ignored: list[str]) -> None:
    assert commands.translate(name, arguments.split()) == (expected.split(), ignored)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--save-to-hf-hub", "unrecognized arguments: --save-to-hf-hub"),
        ("-m", "argument -m/--model: expected one argument"),
    ],
)
def test_an_option_without_counterpart_is_refused(
    option: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        commands.run("vf-eval", ["wordle", option])
    assert message in capsys.readouterr().err


def test_vf_install_installs_only_folders(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Without the check, `rove install a/b` would look for an environment b of a user a on a hub."""
    assert commands.run("vf-install", ["my-env", "--path", str(tmp_path)]) == 2
    assert f"no folder {tmp_path / 'my_env'}; give the folder that contains it with --path" in capfd.readouterr().err


@pytest.mark.broad
def test_vf_init_creates_a_package(tmp_path: Path) -> None:
    assert commands.run("vf-init", ["my-env", "--path", str(tmp_path)]) == 0
    assert list(tmp_path.rglob("pyproject.toml"))


def test_the_shim_installs_every_command() -> None:
    project = tomllib.loads(SHIM.read_text(encoding="utf-8"))["project"]
    assert project["dependencies"] == ["rove[hub]"], "vf-install builds packages"
    scripts = project["scripts"]
    assert scripts.keys() == commands.COMMANDS.keys()
    for target in scripts.values():
        module, function = target.split(":")
        assert module == commands.__name__ and callable(getattr(commands, function))
