"""The wheel with its core dependencies alone, in an empty folder and a virtual environment without other packages."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from rove.core.errors import CPU_TORCH

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]

NO_NETWORK = """
import os, sys

def refuse(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        os.write(2, f"network: {event} {args}\\n".encode())
        os._exit(99)

sys.addaudithook(refuse)
"""


class Machine(NamedTuple):
    """A virtual environment with the wheel, and an empty home folder."""

    bin: Path
    home: Path
    wheel: Path

    def run(self, *words: str, cwd: Path) -> tuple[subprocess.CompletedProcess[str], float]:
        """Run a program with only PATH and HOME set and without network; return the process and its CPU seconds."""
        env = {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(self.home), "PYTHONPATH": str(self.home / "hook")}
        start_usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([self.bin / words[0], *words[1:]], cwd=cwd, env=env, capture_output=True, text=True)
        end_usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return done, end_usage.ru_utime + end_usage.ru_stime - start_usage.ru_utime - start_usage.ru_stime


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    folder = tmp_path_factory.mktemp("machine")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    [wheel] = folder.glob("rove-*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    inside = [str(folder / "venv" / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([*inside, "install", str(wheel)], check=True, env=clean)
    (folder / "hook").mkdir()
    (folder / "hook" / "sitecustomize.py").write_text(NO_NETWORK)
    return Machine(folder / "venv" / "bin", folder, wheel)


def test_the_wheel_holds_the_examples_and_no_tests(machine: Machine):
    names = zipfile.ZipFile(machine.wheel).namelist()
    for env in ("tictactoe", "reverse_text", "double_check", "math_python", "lookup", "word_game", "needle"):
        assert f"rove/_environments/{env}/{env}.py" in names
    for env in ("sql_agent", "wiki_search"):
        assert f"rove/_environments/{env}/{env}/__init__.py" in names
    assert {
        "rove/_environments/tictactoe/demo.toml",
        "rove/_configs/tictactoe_lfm2.toml",
    } <= set(names)
    assert {f"rove/viewer/static/{name}" for name in ("index.html", "style.css", "main.js", "icon.svg")} <= set(names)
    templates = (
        "every/README.md",
        "every/checks.py",
        "tools/my_task.py",
        "mcp/my_task/server.py",
        "single_turn/pyproject.toml",
    )
    assert {f"rove/hub/package/templates/{name}" for name in templates} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if "test" in name or "__pycache__" in name]


def test_the_wheel_describes_itself_without_links_into_the_repository(machine: Machine):
    files = zipfile.ZipFile(machine.wheel)
    [metadata] = [name for name in files.namelist() if name.endswith("METADATA")]
    headers, _, description = files.read(metadata).decode().partition("\n\n")
    assert "rove/py.typed" in files.namelist()
    assert "Author: The rove authors" in headers
    assert "Classifier: Typing :: Typed" in headers
    assert "An environment in ten lines" in description
    assert re.findall(r"\]\((?!https?:|#)[^)]*\)", description) == []
    assert "<picture>" not in description


def test_the_guard_against_the_network_works(machine: Machine, tmp_path: Path):
    words = ("rove", "eval", "tictactoe", "-b", "http://127.0.0.1:9/v1", "-m", "x", "--max-retries", "0")
    assert machine.run(*words, cwd=tmp_path)[0].returncode == 99


def test_the_first_command_needs_no_setting_no_network_and_no_torch(machine: Machine, tmp_path: Path):
    done, _ = machine.run("rove", "eval", "tictactoe", "-m", "scripted:teacher", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "15 of 15 rollouts scored" in done.stdout
    assert done.stderr == ""
    installed = machine.run("python", "-m", "pip", "list", "--format", "json", cwd=tmp_path)[0].stdout
    packages = {package["name"].lower().replace("_", "-") for package in json.loads(installed)}
    assert packages >= {"rove", "aiohttp", "click", "msgspec", "rich", "tomli-w"}
    assert not packages & {"torch", "transformers", "tokenizers", "datasets", "numpy", "openai", "pydantic"}


def test_uvx_runs_the_first_command_without_an_installation(machine: Machine, tmp_path: Path):
    uvx = [str(Path(sys.executable).with_name("uv")), "tool", "run", "--from", str(machine.wheel)]
    words = ["rove", "eval", "tictactoe", "-m", "scripted:teacher", "-n", "4", "-r", "1"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*uvx, *words], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "4 of 4 rollouts scored" in done.stdout


def test_the_first_rollout_is_scored_within_two_cpu_seconds(machine: Machine, tmp_path: Path):
    words = ("rove", "eval", "tictactoe", "-m", "scripted:teacher", "-n", "1", "-r", "1", "--json")
    machine.run("rove", "--help", cwd=tmp_path)  # writes the bytecode, once
    done, seconds = machine.run(*words, cwd=tmp_path)
    assert json.loads(done.stdout)["scored"] == 1
    print(f"\nfrom the wheel, one whole command with one rollout: {seconds:.2f} CPU-seconds")
    assert seconds < 2.0


@pytest.mark.parametrize(
    ("env", "player"),
    [
        ("reverse-text", "oracle"),
        ("double_check", "oracle"),
        ("math-python", "solver"),
        ("word-game", "solver"),
        ("sql-agent", "solver"),
    ],
)
def test_the_wheel_contains_the_other_examples(machine: Machine, tmp_path: Path, env: str, player: str):
    words = ("rove", "eval", env, "-m", f"scripted:{player}", "-n", "2", "-r", "1", "--json")
    done, _ = machine.run(*words, cwd=tmp_path)
    assert json.loads(done.stdout)["scored"] == 2


def test_the_wheel_contains_the_recipes(machine: Machine, tmp_path: Path):
    words = ("rove", "demo", "tictactoe", "--recipe", "configs/tictactoe_lfm2.toml", "-m", "nothing")
    done, _ = machine.run(*words, cwd=tmp_path)
    assert "-m is 'nothing'; expected a model folder" in done.stderr


def test_an_example_that_needs_an_extra_names_the_package_to_install(machine: Machine, tmp_path: Path):
    done, _ = machine.run("rove", "eval", "wiki-search", "-m", "scripted:solver", cwd=tmp_path)
    assert done.returncode == 2
    assert "wiki_search needs bm25s; install it (pip install bm25s), or rove's extra: rove[wiki]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["rl", "tictactoe", "-m", "somewhere"],
        ["sft", "--data", "runs/x", "-m", "somewhere"],
        ["model", "new", "--env", "tictactoe"],
        ["eval", "tictactoe", "-m", "./somewhere"],
        ["demo", "tictactoe"],
        ["train", "tictactoe"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_commands_that_need_an_extra_name_the_package_to_install(machine: Machine, tmp_path: Path, words: list[str]):
    (tmp_path / "somewhere").mkdir()
    done, _ = machine.run("rove", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert "Install rove's train extra: pip install 'rove[train]'" in done.stderr
    assert CPU_TORCH in done.stderr
    assert "Traceback" not in done.stderr
